"""IEEE 754 arithmetic in Python integers and fractions: what the floating-point instruction tests compare with.

Nothing here looks at the emulator's definitions. A number is its raw bits; `Binary` says how they are read and how an
exact value is rounded to them.
"""

import math
import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mxfp8fa.emulator.isa import registry, trace

MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Binary:
    """An IEEE 754 binary format with infinities, and the NaN that its instructions deliver."""

    exponent_bits: int
    mantissa_bits: int
    nan: int

    @property
    def bits(self):
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self):
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def inf(self):
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def sign_bit(self):
        return 1 << (self.bits - 1)

    @property
    def one(self):
        return self.bias << self.mantissa_bits

    @property
    def min_normal(self):
        return 1 << self.mantissa_bits

    def negative(self, x):
        return bool(x & self.sign_bit)

    def magnitude(self, x):
        return x & (self.sign_bit - 1)

    def is_nan(self, x):
        return self.magnitude(x) > self.inf

    def is_inf(self, x):
        return self.magnitude(x) == self.inf

    def value(self, x):
        """The exact value of a finite number."""
        exponent, mantissa = divmod(self.magnitude(x), 1 << self.mantissa_bits)
        if exponent:
            mantissa += 1 << self.mantissa_bits
        scale = max(exponent, 1) - self.bias - self.mantissa_bits
        value = mantissa * (Fraction(2) ** scale)
        return -value if self.negative(x) else value

    def stand_in(self, x):
        """A float with the same sign that is NaN, infinite or zero exactly if x is: for rules about specials."""
        size = math.nan if self.is_nan(x) else math.inf if self.is_inf(x) else float(self.magnitude(x) != 0)
        return -size if self.negative(x) else size

    def round(self, value, mode, negative=None):
        """The bits of an exact value, rounded once; `negative` gives the sign of a zero."""
        sign = value < 0 or (value == 0 and bool(negative))
        size = abs(value)
        away = {"rn": None, "rna": None, "rz": False, "rm": sign, "rp": not sign}[mode]
        exponent = 1 - self.bias
        if size:
            exponent = max(exponent, size.numerator.bit_length() - size.denominator.bit_length())
            if size < Fraction(2) ** exponent and exponent > 1 - self.bias:
                exponent -= 1
        units = size / Fraction(2) ** (exponent - self.mantissa_bits)
        whole, rest = divmod(units, 1)
        if away is None:
            up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and (mode == "rna" or whole % 2 == 1))
        else:
            up = away and rest > 0
        code = int(whole) + up + ((exponent + self.bias - 1) << self.mantissa_bits)
        if code >= self.inf:
            code = self.inf if away is None or away else self.inf - 1
        return code | (self.sign_bit if sign else 0)

    def flush(self, x):
        """x with a subnormal replaced by the zero of its sign."""
        return x & self.sign_bit if self.magnitude(x) < self.min_normal else x

    def round_flushed(self, value, mode, negative=None):
        """As round, but zero if the value, rounded as if exponents had no end, is below the smallest normal number."""
        endless = Binary(self.exponent_bits + 3, self.mantissa_bits, 0)
        size = endless.value(endless.magnitude(endless.round(value, mode, negative)))
        result = self.round(value, mode, negative)
        return result & self.sign_bit if size < self.value(self.min_normal) else result


F16 = Binary(5, 10, 0x7FFF)
BF16 = Binary(8, 7, 0x7FFF)
F32 = Binary(8, 23, 0x7FFFFFFF)
F64 = Binary(11, 52, 0xFFF8000000000000)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


def add(fmt, a, b, mode="rn", ftz=False):
    """The bits of a + b; None where the result is NaN; ftz flushes operands and results."""
    return fma(fmt, a, fmt.one, b, mode, ftz)


def mul(fmt, a, b, mode="rn", ftz=False):
    """The bits of a * b; None where the result is NaN."""
    if ftz:
        a, b = fmt.flush(a), fmt.flush(b)
    special = fmt.stand_in(a) * fmt.stand_in(b)
    if math.isnan(special):
        return None
    negative = fmt.negative(a) != fmt.negative(b)
    if math.isinf(special):
        return fmt.inf | (fmt.sign_bit if negative else 0)
    return (fmt.round_flushed if ftz else fmt.round)(fmt.value(a) * fmt.value(b), mode, negative)


def fma(fmt, a, b, c, mode="rn", ftz=False):
    """The bits of a * b + c, rounded once; None where the result is NaN."""
    if ftz:
        a, b, c = fmt.flush(a), fmt.flush(b), fmt.flush(c)
    product = fmt.stand_in(a) * fmt.stand_in(b)
    special = product + fmt.stand_in(c)
    if math.isnan(special):
        return None
    if math.isinf(special):
        return fmt.inf | (fmt.sign_bit if special < 0 else 0)
    exact = fmt.value(a) * fmt.value(b) + fmt.value(c)
    signs = (fmt.negative(a) != fmt.negative(b), fmt.negative(c))
    zero_sign = signs[0] if signs[0] == signs[1] else mode == "rm"
    return (fmt.round_flushed if ftz else fmt.round)(exact, mode, zero_sign)


def div(fmt, a, b, mode="rn", ftz=False):
    """The bits of a / b; None where the result is NaN."""
    if ftz:
        a, b = fmt.flush(a), fmt.flush(b)
    x, y = fmt.stand_in(a), fmt.stand_in(b)
    negative = fmt.negative(a) != fmt.negative(b)
    sign = fmt.sign_bit if negative else 0
    if math.isnan(x) or math.isnan(y) or (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return None
    if math.isinf(x) or y == 0:
        return fmt.inf | sign
    if math.isinf(y):
        return sign
    return (fmt.round_flushed if ftz else fmt.round)(fmt.value(a) / fmt.value(b), mode, negative)


def sqrt(fmt, a, mode="rn"):
    """The bits of sqrt(a); None where the result is NaN."""
    x = fmt.stand_in(a)
    if math.isnan(x) or x < 0:
        return None
    if x == 0 or math.isinf(x):
        return a
    # 2^200 times the root, truncated, with a sticky last bit: exact enough to round to 53 bits in any mode.
    scaled = fmt.value(a) * Fraction(2) ** (2 * (200 + 1100))
    root = math.isqrt(int(scaled))
    exact = root * root == scaled
    return fmt.round(Fraction(2 * root + (not exact), 2) / Fraction(2) ** (200 + 1100), mode)


def edges(fmt):
    """Both signs of zero, subnormals, the smallest and largest normal numbers, 1, powers of two, infinity, NaNs."""
    m, low, inf = fmt.mantissa_bits, fmt.min_normal, fmt.inf
    ulp_exponent = (fmt.bias - m) << m  # 2^-m, the last bit of 1
    positive = [0, 1, 2, 3, low >> 1, low - 1, low, low + 1, 2 * low, fmt.one - 1, fmt.one, fmt.one + 1, fmt.one + low]
    positive += [fmt.one + (low >> 1), ulp_exponent, ulp_exponent - low, ulp_exponent - low + 1, ulp_exponent - 2 * low]
    positive += [inf - low, inf - 2, inf - 1, inf, inf + 1, inf + (low >> 1), inf + (low >> 1) + 5, inf + low - 1]
    return positive + [x | fmt.sign_bit for x in positive]


def random_numbers(fmt, count, seed):
    """Random bits: a third of them over all exponents, a third near 1, a third with sparse mantissas (many ties)."""
    rng = random.Random(seed)
    found = []
    for i in range(count):
        x = rng.getrandbits(fmt.bits)
        if i % 3 == 1:
            exponent = min(max(fmt.bias + rng.randint(-30, 30), 0), 2 * fmt.bias)
            x = (x & (fmt.sign_bit | (fmt.min_normal - 1))) | (exponent << fmt.mantissa_bits)
        if i % 3 == 2:
            x &= ~rng.getrandbits(fmt.mantissa_bits) | ~((1 << fmt.mantissa_bits) - 1)
            x &= ~rng.getrandbits(fmt.mantissa_bits) | ~((1 << fmt.mantissa_bits) - 1)
        found.append(x)
    return found


def tuples(fmt, operands, count, seed, limit=700):
    """Columns of operands: combinations of edge values (at most `limit`, drawn at random), then random numbers."""
    rng = random.Random(seed)
    special = edges(fmt)
    everything = len(special) ** operands
    picks = range(everything) if everything <= limit else rng.sample(range(everything), limit)
    rows = [[special[(p // len(special) ** k) % len(special)] for k in range(operands)] for p in picks]
    rows += zip(*(random_numbers(fmt, count, seed + k) for k in range(operands)), strict=True)
    return [list(column) for column in zip(*rows, strict=True)]


def bulk(mnemonic, *columns):
    """A pure instruction on columns of raw bits of any length; a list of ints (or of bools)."""
    opcode, *qualifiers = mnemonic.split(".")
    found = registry.find(opcode, qualifiers, len(columns) + 1)
    assert found is not None, f"{mnemonic} with {len(columns)} inputs is not defined"
    definition, modifiers = found
    _, types, _ = trace.graph(definition, modifiers, len(columns))
    length = max(np.size(c) for c in columns)
    raw = [np.resize(np.asarray(c, dtype=raw_dtype(t)), length) for c, t in zip(columns, types, strict=True)]
    with np.errstate(all="ignore"):
        (result,) = trace.compiled(definition, modifiers, len(columns))(np.ones(length, bool), *raw)
    return result.tolist()


def raw_dtype(value_type):
    """The unsigned dtype of a value type's register."""
    from mxfp8fa.emulator import lanes

    return lanes.raw_dtype(value_type)


def agree(mnemonic, columns, expected):
    """Compare an instruction with expected(*row) on every row; name the first row that differs."""
    got = bulk(mnemonic, *columns)
    for row, result in zip(zip(*columns, strict=True), got, strict=True):
        want = expected(*row)
        assert result == want, f"{mnemonic} {[hex(x) for x in row]}: got {result:#x}, expected {want:#x}"

"""cvt to and from FP8, FP6, FP4, UE8M0, S2F6 and 16-bit pairs, and cvt.pack (PTX ISA 9.7.9)."""

import bisect
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import exact_floats as exact
import numpy as np
import pytest
from exact_floats import BF16, F16, F32, agree, bulk

EVERY_HALF = list(range(1 << 16))
EVERY_BYTE = list(range(1 << 8))
HALVES = {"f16x2": F16, "bf16x2": BF16}


@dataclass(frozen=True)
class Narrow:
    """A format of at most 8 bits, as the PTX ISA (5.2.3) and OCP MX describe it."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_code: int
    nan: int  # what NaN becomes: the canonical NaN, or the largest number where there is none
    nan_codes: frozenset = frozenset()
    inf: int = -1

    @property
    def bits(self):
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign_bit(self):
        return 1 << (self.bits - 1)

    @cached_property
    def magnitudes(self):
        """The values of codes 0 to max_code."""
        found = []
        for code in range(self.max_code + 1):
            exponent, mantissa = divmod(code, 1 << self.mantissa_bits)
            hidden = (1 << self.mantissa_bits) if exponent else 0
            found.append((mantissa + hidden) * Fraction(2) ** (max(exponent, 1) - self.bias - self.mantissa_bits))
        return found

    def encode(self, value, negative):
        """The nearest code, ties to the even one, the largest beyond the range."""
        size = min(abs(value), self.magnitudes[-1])
        above = bisect.bisect_left(self.magnitudes, size)
        below = max(above - 1, 0)
        distances = size - self.magnitudes[below], self.magnitudes[above] - size
        code = below if distances[0] < distances[1] or (distances[0] == distances[1] and below % 2 == 0) else above
        return code | (self.sign_bit if negative else 0)

    def value(self, code):
        """The value of a code; NaN and infinity as floats."""
        magnitude = code & (self.sign_bit - 1)
        if magnitude in self.nan_codes:
            return math.nan
        size = math.inf if magnitude == self.inf else self.magnitudes[magnitude]
        return -size if code & self.sign_bit else size


NARROW = {
    "e4m3": Narrow(4, 3, 7, 0x7E, 0x7F, frozenset([0x7F])),
    "e5m2": Narrow(5, 2, 15, 0x7B, 0x7F, frozenset([0x7D, 0x7E, 0x7F]), inf=0x7C),
    "e2m3": Narrow(2, 3, 1, 0x1F, 0x1F),
    "e3m2": Narrow(3, 2, 3, 0x1F, 0x1F),
    "e2m1": Narrow(2, 1, 1, 0x7, 0x7),
}


def test_the_formats_here():
    """Largest and smallest values, from the tables of OCP OFP8 and MX v1.0."""
    largest = {"e4m3": 448, "e5m2": 57344, "e2m3": 7.5, "e3m2": 28, "e2m1": 6}
    smallest = {"e4m3": 2**-9, "e5m2": 2**-16, "e2m3": 0.125, "e3m2": 0.0625, "e2m1": 0.5}
    assert {name: fmt.magnitudes[-1] for name, fmt in NARROW.items()} == largest
    assert {name: fmt.magnitudes[1] for name, fmt in NARROW.items()} == smallest


def narrowed(fmt, source, x, relu=False):
    """A number of a wide format as a narrow code: .rn.satfinite{.relu}."""
    if source.is_nan(x):
        return fmt.nan
    negative = source.negative(x)
    if relu and negative:
        return 0
    if source.is_inf(x):
        return fmt.max_code | (fmt.sign_bit if negative else 0)
    return fmt.encode(source.value(x), negative)


def packed(fmt, high, low):
    """Two codes in one word: 8 bits each, 4 bits each for e2m1."""
    return high << (4 if fmt.bits == 4 else 8) | low


def inputs(fmt, seed):
    """f32 bits: every code's value, every tie, their neighbours, both signs, and the edges of f32."""
    points = list(fmt.magnitudes) + [(a + b) / 2 for a, b in itertools.pairwise(fmt.magnitudes)]
    points += [fmt.magnitudes[-1] + (fmt.magnitudes[-1] - fmt.magnitudes[-2]) * Fraction(k, 2) for k in (1, 2, 3)]
    near = [F32.round(p, "rn") + d for p in points for d in (-1, 0, 1)]
    near = [x for x in near if x >= 0]
    return near + [x | F32.sign_bit for x in near] + exact.edges(F32) + exact.random_numbers(F32, 300, seed)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", NARROW)
def test_two_f32_to_narrow(name, relu):
    """a goes to the upper part, b to the lower one: the two operands run through the inputs in different orders."""
    fmt = NARROW[name]
    a = inputs(fmt, 1)
    b = a[7:] + a[:7]
    agree(f"cvt.rn.satfinite{relu}.{name}x2.f32", [a, b],
          lambda x, y: packed(fmt, narrowed(fmt, F32, x, bool(relu)), narrowed(fmt, F32, y, bool(relu))))  # fmt: skip


def nearest_codes(fmt, values):
    """`Narrow.encode` for a float64 array of 16-bit numbers; their distances to codes they lie near are exact."""
    magnitudes = np.array([float(m) for m in fmt.magnitudes])
    size = np.minimum(np.abs(np.nan_to_num(values)), magnitudes[-1])
    above = np.searchsorted(magnitudes, size)
    below = np.maximum(above - 1, 0)
    down, up = size - magnitudes[below], magnitudes[above] - size
    codes = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    codes = np.where(np.signbit(values), codes | fmt.sign_bit, codes)
    return np.where(np.isnan(values), fmt.nan, codes)


@pytest.mark.parametrize("source", HALVES)
@pytest.mark.parametrize("name", NARROW)
def test_every_half_to_narrow(name, source):
    """All 2^16 codes in the lower half, in another order in the upper half; order is kept."""
    fmt = NARROW[name]
    codes = np.arange(1 << 16, dtype=np.uint16)
    narrow = codes.view(np.float16) if source == "f16x2" else (codes.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        values = narrow.astype(np.float64)
    want = nearest_codes(fmt, values)
    upper = np.roll(codes, 12345)
    words = upper.astype(np.uint32) << 16 | codes
    assert bulk(f"cvt.rn.satfinite.{name}x2.{source}", words) == packed(fmt, want[upper], want).tolist()
    want = np.where(np.signbit(values) & ~np.isnan(values), 0, want)
    assert bulk(f"cvt.rn.satfinite.relu.{name}x2.{source}", words) == packed(fmt, want[upper], want).tolist()


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_ml_dtypes_agrees_within_range(name):
    """ml_dtypes does not saturate; within range (and for NaN of FP8) it must give the same codes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    fmt = NARROW[name]
    dtype = getattr(ml_dtypes, f"float{fmt.bits}_{name}" + ("" if name == "e5m2" else "fn"))
    x = np.array(inputs(fmt, 2), np.uint32).view(np.float32)
    x = x[np.abs(x) <= float(fmt.magnitudes[-1])]
    want = x.astype(dtype).view(np.uint8)
    got = bulk(f"cvt.rn.satfinite.{name}x2.f32", np.zeros(x.size, np.uint32), x.view(np.uint32))
    assert got == want.tolist()


def test_the_numerics_agree():
    """mxfp8fa.numerics finds codes by comparing exact distances; the instruction must find the same ones."""
    from mxfp8fa.numerics import encode_scalar

    for name, fmt in NARROW.items():
        x = inputs(fmt, 3)[::3]
        floats = np.array(x, np.uint32).view(np.float32).tolist()
        assert bulk(f"cvt.rn.satfinite.{name}x2.f32", [0] * len(x), x) == [encode_scalar(v, name) for v in floats]


# -- narrow to 16 bits ------------------------------------------------------------------------------------------------


def widened(fmt, code, wide, relu=False, scale=Fraction(1), satfinite=False):
    """A narrow code times a scale in a 16-bit format, rounded once; None as scale stands for NaN."""
    value = fmt.value(code)
    if scale is None or value != value:
        return wide.nan
    negative = bool(code & fmt.sign_bit)
    if relu and negative:
        return 0
    result = wide.inf if abs(value) == math.inf else wide.magnitude(wide.round(abs(value) * scale, "rn"))
    if satfinite and result == wide.inf:
        result -= 1
    return result | (wide.sign_bit if negative else 0)


def words_of(fmt, high, low):
    return [packed(fmt, h, x) for h, x in zip(high, low, strict=True)]


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("to", HALVES)
@pytest.mark.parametrize("name", NARROW)
def test_every_code_to_16_bits(name, to, relu):
    """All codes in both places, order kept; NaN is 0x7FFF, infinities stay."""
    fmt, wide = NARROW[name], HALVES[to]
    low = list(range(1 << fmt.bits))
    high = low[5:] + low[:5]
    upper, lower = ([widened(fmt, c, wide, bool(relu)) for c in codes] for codes in (high, low))
    want = [x << 16 | y for x, y in zip(upper, lower, strict=True)]
    assert bulk(f"cvt.rn{relu}.{to}.{name}x2", words_of(fmt, high, low)) == want


def test_fp6_padding_is_ignored():
    assert bulk("cvt.rn.f16x2.e2m3x2", [0xC8C8]) == bulk("cvt.rn.f16x2.e2m3x2", [0x0808]) == [0x3C003C00]


def scale_of(code):
    return None if code == 0xFF else Fraction(2) ** (code - 127)


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("name", NARROW)
def test_scaled_to_bf16(name, satfinite):
    """The upper scale factor belongs to the upper element; overflow, subnormal results, NaN factors included."""
    fmt = NARROW[name]
    codes = [c for c in range(1 << fmt.bits) for _ in range(13)]
    scales = list(itertools.islice(itertools.cycle([0, 1, 2, 3, 5, 64, 126, 127, 128, 131, 250, 254, 255]), len(codes)))
    other_codes, other_scales = codes[::-1], scales[4:] + scales[:4]


    def want(code, scale):
        return widened(fmt, code, BF16, False, scale_of(scale), bool(satfinite))

    rows = list(zip(other_codes, other_scales, codes, scales, strict=True))
    factors = [s << 8 | t for s, t in zip(other_scales, scales, strict=True)]
    got = bulk(f"cvt.rn{satfinite}.scaled::n2::ue8m0.bf16x2.{name}x2", words_of(fmt, other_codes, codes), factors)
    assert got == [want(h, s) << 16 | want(x, t) for h, s, x, t in rows]


# -- f16x2, bf16x2 from f32 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modifiers", ["", ".relu", ".satfinite", ".relu.satfinite"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_two_f32_to_16_bits(to, mode, modifiers):
    """The scalar conversion (tested on its own), a in the upper half."""
    a = exact.edges(F32) + exact.random_numbers(F32, 500, 4)
    b = a[11:] + a[:11]
    scalar = f"cvt.{mode}{modifiers}.{to}.f32"
    want = [x << 16 | y for x, y in zip(bulk(scalar, a), bulk(scalar, b), strict=True)]
    assert bulk(f"cvt.{mode}{modifiers}.{to}x2.f32", a, b) == want


def stochastic(fmt, x, random, count, relu, satfinite):
    """PTX ISA, .rs: away from zero when the discarded bits plus the random bits carry, else toward zero."""
    if F32.is_nan(x):
        return fmt.nan
    if F32.is_inf(x):
        result = fmt.inf
    else:
        # In units of the last kept bit, random / 2^count is added before cutting off.
        size = abs(F32.value(x))
        down = fmt.round(size, "rz")
        step = fmt.value(down + 1) - fmt.value(down) if down + 1 < fmt.inf else fmt.value(down) - fmt.value(down - 1)
        result = down
        if size >= fmt.value(fmt.inf - 1) + step:
            result = fmt.inf
        elif (size - fmt.value(down)) / step + Fraction(random, 1 << count) >= 1:
            result = down + 1
    if satfinite and result == fmt.inf:
        result -= 1
    if F32.negative(x):
        return 0 if relu else result | fmt.sign_bit
    return result


@pytest.mark.parametrize("modifiers", ["", ".relu", ".satfinite", ".relu.satfinite"])
@pytest.mark.parametrize(("to", "count"), [("f16", 13), ("bf16", 16)])
def test_stochastic_rounding_to_16_bits(to, count, modifiers):
    """rbits: the upper half for a, the lower one for b, of which f16 takes the low 13 bits."""
    fmt = {"f16": F16, "bf16": BF16}[to]
    finite = [F32.round(fmt.value(c), "rn") for c in exact.edges(fmt) if fmt.magnitude(c) < fmt.inf]
    near = [x + d for x in finite for d in (0, 1, 3, 0x1000)]
    a = near + exact.random_numbers(F32, 900, 5)
    b = a[13:] + a[:13]
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 1 << 32, len(a)).tolist()
    bits[:10] = [0, 0xFFFFFFFF, 0x1FFF1FFF, 0xE000E000, 1, 1 << 16, 0xFFFF, 0xFFFF0000, 0x10001000, 0x0FFF0FFF]

    def element(x, random):
        return stochastic(fmt, x, random & ((1 << count) - 1), count, "relu" in modifiers, "satfinite" in modifiers)

    agree(f"cvt.rs{modifiers}.{to}x2.f32", [a, b, bits], lambda x, y, r: element(x, r >> 16) << 16 | element(y, r))


def test_stochastic_rounding_is_unbiased():
    """1 + k / 2^13 ulp rounds up for exactly k of the 2^13 random values."""
    for k in (1, 1000, 4096, 8191):
        got = bulk("cvt.rs.f16x2.f32", [0], [0x3F800000 + k], list(range(1 << 13)))
        assert (got.count(0x3C01), got.count(0x3C00)) == (k, (1 << 13) - k)


def test_stochastic_rounding_far_below_the_smallest_subnormal():
    """With random bits all ones, 8191/8192 of the smallest f16, 2^-37 just carries; less does not, however small."""
    limit = F32.round(Fraction(1, 2**37), "rn")
    tiny = [limit, limit - 1, F32.round(Fraction(1, 2**38), "rn"), F32.round(Fraction(1, 2**60), "rn"), 0x00800000, 1, 0]
    assert bulk("cvt.rs.f16x2.f32", [0], tiny, [0x1FFF]) == [1, 0, 0, 0, 0, 0, 0]


# -- UE8M0 ------------------------------------------------------------------------------------------------------------


POWERS = [2.0 ** (code - 127) for code in range(0xFF)]


def power_of_two(source, x, mode, satfinite):
    """The UE8M0 code next to |x|: the largest power of two not above it, or the smallest not below it."""
    if source.is_nan(x):
        return 0xFF
    over = 0xFE if satfinite else 0xFF
    if source.is_inf(x):
        return over
    size = float(abs(source.value(x)))  # exact
    if mode == "rz":
        return max(bisect.bisect_right(POWERS, size) - 1, 0)
    code = bisect.bisect_left(POWERS, size)
    return over if code > 0xFE else code


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_f32_to_ue8m0(mode, satfinite):
    """Zero and all below 2^-127 is code 0; the sign is ignored."""
    near = [F32.round(Fraction(2) ** e, "rn") + d for e in (-149, -128, -127, -126, -1, 0, 1, 126, 127) for d in (0, 1)]
    near += [F32.round(Fraction(2) ** e, "rn") - 1 for e in (-127, -126, 0, 127)]
    a = near + [x | F32.sign_bit for x in near] + exact.edges(F32) + exact.random_numbers(F32, 300, 7)
    b = a[3:] + a[:3]
    agree(f"cvt.{mode}{satfinite}.ue8m0x2.f32", [a, b],
          lambda x, y: power_of_two(F32, x, mode, satfinite) << 8 | power_of_two(F32, y, mode, satfinite))  # fmt: skip


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_every_bf16_to_ue8m0(mode, satfinite):
    want = [power_of_two(BF16, x, mode, satfinite) for x in EVERY_HALF]
    words = [x << 16 | (x ^ 0x5A5A) for x in EVERY_HALF]
    assert bulk(f"cvt.{mode}{satfinite}.ue8m0x2.bf16x2", words) == [want[x] << 8 | want[x ^ 0x5A5A] for x in EVERY_HALF]


def test_ue8m0_vectors_of_the_reference():
    """1.5 rounds to 2 or 1, 0 to 2^-127, infinity saturates."""
    one_and_half, inf = 0x3FC00000, 0x7F800000
    assert bulk("cvt.rp.ue8m0x2.f32", [one_and_half], [0]) == [0x8000]
    assert bulk("cvt.rz.ue8m0x2.f32", [one_and_half], [inf]) == [0x7FFF]
    assert bulk("cvt.rp.satfinite.ue8m0x2.f32", [inf], [0x7F7FFFFF]) == [0xFEFE]
    assert bulk("cvt.rp.ue8m0x2.f32", [0x00400000], [0x00400001]) == [0x0001]


def test_every_ue8m0_to_bf16():
    def want(code):
        return 0x7FFF if code == 0xFF else BF16.round(Fraction(2) ** (code - 127), "rn")

    words = [c << 8 | 255 - c for c in EVERY_BYTE]
    assert bulk("cvt.rn.bf16x2.ue8m0x2", words) == [want(c) << 16 | want(255 - c) for c in EVERY_BYTE]
    assert (want(0), want(127)) == (0x0040, 0x3F80)


# -- S2F6 -------------------------------------------------------------------------------------------------------------


def fixed_point(source, x, relu, scale=Fraction(1)):
    """An 8-bit integer in units of 2^-6, to nearest even, clamped; NaN gives the largest."""
    if source.is_nan(x) or scale is None:
        return 0x7F
    low = 0 if relu else -128
    units = (low if source.negative(x) else 127) if source.is_inf(x) else round(source.value(x) / scale * 64)
    return min(max(units, low), 127) & 0xFF


@pytest.mark.parametrize("relu", ["", ".relu"])
def test_to_s2f6(relu):
    near = [F32.round(Fraction(abs(k), 128), "rn") + d | (F32.sign_bit if k < 0 else 0)
            for k in range(-270, 271) for d in (0, 1)]  # fmt: skip
    a = near + exact.edges(F32) + exact.random_numbers(F32, 200, 8)
    b = a[9:] + a[:9]
    scales = list(itertools.islice(itertools.cycle([0x7F7F, 0x807E, 0x7C82, 0x00FE, 0xFF7F]), len(a)))
    agree(f"cvt.rn.satfinite{relu}.s2f6x2.f32", [a, b],
          lambda x, y: fixed_point(F32, x, relu) << 8 | fixed_point(F32, y, relu))  # fmt: skip
    agree(f"cvt.rn.satfinite{relu}.scaled::n2::ue8m0.s2f6x2.f32", [a, b, scales],
          lambda x, y, s: fixed_point(F32, x, relu, scale_of(s >> 8)) << 8
          | fixed_point(F32, y, relu, scale_of(s & 255)))  # fmt: skip
    words = [x << 16 | (x ^ 0x8181) for x in EVERY_HALF[::13]]
    agree(f"cvt.rn.satfinite{relu}.s2f6x2.bf16x2", [words],
          lambda w: fixed_point(BF16, w >> 16, relu) << 8 | fixed_point(BF16, w & 0xFFFF, relu))  # fmt: skip
    agree(f"cvt.rn.satfinite{relu}.scaled::n2::ue8m0.s2f6x2.bf16x2", [words, [0x7E81] * len(words)],
          lambda w, s: fixed_point(BF16, w >> 16, relu, Fraction(1, 2)) << 8
          | fixed_point(BF16, w & 0xFFFF, relu, Fraction(4)))  # fmt: skip


def test_every_s2f6_to_bf16():
    def want(code, scale=Fraction(1), relu=False):
        units = code - 256 if code > 127 else code
        return 0 if relu and units < 0 else BF16.round(Fraction(units, 64) * scale, "rn")

    words = [c << 8 | (c * 7) & 255 for c in EVERY_BYTE]
    assert bulk("cvt.rn.bf16x2.s2f6x2", words) == [want(w >> 8) << 16 | want(w & 255) for w in words]
    assert bulk("cvt.rn.relu.bf16x2.s2f6x2", words) == [
        want(w >> 8, relu=True) << 16 | want(w & 255, relu=True) for w in words
    ]
    scaled = bulk("cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2", words, [0x8270] * 256)
    assert scaled == [want(w >> 8, Fraction(8)) << 16 | want(w & 255, Fraction(1, 2**15)) for w in words]
    assert bulk("cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2", [0x0101], [0xFF00]) == [0x7FFF << 16 | 0x0001]


# -- cvt.pack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_cvt_pack(t):
    """a clamped above b clamped; types below 16 bits shift the old contents up from below."""
    bits = int(t[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if t[0] == "s" else (0, (1 << bits) - 1)
    rng = np.random.default_rng(bits)
    edge = [low - 1, low, low + 1, -1, 0, 1, high - 1, high, high + 1, -(1 << 31), (1 << 31) - 1]
    pairs = [*itertools.product(edge, edge), *rng.integers(-(1 << bits), 1 << bits, (200, 2)).tolist()]
    a, b = ([x & 0xFFFFFFFF for x in column] for column in zip(*pairs, strict=True))
    c = [int(x) for x in rng.integers(0, 1 << 32, len(a))]

    def field(x):
        x = x - (1 << 32) if x >> 31 else x
        return min(max(x, low), high) & ((1 << bits) - 1)

    if bits == 16:
        agree(f"cvt.pack.sat.{t}.s32", [a, b], lambda x, y: field(x) << 16 | field(y))
    else:
        agree(f"cvt.pack.sat.{t}.s32.b32", [a, b, c],
              lambda x, y, z: (z << 2 * bits | field(x) << bits | field(y)) & 0xFFFFFFFF)  # fmt: skip


def test_cvt_pack_builds_four_bytes():
    """The PTX ISA's example: two instructions pack four numbers, the first pair ends up on top."""
    first = bulk("cvt.pack.sat.u8.s32.b32", [300], [2], [0])
    assert bulk("cvt.pack.sat.u8.s32.b32", [0xFFFFFFFF], [4], first) == [0xFF020004]

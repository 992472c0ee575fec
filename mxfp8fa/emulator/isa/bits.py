"""Counting, finding, moving and permuting bits and bytes: PTX ISA section 9.7.1 from popc to szext, clmad, and prmt."""

from __future__ import annotations

from collections.abc import Callable

from mxfp8fa.emulator.isa.logic import shift_left, shift_right
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.values import BITS, Value, const, is_signed, popc, select

FIELD = ("u32", "s32", "u64", "s64")
NONE_FOUND = 0xFFFFFFFF  # PTX ISA, bfind and fns: the result when there is no such bit


def leading_zeros(a: Value) -> Value:
    """Number of zeros above the highest one of an unsigned value, as u32; the width if it is zero."""
    width = BITS[a.type]
    step = 1
    while step < width:
        a = a | (a >> step)
        step *= 2
    return popc(~a).to("u32")


def low_mask(n: Value, t: str) -> Value:
    """Unsigned type t with its lowest n bits set (n: any u32)."""
    return ~shift_left(~const(0, t), n)


def reverse(a: Value) -> Value:
    """An unsigned value with its bits in reverse order, by swapping ever smaller neighbours."""
    width = BITS[a.type]
    step = width // 2
    while step:
        lower = sum(((1 << step) - 1) << start for start in range(0, width, 2 * step))
        a = ((a >> step) & lower) | ((a & lower) << step)
        step //= 2
    return a


@pure("popc.type d:u32, a", type=("b32", "b64"), section="9.7.1 popc")
def population_count(a: Value, *, type: str) -> Value:
    """d = the number of one bits of a."""
    return popc(a).to("u32")


@pure("clz.type d:u32, a", type=("b32", "b64"), section="9.7.1 clz")
def clz(a: Value, *, type: str) -> Value:
    """d = the number of zero bits above the highest one of a; the width if a is 0."""
    return leading_zeros(a)


@pure("bfind{.shiftamt}.type d:u32, a", type=FIELD, section="9.7.1 bfind")
def bfind(a: Value, *, type: str, shiftamt: bool = False) -> Value:
    """d = the position of the highest bit of a that is not sign, or 0xFFFFFFFF; .shiftamt: counted from the top."""
    width = BITS[a.type]
    if is_signed(a.type):
        a = (a ^ (a >> (width - 1))).bits(f"u{width}")
    zeros = leading_zeros(a)
    if shiftamt:
        return select(zeros.eq(width), const(NONE_FOUND, "u32"), zeros)
    return const(width - 1, "u32") - zeros  # no bit: zeros is the width, and the difference wraps to 0xFFFFFFFF


@pure("fns.b32 d, a, b:u32, c:s32", section="9.7.1 fns",
      not_modelled="a base b above 31 is undefined: its lowest 5 bits count here")  # fmt: skip
def fns(a: Value, b: Value, c: Value) -> Value:
    """d = the position of the c-th one bit of a, counted from bit b on, or 0xFFFFFFFF.

    Upward for c > 0, downward for c < 0, bit b itself included in both; c = 0 looks at bit b alone.
    """
    down, base = c < 0, b & 31
    word = select(down, reverse(a), a)
    base = select(down, const(31, "u32") - base, base)
    window = select(c.eq(0), const(1, "u32"), const(0xFFFFFFFF, "u32"))  # c = 0: bit b only
    word = word & (window << base)
    rank = select(down, -c, select(c.eq(0), const(1, "s32"), c)).bits("u32")
    missing = popc(word) < rank
    position = const(0, "u32")
    for step in (16, 8, 4, 2, 1):  # binary search: skip the lower half when it holds fewer than `rank` ones
        ones = popc((word >> position) & ((1 << step) - 1))
        skip = ones < rank
        rank = select(skip, rank - ones, rank)
        position = select(skip, position + step, position)
    position = select(down, const(31, "u32") - position, position)
    return select(missing, const(NONE_FOUND, "u32"), position)


@pure("brev.type d, a", type=("b32", "b64"), section="9.7.1 brev", moves=("a",))
def brev(a: Value, *, type: str) -> Value:
    """d = a with its bits in reverse order."""
    return reverse(a)


@pure("bfe.type d, a, b:u32, c:u32", type=FIELD, section="9.7.1 bfe", moves=("a",))
def bfe(a: Value, b: Value, c: Value, *, type: str) -> Value:
    """d = the field of a that starts at bit b mod 256 and is c mod 256 bits long, extended by zeros or by its sign.

    For signed types bits beyond the top of a read as its top bit; a field of length 0 is 0.
    """
    width = BITS[a.type]
    position, length = b & 0xFF, c & 0xFF
    field = shift_right(a, position)
    if not is_signed(a.type):
        return field & low_mask(length, a.type)
    unused = select(length < width, const(width, "u32") - length, 0)  # bits above the field; all if its length is 0
    return shift_right(shift_left(field, unused), unused)


@pure("bfi.type d, a, b, c:u32, e:u32", type=("b32", "b64"), section="9.7.1 bfi", moves=("a", "b"))
def bfi(a: Value, b: Value, c: Value, e: Value, *, type: str) -> Value:
    """d = b with the e mod 256 bits from bit c mod 256 on replaced by the lowest bits of a."""
    position, length = c & 0xFF, e & 0xFF
    mask = shift_left(low_mask(length, a.type), position)
    return (b & ~mask) | (shift_left(a, position) & mask)


@pure("bmsk.mode.b32 d, a:u32, b:u32", mode=("clamp", "wrap"), section="9.7.1 bmsk")
def bmsk(a: Value, b: Value, *, mode: str) -> Value:
    """d = b ones starting at bit a; a and b at most 32 (clamp) or modulo 32 (wrap)."""
    if mode == "wrap":
        a, b = a & 31, b & 31
    return shift_left(low_mask(b, "u32"), a)


@pure("szext.mode.type d, a, b:u32", mode=("clamp", "wrap"), type=("u32", "s32"), section="9.7.1 szext", moves=("a",))
def szext(a: Value, b: Value, *, mode: str, type: str) -> Value:
    """d = the lowest b bits of a extended by zeros (u32) or by their sign (s32).

    b counts up to 32 (clamp) or modulo 32 (wrap).
    """
    n = b & 31 if mode == "wrap" else b
    if not is_signed(a.type):
        return a & low_mask(n, "u32")
    unused = select(n < 32, const(32, "u32") - n, 0)
    return shift_right(shift_left(a, unused), unused)


@pure("clmad.mode.type d:u64, a:u64, b:u64, c:u64", mode=("lo", "hi"), type=("u64", "s64"),
      section="9.7.1 clmad (PTX 9.x)", confidence="inferred")  # fmt: skip
def clmad(a: Value, b: Value, c: Value, *, mode: str, type: str) -> Value:
    """d = the lower or upper half of the carry-less product of a and b, xor c; the sign has no meaning."""
    for i in range(64):
        row = -((b >> i) & 1)  # all ones where bit i of b is set
        if mode == "lo":
            c = c ^ (row & (a << i))
        elif i:
            c = c ^ (row & (a >> (64 - i)))
    return c


def _byte(pair: Value, index: Value) -> Value:
    """Byte `index` (u32, 0..7) of a u64, as u8."""
    return (pair >> (index << 3).to("u64")).to("u8")


# PTX ISA, prmt, the table of modes: which of the 8 bytes of b:a goes to byte i of d, for the selector s = c mod 4.
_PERMUTE: dict[str, Callable[[int, Value], Value]] = {
    "f4e": lambda i, s: s + i,
    "b4e": lambda i, s: (s - i) & 7,
    "rc8": lambda i, s: s,
    "ecl": lambda i, s: select(s > i, s, i),
    "ecr": lambda i, s: select(s < i, s, i),
    "rc16": lambda i, s: ((s & 1) << 1) + (i & 1),
}


@pure("prmt.b32 d, a, b, c:u32", section="9.7.9 prmt", moves=("a", "b"))
def prmt(a: Value, b: Value, c: Value) -> Value:
    """d = four bytes of b:a; bits 4i+2:4i of c select the source of byte i, bit 4i+3 replicates its sign bit."""
    pair = (b.to("u64") << 32) | a.to("u64")
    d = const(0, "u32")
    for i in range(4):
        selector = c >> (4 * i)
        byte = _byte(pair, selector & 7)
        sign = (byte.bits("s8") >> 7).bits("u8")
        d = d | (select((selector & 8).ne(0), sign, byte).to("u32") << (8 * i))
    return d


@pure("prmt.b32.mode d, a, b, c:u32", mode=tuple(_PERMUTE), section="9.7.9 prmt", moves=("a", "b"))
def prmt_mode(a: Value, b: Value, c: Value, *, mode: str) -> Value:
    """d = bytes of b:a chosen by c mod 4: a row (f4e, b4e), replicated (rc8, rc16), edge-clamped (ecl, ecr)."""
    pair = (b.to("u64") << 32) | a.to("u64")
    d = const(0, "u32")
    for i in range(4):
        d = d | (_byte(pair, _PERMUTE[mode](i, c & 3)).to("u32") << (8 * i))
    return d

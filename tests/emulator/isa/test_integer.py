"""Integer arithmetic against Python's unbounded integers."""

import itertools

import pytest
from scalar_lanes import check, number, rows_of, run, signed

INTEGER = ["u16", "s16", "u32", "s32", "u64", "s64"]
SIGNED = ["s16", "s32", "s64"]


def width(t):
    return int(t[1:])


def wrap(x, t):
    return x & ((1 << width(t)) - 1)


def clamp_s32(x):
    return max(-(2**31), min(2**31 - 1, x)) & 0xFFFFFFFF


def halves_of(x, t):
    return number(x & 0xFFFF, t), number(x >> 16, t)


def pack(low, high):
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


@pytest.mark.parametrize("t", INTEGER)
def test_add_sub_mul_mad_wrap(t):
    n = width(t)
    pairs = rows_of([n, n], 100, seed=1)
    check(f"add.{t}", pairs, lambda a, b: wrap(a + b, t))
    check(f"sub.{t}", pairs, lambda a, b: wrap(a - b, t))
    check(f"mul.lo.{t}", pairs, lambda a, b: wrap(number(a, t) * number(b, t), t))
    check(f"mul.hi.{t}", pairs, lambda a, b: wrap((number(a, t) * number(b, t)) >> n, t))
    triples = rows_of([n, n, n], 100, seed=2)
    check(f"mad.lo.{t}", triples, lambda a, b, c: wrap(a * b + c, t))
    check(f"mad.hi.{t}", triples, lambda a, b, c: wrap(((number(a, t) * number(b, t)) >> n) + c, t))


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32"])
def test_wide_products(t):
    n = width(t)
    wide = f"{t[0]}{2 * n}"
    check(f"mul.wide.{t}", rows_of([n, n], 100, seed=3), lambda a, b: wrap(number(a, t) * number(b, t), wide))
    rows = rows_of([n, n, 2 * n], 100, seed=4)
    check(f"mad.wide.{t}", rows, lambda a, b, c: wrap(number(a, t) * number(b, t) + c, wide))


def test_saturation():
    pairs = rows_of([32, 32], 200, seed=5)
    check("add.sat.s32", pairs, lambda a, b: clamp_s32(signed(a, 32) + signed(b, 32)))
    check("sub.sat.s32", pairs, lambda a, b: clamp_s32(signed(a, 32) - signed(b, 32)))
    triples = rows_of([32, 32, 32], 200, seed=6)
    check("mad.hi.sat.s32", triples, lambda a, b, c: clamp_s32((signed(a, 32) * signed(b, 32) >> 32) + signed(c, 32)))


def low_24(x, t):
    return signed(x & 0xFFFFFF, 24) if t == "s32" else x & 0xFFFFFF


@pytest.mark.parametrize("t", ["u32", "s32"])
def test_24_bit_products(t):
    ends = (0x7FFFFF, 0x800000, 0xFFFFFF, 0x1000000, 0xFF800000)
    extra = [(x, y) for x in ends for y in (1, 0x7FFFFF, 0x800000, 0xABFFFFFF)]
    pairs = rows_of([32, 32], 200, seed=7) + extra
    check(f"mul24.lo.{t}", pairs, lambda a, b: low_24(a, t) * low_24(b, t) & 0xFFFFFFFF)
    check(f"mul24.hi.{t}", pairs, lambda a, b: low_24(a, t) * low_24(b, t) >> 16 & 0xFFFFFFFF)
    triples = [(a, b, c) for a, b in extra for c in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)]
    check(f"mad24.lo.{t}", triples, lambda a, b, c: (low_24(a, t) * low_24(b, t) + c) & 0xFFFFFFFF)
    check(f"mad24.hi.{t}", triples, lambda a, b, c: ((low_24(a, t) * low_24(b, t) >> 16) + c) & 0xFFFFFFFF)
    if t == "s32":
        high = lambda a, b, c: clamp_s32(signed(low_24(a, t) * low_24(b, t) >> 16 & 0xFFFFFFFF, 32) + signed(c, 32))  # noqa: E731
        check("mad24.hi.sat.s32", triples, high)


@pytest.mark.parametrize("t", INTEGER)
def test_sad(t):
    n = width(t)
    check(f"sad.{t}", rows_of([n, n, n], 100, seed=8), lambda a, b, c: wrap(c + abs(number(a, t) - number(b, t)), t))


def quotient(a, b):
    """Toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("t", INTEGER)
def test_division(t):
    n = width(t)
    rows = [r for r in rows_of([n, n], 200, seed=9) if r[1]]
    check(f"div.{t}", rows, lambda a, b: wrap(quotient(number(a, t), number(b, t)), t))
    check(f"rem.{t}", rows, lambda a, b: wrap(number(a, t) - number(b, t) * quotient(number(a, t), number(b, t)), t))


@pytest.mark.parametrize("t", INTEGER)
def test_division_by_zero_is_what_the_definition_says(t):
    """Unspecified by the ISA; all ones, as an H200 has it."""
    rows = [(a, 0) for a in (0, 1, (1 << width(t)) - 1, 1 << (width(t) - 1))]
    check(f"div.{t}", rows, lambda a, b: wrap(-1, t))
    check(f"rem.{t}", rows, lambda a, b: wrap(-1, t))


@pytest.mark.parametrize("t", SIGNED)
def test_abs_neg(t):
    rows = rows_of([width(t)], 100, seed=10)
    check(f"abs.{t}", rows, lambda a: wrap(abs(number(a, t)), t))
    check(f"neg.{t}", rows, lambda a: wrap(-a, t))


@pytest.mark.parametrize("t", INTEGER)
def test_min_max(t):
    rows = rows_of([width(t)] * 2, 100, seed=11)
    check(f"min.{t}", rows, lambda a, b: min(a, b, key=lambda x: number(x, t)))
    check(f"max.{t}", rows, lambda a, b: max(a, b, key=lambda x: number(x, t)))


def test_relu_clamps_a_negative_extremum():
    rows = rows_of([32, 32], 100, seed=12)
    check("min.relu.s32", rows, lambda a, b: max(0, min(signed(a, 32), signed(b, 32))))
    check("max.relu.s32", rows, lambda a, b: max(0, max(signed(a, 32), signed(b, 32))))


@pytest.mark.parametrize("t", ["u16", "s16"])
def test_packed_16_bit(t):
    edges = [0, 1, 0x7FFF, 0x8000, 0xFFFF]
    words = [low | high << 16 for low in edges for high in edges]
    rows = [(a, b) for a in words for b in words]
    forms = {f"add.{t}x2": lambda x, y: x + y, f"min.{t}x2": min, f"max.{t}x2": max}
    if t == "s16":
        forms |= {"min.relu.s16x2": lambda x, y: max(0, min(x, y)), "max.relu.s16x2": lambda x, y: max(0, x, y)}
    for mnemonic, operate in forms.items():
        check(mnemonic, rows, lambda a, b, f=operate: pack(*map(f, halves_of(a, t), halves_of(b, t))))


@pytest.mark.parametrize("atype", ["u32", "s32"])
@pytest.mark.parametrize("btype", ["u32", "s32"])
def test_dot_products(atype, btype):
    def bytes_of(x, t):
        return [int.from_bytes([byte], "little", signed=t == "s32") for byte in x.to_bytes(4, "little")]

    def words_of(x, t):
        return [int.from_bytes(x.to_bytes(4, "little")[i : i + 2], "little", signed=t == "s32") for i in (0, 2)]

    def four(a, b, c):
        return (c + sum(x * y for x, y in zip(bytes_of(a, atype), bytes_of(b, btype), strict=True))) & 0xFFFFFFFF

    def two(first):
        pick = slice(first, first + 2)
        return lambda a, b, c: (
            (c + sum(x * y for x, y in zip(words_of(a, atype), bytes_of(b, btype)[pick], strict=True))) & 0xFFFFFFFF
        )

    corners = itertools.product((0x80807F7F, 0xFFFFFFFF, 0x80018001), (0x807FFF01, 0xFFFFFFFF), (0, 1 << 31))
    rows = rows_of([32, 32, 32], 200, seed=13) + list(corners)
    check(f"dp4a.{atype}.{btype}", rows, four)
    check(f"dp2a.lo.{atype}.{btype}", rows, two(0))
    check(f"dp2a.hi.{atype}.{btype}", rows, two(2))


@pytest.mark.parametrize(
    "mnemonic", ["add.sat.u32", "add.b32", "sub.u16x2", "mad.lo.sat.s32", "min.relu.u32", "mul.wide.u64", "abs.u32",
                 "add.u8x4"]
)  # fmt: skip
def test_forms_that_ptxas_refuses_on_sm_100_have_no_definition(mnemonic):
    with pytest.raises(ValueError, match="not a pure instruction"):
        run(mnemonic, [(1,) * {"mad": 3, "abs": 1}.get(mnemonic[:3], 2)])

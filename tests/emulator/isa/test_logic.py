"""Logic and shifts bit by bit; poison rules against all values that the poisoned bits could have."""

import itertools

import numpy as np
import pytest
from scalar_lanes import SHIFTS, check, random_words, rows_of, run, signed

from mxfp8fa.emulator.isa import logic

RAW = ["b16", "b32", "b64"]


def width(t):
    return int(t[1:])


@pytest.mark.parametrize("t", RAW)
def test_bitwise_operations(t):
    n = width(t)
    rows = rows_of([n, n], 100, seed=1)

    def by_bit(truth):
        return lambda *words: sum(truth[tuple(w >> i & 1 for w in words)] << i for i in range(n))

    pairs = list(itertools.product((0, 1), repeat=2))
    check(f"and.{t}", rows, by_bit(dict(zip(pairs, (0, 0, 0, 1), strict=True))))
    check(f"or.{t}", rows, by_bit(dict(zip(pairs, (0, 1, 1, 1), strict=True))))
    check(f"xor.{t}", rows, by_bit(dict(zip(pairs, (0, 1, 1, 0), strict=True))))
    check(f"not.{t}", rows_of([n], 50, seed=2), by_bit({(0,): 1, (1,): 0}))
    check(f"cnot.{t}", rows_of([n], 50, seed=3), lambda a: int(a == 0))


def test_predicate_operations():
    rows = list(itertools.product((False, True), repeat=2))
    assert run("and.pred", rows) == [False, False, False, True]
    assert run("or.pred", rows) == [False, True, True, True]
    assert run("xor.pred", rows) == [False, True, True, False]
    assert run("not.pred", [(False,), (True,)]) == [True, False]


def test_lop3_table_constants_return_the_table():
    """PTX ISA, lop3: the table of F is F(0xF0, 0xCC, 0xAA), so the instruction applied to those gives it back."""
    rows = [(0xF0, 0xCC, 0xAA, table) for table in range(256)]
    check("lop3.b32", rows, lambda a, b, c, e: e | (0xFFFFFF00 if e & 1 else 0))  # above bit 7: F(0, 0, 0)


def test_lop3_named_functions():
    """The ISA's examples: 0x80 is a & b & c, 0xFE a | b | c, 0x40 a & b & ~c, 0x1A (a & b | c) ^ a."""
    rows = rows_of([32, 32, 32], 100, seed=4)
    named = {
        0x80: lambda a, b, c: a & b & c,
        0xFE: lambda a, b, c: a | b | c,
        0x40: lambda a, b, c: a & b & ~c & 0xFFFFFFFF,
        0x1A: lambda a, b, c: (a & b | c) ^ a,
    }
    for table, function in named.items():
        check("lop3.b32", [(*row, table) for row in rows], lambda a, b, c, e, f=function: f(a, b, c))


def table_function(a, b, c, table):
    index = zip(f"{a:032b}", f"{b:032b}", f"{c:032b}", strict=True)
    return int("".join(str(table >> int("".join(bits), 2) & 1) for bits in index), 2)


def test_lop3_every_table_on_random_words():
    words = random_words(32, 3 * 256, seed=5)
    rows = [(*words[3 * k : 3 * k + 3], k) for k in range(256)]
    check("lop3.b32", rows, table_function)


@pytest.mark.parametrize("combine", ["or", "and"])
def test_lop3_with_predicate(combine):
    operands = [(0, 0, 0), (1, 0, 0), (0xF0, 0xCC, 0xAA), (1 << 31, 1 << 31, 0)]
    rows = [(*abc, table, r) for abc in operands for table in (0, 1, 0x80, 0xC0, 0xFF) for r in (False, True)]

    def expected(a, b, c, table, r):
        d = table_function(a, b, c, table)
        return d, (d != 0 or r) if combine == "or" else (d != 0 and r)

    check(f"lop3.{combine}.b32", rows, expected)


@pytest.mark.parametrize("t", RAW)
def test_shl_clamps_the_amount(t):
    n = width(t)
    rows = [(a, s) for (a,) in rows_of([n], 20, seed=6) for s in SHIFTS]
    check(f"shl.{t}", rows, lambda a, s: (a << s if s < n else 0) & ((1 << n) - 1))


@pytest.mark.parametrize("t", [*RAW, "u16", "s16", "u32", "s32", "u64", "s64"])
def test_shr_fills_and_clamps(t):
    n = width(t)
    rows = [(a, s) for (a,) in rows_of([n], 20, seed=7) for s in SHIFTS]

    def expected(a, s):
        value = signed(a, n) if t[0] == "s" else a
        return (value // 2 ** min(s, n)) & ((1 << n) - 1)  # floor division: the arithmetic shift

    check(f"shr.{t}", rows, expected)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shift(mode):
    rows = [(a, b, c) for a, b in rows_of([32, 32], 10, seed=8)[::3] for c in SHIFTS]

    def amount(c):
        return min(c, 32) if mode == "clamp" else c % 32

    check(f"shf.l.{mode}.b32", rows, lambda a, b, c: (b * 2**32 + a) * 2 ** amount(c) // 2**32 % 2**32)
    check(f"shf.r.{mode}.b32", rows, lambda a, b, c: (b * 2**32 + a) // 2 ** amount(c) % 2**32)


def reachable(function, values, shadows):
    """Whether one-bit `function` can give both results when the bits marked in shadows may be anything."""
    choices = [(0, 1) if s else (v,) for v, s in zip(values, shadows, strict=True)]
    return len({function(*bits) for bits in itertools.product(*choices)}) == 2


def one_bit_cases(count):
    return [(v, s) for v in itertools.product((0, 1), repeat=count) for s in itertools.product((0, 1), repeat=count)]


def columns(cases, which, dtype=np.uint32):
    return [np.array(c, dtype) for c in zip(*(case[which] for case in cases), strict=True)]


@pytest.mark.parametrize("dtype", [np.uint32, np.bool_])
@pytest.mark.parametrize(
    "rule, function, count",
    [
        (logic.and_shadow, lambda a, b: a & b, 2),
        (logic.or_shadow, lambda a, b: a | b, 2),
        (logic.xor_shadow, lambda a, b: a ^ b, 2),
        (logic.not_shadow, lambda a: 1 - a, 1),
    ],
)
def test_poison_of_bitwise_operations_is_exact(rule, function, count, dtype):
    cases = one_bit_cases(count)
    (poison,) = rule(columns(cases, 0, dtype), columns(cases, 1, dtype))
    assert [bool(p & 1) for p in poison] == [reachable(function, v, s) for v, s in cases]


@pytest.mark.parametrize("table", range(256))
def test_poison_of_lop3_is_exact(table):
    cases = one_bit_cases(3)
    column = np.full(len(cases), table, np.uint32)
    (poison,) = logic.lop3_shadow([*columns(cases, 0), column], [*columns(cases, 1), column * 0])
    wanted = [reachable(lambda a, b, c: table >> (4 * a + 2 * b + c) & 1, v, s) for v, s in cases]
    assert [bool(p & 1) for p in poison] == wanted


@pytest.mark.parametrize("rule, combine", [(logic.lop3_or_shadow, "or"), (logic.lop3_and_shadow, "and")])
def test_poison_of_the_lop3_predicate_is_exact(rule, combine):
    """With the table of `a` (0xF0): p = (a != 0) combine r, over all values and poisons of a 2-bit a and of r."""
    cases = list(itertools.product(range(4), range(4), (False, True), (False, True)))
    a, sa, r, sr = (np.array(c) for c in zip(*cases, strict=True))
    zero = np.zeros(len(cases), np.uint32)
    values = [a.astype(np.uint32), zero, zero, zero + np.uint32(0xF0), r]
    d_poison, p_poison = rule(values, [sa.astype(np.uint32), zero, zero, zero, sr])
    assert d_poison.tolist() == sa.tolist()
    for (av, asv, rv, rsv), got in zip(cases, p_poison, strict=True):
        words = {(av & ~asv) | x for x in range(4) if x & ~asv == 0}
        predicates = (False, True) if rsv else (rv,)
        results = {(w != 0 or q) if combine == "or" else (w != 0 and q) for w in words for q in predicates}
        assert got == (len(results) == 2), (av, asv, rv, rsv)

"""Bit-field instructions against loops over bits, prmt against the tables of the ISA."""

import pytest
from scalar_lanes import EDGES, SHIFTS, check, random_words, rows_of, run, signed


def width(t):
    return int(t[1:])


@pytest.mark.parametrize("n", [32, 64])
def test_counting(n):
    rows = [(1 << i,) for i in range(n)] + [((1 << i) - 1,) for i in range(n)] + rows_of([n], 100, seed=1)
    check(f"popc.b{n}", rows, lambda a: bin(a).count("1"))
    check(f"clz.b{n}", rows, lambda a: n - a.bit_length())
    check(f"brev.b{n}", rows, lambda a: int(f"{a:0{n}b}"[::-1], 2))


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_bfind(t):
    n = width(t)
    powers = [1 << i for i in range(n)]
    rows = [(p,) for p in powers] + [((1 << n) - 1 - p,) for p in powers] + rows_of([n], 50, seed=2)

    def position(a):
        sign = f"{a:0{n}b}"[0] if t[0] == "s" else "0"
        return n - 1 - f"{a:0{n}b}".find("1" if sign == "0" else "0") if a != int(sign * n, 2) else None

    def or_none(x):
        return 0xFFFFFFFF if x is None else x

    check(f"bfind.{t}", rows, lambda a: or_none(position(a)))
    check(f"bfind.shiftamt.{t}", rows, lambda a: 0xFFFFFFFF if position(a) is None else n - 1 - position(a))


def nth_set_bit(mask, base, offset):
    """PTX ISA, fns: walk from the base, up or down, and count the ones."""
    if offset == 0:
        path, rank = [base], 1
    elif offset > 0:
        path, rank = range(base, 32), offset
    else:
        path, rank = range(base, -1, -1), -offset
    ones = [i for i in path if mask >> i & 1]
    return ones[rank - 1] if rank <= len(ones) else 0xFFFFFFFF


def test_fns():
    offsets = [0, 1, 2, 3, 5, 16, 31, 32, 33, 2**31 - 1, -1, -2, -7, -32, -33, -(2**31)]
    masks = [0, 1, 1 << 31, 0xFFFFFFFF, 0xAAAAAAAA, 0x55555555, *random_words(32, 4, seed=3)]
    rows = [(m, b, o & 0xFFFFFFFF) for m in masks for b in range(32) for o in offsets]
    check("fns.b32", rows, lambda m, b, o: nth_set_bit(m, b, signed(o, 32)))


def test_fns_examples_of_the_isa():
    rows = [(0xAAAAAAAA, 3, 1), (0xAAAAAAAA, 3, 2**32 - 1), (0xAAAAAAAA, 2, 1), (0xAAAAAAAA, 2, 2**32 - 1)]
    assert run("fns.b32", rows) == [3, 3, 3, 1]


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_bfe(t):
    n = width(t)
    words = EDGES[n] + random_words(n, 4, seed=4)
    places = [0, 1, 7, 31, 32, 33, 63, 64, 65, 128, 255, 256, 0xFFFFFFFF]
    rows = [(a, p, k) for a in words for p in places for k in places]

    def expected(a, p, k):
        p, k = p % 256, k % 256
        bit = [a >> i & 1 for i in range(n)]
        sign = bit[min(p + k - 1, n - 1)] if t[0] == "s" and k else 0
        return sum((bit[p + i] if i < k and p + i < n else sign) << i for i in range(n))

    check(f"bfe.{t}", rows, expected)


@pytest.mark.parametrize("n", [32, 64])
def test_bfi(n):
    words = [(0, (1 << n) - 1), ((1 << n) - 1, 0), *rows_of([n, n], 4, seed=5)[-4:]]
    places = [0, 1, 7, 31, 32, 33, 63, 64, 65, 128, 255, 256, 0xFFFFFFFF]
    rows = [(a, b, p, k) for a, b in words for p in places for k in places]

    def expected(a, b, p, k):
        field = range(p % 256, p % 256 + k % 256)
        return sum((a >> (i - p % 256) & 1 if i in field else b >> i & 1) << i for i in range(n))

    check(f"bfi.b{n}", rows, expected)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk(mode):
    rows = [(a, b) for a in [*range(33), *SHIFTS] for b in [*range(33), *SHIFTS]]

    def expected(a, b):
        a, b = (min(a, 32), min(b, 32)) if mode == "clamp" else (a % 32, b % 32)
        return sum(1 << i for i in range(a, min(a + b, 32)))

    check(f"bmsk.{mode}.b32", rows, expected)
    assert run("bmsk.wrap.b32", [(1, 2)]) == [6]  # the ISA's example


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("t", ["u32", "s32"])
def test_szext(mode, t):
    rows = [(a, n) for a in EDGES[32] + random_words(32, 8, seed=6) for n in [*range(33), *SHIFTS]]

    def expected(a, n):
        n = min(n, 32) if mode == "clamp" else n % 32
        if n == 0:
            return 0
        low = a % 2**n
        return (signed(low, n) if t == "s32" else low) % 2**32

    check(f"szext.{mode}.{t}", rows, expected)


def test_carry_less_multiply_add():
    def product(a, b):
        total = 0
        for i in range(64):
            if b >> i & 1:
                total ^= a << i
        return total

    rows = rows_of([64, 64, 64], 60, seed=7)
    for t in ("u64", "s64"):
        check(f"clmad.lo.{t}", rows, lambda a, b, c: product(a, b) % 2**64 ^ c)
        check(f"clmad.hi.{t}", rows, lambda a, b, c: product(a, b) >> 64 ^ c)
    # (x + 1)^2 = x^2 + 1 over GF(2)
    assert run("clmad.lo.u64", [(3, 3, 0)]) == [5]


A_BYTES = [0x01, 0x80, 0x7F, 0xFE]
B_BYTES = [0x90, 0x23, 0xC5, 0x46]
A, B = (int.from_bytes(bytes(x), "little") for x in (A_BYTES, B_BYTES))


def test_prmt_every_selector():
    """All 65,536 selectors, with source bytes that differ and have both signs; the upper half of c is ignored."""
    source = [(byte, 0xFF if byte & 0x80 else 0) for byte in A_BYTES + B_BYTES]
    pick = [source[s & 7][s >> 3] for s in range(16)]
    rows = [(A, B, c | (c * 0x9E370001 & 0xFFFF0000)) for c in range(65536)]
    check("prmt.b32", rows, lambda a, b, c: sum(pick[c >> 4 * i & 15] << 8 * i for i in range(4)))


# PTX ISA, prmt: source byte of d.b3 d.b2 d.b1 d.b0 for the selectors 0, 1, 2, 3.
MODES = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", MODES)
def test_prmt_modes(mode):
    def expected(a, b, c):
        return int.from_bytes(bytes((A_BYTES + B_BYTES)[int(digit)] for digit in MODES[mode][c % 4]), "big")

    check(f"prmt.b32.{mode}", [(A, B, c) for c in (0, 1, 2, 3, 4, 0xF7, 0xFFFFFFFE)], expected)

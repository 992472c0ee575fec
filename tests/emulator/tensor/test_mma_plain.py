"""tcgen05.mma without block scales: every kind, format, major, shape and group against plain NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.emulator.tensor import operands, products
from tests.emulator.tensor.products import Case, Data, check, expected, random_data, spread

F8F6F4 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
BASE = {
    "f16": Case("f16", a="f16", b="f16"),
    "bf16": Case("f16"),
    "tf32": Case("tf32", a="tf32", b="tf32"),
    "f8f6f4": Case("f8f6f4", a="e4m3", b="e5m2"),
    "i8": Case("i8", a="s8", b="u8", d="s32"),
}
SHAPES = [
    (64, 8, 1),
    (64, 48, 1),
    (128, 16, 1),
    (128, 256, 1),
    (128, 32, 2),
    (128, 256, 2),
    (256, 32, 2),
    (256, 224, 2),
]
MN_SWIZZLES = {
    "f16": ("none", "32B", "64B", "128B"),
    "f8f6f4": ("none", "32B", "64B", "128B"),
    "tf32": ("128B, 32-byte atoms",),
}


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize(("m", "n", "group"), SHAPES)
def test_shapes(name, m, n, group):
    check(BASE[name].change(m=m, n=n, group=group, accumulate=(m + n) % 3 > 0))


@pytest.mark.parametrize("n", [8, 24, 72, 136, 248])
def test_n_in_steps_of_8(n):
    check(BASE["bf16"].change(n=n, accumulate=True))


@pytest.mark.parametrize(("a", "b"), list(product(F8F6F4, F8F6F4)))
def test_all_pairs_of_small_formats(a, b):
    """4- and 6-bit elements lie in groups of 16 in 16 bytes, the padding holding anything."""
    check(BASE["f8f6f4"].change(a=a, b=b))


@pytest.mark.parametrize(("a", "b"), list(product(("u8", "s8"), repeat=2)))
def test_integers(a, b):
    check(BASE["i8"].change(a=a, b=b, accumulate=True))


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_accumulators_wrap_or_saturate(saturate):
    c = BASE["i8"].change(a="u8", b="s8", accumulate=True, saturate=saturate)
    data = random_data(c)
    data.c[:, ::2], data.c[:, 1::2] = 2**31 - 1, -(2**31)
    found, before = products.product(c, data)
    wanted = expected(c, data)
    np.testing.assert_array_equal(found, spread(c, wanted, before))
    limits = np.isin(wanted, [0x7FFFFFFF, 0x80000000]).mean()
    assert limits > 0.3 if saturate else limits < 0.1


@pytest.mark.parametrize("name", ["bf16", "f8f6f4", "tf32"])
@pytest.mark.parametrize(
    ("a_swizzle", "b_swizzle"), [("none", "32B"), ("64B", "none"), ("32B", "128B"), ("128B", "64B")]
)
def test_k_major_swizzles(name, a_swizzle, b_swizzle):
    """A and B lie in different ways: an error that both share does not cancel."""
    check(BASE[name].change(a_swizzle=a_swizzle, b_swizzle=b_swizzle, n=64))


@pytest.mark.parametrize("name", ["f16", "f8f6f4", "tf32"])
@pytest.mark.parametrize(("a_major", "b_major"), [("MN", "K"), ("K", "MN"), ("MN", "MN")])
@pytest.mark.parametrize("group", [1, 2])
def test_mn_major(name, a_major, b_major, group):
    """16-bit rows of 128 span two atoms of 128 bytes; so do 256 columns of a pair's 8-bit B."""
    for swizzle in MN_SWIZZLES[name] if group == 1 else MN_SWIZZLES[name][-1:]:
        a_swizzle = swizzle if a_major == "MN" else "64B"
        b_swizzle = swizzle if b_major == "MN" else "32B"
        c = BASE[name].change(a_major=a_major, b_major=b_major, a_swizzle=a_swizzle, b_swizzle=b_swizzle, group=group)
        check(c.change(m=128 * group, n=128 * group))


@pytest.mark.parametrize("name", ["bf16", "f8f6f4", "tf32", "i8"])
@pytest.mark.parametrize("majors", ["KK", "KMN"])
def test_k_loop(name, majors):
    """Four steps over K, the start addresses moved on; D of a step is C of the next."""
    if majors == "KMN" and name == "i8":
        c = BASE[name].change(b_major="MN", n=128)
    elif majors == "KMN":
        c = BASE[name].change(b_major="MN", n=128, b_swizzle=MN_SWIZZLES.get(name, ("128B",))[-1])
    else:
        c = BASE[name].change(b_swizzle="none")
    check(c.change(steps=4, accumulate=True))


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize(("m", "group", "lane"), [(128, 1, 0), (64, 1, 0), (64, 1, 16), (256, 2, 0), (128, 2, 0)])
def test_a_from_tensor_memory(name, m, group, lane):
    """Packed along K into 32-bit columns; M = 64 at lane 0 or 16, as D; twice for M = 128 of a pair."""
    check(BASE[name].change(m=m, group=group, lane=lane, tensor_a=True, n=64, steps=2, accumulate=True))


@pytest.mark.parametrize("a", ["e2m3", "e3m2", "e2m1"])
def test_small_formats_from_tensor_memory(a):
    """One element to a byte: a 4-bit one in bits 5:2 (inferred), a 6-bit one in bits 5:0."""
    check(BASE["f8f6f4"].change(a=a, b="e4m3", tensor_a=True))


def test_an_accumulator_of_64_rows_at_lane_16():
    check(BASE["bf16"].change(m=64, lane=16, accumulate=True))


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "f8f6f4"])
@pytest.mark.parametrize("negate", [(True, False), (False, True), (True, True)])
def test_negation(name, negate):
    check(BASE[name].change(negate=negate, accumulate=True))


@pytest.mark.parametrize("name", ["f16", "f8f6f4"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_f16_accumulators(name, accumulate):
    """In the low half of a cell; whatever is in the upper half is not read."""
    c = BASE[name].change(d="f16", b=BASE[name].b if name == "f16" else "e2m1", accumulate=accumulate)
    data = random_data(c)
    found, before = products.product(c, data)
    np.testing.assert_array_equal(found & 0xFFFF, spread(c, expected(c, data), before) & 0xFFFF)
    assert np.isfinite((found[0] & 0xFFFF).astype(np.uint16).view(np.float16)).mean() > 0.9


def test_f16_accumulators_overflow_and_round():
    """65504 + 16 is a tie that goes to the even number below, which is infinity's neighbour; 65504 + 17 overflows."""
    c = BASE["f16"].change(d="f16", accumulate=True)
    zero, one = np.zeros((c.m, c.k), np.uint16), np.zeros((c.n, c.k), np.uint16)
    zero[:, 0], one[:, 0] = np.float16(1).view(np.uint16), np.float16(1).view(np.uint16)
    start = np.full((c.m, c.n), 65504.0)
    one[0, 0], one[1, 0], one[2, 0] = np.array([15.984375, 16.0, -65504.0], np.float16).view(np.uint16)
    data = Data(zero, one, np.zeros(0), np.zeros(0), start)
    found, _ = products.product(c, data)
    assert list(found[0, 0, :4] & 0xFFFF) == [0x7BFF, 0x7C00, 0x0000, 0x7BFF]


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("scale_d", [0, 1, 15])
def test_scale_input_d(name, scale_d):
    """D = A B + D / 2^scale."""
    check(BASE[name].change(accumulate=True, scale_d=scale_d))


def test_scale_input_d_of_f16_accumulators():
    c = BASE["f16"].change(accumulate=True, scale_d=3, d="f16")
    data = random_data(c)
    found, before = products.product(c, data)
    np.testing.assert_array_equal(found & 0xFFFF, spread(c, expected(c, data), before) & 0xFFFF)


@pytest.mark.parametrize(("m", "group"), [(128, 1), (64, 1), (256, 2), (128, 2)])
def test_disable_output_lane(m, group):
    """Bit i of word j keeps lane 32 j + i as it was; words 4 to 7 are the odd CTA's (inferred)."""
    words = (0x0000_0001, 0xFFFF_FFFF, 0x8000_1000, 0x0F0F_00FF, 0x0000_0002, 0, 0xAAAA_AAAA, 0x7FFF_FFFF)[: 4 * group]
    check(BASE["bf16"].change(m=m, group=group, disabled=words, accumulate=True, n=64))
    check(BASE["i8"].change(m=m, group=group, disabled=words, n=64))


def test_disable_output_lane_with_scale_input_d():
    check(BASE["f16"].change(disabled=(1, 2, 4, 8), accumulate=True, scale_d=2))


@pytest.mark.parametrize("collector", ["fill", "use", "lastuse", "discard"])
def test_collectors_change_nothing(collector):
    check(BASE["bf16"].change(vector=f".collector::a::{collector}"))


# -- values ---------------------------------------------------------------------------------------------------------------


def single(c: Case, a: list[float], b: list[float], start: float = 0.0, **options) -> np.float32:
    """D[0, 0] of a product whose first row of A and of B are given (as raw elements), the rest zero."""
    dtype = {"f16": np.uint16, "tf32": np.uint32}.get(c.kind, np.uint8)
    left, right = np.zeros((c.m, c.k), dtype), np.zeros((c.n, c.k), dtype)
    left[0, : len(a)], right[0, : len(b)] = a, b
    data = Data(
        left, right, np.full((c.m, 1), 127, np.uint8), np.full((c.n, 1), 127, np.uint8), np.full((c.m, c.n), start)
    )
    return products.product(c, data, **options)[0].view(np.float32)[0, 0, 0]


@pytest.mark.parametrize("mode", ["float32", "blackwell", "exact"])
def test_specials(mode):
    e5m2 = BASE["f8f6f4"].change(a="e5m2", b="e5m2", accumulate=True)
    one, infinity, minus_infinity, nan = 0x3C, 0x7C, 0xFC, 0x7E
    assert single(e5m2, [infinity], [one], accumulate=mode) == np.inf
    assert single(e5m2, [infinity, minus_infinity], [one, one], accumulate=mode).view(np.uint32) == 0x7FFFFFFF
    assert single(e5m2, [infinity], [0], accumulate=mode).view(np.uint32) == 0x7FFFFFFF
    assert single(e5m2, [nan], [0], accumulate=mode).view(np.uint32) == 0x7FFFFFFF
    assert single(e5m2, [one], [one], start=-np.inf, accumulate=mode) == -np.inf
    e4m3 = BASE["f8f6f4"].change(a="e4m3", b="e4m3")
    assert single(e4m3, [0x7F], [0], accumulate=mode).view(np.uint32) == 0x7FFFFFFF
    assert single(e4m3, [0x7E], [0x7E], accumulate=mode) == 448.0 * 448.0
    assert single(e4m3, [0x01], [0x81], accumulate=mode) == -(2.0**-18)  # subnormals are honoured


@pytest.mark.parametrize("mode", ["float32", "blackwell", "exact"])
def test_tf32_ignores_the_low_13_bits(mode):
    c = BASE["tf32"]
    assert single(c, [0x3F801FFF], [0x40000000], accumulate=mode) == 2.0


def test_accumulation_modes_differ_where_they_should():
    """2^24 + 1 + 1: exactly, rounded to nearest once per step, and truncated with 25 fraction bits."""
    c = BASE["bf16"].change(accumulate=True)
    one, half = 0x3F80, 0x3F00
    assert single(c, [one, one], [one, one], start=2.0**24, accumulate="float32") == 2.0**24 + 2
    assert single(c, [one], [one], start=2.0**24, accumulate="float32") == 2.0**24  # a tie, to even
    assert single(c, [one, half], [one, one], start=2.0**24, accumulate="float32") == 2.0**24 + 2
    assert single(c, [one, half], [one, one], start=2.0**24, accumulate="blackwell") == 2.0**24  # toward zero
    assert single(c, [one, half], [one, one], start=2.0**24, accumulate="exact") == 2.0**24 + 2


@pytest.mark.parametrize("name", BASE)
def test_exact_mode(name):
    """One rounding of the whole sum, D included."""
    c = BASE[name].change(accumulate=True, n=64)
    data = random_data(c)
    found, before = products.product(c, data, accumulate="exact")
    total = products.dot(c, data, 0) + data.c
    if c.d == "s32":
        cells = ((total + 2**31) % 2**32 - 2**31).astype(np.int64).astype(np.int32).view(np.uint32)
    else:
        cells = total.astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(found, spread(c, cells, before))


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "f8f6f4"])
def test_blackwell_mode(name):
    """Against the scalar form of the published model, element by element."""
    from mxfp8fa.numerics.formats import FORMATS
    from tests.numerics.scalar_mma import blackwell_step

    c = BASE[name].change(accumulate=True)
    data = random_data(c)
    found, _ = products.product(c, data, accumulate="blackwell")
    a, b = operands.values_of(data.a, c.a), operands.values_of(data.b, c.b)
    for m, n in np.random.default_rng(5).integers(0, (c.m, c.n), (60, 2)).tolist():
        factors = [(float(x), float(y), 1.0, 1.0) for x, y in zip(a[m], b[n], strict=True)]
        wanted = blackwell_step(factors, float(np.float32(data.c[m, n])), FORMATS[c.a], FORMATS[c.b])
        assert found[0, m, n] == wanted, (m, n)


def test_blackwell_mode_of_f16_accumulators():
    """1 + 2^-11 + 2^-24, rounded once to nearest even, goes up; in float32 mode the sum is the same."""
    c = BASE["f16"].change(d="f16")
    one, small, smaller = (int(np.float16(x).view(np.uint16)) for x in (1, 2.0**-11, 2.0**-12))
    for mode in ("blackwell", "exact"):
        cell = single(c, [one, small, smaller], [one, one, smaller], accumulate=mode)
        assert cell.view(np.uint32) & 0xFFFF == 0x3C01

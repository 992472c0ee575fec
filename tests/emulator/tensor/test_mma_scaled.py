"""Block-scaled tcgen05.mma: formats, scale formats and ids, where scales lie, shapes and groups, against plain NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import operands, products
from tests.emulator.tensor.products import SFA_COLUMN, SFB_COLUMN, Case, Data, check, expected, random_data, spread

F8F6F4 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
MX8 = Case("mxf8f6f4", a="e4m3", b="e4m3", scales=1)
MX4 = Case("mxf4", a="e2m1", b="e2m1", scales=2)
NV4_32 = Case("mxf4nvf4", a="e2m1", b="e2m1", scales=2, vector=".scale_vec::2X")
NV4_16 = Case("mxf4nvf4", a="e2m1", b="e2m1", scales=4, vector=".scale_vec::4X", scale_format="ue4m3")
BASE = {
    "mxf8f6f4": MX8,
    "mxf4": MX4,
    "nvf4 32": NV4_32,
    "nvf4 16": NV4_16,
    "nvf4 16 ue8m0": NV4_16.change(scale_format="ue8m0"),
}
SHAPES = [
    (128, 8, 1),
    (128, 40, 1),
    (128, 256, 1),
    (128, 32, 2),
    (128, 96, 2),
    (128, 256, 2),
    (256, 32, 2),
    (256, 208, 2),
]


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize(("m", "n", "group"), SHAPES)
def test_shapes(name, m, n, group):
    """In a pair each CTA has the scales of its rows of A, and of all of N (with M = 128: each half in half of the lanes)."""
    check(BASE[name].change(m=m, n=n, group=group, accumulate=(m + n) % 3 > 0))


@pytest.mark.parametrize(("a", "b"), list(product(F8F6F4, F8F6F4)))
def test_all_pairs_of_formats(a, b):
    check(MX8.change(a=a, b=b))


VECTORS = [
    (MX8, ("", ".scale_vec::1X", ".block32")),
    (MX4, ("", ".scale_vec::2X", ".block32")),
    (NV4_32, (".scale_vec::2X", ".block32")),
    (NV4_16, (".scale_vec::4X", ".block16")),
]


@pytest.mark.parametrize(
    ("c", "vector"), [(c, v) for c, vectors in VECTORS for v in vectors], ids=lambda x: getattr(x, "kind", x)
)
def test_vector_sizes(c, vector):
    check(c.change(vector=vector))


@pytest.mark.parametrize(("sfa_id", "sfb_id"), list(product(range(4), range(4))))
def test_scale_ids_of_one_block(sfa_id, sfb_id):
    """The id is the byte of the cell; the others hold anything, even different things in the four copies."""
    check(MX8.change(sfa_id=sfa_id, sfb_id=sfb_id))


@pytest.mark.parametrize("name", ["mxf4", "nvf4 32"])
@pytest.mark.parametrize(("sfa_id", "sfb_id"), list(product((0, 2), (0, 2))))
def test_scale_ids_of_two_blocks(name, sfa_id, sfb_id):
    check(BASE[name].change(sfa_id=sfa_id, sfb_id=sfb_id))


@pytest.mark.parametrize("group", [1, 2])
def test_four_steps_use_the_four_bytes_of_a_cell(group):
    """K = 128 of one 128-byte row: scale ids 0 to 3."""
    check(MX8.change(steps=4, accumulate=True, group=group, m=128 * group, n=128))


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize(("m", "group"), [(128, 1), (256, 2), (128, 2)])
def test_a_from_tensor_memory(name, m, group):
    check(BASE[name].change(m=m, group=group, tensor_a=True, n=64, accumulate=True))


@pytest.mark.parametrize("name", BASE)
def test_negation(name):
    check(BASE[name].change(negate=(True, False)))
    check(BASE[name].change(negate=(False, True), accumulate=True))


@pytest.mark.parametrize(("a_major", "b_major"), [("MN", "K"), ("K", "MN"), ("MN", "MN")])
@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_mn_major(a_major, b_major, swizzle):
    majors = {"a_major": a_major, "b_major": b_major}
    check(MX8.change(n=128, a_swizzle=swizzle, b_swizzle=swizzle, a="e5m2", **majors))
    check(MX8.change(m=256, n=256, group=2, **majors))


@pytest.mark.parametrize("name", ["mxf8f6f4", "mxf4", "nvf4 16"])
@pytest.mark.parametrize(("a_swizzle", "b_swizzle"), [("none", "32B"), ("64B", "none"), ("32B", "128B")])
def test_k_major_swizzles(name, a_swizzle, b_swizzle):
    check(BASE[name].change(a_swizzle=a_swizzle, b_swizzle=b_swizzle))


# -- what a passing GEMM does not prove -----------------------------------------------------------------------------------


def one_element(c: Case, k_a: int, k_b: int) -> float:
    """D[0, 0] when row 0 of A is 1 at k_a alone and row 0 of B at k_b alone."""
    one = int(np.nonzero(operands.table(c.a) == 1.0)[0][0])
    a, b = np.zeros((c.m, c.k), np.uint8), np.zeros((c.n, c.k), np.uint8)
    a[0, k_a] = b[0, k_b] = one
    sfa, sfb = (np.full((rows, c.scales), 127 if c.scale_format == "ue8m0" else 0x38, np.uint8) for rows in (c.m, c.n))
    found, _ = products.product(c, Data(a, b, sfa, sfb, np.zeros((c.m, c.n))))
    return float(found[0, 0, 0].view(np.float32))


@pytest.mark.parametrize("k", [0, 1, 2, 31, 32, 63])
def test_the_low_nibble_is_the_lower_k(k):
    """A from tensor memory against B from shared memory, and against a scale that only one block of 16 has."""
    assert one_element(MX4, k, k) == 1.0 and one_element(MX4, k, k ^ 1) == 0.0
    assert one_element(MX4.change(tensor_a=True), k, k) == 1.0


def test_nibbles_fall_into_their_block():
    """Scales 1, 2, 4, 8 for the four blocks of 16: the dot product says which block every k belongs to."""
    c = NV4_16
    a, b = np.full((c.m, c.k), 2, np.uint8), np.zeros((c.n, c.k), np.uint8)  # A is 1.0 everywhere
    sfa, sfb = np.tile(np.array([0x38, 0x40, 0x48, 0x50], np.uint8), (c.m, 1)), np.full((c.n, 4), 0x38, np.uint8)
    for n in range(c.n):
        b[n, 2 * n] = 2  # column n looks at k = 2 n
    found, _ = products.product(c, Data(a, b, sfa, sfb, np.zeros((c.m, c.n))))
    np.testing.assert_array_equal(found[0, 0].view(np.float32), [2.0 ** (2 * n // 16) for n in range(c.n)])


@pytest.mark.parametrize("fmt", ["e2m1", "e2m3", "e3m2"])
def test_every_place_of_a_padded_group(fmt):
    """Row m of A is 1 at k = m alone; B[n, k] names k: no permutation of K can hide, A and B being in different places."""
    c = MX8.change(a=fmt, b="e4m3", tensor_a=False, a_swizzle="none", b_swizzle="128B", n=32)
    one = int(np.nonzero(operands.table(fmt) == 1.0)[0][0])
    a, b = np.zeros((c.m, 32), np.uint8), np.zeros((c.n, 32), np.uint8)
    a[np.arange(32), np.arange(32)] = one
    b[:, :] = (np.arange(32) + 0x20)[None, :]
    data = Data(a, b, np.full((c.m, 1), 127, np.uint8), np.full((c.n, 1), 127, np.uint8), np.zeros((c.m, c.n)))
    found, _ = products.product(c, data)
    for m in range(32):
        assert (found[0, m].view(np.float32) == operands.table("e4m3")[0x20 + m]).all()
        assert (found[0, 32 + m].view(np.float32) == 0).all()


def test_every_row_and_block_has_the_scale_of_its_own():
    """All elements 1: D[m, n] = 32 SFA[m] SFB[n], 2^(m mod 7 - 3) and 2^(n mod 5) apart, a NaN row, a zero-code row."""
    c = MX8.change(n=64, sfa_id=3, sfb_id=1)
    one = np.full((c.m, c.k), 0x38, np.uint8)
    sfa = (127 + np.arange(c.m) % 7 - 3).astype(np.uint8)[:, None]
    sfb = (127 + np.arange(c.n) % 5).astype(np.uint8)[:, None]
    sfa[5], sfa[6], sfb[9] = 0xFF, 0x00, 0xFE
    found, _ = products.product(c, Data(one, one[: c.n].copy(), sfa, sfb, np.zeros((c.m, c.n))))
    cells = found[0].view(np.float32)
    assert np.isnan(cells[5]).all() and (found[0, 5] == 0x7FFFFFFF).all()
    assert cells[6, 0] == 32 * 2.0**-127 and cells[6, 9] == 32.0 and np.isinf(cells[0, 9])  # 32 * 2^-3 * 2^127
    rows = np.array([m for m in range(c.m) if m not in (5, 6)])
    columns = np.array([n for n in range(c.n) if n != 9])
    wanted = 32 * 2.0 ** (rows % 7 - 3)[:, None] * 2.0 ** (columns % 5)[None, :]
    np.testing.assert_array_equal(cells[np.ix_(rows, columns)], wanted)


def test_a_nan_scale_makes_nan_of_zeros_too():
    c = MX8
    data = random_data(c)
    data.a[3] = 0
    data.sfa[3] = 0xFF
    found, _ = products.product(c, data)
    assert (found[0, 3] == 0x7FFFFFFF).all() and not np.isnan(found[0, 4].view(np.float32)).any()


@pytest.mark.parametrize("code", [0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0x7F])
def test_ue4m3_scales(code):
    """The magnitude of E4M3: subnormal scales count, 0x7F is NaN, and the sign bit is not read."""
    c = NV4_16.change(n=8)
    one = np.full((c.m, c.k), 2, np.uint8)
    unit = np.full((c.n, 4), 0x38, np.uint8)
    sfa = np.full((c.m, 4), 0x38, np.uint8)
    sfa[0], sfa[1] = [code, 0x38, 0x38, 0x38], [code | 0x80, 0x38, 0x38, 0x38]
    found, _ = products.product(c, Data(one, one[: c.n].copy(), sfa, unit, np.zeros((c.m, c.n))))
    wanted = 16 * operands.table("e4m3")[code] + 48
    np.testing.assert_array_equal(found[0, :2].view(np.float32), np.full((2, 8), wanted, np.float32))


# -- copies and places ----------------------------------------------------------------------------------------------------


def spoil(monkeypatch: pytest.MonkeyPatch, cta: int, lane: int, column: int, value: int) -> None:
    """Change one cell of the tensor memory that a case starts from."""
    original = products.tensor_image

    def changed(c: Case, data: Data, seed: int = 9) -> np.ndarray:
        cells = original(c, data, seed)
        cells[cta, lane, column] ^= value
        return cells

    monkeypatch.setattr(products, "tensor_image", changed)


@pytest.mark.parametrize(
    ("lane", "column", "operand", "row", "copy"),
    [(40, SFA_COLUMN + 1, "A", 40, 1), (127, SFA_COLUMN + 3, "A", 127, 3), (64, SFB_COLUMN, "B", 0, 2)],
)
def test_copies_that_differ_are_an_error(monkeypatch, lane, column, operand, row, copy):
    spoil(monkeypatch, 0, lane, column, 0x0000_0100)
    text = rf"scale factors {operand} of row {row} differ between the lane partitions .* in number {copy}\); all must be equal"
    with pytest.raises(em.IllegalOperation, match=text):
        check(MX8.change(sfa_id=1, sfb_id=1))


@pytest.mark.parametrize("group", [1, 2])
def test_the_first_copy_is_not_the_only_one(monkeypatch, group):
    """A spoiled first partition is found too, in either CTA."""
    spoil(monkeypatch, group - 1, 3, SFA_COLUMN, 0xFF)
    with pytest.raises(em.IllegalOperation, match=r"scale factors A of row 3 differ"):
        check(MX8.change(group=group, m=128 * group))


def test_a_pair_with_128_rows_reads_only_the_partitions_of_a_row(monkeypatch):
    """Rows 0-31 lie in partitions 0 and 2, rows 32-63 in 1 and 3; cuDNN's MXFP8 backward leaves zeros elsewhere."""
    pair = MX8.change(group=2, m=128)
    spoil(monkeypatch, 1, 32 + 5, SFA_COLUMN, 0xFFFF_FFFF)
    spoil(monkeypatch, 1, 64 + 5, SFA_COLUMN + 1, 0xFFFF_FFFF)
    check(pair)
    spoil(monkeypatch, 1, 64 + 5, SFA_COLUMN, 0xFFFF_FFFF)
    with pytest.raises(em.IllegalOperation, match=r"scale factors A of row 5 differ"):
        check(pair)


def test_bytes_that_are_not_used_may_differ(monkeypatch):
    spoil(monkeypatch, 0, 40, SFA_COLUMN, 0xFFFF_00FF)
    check(MX8.change(sfa_id=1))


def test_the_two_upper_address_bits_may_repeat_the_scale_id(monkeypatch):
    """CUTLASS leaves them there; they are no part of the place."""
    c = MX8.change(sfa_id=2, sfb_id=3)
    data = random_data(c)
    original = products.instructions

    def marked(case: Case, a: products.Tile, b: products.Tile) -> str:
        text = original(case, a, b)
        for column, scale_id in ((SFA_COLUMN, 2), (SFB_COLUMN, 3)):
            text = text.replace(f"%r5, {column};", f"%r5, {column + (scale_id << 30)};", 1)
        return text

    monkeypatch.setattr(products, "instructions", marked)
    found, before = products.product(c, data)
    np.testing.assert_array_equal(found, spread(c, expected(c, data), before))


@pytest.mark.parametrize("mode", ["float32", "exact"])
@pytest.mark.parametrize("name", BASE)
def test_accumulation_modes(name, mode):
    c = BASE[name].change(accumulate=True)
    data = random_data(c)
    found, before = products.product(c, data, accumulate=mode)
    wanted = expected(c, data)
    if mode == "exact":
        wanted = (products.dot(c, data, 0) + data.c).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(found, spread(c, wanted, before))


@pytest.mark.parametrize("formats", [("e4m3", "e4m3"), ("e5m2", "e2m1")])
def test_blackwell_mode_of_mxf8f6f4(formats):
    """Against the scalar form of the published model, element by element."""
    from mxfp8fa.numerics.formats import FORMATS
    from tests.numerics.scalar_mma import blackwell_step

    c = MX8.change(accumulate=True, a=formats[0], b=formats[1])
    data = random_data(c)
    found, _ = products.product(c, data, accumulate="blackwell")
    a, b = operands.values_of(data.a, c.a), operands.values_of(data.b, c.b)
    scale_a, scale_b = products.scale_values(data.sfa, c), products.scale_values(data.sfb, c)
    for m, n in np.random.default_rng(5).integers(0, (c.m, c.n), (60, 2)).tolist():
        factors = [tuple(map(float, f)) for f in zip(a[m], b[n], scale_a[m], scale_b[n], strict=True)]
        wanted = blackwell_step(factors, float(np.float32(data.c[m, n])), FORMATS[c.a], FORMATS[c.b])
        assert found[0, m, n] == wanted, (m, n)


@pytest.mark.parametrize("name", ["mxf4", "nvf4 32", "nvf4 16", "nvf4 16 ue8m0"])
def test_blackwell_mode_of_fp4(name):
    from tests.numerics.test_tensor_core_fp4 import scalar_step

    c = BASE[name].change(accumulate=True)
    data = random_data(c)
    found, _ = products.product(c, data, accumulate="blackwell")
    a, b = operands.values_of(data.a, c.a), operands.values_of(data.b, c.b)
    for m, n in np.random.default_rng(6).integers(0, (c.m, c.n), (60, 2)).tolist():
        start = float(np.float32(data.c[m, n]))
        assert found[0, m, n] == scalar_step(a[m], b[n], start, data.sfa[m], data.sfb[n], c.scale_format), (m, n)

"""Step 4: an accumulator quantized where it lies, as operand A of the next product."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from step_harness import assert_same_bits, empty, run_step, tables_of  # noqa: E402
from test_step3 import blocks, mx  # noqa: E402

from mxfp8fa.emulator import EmulationError  # noqa: E402
from mxfp8fa.emulator.host import ptx_of  # noqa: E402
from mxfp8fa.kernels import MXOperand, compile_kernel  # noqa: E402
from mxfp8fa.kernels.steps import step4_quantizer as step  # noqa: E402
from mxfp8fa.kernels.steps.step4_by_logarithm import compile_with_logarithm  # noqa: E402
from mxfp8fa.layouts import pack_atoms, unpack_atoms  # noqa: E402
from mxfp8fa.numerics import MXTensor, encode, mma, quantize  # noqa: E402
from mxfp8fa.studies.scale_way import WRONG_PLACES, misplace  # noqa: E402

CONSTANT = 132  # 2^5: some of S saturates, some of it vanishes


def compile_step(constant_scale=None):
    a, b, c = (mx(128, 128) for _ in range(3))
    return compile_kernel(step.requantized_product, *step.arguments(a, b, c, empty(128, 128)), constant_scale)


@pytest.fixture(scope="module")
def dynamic():
    return compile_step()


@pytest.fixture(scope="module")
def constant():
    return compile_step(CONSTANT)


@pytest.fixture(scope="module")
def operands():
    """A, B and C; B without NaN, which would be in every row of S and so of D."""
    a, b, c = (blocks(128, 128, seed) for seed in (1, 2, 3))
    return tuple(quantize(x, axes=1) for x in (a, np.nan_to_num(b), c))


def run(compiled, a, b, c, **options):
    d = empty(128, 128)
    run_step(compiled, step.arguments(*map(MXOperand.from_mx_tensor, (a, b, c)), d), **options)
    return d


def with_constant_scale(s):
    """S under one scale for all blocks, rounded to nearest and saturated."""
    with np.errstate(over="ignore"):
        codes = encode(s * np.float32(2.0 ** (127 - CONSTANT)), "e4m3")
    return MXTensor(codes, np.full((128, 4), CONSTANT, np.uint8), axes=(1,))


def test_dynamic_scales_equal_the_model_bit_for_bit(dynamic, operands, schedule, accumulate):
    a, b, c = operands
    q = quantize(mma(a, b, accumulate=accumulate), axes=1)
    expected = mma(q, c, accumulate=accumulate)
    assert len(np.unique(q.scale_e8m0)) > 20 and np.isnan(expected[5]).all() and np.isfinite(expected).sum() > 120 * 120
    assert_same_bits(run(dynamic, a, b, c, accumulate=accumulate, **schedule), expected)


def test_a_constant_scale_equals_the_model_bit_for_bit(constant, operands, schedule, accumulate):
    a, b, c = operands
    q = with_constant_scale(mma(a, b, accumulate=accumulate))
    assert (q.codes & 0x7F == 0x7E).any() and (q.codes & 0x7F == 0).any()
    assert_same_bits(run(constant, a, b, c, accumulate=accumulate, **schedule), mma(q, c, accumulate=accumulate))


def identity():
    return quantize(np.eye(128, dtype=np.float32), axes=1)


def edges():
    """A such that A B^T has the rule's edges in its blocks, B = 1 on the diagonal and 2^-9 right of it."""
    a = np.zeros((128, 128), np.float32)
    a[0, 0], a[1, 32] = 448, 480 / 2**4  # 1.75 * 2^8 takes the small scale; 1.875 * 2^4 the next
    a[2, 64], a[2, 65] = 448, 2.0**-6  # 448 + 2^-15: the next float32 takes the next scale
    a[3, 96], a[4, 0], a[5] = -448, 2.0**-9, 0.0  # signs do not matter; one subnormal; nothing at all
    a[6, 0:32] = np.linspace(-448, 448, 32)
    scale = np.full((128, 4), 127, np.uint8)
    scale[7, 1], scale[8, 2], scale[9, 0], scale[10, 3] = 0, 6, 254, 255
    a[7, 32:64], a[8, 64:96], a[9, :2], a[11, 5] = 448, 2.0**-9, 448, np.nan  # 448 * 2^127 is infinite in float32
    right = np.eye(128) + 2.0**-9 * np.eye(128, k=1)
    b = MXTensor(encode(right.astype(np.float32), "e4m3"), np.full((128, 4), 127, np.uint8), axes=(1,))
    return MXTensor(encode(a, "e4m3"), scale, axes=(1,)), b


def test_edges_of_the_rule(dynamic, accumulate):
    """With C = 1 the result is Q(S) itself."""
    a, b = edges()
    s = mma(a, b, accumulate=accumulate)
    q = quantize(s, axes=1)
    assert s[2, 64] == np.nextafter(np.float32(448), np.float32(np.inf))
    assert q.scale_e8m0[:6].max(axis=1).tolist()[:3] == [127, 124, 128] and (q.scale_e8m0[5] == 0).all()
    assert (q.scale_e8m0[[9, 10, 11]] == 255).any(axis=1).all()
    d = run(dynamic, a, b, identity(), accumulate=accumulate)
    finite = np.isfinite(q.dequantize()).all(axis=1)
    assert_same_bits(d[finite], q.dequantize()[finite])
    assert_same_bits(d, mma(q, identity(), accumulate=accumulate))


@pytest.mark.parametrize("way", [w for w in WRONG_PLACES if "tiles" not in w])
def test_a_wrong_placement_of_scales_is_noticed(dynamic, operands, way):
    """For the scales that come from memory; and the model notices the same for those made in the kernel."""
    a, b, c = operands
    c_moved = MXTensor(c.codes, unpack_atoms(misplace(torch.from_numpy(pack_atoms(c.scale_e8m0)), way).numpy(), 128, 4))
    q = quantize(mma(a, b), axes=1)
    q_moved = MXTensor(q.codes, unpack_atoms(misplace(torch.from_numpy(pack_atoms(q.scale_e8m0)), way).numpy(), 128, 4))
    right, d = mma(q, c), run(dynamic, a, b, c_moved)
    for wrong in (d, mma(q_moved, c)):
        with pytest.raises(AssertionError, match="differ"):
            assert_same_bits(wrong, right)
    assert_same_bits(d, mma(q, c_moved))


def test_scales_only_where_their_row_is_are_noticed(operands, monkeypatch):
    """Without the exchange each warp would leave the scales of its own rows in its own lanes."""

    def no_exchange(scales, tmem, words, constant_scale, thread):
        column = step.cute.make_rmem_tensor(4, step.cutlass.Int32)
        column.fill(scales)
        step.store_row(step.cute.recast_tensor(column, step.cutlass.Float32), tmem, thread)

    monkeypatch.setattr(step, "store_scales", no_exchange)
    with pytest.raises(EmulationError, match=r"scale factors A of row .* differ between the lane partitions"):
        run(compile_step(), *operands)


def test_instructions(dynamic, constant):
    """16 maxima a block, 128 conversions in pairs, two products of four blocks, no logarithm and no division."""
    for compiled, maxima in ((dynamic, 4 * 16), (constant, 0)):
        ptx = ptx_of(compiled)
        assert ptx.count("max.NaN.abs.f32") == maxima
        assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == 64
        assert ptx.count("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32") == 8
        assert ptx.count("tcgen05.st.sync.aligned.32x32b.x32") == ptx.count("tcgen05.st.sync.aligned.32x32b.x4.") == 1
        assert "lg2" not in ptx and "div" not in ptx and "rcp" not in ptx
    loads = [ptx_of(compiled).count("ld.shared.b32") for compiled in (dynamic, constant)]
    assert loads[0] - loads[1] == 4  # the exchange


def test_a_logarithm_in_place_of_the_bits():
    """The same scales for ordinary blocks; zero, NaN and infinite ones are not what it was made for."""
    rng = np.random.default_rng(0)
    a, b, c = (quantize(rng.standard_normal((128, 128)).astype(np.float32)) for _ in range(3))
    d = empty(128, 128)
    arguments = step.arguments(*map(MXOperand.from_mx_tensor, (a, b, c)), d)
    with_logarithm = compile_with_logarithm(*arguments)
    run_step(with_logarithm, arguments)
    assert_same_bits(d, mma(quantize(mma(a, b)), c))
    assert ptx_of(with_logarithm).count("lg2.approx") == 4


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 512 and "512 columns allocated" in docstring
    assert step.LOAD_BYTES == 49.5 * 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": mx(128, 128, fmt="e5m2")}, r"a is e5m2 in blocks along axes \(1,\); allowed: e4m3"),
        ({"b": mx(128, 128, axes=0)}, r"b is e4m3 in blocks along axes \(0,\)"),
        ({"c": mx(256, 128)}, r"c.codes is torch.uint8 \(256, 128\); allowed: torch.uint8 \(128, 128\)"),
        ({"d": torch.zeros(128, 64)}, r"d is torch.float32 \(128, 64\); allowed: torch.float32 \(128, 128\)"),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        step.arguments(**({name: mx(128, 128) for name in "abc"} | {"d": empty(128, 128)} | change))


@pytest.mark.parametrize("code", [-1, 254, 255])
def test_bad_constant_scale(code):
    with pytest.raises(Exception, match=f"constant_scale = {code}; allowed: None or 0 to 253"):
        compile_step(code)

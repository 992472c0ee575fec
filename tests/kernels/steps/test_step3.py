"""Step 3: block-scaled MMA on MXFP8."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from step_harness import assert_columns_as_declared, assert_same_bits, empty, run_step, tables_of  # noqa: E402

from mxfp8fa.kernels import MXOperand, compile_kernel  # noqa: E402
from mxfp8fa.kernels.steps import step3_block_scaled as step  # noqa: E402
from mxfp8fa.layouts import unpack_atoms  # noqa: E402
from mxfp8fa.numerics import MXTensor, mma, quantize  # noqa: E402
from mxfp8fa.studies.scale_way import WRONG_PLACES, misplace  # noqa: E402

ORDERS = {"KK": "a and b K-major", "KN": "b N-major", "MK": "a M-major", "MN": "both MN-major"}


def blocks(rows, k, seed):
    """Values whose 32-blocks have powers of two of their own; a zero block, blocks at the format's edges, a NaN block."""
    rng = np.random.default_rng(seed)
    power = 2.0 ** (np.arange(rows * k // 32).reshape(rows, -1) % 7 - 3)
    x = (rng.standard_normal((rows, k)) * power.repeat(32, axis=1)).astype(np.float32)
    x[1, 32:64] = 0
    x[2, :32] = 448 * 2.0**3  # the largest element under an exact scale
    x[3, 64:96] *= 2.0**-120  # a small scale
    x[4, :32] *= 2.0**60  # a large one
    x[5, 96] = np.nan
    return x


def operand(rows, k, seed=0, *, mn_major=False):
    """A quantized operand as (MXTensor, MXOperand): K-major, or blocks along the tokens of (tokens, D), transposed."""
    x = blocks(rows, k, seed)
    tensor = quantize(np.ascontiguousarray(x.T), axes=0).T if mn_major else quantize(x, axes=1)
    return tensor, MXOperand.from_mx_tensor(tensor)


def pair(m, n, k, order="KK"):
    (a, a_torch), (b, b_torch) = operand(m, k, 1, mn_major=order[0] == "M"), operand(n, k, 2, mn_major=order[1] == "N")
    return a, b, a_torch, b_torch


@pytest.fixture(scope="module")
def compiled():
    """The compiled kernel of each order, compiled when first asked for; all sizes share it."""
    kept = {}

    def get(order):
        if order not in kept:
            _, _, a, b = pair(128, 128, 128, order)
            kept[order] = compile_kernel(step.block_scaled, *step.arguments(a, b, empty(128, 128)))
        return kept[order]

    return get


def test_equals_the_model_bit_for_bit(compiled, schedule, accumulate):
    """quantize -> pack_scales -> kernel, four tiles of K: the ring of three comes around."""
    a, b, a_torch, b_torch = pair(128, 128, 512)
    d = empty(128, 128)
    run_step(compiled("KK"), step.arguments(a_torch, b_torch, d), accumulate=accumulate, **schedule)
    expected = mma(a, b, accumulate=accumulate)
    assert np.isnan(expected[5]).all() and np.isnan(expected[:, 5]).all() and np.isfinite(expected).sum() > 127 * 126
    assert_same_bits(d, expected)


@pytest.mark.parametrize("order", ORDERS, ids=ORDERS.values())
def test_orders_and_sizes(compiled, order):
    """Two tiles of D along M and along N, so that each operand's scale tiles are told apart."""
    a, b, a_torch, b_torch = pair(256, 256, 256, order)
    assert a_torch.codes.stride() == ((256, 1) if order[0] == "K" else (1, 256))
    d = empty(256, 256)
    run_step(compiled(order), step.arguments(a_torch, b_torch, d), schedule="random", seed=len(order))
    assert_same_bits(d, mma(a, b))


def test_one_tile(compiled):
    """The first block overwrites D; three follow."""
    a, b, a_torch, b_torch = pair(128, 128, 128)
    d = empty(128, 128)
    report = run_step(compiled("KK"), step.arguments(a_torch, b_torch, d), schedule="lazy")
    assert_same_bits(d, mma(a, b))
    counts = report.counts
    assert sum(n for name, n in counts.items() if name.startswith("tcgen05.mma")) == 4
    assert sum(n for name, n in counts.items() if name.startswith("tcgen05.cp")) == 2


def test_every_code_and_every_scale(compiled):
    """All 256 element codes in A under all 256 scale codes, against ones under scale 2^0."""
    codes = np.arange(128 * 256).reshape(128, 256) % 256
    scale = np.arange(128 * 8).reshape(128, 8) % 256
    a = MXTensor(codes.astype(np.uint8), scale.astype(np.uint8), axes=(1,))
    b = MXTensor(np.full((128, 256), 0x38, np.uint8), np.full((128, 8), 127, np.uint8), axes=(1,))
    d = empty(128, 128)
    run_step(compiled("KK"), step.arguments(*map(MXOperand.from_mx_tensor, (a, b)), d), accumulate="blackwell")
    assert_same_bits(d, mma(a, b, accumulate="blackwell"))


def test_square_blocks(compiled):
    x, y = blocks(128, 128, 1), blocks(128, 128, 2)
    a, b = quantize(x, axes=(0, 1)), quantize(y, axes=(0, 1))
    d = empty(128, 128)
    run_step(compiled("KK"), step.arguments(*map(MXOperand.from_mx_tensor, (a, b)), d))
    assert_same_bits(d, mma(a, b))


def test_nothing_waits_for_the_order_of_mma_and_cp(compiled):
    """Scale columns are rewritten only after the barrier that says they were read."""
    _, _, a_torch, b_torch = pair(128, 128, 640)
    run_step(
        compiled("KK"), step.arguments(a_torch, b_torch, empty(128, 128)), schedule="lazy", assume_mma_cp_order=False
    )


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("way", WRONG_PLACES)
def test_a_wrong_placement_of_scales_is_noticed(compiled, way, which):
    """The result is not the model's, and is what the model gives for exactly those scales."""
    a, b, a_torch, b_torch = pair(256, 256, 256)
    right = {"a": (a, a_torch), "b": (b, b_torch)}[which]
    scales = {"tokens": misplace(right[1].scales["tokens"], way)}
    wrong = MXOperand(right[1].codes, scales, right[1].axes)
    wrong_model = MXTensor(right[0].codes, unpack_atoms(scales["tokens"].numpy(), 256, 8), axes=(1,))
    d = empty(256, 256)
    given = (wrong, b_torch) if which == "a" else (a_torch, wrong)
    run_step(compiled("KK"), step.arguments(*given, d))
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(d, mma(a, b))
    assert_same_bits(d, mma(wrong_model, b) if which == "a" else mma(a, wrong_model))


def test_columns_are_used_as_declared(compiled):
    _, _, a, b = pair(128, 128, 512)
    assert_columns_as_declared(step, compiled("KK"), step.arguments(a, b, empty(128, 128)))


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 256 and "256 columns allocated" in docstring
    assert step.STAGE_BYTES == 33 * 1024


def mx(rows, k, **options):
    return MXOperand.from_mx_tensor(quantize(np.ones((rows, k), np.float32), **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"a": mx(128, 128, fmt="e5m2")},
            r"a is e5m2 in blocks along axes \(1,\); allowed: e4m3, axes \(1,\) or \(0, 1\)",
        ),
        ({"b": mx(128, 128, axes=0)}, r"b is e4m3 in blocks along axes \(0,\)"),
        ({"a": mx(128, 160)}, r"a.codes is torch.uint8 \(128, 160\); allowed: torch.uint8 \(a multiple of 128, a mult"),
        ({"b": mx(96, 128)}, r"b.codes is torch.uint8 \(96, 128\); allowed: torch.uint8 \(a multiple of 128, 128\)"),
        ({"b": mx(128, 256)}, r"b.codes is torch.uint8 \(128, 256\); allowed: .*\(a multiple of 128, 128\)"),
        (
            {"d": torch.zeros(128, 128, dtype=torch.bfloat16)},
            r"d is torch.bfloat16 .*; allowed: torch.float32 \(128, 128\)",
        ),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        step.arguments(**({"a": mx(128, 128), "b": mx(128, 128), "d": empty(128, 128)} | change))

"""Step 1: one tcgen05.mma on BF16."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from step_harness import assert_columns_as_declared, assert_same_bits, empty, run_step, tables_of  # noqa: E402

from mxfp8fa.emulator.host import ptx_of  # noqa: E402
from mxfp8fa.kernels import compile_kernel  # noqa: E402
from mxfp8fa.kernels.steps import step1_one_mma as step  # noqa: E402
from mxfp8fa.numerics import mma  # noqa: E402


@pytest.fixture(scope="module")
def compiled():
    a, b = (torch.zeros(128, 16, dtype=torch.bfloat16) for _ in range(2))
    return compile_kernel(step.one_mma, *step.arguments(a, b, empty(128, 128)))


def operands(seed=0):
    """Normal values whose rows have powers of two of their own, with a zero row, the format's edges, inf and NaN."""
    rng = np.random.default_rng(seed)
    a, b = (torch.from_numpy(rng.standard_normal((128, 16)).astype(np.float32)) for _ in range(2))
    scale = 2.0 ** (torch.arange(128) % 7 - 3)[:, None]
    a, b = (a * scale).to(torch.bfloat16), (b * scale.flip(0)).to(torch.bfloat16)
    largest = torch.finfo(torch.bfloat16).max
    a[3], a[4, 5], a[5, 0], a[6, 15], a[7] = 0.0, largest, float("nan"), float("inf"), 2.0**-133
    b[2], b[9, 3], b[11] = 0.0, -largest, 2.0**-126
    return a, b


def model(a, b, accumulate):
    return mma(a.float().numpy(), b.float().numpy(), a_fmt="bf16", b_fmt="bf16", k_slice=16, accumulate=accumulate)


def test_equals_the_model_bit_for_bit(compiled, schedule, accumulate):
    a, b = operands()
    d = empty(128, 128)
    run_step(compiled, step.arguments(a, b, d), accumulate=accumulate, **schedule)
    expected = model(a, b, accumulate)
    assert np.isnan(expected).any() and np.isinf(expected).any() and (expected == 0).any()
    assert_same_bits(d, expected)


def test_integers_are_exact(compiled):
    """Rows and columns that cannot be confused: A's row m holds m, B's row n holds powers of two."""
    a = torch.arange(128).float()[:, None].expand(128, 16).to(torch.bfloat16).contiguous()
    b = torch.zeros(128, 16)
    b[torch.arange(128), torch.arange(128) % 16] = 2.0 ** (torch.arange(128) // 16).float()
    d = empty(128, 128)
    run_step(compiled, step.arguments(a, b.to(torch.bfloat16), d))
    np.testing.assert_array_equal(d, np.arange(128.0)[:, None] * 2.0 ** (np.arange(128) // 16))


def test_it_is_one_instruction(compiled):
    ptx = ptx_of(compiled)
    assert ptx.count("tcgen05.mma.cta_group::1.kind::f16") == 1
    assert ptx.count("cp.async.bulk.tensor.2d") == 2
    assert ptx.count("tcgen05.ld.sync.aligned.32x32b.x128") == 1


def test_columns_are_used_as_declared(compiled):
    assert_columns_as_declared(step, compiled, step.arguments(*operands(), empty(128, 128)))


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 128 and "128 columns allocated" in docstring


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(128, 16)}, r"a is torch.float32 \(128, 16\); allowed: torch.bfloat16 \(128, 16\)"),
        ({"b": torch.zeros(128, 32, dtype=torch.bfloat16)}, r"b is .* \(128, 32\); allowed: .* \(128, 16\)"),
        ({"b": torch.zeros(16, 128, dtype=torch.bfloat16).T}, r"b of shape .* strides \(1, 128\); allowed: contiguous"),
        ({"d": torch.zeros(128, 16)}, r"d is torch.float32 \(128, 16\)"),
        ({"a": np.zeros((128, 16))}, "a is ndarray; allowed: a torch tensor"),
        ({"a": torch.zeros(128 * 16 + 1, dtype=torch.bfloat16)[1:].view(128, 16)}, "multiple of 16 bytes"),
    ],
)
def test_bad_arguments(change, message):
    a, b = (torch.zeros(128, 16, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(ValueError, match=message):
        step.arguments(**({"a": a, "b": b, "d": empty(128, 128)} | change))

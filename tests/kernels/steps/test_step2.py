"""Step 2: a K loop fed by a ring of TMA loads."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from step_harness import assert_columns_as_declared, assert_same_bits, empty, run_step, tables_of  # noqa: E402

from mxfp8fa.kernels import compile_kernel  # noqa: E402
from mxfp8fa.kernels.steps import step2_k_loop as step  # noqa: E402
from mxfp8fa.numerics import mma  # noqa: E402


@pytest.fixture(scope="module")
def compiled():
    """One compilation for all sizes."""
    a, b = (torch.zeros(128, 64, dtype=torch.bfloat16) for _ in range(2))
    return compile_kernel(step.k_loop, *step.arguments(a, b, empty(128, 128)))


def operands(m, n, k):
    """Rows and 32-blocks with powers of two of their own; a zero row, the format's edge, an infinity and a NaN."""
    rng = np.random.default_rng(m + n + k)

    def matrix(rows):
        scale = 2.0 ** (np.arange(rows * k // 32).reshape(rows, -1) % 7 - 3)
        return torch.from_numpy(rng.standard_normal((rows, k)) * scale.repeat(32, axis=1)).to(torch.bfloat16)

    a, b = matrix(m), matrix(n)
    largest = torch.finfo(torch.bfloat16).max
    a[3], a[4, k // 2], a[5, k - 1], a[6, 0] = 0.0, largest, float("nan"), float("inf")
    b[2], b[9, 3] = 0.0, -largest
    return a, b


def model(a, b, accumulate="float32"):
    return mma(a.float().numpy(), b.float().numpy(), a_fmt="bf16", b_fmt="bf16", k_slice=16, accumulate=accumulate)


def test_equals_the_model_bit_for_bit(compiled, schedule, accumulate):
    """Four tiles of K: the ring of three comes around, and every order of the three kinds of special value appears."""
    a, b = operands(128, 128, 256)
    d = empty(128, 128)
    run_step(compiled, step.arguments(a, b, d), accumulate=accumulate, **schedule)
    assert_same_bits(d, model(a, b, accumulate))


@pytest.mark.parametrize("shape", [(128, 128, 64), (128, 128, 192), (256, 128, 512), (128, 384, 64)])
def test_sizes(compiled, shape):
    """One tile, exactly the ring, more than twice around it; tiles of D along M and along N."""
    m, n, k = shape
    a, b = operands(m, n, k)
    d = empty(m, n)
    report = run_step(compiled, step.arguments(a, b, d), schedule="random", seed=k)
    assert_same_bits(d, model(a, b))
    (launch,) = report.launches
    tiles = m // 128 * n // 128
    assert launch.grid == (m // 128, n // 128, 1)
    assert sum(count for name, count in launch.counts.items() if name.startswith("tcgen05.mma")) == tiles * k // 16


def test_the_order_of_k_matters():
    """What the model's bit pattern stands on: another order along K rounds differently."""
    a, b = operands(128, 128, 256)
    for accumulate in ("float32", "blackwell"):
        forward, backward = model(a, b, accumulate), model(a.flip(1), b.flip(1), accumulate)
        assert np.nansum(forward != backward) > 1000


def test_columns_are_used_as_declared(compiled):
    assert_columns_as_declared(step, compiled, step.arguments(*operands(128, 128, 128), empty(128, 128)))


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 128 and "128 columns allocated" in docstring
    assert step.STAGE_BYTES == 32 * 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(128, 64)}, r"a is torch.float32 \(128, 64\); allowed: torch.bfloat16 \(a multiple of 128, "),
        (
            {"a": torch.zeros(64, 64, dtype=torch.bfloat16)},
            r"a is .* \(64, 64\); allowed: .*\(a multiple of 128, a mult",
        ),
        ({"a": torch.zeros(128, 32, dtype=torch.bfloat16)}, r"\(128, 32\); allowed: .*, a multiple of 64\)"),
        (
            {"b": torch.zeros(128, 128, dtype=torch.bfloat16)},
            r"b is .* \(128, 128\); allowed: .*\(a multiple of 128, 64\)",
        ),
        ({"b": torch.zeros(0, 64, dtype=torch.bfloat16)}, r"b is .* \(0, 64\); allowed"),
        ({"d": torch.zeros(128, 256)}, r"d is torch.float32 \(128, 256\); allowed: torch.float32 \(128, 128\)"),
    ],
)
def test_bad_arguments(change, message):
    a, b = (torch.zeros(128, 64, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(ValueError, match=message):
        step.arguments(**({"a": a, "b": b, "d": empty(128, 128)} | change))

"""Direct codes of a row: bit for bit those of NumPy, from a kernel that does nothing else, and what they cost in SASS."""

from collections import Counter

import cutlass
import numpy as np
import pytest
import torch
from cutlass import cute

from mxfp8fa.emulator import run
from mxfp8fa.kernels import compile_kernel, gmem
from mxfp8fa.kernels.forward.direct import half_sum
from mxfp8fa.kernels.forward.plan import Config
from mxfp8fa.kernels.forward.rows import probabilities
from mxfp8fa.kernels.steps.step5_attention_tile import largest
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.softmax import OnlineSoftmax

ROWS, KEYS = 128, 128
SCALE_LOG2 = np.float32(0.1275)
BIAS = AttentionOptions().direct_bias


@cute.jit
def rows(mS: cute.Tensor, mCodes: cute.Tensor, mSum: cute.Tensor, config: cutlass.Constexpr[Config]) -> None:
    """Launch."""
    rows_kernel(mS, mCodes, mSum, config).launch(grid=(1, 1, 1), block=(ROWS, 1, 1))


@cute.kernel
def rows_kernel(mS: cute.Tensor, mCodes: cute.Tensor, mSum: cute.Tensor, config: cutlass.Constexpr[Config]) -> None:
    """A row a thread: maximum, codes, sum."""
    thread = cute.arch.thread_idx()[0]
    row = cute.make_rmem_tensor(KEYS, cutlass.Float32)
    row.store(mS[thread, None].load())
    codes = cute.make_rmem_tensor(KEYS, cutlass.Float8E4M3FN)
    probabilities(row, codes, largest(row), None, cutlass.Float32(float(SCALE_LOG2)), config)
    words = cute.recast_tensor(codes, cutlass.Int32)
    mCodes[thread, None].store(words.load())
    mSum[thread] = half_sum(words)


@pytest.fixture(scope="module", params=[False, True], ids=["integer", "subnormal"])
def subnormal(request):
    return request.param


@pytest.fixture(scope="module")
def tensors():
    return torch.zeros(ROWS, KEYS), torch.zeros(ROWS, KEYS // 4, dtype=torch.int32), torch.zeros(ROWS)


@pytest.fixture(scope="module")
def compiled(subnormal, tensors):
    config = Config(KEYS, cutlass.Float32, False, 8, 0.8, True, True, 0, 16, BIAS, subnormal)
    return compile_kernel(rows, *map(gmem, tensors), config)


def scores():
    """Rows with masked, NaN, infinite and huge scores, and every binade of P."""
    rng = np.random.default_rng(0)
    s = (rng.standard_normal((ROWS, KEYS)) * 60).astype(np.float32)
    s[rng.random(s.shape) < 0.1] = -np.inf
    s[0], s[1, 5], s[2, 7] = -np.inf, np.nan, 1e9
    s[3], s[4] = s[3] * np.float32(1e9), np.float32(1e9) + s[4]
    s[5], s[6, 9], s[7] = -1e9, np.inf, np.linspace(-200, 0, KEYS)
    s[8] = 0
    return s


def test_codes_and_sums_are_those_of_numpy(compiled, subnormal, tensors):
    s = scores()
    s_tensor, codes, total = tensors
    s_tensor.copy_(torch.from_numpy(s))
    run(compiled, *map(gmem, tensors))
    options = AttentionOptions(
        exp="direct", row_sum="rounded", sum_format="float16", direct_codes="subnormal" if subnormal else "integer"
    )
    softmax = OnlineSoftmax(ROWS, SCALE_LOG2, options)
    with np.errstate(all="ignore"):
        expected = softmax.step(s)
    np.testing.assert_array_equal(codes.numpy().view(np.uint8).reshape(ROWS, KEYS), expected.codes)
    known = ~np.isnan(softmax.row_sum)
    np.testing.assert_array_equal(total.numpy()[known], softmax.row_sum[known])
    assert (~known).sum() == 2  # the NaN and the infinity; what makes their sum NaN stands with the loop


def test_two_scores_are_converted_by_one_instruction(compiled, subnormal):
    """F2IP for integers, F2FP and a quarter PRMT for subnormals; and no exponential."""
    from mxfp8fa.timing.binary import ToolError, binaries_of

    try:
        (binary,) = binaries_of(compiled).values()
    except ToolError as error:
        pytest.skip(str(error))
    counts = Counter(i.mnemonic for i in binary.function.instructions)
    assert counts["MUFU"] == 0 and counts["F2I"] == 0
    if subnormal:
        assert counts["PRMT"] <= KEYS // 4 + 4
    else:
        assert counts["F2IP"] == KEYS // 2
    assert counts["HADD2"] + counts["HFMA2"] <= KEYS // 2 + 4

"""Data and checks that the tests of the backward kernels share."""

import numpy as np
import torch

from mxfp8fa import emulator


def run_kernel(compiled, arguments, **options):
    """Run in the emulator with everything switched on that can object, and expect it to be silent."""
    report = emulator.run(compiled, *arguments, wait_ld="required", check="races", **options)
    assert report.races == []
    return report


def uneven(shape, seed):
    """(B, S, H, D) normal values; every block of 32 x 32 has a power of two of its own."""
    rng = np.random.default_rng(seed)
    batch, seqlen, heads, head_dim = shape
    blocks = batch, -(-seqlen // 32), heads, head_dim // 32
    power = 2.0 ** (np.arange(np.prod(blocks)).reshape(blocks) * 5 % 7 - 3.0)
    power = power.repeat(32, axis=1)[:, :seqlen].repeat(32, axis=3)
    return (rng.standard_normal(shape) * power).astype(np.float32)


def assert_same(result, expected):
    """Bit for bit the same, any NaN being equal to any NaN and 0 to -0 not."""
    got, want = (np.ascontiguousarray(x, np.float32) for x in (result, expected))
    assert got.shape == want.shape
    differ = (got.view(np.uint32) != want.view(np.uint32)) & ~(np.isnan(got) & np.isnan(want))
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{differ.sum()} of {differ.size} differ; first at {at}: {got[at]!r}, expected {want[at]!r}"
        )


def never_written(shape, dtype=torch.float32):
    """Memory for a result, filled with what no kernel here makes."""
    return torch.full(shape, -77, dtype=dtype)

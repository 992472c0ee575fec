"""tcgen05.fence is accepted in both forms and changes no result."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tensor.kernels import run, tensor_in, tensor_out


@pytest.mark.parametrize("place", ["before_thread_sync", "after_thread_sync"])
def test_a_fence_between_a_store_and_a_load(place):
    data = np.arange(128 * 8, dtype=np.uint32).reshape(1, 128, 8)
    out = np.zeros_like(data)
    body = tensor_in(0, 8) + f" tcgen05.fence::{place};\n" + tensor_out(8)
    report = run(body, out, data, columns=32, check="races")
    assert np.array_equal(out, data) and report.races == []
    assert report.counts[f"tcgen05.fence::{place}"] == 4


def test_an_unknown_fence_is_refused():
    with pytest.raises(Exception, match=r"tcgen05\.fence::during_thread_sync"):
        run(" tcgen05.fence::during_thread_sync;\n", np.zeros(4, np.uint32), columns=32)

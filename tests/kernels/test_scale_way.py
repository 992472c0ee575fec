"""What a CTA leaves behind, and the way of an atom of scales that notebook 06 shows."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from mxfp8fa.emulator import run  # noqa: E402
from mxfp8fa.emulator.remains import MemoryAtExit  # noqa: E402
from mxfp8fa.kernels import compile_kernel  # noqa: E402
from mxfp8fa.kernels.steps import step2_k_loop as step  # noqa: E402
from mxfp8fa.layouts import scale_offset  # noqa: E402
from mxfp8fa.layouts.tmem import scale_cells  # noqa: E402
from mxfp8fa.studies.scale_way import WRONG_PLACES, follow_atom, misplace  # noqa: E402


def test_memories_of_every_cta_at_its_end():
    a = torch.ones(256, 64, dtype=torch.bfloat16)
    b, d = torch.ones(128, 64, dtype=torch.bfloat16), torch.zeros(256, 128)
    arguments = step.arguments(a, b, d)
    remains = MemoryAtExit()
    run(compile_kernel(step.k_loop, *arguments), *arguments, trace=remains)
    assert set(remains.smem) == set(remains.tmem) == {(0, 0, 0), (1, 0, 0)}
    for cta in remains.tmem:
        tmem, smem = remains.tmem[cta], remains.smem[cta]
        assert (tmem.values[:, :128].view(np.float32) == 64).all() and tmem.written[:, :128].all()
        assert not tmem.written[:, 128:].any()
        assert smem.values.dtype == np.uint8 and not smem.written[:0x400].any()
        ones = smem.values.view(np.uint16)[smem.written.view(np.uint16) == 0x0101] == 0x3F80
        assert ones.sum() >= 2 * 128 * 64  # one stage of A and of B


def test_every_scale_is_where_the_layouts_say():
    way = follow_atom()
    row, block = np.arange(128)[:, None], np.arange(4)[None, :]
    name = 4 * row + block
    offset = scale_offset(row, block, columns=4)
    np.testing.assert_array_equal(way.gmem[offset], name)
    np.testing.assert_array_equal(way.smem[offset], name)
    lanes, columns = scale_cells(128)
    for copy in range(4):
        np.testing.assert_array_equal(way.tmem[lanes[copy]][np.arange(128), columns[copy]], name)
    assert way.first_column == 128 and way.smem_offset % 128 == 0


@pytest.mark.parametrize("way", WRONG_PLACES)
def test_a_misplacement_moves_bytes_and_loses_none(way):
    packed = torch.arange(4 * 512).reshape(2, 2, 512)
    wrong = misplace(packed, way)
    assert wrong.shape == packed.shape and not torch.equal(wrong, packed)
    assert torch.equal(wrong.reshape(-1).sort().values, packed.reshape(-1))


def test_an_unknown_misplacement():
    with pytest.raises(ValueError, match="way = 'sideways'; allowed: rows 32 apart swapped, "):
        misplace(torch.zeros(1, 1, 512), "sideways")

"""Valid global memory: the whole storage of every tensor in the arguments, once."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

from mxfp8fa.emulator.host import HostCall, MemoryRange, as_cuda, memory_ranges
from mxfp8fa.emulator.host.memory import allowed_range, covers

torch = pytest.importorskip("torch")


def spans(*args, **kwargs):
    return {(r.address, r.size_bytes, r.name) for r in memory_ranges(args, kwargs)}


def test_torch_views_stand_for_their_storage():
    whole = torch.zeros(10, 20)
    view = whole[3:5, 4:].t()
    assert spans(view) == {(whole.data_ptr(), 800, "args[0]")}
    assert spans(whole.view(torch.uint8), view) == {(whole.data_ptr(), 800, "args[0]")}  # one storage, listed once


def test_numpy_views_stand_for_the_array_that_owns_the_memory():
    whole = np.zeros((6, 4), np.float16)
    assert spans(whole[::2, ::-1]) == {(whole.ctypes.data, 48, "args[0]")}
    fixed = np.frombuffer(b"0123456789", np.uint8)[2:4]
    (memory,) = memory_ranges((fixed,))
    assert not memory.writable and memory.size_bytes == 10
    assert memory_ranges((whole,))[0].writable


def test_views_of_every_kind(programs):
    from cutlass.cute.runtime import from_dlpack

    whole = torch.zeros(64)
    expected = {(whole.data_ptr(), 256, "args[0]")}
    assert spans(from_dlpack(whole[8:16])) == expected
    assert spans(from_dlpack(whole[8:16]).mark_layout_dynamic()) == expected
    assert spans(as_cuda(whole)[8:16]) == expected
    assert spans(from_dlpack(as_cuda(whole[8:16]))) == expected
    array = np.zeros(64, np.float32)
    assert spans(from_dlpack(as_cuda(array[8:16]))) == {(array.ctypes.data, 256, "args[0]")}


def test_a_dlpack_tensor_of_unknown_source_stands_for_its_own_extent(programs):
    from cutlass.cute.runtime import from_dlpack

    from mxfp8fa.emulator.host.cuda_view import SOURCE_ATTRIBUTE

    whole = torch.zeros(8, 10, dtype=torch.int16)
    tensor = from_dlpack(whole[2:4, 3:6])
    del tensor.__dict__[SOURCE_ATTRIBUTE]
    assert spans(tensor) == {(whole.data_ptr() + 2 * 23, 2 * (10 + 3), "args[0]")}  # 3 of each row, 10 apart

    class Exporter:
        def __dlpack__(self, **options):
            return whole[2:4, 3:6].__dlpack__(**options)

        def __dlpack_device__(self):
            return 1, 0

    assert spans(Exporter()) == spans(tensor)


def test_containers_and_names():
    a, b, c, d, e = (torch.zeros(n) for n in (1, 2, 3, 4, 5))

    @dataclass
    class Bundle:
        first: object
        rest: object

    pair = namedtuple("pair", "left right")
    found = spans((a, [b]), Bundle(c, 7), pair(d, None), last={"x": e}, scale=1.0)
    assert found == {
        (a.data_ptr(), 4, "args[0][0]"),
        (b.data_ptr(), 8, "args[0][1][0]"),
        (c.data_ptr(), 12, "args[1].first"),
        (d.data_ptr(), 16, "args[2].left"),
        (e.data_ptr(), 20, "last['x']"),
    }


def test_names_of_the_compiled_function(scale_add):
    a, b = torch.zeros(4), torch.zeros(4)
    names = {r.address: r.name for r in HostCall(scale_add, (a, b, a, 1.0)).memory_ranges()}
    assert names == {a.data_ptr(): "a", b.data_ptr(): "b"}


def test_no_storage_behind_scalars_pointers_and_empty_tensors(programs):
    import cutlass
    from cutlass.cute.runtime import make_ptr

    tensor = torch.zeros(4)
    assert not spans(1, 2.0, True, None, "text", torch.zeros(0), make_ptr(cutlass.Float32, tensor.data_ptr()))


def test_allow_takes_tensors_and_pairs(scale_add):
    a, extra = torch.zeros(4), torch.zeros(4)
    ranges = HostCall(scale_add, (a, a, a, 1.0)).memory_ranges(allow=[extra, (0x1000, 16), [extra[1:], extra]])
    assert MemoryRange(0x1000, 16, True, "allow") in ranges
    assert covers(ranges, extra.data_ptr(), 16) and covers(ranges, a.data_ptr(), 16)
    assert ranges == sorted(ranges)
    with pytest.raises(ValueError, match="allow= takes tensors"):
        allowed_range(17)


def test_covers_edges():
    ranges = [MemoryRange(100, 10, True, "x"), MemoryRange(110, 10, True, "y")]
    assert covers(ranges, 100, 10) and covers(ranges, 109, 1) and covers(ranges, 110, 10)
    assert not covers(ranges, 99, 1) and not covers(ranges, 120, 1)
    assert not covers(ranges, 105, 10)  # two allocations that happen to touch are two allocations

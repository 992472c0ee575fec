"""Column maps, barrier tables, and the checks of arguments."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")

from mxfp8fa.kernels import Barrier, Barriers, Columns, TmemMap  # noqa: E402
from mxfp8fa.kernels.checks import Multiple, check_tensor  # noqa: E402
from mxfp8fa.kernels.launch import gmem  # noqa: E402


def columns(name, start, count, over=""):
    return Columns(name, start, count, "writes", "reads", "things", over)


@pytest.mark.parametrize(("stop", "allocation"), [(1, 32), (32, 32), (33, 64), (128, 128), (152, 256), (512, 512)])
def test_an_allocation_is_the_next_power_of_two(stop, allocation):
    assert TmemMap(columns("D", 0, stop)).allocation == allocation


def test_a_map_is_read_by_name_and_printed_as_a_table():
    tmem = TmemMap(columns("S", 0, 128), columns("P", 96, 32, over="S"))
    assert tmem["P"].stop == 128 and [r.name for r in tmem] == ["S", "P"]
    assert str(tmem).splitlines() == [
        "columns  name  written by  read by  holds",
        "0-127    S     writes      reads    things",
        "96-127   P     writes      reads    things (over S)",
    ]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([columns("S", 0, 128), columns("P", 127, 1)], "P and S overlap; one of them has to say over='S'"),
        ([columns("S", 0, 128, over="O"), columns("P", 0, 1)], "P and S overlap"),
        ([columns("S", 0, 1), columns("S", 1, 1)], "a name is used twice"),
        ([columns("S", 500, 13)], "S takes columns 500 to 512; there are 0 to 511"),
        ([columns("S", -1, 2)], "S takes columns -1 to 0"),
        ([columns("S", 0, 0)], "S takes columns 0 to -1"),
    ],
)
def test_maps_that_cannot_be(ranges, message):
    with pytest.raises(ValueError, match=message):
        TmemMap(*ranges)


def test_barriers_are_read_by_name_and_printed_as_a_table():
    barriers = Barriers(Barrier("full", 1, "TMA", "mma", "filled", 3), Barrier("done", 128, "all", "mma", "over"))
    assert barriers["full"].stages == 3 and [b.count for b in barriers] == [1, 128]
    assert str(barriers).splitlines() == [
        "barrier  count  arrives  waits  means",
        "full[3]  1      TMA      mma    filled",
        "done     128    all      mma    over",
    ]
    with pytest.raises(ValueError, match="a name is used twice"):
        Barriers(barriers["full"], barriers["full"])


def test_sizes_that_fit():
    check_tensor("x", torch.zeros(256, 64), torch.float32, Multiple(128), 64)
    check_tensor("x", torch.zeros(64, 256).T, torch.float32, Multiple(128), 64, column_major=True)


@pytest.mark.parametrize("shape", [(0, 64), (100, 64), (128, 63), (128,), (1, 128, 64)])
def test_sizes_that_do_not(shape):
    with pytest.raises(ValueError, match=r"x is torch.float32 .*; allowed: torch.float32 \(a multiple of 128, 64\)"):
        check_tensor("x", torch.zeros(shape), torch.float32, Multiple(128), 64)


def test_orders_that_do_not_fit():
    with pytest.raises(ValueError, match=r"strides \(128, 2\); allowed: contiguous or the transpose of a contiguous"):
        check_tensor("x", torch.zeros(128, 128)[:, ::2], torch.float32, 128, 64, column_major=True)


def test_a_tensor_in_global_memory_shares_its_memory_and_keeps_sizes_open():
    x = torch.zeros(128, 64)
    tensor = gmem(x, divisible_by=(128, None))
    assert tensor.data_ptr == x.data_ptr() and "gmem" in str(tensor.memspace)
    assert tensor.dynamic_shapes_mask == (1, 0)
    assert gmem(x).dynamic_shapes_mask == (0, 0)

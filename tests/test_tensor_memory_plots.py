"""Pictures of tensor memory show what the layouts and the runs say."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402

from mxfp8fa.layouts import pack_atoms  # noqa: E402
from mxfp8fa.layouts.tmem import fragment_cells  # noqa: E402
from mxfp8fa.plots import pipeline, style, tensor_memory  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def packed_numbers():
    """The number of each byte of a packed atom: 4 row + block."""
    low, high = (pack_atoms((np.arange(512).reshape(128, 4) // k % 256).astype(np.uint8)) for k in (1, 256))
    return low.reshape(-1) + 256 * high.reshape(-1).astype(int)


def staircase():
    writer = np.full((128, 512), -1)
    for warp in range(4):
        writer[32 * warp : 32 * warp + 32, 24 * warp : 24 * warp + 4] = warp
    return writer


def scale_way(ax):
    packed = packed_numbers()
    return tensor_memory.fig_scale_way(
        packed, np.tile(packed.reshape(32, 4, 4), (4, 1, 1)), parameters="made up", ax=ax
    )


DRAWINGS = {
    "partitions": (1, lambda ax: tensor_memory.fig_partitions(staircase(), 128, finding="A b c d e", parameters="made up", ax=ax)),
    "fragments": (5, lambda ax: tensor_memory.fig_fragments(ax=ax)),
    "scale_way": (3, scale_way),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_a_finding_and_says_of_which_kind_it_is(name):
    panels, draw = DRAWINGS[name]
    figure = draw(None)
    assert len(figure.axes) == panels and len(figure.get_suptitle().split()) >= 5
    assert figure.get_supxlabel().startswith(("Emulated: ", "By definition: "))
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_draws_on_given_axes(name):
    panels, draw = DRAWINGS[name]
    figure, grid = plt.subplots(1, panels, squeeze=False)
    axes = list(grid.flat)
    assert draw(axes[0] if panels == 1 else axes) is figure
    with pytest.raises(ValueError, match=f"ax holds {panels + 1} axes; this figure needs {panels}"):
        draw([*axes, axes[0]])


def test_partitions_shows_who_wrote_what():
    (image,) = DRAWINGS["partitions"][1](None).axes[0].get_images()
    picture = image.get_array()
    shades = [tuple(picture[32 * warp, 24 * warp]) for warp in range(4)]
    assert len(set(shades)) == 4 and shades[3] == pytest.approx(to_rgb(style.MEMORY_COLORS["TMEM"]))
    assert (picture[staircase() == 2] == shades[2]).all()
    assert (picture[:, 128:] == 1).all() and (picture[0, 100] < 1).any(), "allocated and empty is not white"


def test_fragments_outlines_the_cells_of_one_thread():
    figure = tensor_memory.fig_fragments(("16x256b",), thread=7)
    outlined = {
        (patch.get_y(), patch.get_x())
        for patch in figure.axes[0].patches
        if patch.get_edgecolor()[:3] == pytest.approx(to_rgb(style.VERMILION))
    }
    lanes, columns = fragment_cells("16x256b", 1)
    assert outlined == set(zip(lanes[:, 7], columns[:, 7], strict=True))
    texts = {(t.get_position()[1] // 1, t.get_position()[0] // 1): t.get_text() for t in figure.axes[0].texts}
    assert texts[lanes[2, 7], columns[2, 7]] == "t7\nr2"


def test_scale_way_marks_one_byte_and_its_copies():
    figure = scale_way(None)
    corners = [[(p.get_y(), p.get_x()) for p in one.patches] for one in figure.axes]
    assert corners[0] == [(37, 2)]  # row, block
    assert corners[1] == [(5, 6)]  # 16 bytes number 37 % 32, byte 4 (37 // 32) + 2
    assert corners[2] == [(lane, 6) for lane in (5, 37, 69, 101)]
    matrix, packed, _ = (one.get_images()[0].get_array() for one in figure.axes)
    assert (packed[5, 6] == matrix[37, 2]).all() and (matrix[0, 0] != matrix[32, 0]).any()


@dataclass
class Access:
    step: int
    actor: str
    write: bool
    first_column: int
    last_column: int


class Accesses:
    """Two tiles of scales, each read twice, and an accumulator that is written three times and read once."""

    tensor_accesses = (
        Access(1, "tensor core", True, 8, 11),
        Access(2, "tensor core", True, 0, 7),
        Access(3, "tensor core", False, 8, 11),
        Access(4, "tensor core", True, 0, 7),
        Access(5, "tensor core", False, 8, 11),
        Access(6, "tensor core", True, 8, 11),
        Access(7, "tensor core", True, 0, 7),
        Access(8, "tensor core", False, 8, 11),
        Access(9, "mma", False, 0, 7),
        Access(10, "warp 2", False, 0, 3),
    )


def test_columns_that_are_used_together_share_a_row():
    assert pipeline._column_groups(Accesses.tensor_accesses) == [(0, 3), (4, 7), (8, 11)]


def test_columns_hold_data_from_a_write_to_the_last_read_before_the_next():
    of = {
        first: [a for a in Accesses.tensor_accesses if a.first_column <= first <= a.last_column] for first in (0, 4, 8)
    }
    assert pipeline._held(of[8]) == [(1, 5), (6, 8)]
    assert pipeline._held(of[0]) == [(2, 10)] and pipeline._held(of[4]) == [(2, 9)]
    assert pipeline._held(of[8][:1]) == [(1, 1)], "written and never read"


def test_tensor_memory_names_its_columns_and_its_actors():
    names = {"D": (0, 7), "SFA": (8, 11)}
    figure = pipeline.fig_tensor_memory(Accesses, finding="One two three", parameters="made up", names=names)
    (one,) = figure.axes
    assert [label.get_text() for label in one.get_yticklabels()] == ["D  0-3", "D  4-7", "SFA  8-11"]
    assert {t.get_text() for t in one.get_legend().get_texts()} == {"holds data", "tensor core", "mma", "other warps"}

"""Descriptors field by field, excerpts of PTX, and their pictures."""

import numpy as np
import pytest

from mxfp8fa.emulator.isa import tcgen05_descriptor
from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor, byte_addresses
from mxfp8fa.layouts.swizzle import SW128
from mxfp8fa.studies.descriptors import INSTRUCTION, SharedTile, field_table, instruction_fields, matrix_fields
from mxfp8fa.studies.listing import ptx_lines

WORDS = {"f16": 0x08200490, "mxf8f6f4": 0x48A18030}


@pytest.mark.parametrize(("kind", "bits"), [*((kind, 32) for kind in INSTRUCTION), ("matrix", 64)])
def test_fields_are_all_the_bits_and_none_twice(kind, bits):
    word = (1 << bits) - 1
    fields = matrix_fields(word) if kind == "matrix" else instruction_fields(word, kind)
    assert [f.low for f in fields] == [0, *(f.high + 1 for f in fields[:-1])] and fields[-1].high == bits - 1
    assert sum(f.value << f.low for f in fields) == word
    assert all(f.meaning == "must be 0" for f in fields if not f.name)


@pytest.mark.parametrize("kind", WORDS)
def test_fields_mean_what_the_emulator_does(kind):
    vector = "block32" if kind == "mxf8f6f4" else None
    shape = tcgen05_descriptor.decode(WORDS[kind], kind, 1, vector)
    meaning = {f.name: f.meaning for f in instruction_fields(WORDS[kind], kind)}
    assert (meaning["M / 16"], meaning["N / 8"]) == (str(shape.m), str(shape.n))
    assert (meaning["A"], meaning["B"]) == (shape.a_format, shape.b_format)
    majors = "MN-major" if shape.a_mn_major else "K-major", "MN-major" if shape.b_mn_major else "K-major"
    assert (meaning["major A"], meaning["major B"]) == majors
    if kind == "mxf8f6f4":
        assert (meaning["SFA id"], meaning["SFB id"]) == (str(shape.sfa_id), str(shape.sfb_id)) == ("2", "3")


def test_matrix_fields_mean_what_the_layouts_do():
    descriptor = MatrixDescriptor(0x1A40, 16, 1024, SW128)
    meaning = {f.name: f.meaning for f in matrix_fields(descriptor.encode())}
    assert meaning["start / 16"] == f"{0x1A40} bytes" and meaning["swizzle"] == "128 bytes"
    assert (meaning["LBO / 16"], meaning["SBO / 16"]) == ("16 bytes", "1024 bytes")
    assert meaning["constant"] == "always 1"


def test_a_table_of_fields():
    lines = field_table(instruction_fields(WORDS["f16"], "f16")).splitlines()
    assert lines[2] == " 4:5   D              1  f32" and not any(line.startswith(" 6:6") for line in lines)


def test_what_has_no_fields():
    with pytest.raises(ValueError, match="kind = 'tf32'; allowed: f16, mxf8f6f4"):
        instruction_fields(0, "tf32")
    with pytest.raises(ValueError, match="allowed: 32 bits"):
        instruction_fields(1 << 32, "f16")
    with pytest.raises(ValueError, match="allowed: 64 bits"):
        matrix_fields(-1)


def test_chunks_of_a_swizzled_tile():
    addresses = byte_addresses(MatrixDescriptor(0x800, 16, 1024, SW128), 16, 128, 2, mn_major=False)
    tile = SharedTile("A", addresses, 2)
    assert tile.chunks(0, 0x800) == [(0, 8 * i) for i in range(8)]
    assert tile.chunks(3, 0x800) == [(3, 8 * (i ^ 3)) for i in range(8)]
    assert tile.chunks(16, 0x800) == [(-1, -1)] * 8  # behind the tile


def test_lines_of_ptx():
    ptx = """
    .reg .b32 %r<3>;
    .loc 1 2 3
    LABEL:
        add.s32   %r1, %r2, 1;
        tcgen05.mma.cta_group::1 [%r1];
    // tcgen05.mma in a comment;
        ret;
    """
    assert ptx_lines(ptx, r"tcgen05\.mma") == ["tcgen05.mma.cta_group::1 [%r1];"]
    assert ptx_lines(ptx, "mma", "ret", before=1) == ["add.s32 %r1, %r2, 1;", "tcgen05.mma.cta_group::1 [%r1];", "ret;"]


class Range:
    name, start, count = "D", 0, 128


def drawings():
    from mxfp8fa.plots import mma

    tile = SharedTile("A", byte_addresses(MatrixDescriptor(0x800, 16, 1024, SW128), 8, 128, 1, mn_major=False), 1)
    finding = "a finding of at least five words"
    cells = np.ones((128, 64), np.float32)
    words = [("instruction", instruction_fields(WORDS["f16"], "f16")), ("matrix", matrix_fields(0))]
    return {
        "words": (1, lambda ax: mma.fig_words(words, finding=finding, ax=ax)),
        "tiles": (2, lambda ax: mma.fig_tiles([tile, tile], finding=finding, ax=ax)),
        "accumulator": (1, lambda ax: mma.fig_accumulator(cells, mark=(3, 60), finding=finding, ax=ax)),
        "columns": (1, lambda ax: mma.fig_columns([("step", [Range])], finding=finding, ax=ax)),
    }


@pytest.mark.parametrize("name", ["words", "tiles", "accumulator", "columns"])
def test_figures_have_a_finding_and_a_caption(name):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    panels, draw = drawings()[name]
    figure = draw(None)
    assert figure.get_suptitle() == "a finding of at least five words"
    kind = "Emulated: " if name == "accumulator" else "By definition: "
    assert figure.get_supxlabel().startswith(kind)
    _, grid = pyplot.subplots(1, panels, squeeze=False)
    axes = list(grid.flat)
    assert draw(axes[0] if panels == 1 else axes) is axes[0].figure
    with pytest.raises(ValueError, match=f"ax holds {panels + 1} axes; this figure needs {panels}"):
        draw([*axes, axes[0]])
    pyplot.close("all")


def test_the_picture_of_a_word_shows_its_bits():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from mxfp8fa.plots import mma

    figure = mma.fig_words([("word", instruction_fields(WORDS["f16"], "f16"))], finding="bits")
    digits = sorted((t.get_position()[0], t.get_text()) for t in figure.axes[0].texts if t.get_text() in ("0", "1"))
    assert int("".join(d for _, d in digits), 2) == WORDS["f16"]
    pyplot.close("all")

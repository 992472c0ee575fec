"""Bytes of packed sequences: the counts, and what the figure's title says."""

import numpy as np
import pytest

from mxfp8fa.plots.jagged import fig_address_spaces
from mxfp8fa.studies.jagged import WAYS, bytes_moved, jagged_bytes, scale_padding


def test_bytes_of_one_token_and_of_whole_tiles():
    one, two = bytes_moved(np.array([1, 128])), bytes_moved(np.array([128, 128]))
    assert one[WAYS[0]] == 256 * 129 + 2 * 1024 and two[WAYS[0]] == 256 * 256 + 2 * 1024
    assert two[WAYS[1]] == two[WAYS[2]] == two[WAYS[0]] + 2 * 256 * 256
    assert scale_padding(np.array([1])) == 127 / 128 and scale_padding(np.array([128, 256])) == 0


def test_what_the_title_says():
    moved = jagged_bytes().moved
    assert moved[WAYS[0]].max() < 1.01
    assert moved[WAYS[2]][0] == pytest.approx(3, abs=0.1) and moved[WAYS[2]][-1] == pytest.approx(5, abs=0.2)
    assert (moved[WAYS[1]] > 2.8).all() and (moved[WAYS[1]] < 3.1).all()


def test_sequences_without_tokens_have_no_place_in_the_picture():
    figure = fig_address_spaces([90, 0, 150])
    (axis,) = figure.axes
    assert [t.get_text() for t in axis.texts] == ["seq. 0", "seq. 2"]
    bars = [(bar.get_x(), bar.get_width()) for bar in axis.patches if bar.get_width()]
    assert bars == [(0, 90), (0, 128), (0, 90), (90, 150), (128, 256), (128, 150)]

"""Bytes of packed sequences: the counts, and what the figure's title says."""

import numpy as np
import pytest

from mxfp8fa.plots.jagged import fig_address_spaces
from mxfp8fa.studies.jagged import (
    WAYS,
    bytes_moved,
    ends_backward,
    ends_forward,
    jagged_bytes,
    jagged_tail,
    key_lengths,
    scale_padding,
)
from mxfp8fa.timing.chip import Increments
from mxfp8fa.timing.rates import Rates


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


def test_ends_of_three_ctas_by_hand():
    """Rounds 5 4 3 and 2 1, back and forth: 5, 4 + 1, 3 + 2; a tile costs 10 and the start 100."""
    work, increments = np.array([5, 4, 3, 2, 1]), Increments(100.0, 10.0, 1.0)
    assert ends_forward(work, increments, 3, back_and_forth=True).tolist() == [115, 125, 125]
    assert ends_forward(work, increments, 3, back_and_forth=False).tolist() == [127, 125, 113]
    ends = ends_backward(work, increments, Rates({"sm_count": 3, "cta_start": 1000}))
    assert sorted(ends) == [1115, 2225, 2227 - 2]


def test_the_order_of_work_is_the_tables_and_dealt_as_the_scheduler_does():
    torch = pytest.importorskip("torch")
    from mxfp8fa.kernels.jagged import Jagged

    keys = key_lengths(jagged=True)
    cu_q, cu_k = (torch.from_numpy(np.concatenate([[0], np.cumsum(n)])) for n in (np.full(256, 256), keys))
    table = Jagged(cu_q, cu_k, int(cu_q[-1]), int(cu_k[-1]), exact=True).work("q", 256, causal=False).numpy()[1:]
    work = np.repeat(-(-table[:, 2] // 128), 4)  # four heads of a row after each other
    loads = np.zeros(148)
    for index in range(-(-len(work) // 148) * 148):  # scheduler.JaggedScheduler.tile
        turn, place = divmod(index, 148)
        number = turn * 148 + place + turn % 2 * (147 - 2 * place)
        loads[place] += work[number] if number < len(work) else 0
    ours = ends_forward(work, Increments(0.0, 0.0, 1.0), 148, back_and_forth=True)
    assert ours.tolist() == loads.tolist()


def test_what_the_tails_title_says():
    data = jagged_tail()
    lie, longest, turning = data.ends.values()
    assert round(100 * turning.mean() / turning.max()) == 98
    assert lie.mean() < 0.75 * lie.max() and longest.mean() < 0.9 * longest.max()
    for speed in data.speeds:
        low, high = speed.petaflops
        assert 0 < low < high < speed.published
    assert round(100 * data.backward_ends.mean() / data.backward_ends.max()) >= 99
    jagged, uniform = data.speeds[:2]
    assert jagged.petaflops[0] / uniform.petaflops[0] == pytest.approx(2.54 / 2.59, abs=0.01)

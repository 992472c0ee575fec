"""What the notebooks stand on: the checker, the map, and the studies and pictures made for them."""

import io

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from mxfp8fa.numerics import (  # noqa: E402
    E4M3,
    E5M2,
    E8M0,
    AttentionOptions,
    attention_mxfp8,
    attention_reference,
    decode,
    encode,
)
from mxfp8fa.numerics.inputs import load_real, synthetic_llm  # noqa: E402
from mxfp8fa.numerics.softmax import softmax_scale_log2  # noqa: E402
from mxfp8fa.plots import course as course_plots  # noqa: E402
from mxfp8fa.plots import gemms as gemm_plots  # noqa: E402
from mxfp8fa.plots import numbers as number_plots  # noqa: E402
from mxfp8fa.plots import probabilities as p_plots  # noqa: E402
from mxfp8fa.published import BY_KEY  # noqa: E402
from mxfp8fa.studies import probabilities  # noqa: E402
from mxfp8fa.studies.course import LESSONS, course_table  # noqa: E402
from mxfp8fa.studies.exercises import check  # noqa: E402
from mxfp8fa.studies.gemms import GEMMS, OPERANDS, block_axes  # noqa: E402
from mxfp8fa.studies.orientations import orientations  # noqa: E402
from mxfp8fa.studies.outliers import as_int8, outlier_sweep  # noqa: E402
from mxfp8fa.studies.tile import attention_tile  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def twice(x):
    return 2 * x


@pytest.mark.parametrize(
    ("answer", "cases", "reply"),
    [
        (lambda x: ..., [((1,), 2)], "first mismatch: <lambda>(1) = Ellipsis, expected 2\n"),
        (lambda x: None, [((1,), 2)], "not attempted\n"),
        (twice, [((1,), 2)], "ok, 1 case\n"),
        (twice, [((1,), 2), ((0.1,), 0.2 * (1 + 1e-14))], "ok, 2 cases\n"),
        (twice, [((1,), 2), ((0.1,), 0.2 * (1 + 1e-10))], None),
        (twice, [(("ab",), "abab"), (([1],), [1, 1]), ((float("nan"),), float("nan"))], "ok, 3 cases\n"),
        (twice, [((float("nan"),), 1.0)], "first mismatch: twice(nan) = nan, expected 1.0\n"),
        (twice, [(([1],), [1])], "first mismatch: twice([1]) = [1, 1], expected [1]\n"),
        (twice, [((1,), 3), ((2,), 5)], "first mismatch: twice(1) = 2, expected 3\n"),
        (
            lambda x: x[0],
            [((1,), 2)],
            "first mismatch: <lambda>(1) raised TypeError: 'int' object is not subscriptable\n",
        ),
        # None later is an answer, and a wrong one
        (lambda x: 2 if x == 1 else None, [((1,), 2), ((2,), 4)], "first mismatch: <lambda>(2) = None, expected 4\n"),
    ],
)
def test_check_says_ok_or_the_first_mismatch_or_not_attempted(answer, cases, reply, capsys):
    check(answer, cases)
    said = capsys.readouterr().out
    assert said == reply if reply else said.startswith("first mismatch: twice(0.1) = 0.2, ")


def test_check_shows_codes_in_hexadecimal(capsys):
    check(twice, [((8,), 17)], show=hex)
    check(twice, [((8.5,), 17.5)], show=hex)
    assert capsys.readouterr().out.splitlines() == [
        "first mismatch: twice(0x8) = 0x10, expected 0x11",
        "first mismatch: twice(8.5) = 17.0, expected 17.5",
    ]


def test_lessons_build_on_earlier_ones_and_all_lead_back_to_the_map():
    assert [lesson.number for lesson in LESSONS] == list(range(16))
    for lesson in LESSONS[1:]:
        assert lesson.needs and all(needed < lesson.number for needed in lesson.needs)
        assert lesson.question.endswith("?")


def test_course_table_links_what_is_there_and_marks_what_is_not():
    lines = course_table({1: "01_x.ipynb"}, "notebooks/").splitlines()
    assert len(lines) == 2 + 16
    assert lines[2].startswith("| 00 | The map (not yet) | ")
    assert lines[3].startswith("| 01 | [MXFP8 numbers](notebooks/01_x.ipynb) | ")


def test_int8_takes_the_smallest_power_of_two_that_fits():
    """amax 127 and 127 * 2^-3 fit exactly; 127.5 needs the next power of two, where it rounds to 64 * 2."""
    x = np.array([[127, 1], [127 / 8, 0.0625], [127.5, 1]], np.float32)
    assert np.array_equal(as_int8(x), [[127, 1], [127 / 8, 0.0], [128, 0]])


def test_an_outlier_costs_integers_at_once_and_e4m3_after_twelve_binades():
    sweep = outlier_sweep(gains_log2=(0, 3, 4, 12, 17, 18), blocks=256)
    int8, e4m3, e5m2 = (sweep.db[name] for name in ("INT8", "E4M3", "E5M2"))
    assert int8[0] > e4m3[0] + 9 and int8[1] - int8[2] == pytest.approx(6.02, abs=0.2)
    assert e4m3[0] - e4m3[3] < 0.2 and e4m3[4] - e4m3[5] == pytest.approx(6.02, abs=0.3)
    assert np.ptp(e5m2) < 0.2


EINSUMS = {"S": "qd,kd", "O": "qk,kd", "dP": "qd,kd", "dV": "qk,qd", "dQ": "qk,kd", "dK": "qk,qd"}
AXIS_OF = {"q": "queries", "k": "keys", "d": "d"}


def test_gemms_are_those_of_attention():
    """Against the einsums: the letter that is in both operands and not in the result is what is contracted."""
    for gemm in GEMMS:
        left, right = (set(part) for part in EINSUMS[gemm.result].split(","))
        (summed,) = left & right
        assert AXIS_OF[summed] == gemm.contracted
        (row,), (column,) = left - {summed}, right - {summed}
        assert (AXIS_OF[row], AXIS_OF[column]) == (gemm.rows, gemm.columns)


def test_every_operand_is_needed_in_two_orientations():
    needed = block_axes()
    assert set(needed) == set(OPERANDS)
    assert needed["Q"] == {"d": ["S"], "queries": ["dK"]} and needed["V"] == {"keys": ["O"], "d": ["dP"]}
    assert all(len(axes) == 2 for axes in needed.values())


def test_range_of_p_is_normalized_and_counts_what_becomes_zero():
    study = probabilities.range_of_p(synthetic_llm(seqlen_q=64, num_heads_q=1, head_dim=64, logit_std=4.0))
    assert study.log2_p["forward"].reshape(64, 64).max(axis=1) == pytest.approx(0, abs=1e-12)
    assert np.exp2(study.log2_p["backward"]).reshape(64, 64).sum(axis=1) == pytest.approx(1)
    for where, offset in (("forward", 0), ("backward", 0), ("backward", 8)):
        stored = encode(np.exp2(study.log2_p[where] + offset), "e4m3")
        assert study.lost(where, offset) == np.mean(stored == 0)


def test_half_of_the_smallest_number_is_lost():
    study = probabilities.RangeOfP({"forward": np.array([-9.99, -10.0, -10.01])}, "made up")
    assert encode(np.exp2(study.log2_p["forward"]), "e4m3").tolist() == [1, 0, 0]
    assert study.lost("forward", 0) == pytest.approx(2 / 3)


def test_codes_are_logarithms_to_within_their_curvature():
    study = probabilities.code_logarithm()
    assert study.codes.tolist() == list(range(8, 127))
    assert np.exp2(study.log2_value) == pytest.approx(decode(study.codes, "e4m3"))
    difference = study.line - study.codes
    # f is a multiple of 1/8; 8 (log2(1 + f) - f) is largest at 1/2: 8 (0.58496 - 0.5).
    assert difference.min() == pytest.approx(0, abs=1e-12) and difference.max() == pytest.approx(0.6797, abs=1e-4)


def walk_by_definition(scores, threshold):
    """(measured from, row sum of 2^8 P) after every tile, in float64."""
    reference, total, found = -np.inf, 0.0, []
    for tile in scores:
        if tile.max() - reference > threshold:
            total *= 2.0 ** (reference - tile.max())
            reference = tile.max()
        total += np.exp2(tile - reference + 8).sum()
        found.append((reference, total))
    return np.array(found).T


@pytest.mark.parametrize("threshold", [0.0, 0.8])
def test_softmax_walk_is_the_online_softmax(threshold):
    inputs = load_real()["minilm-layer3"]
    options = AttentionOptions(rescale_threshold=threshold)
    walk = probabilities.softmax_walk(inputs, row=5, head=1, options=options)
    assert walk.kv_tiles.tolist() == [7, 6, 5, 4, 3, 2, 1, 0] and walk.scores.shape == (8, 64)
    reference, row_sum = walk_by_definition(walk.scores, threshold)
    assert walk.reference == pytest.approx(reference) and walk.row_sum == pytest.approx(row_sum, rel=1e-5)
    assert walk.rescaled[0] == walk.rows == 128
    assert walk.running_max.tolist() == [walk.scores[: i + 1].max() for i in range(8)]
    # The scores are those of the whole attention: lse = ln 2 * log2 of the sum of 2^score.
    q, k, v = (x[:, :, 1:2] for x in (inputs.q, inputs.k, inputs.v))
    _, lse = attention_mxfp8(q, k, v, options=options)
    assert np.log(np.exp2(walk.scores).sum()) == pytest.approx(float(lse[0, 0, 5]), abs=1e-4)


def test_attention_tile_is_part_of_the_whole():
    inputs = load_real()["minilm-layer0"]
    tile = attention_tile(inputs, head=2)
    o, _ = attention_mxfp8(inputs.q, inputs.k, inputs.v)
    exact, _ = attention_reference(inputs.q, inputs.k, inputs.v)
    assert np.array_equal(tile.o, o[0, :128, 2]) and tile.o_exact == pytest.approx(exact[0, :128, 2], abs=1e-12)
    product = tile.q.dequantize(np.float64) @ tile.k.dequantize(np.float64).T * inputs.softmax_scale
    assert tile.s == pytest.approx(product, rel=1e-5, abs=1e-5)
    p = np.exp2((tile.s - tile.s.max(axis=1, keepdims=True)) / np.log(2))  # but for the maxima of the other tiles
    stored = decode(tile.p_codes, "e4m3") / 2**8
    assert np.corrcoef(np.log2(p[stored > 0]), np.log2(stored[stored > 0]))[0, 1] > 0.9
    assert tile.stored_bytes() == {"Q": (4096, 4), "K": (4096, 4), "V": (4096, 128), "P": (16384, 512)}
    assert float(softmax_scale_log2(inputs.softmax_scale)) == pytest.approx(inputs.softmax_scale / np.log(2))


def test_orientations_spread_the_scales_and_compare_codes():
    """Powers of two 2^(i mod 7): along d a row has one scale, along tokens and in squares the largest, 2^6, rules."""
    matrix = np.broadcast_to(2.0 ** (np.arange(64) % 7)[:, None], (64, 32))
    study = orientations(matrix, "powers of two")
    assert np.array_equal(study.scale_log2["1x32 along d"], np.log2(matrix) - 8)
    assert (study.scale_log2["1x32 along tokens"] == -2).all() and (study.scale_log2["square"] == -2).all()
    assert study.differing_codes() == np.mean(np.arange(64) % 7 != 6)


DRAWINGS = {
    "bits": (1, lambda ax: number_plots.fig_bits([(E4M3, 0x4C), (E8M0, 0)], ax=ax)),
    "code_table": (1, lambda ax: number_plots.fig_code_table(E5M2, ax=ax)),
    "outlier": (1, lambda ax: number_plots.fig_outlier(outlier_sweep(gains_log2=range(0, 23, 2), blocks=8), ax=ax)),
    "course": (1, lambda ax: course_plots.fig_course(LESSONS, ax=ax)),
    "published": (1, lambda ax: course_plots.fig_published([("forward", [BY_KEY["forward_llm_mxfp8"]])], ax=ax)),
    "tile": (6, lambda ax: course_plots.fig_tile(attention_tile(load_real()["minilm-layer0"]), ax=ax)),
    "gemms": (6, lambda ax: gemm_plots.fig_gemms(GEMMS, ax=ax)),
    "orientations": (3, lambda ax: gemm_plots.fig_orientations(orientations(np.eye(64), "ones"), ax=ax)),
    "range_of_p": (2, lambda ax: p_plots.fig_range_of_p([probabilities.range_of_p(small())], ax=ax)),
    "code_logarithm": (2, lambda ax: p_plots.fig_code_logarithm(probabilities.code_logarithm(), ax=ax)),
    "softmax_walk": (2, lambda ax: p_plots.fig_softmax_walk(walk(), {"a": walk().rescaled}, ax=ax)),
}


def small():
    return synthetic_llm(seqlen_q=128, num_heads_q=1, head_dim=64)


def walk():
    return probabilities.softmax_walk(small(), row=0)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_a_finding_and_says_of_which_kind_it_is(name):
    panels, draw = DRAWINGS[name]
    figure = draw(None)
    assert len([ax for ax in figure.axes if ax.get_label() != "<colorbar>"]) == panels
    assert len(figure.get_suptitle().split()) >= 5
    assert figure.get_supxlabel().startswith(("Emulated: ", "By definition: ", "Published: "))
    figure.savefig(io.BytesIO(), format="png")  # draws every text, formulas too


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_draws_on_given_axes(name):
    panels, draw = DRAWINGS[name]
    figure, grid = plt.subplots(1, panels, squeeze=False)
    axes = list(grid.flat)
    assert draw(axes[0] if panels == 1 else axes) is figure
    with pytest.raises(ValueError, match=f"ax holds {panels + 1} axes; this figure needs {panels}"):
        draw([*axes, axes[0]])


def test_the_map_places_every_notebook_once():
    figure = DRAWINGS["course"][1](None)
    badges = [text.get_text() for text in figure.axes[0].texts if text.get_color() == "white"]
    assert sorted(badges) == [f"{number:02d}" for number in range(16)]


def test_published_speeds_are_drawn_with_their_text():
    figure = DRAWINGS["published"][1](None)
    assert BY_KEY["forward_llm_mxfp8"].text() in [text.get_text() for text in figure.axes[0].texts]
    assert figure.axes[0].patches[0].get_width() == 2.85


def test_the_code_table_holds_every_non_negative_code():
    figure = DRAWINGS["code_table"][1](None)
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    assert len(texts) == 128 + 1 + 3 * (32 + 1)  # codes, the note, three labels per row and their headings

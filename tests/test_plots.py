"""The figures: colours that everyone can tell apart, titles that state, captions that say emulated, stable bytes."""

import itertools

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402

from mxfp8fa.numerics.sqnr import SqnrEntry, StrictSummary  # noqa: E402
from mxfp8fa.plots import attention, blocks, emulator_speed, style  # noqa: E402
from mxfp8fa.published import BY_KEY  # noqa: E402
from mxfp8fa.studies import blocks as block_studies  # noqa: E402
from mxfp8fa.studies import choices  # noqa: E402
from mxfp8fa.studies.emulator_results import Launch  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency" (2009),
# severity 1.0, applied to linear RGB.
DEFICIENCY = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(color, deficiency):
    """CIE L*a*b* (D65) of an sRGB colour as someone with the deficiency sees it."""
    srgb = np.array(to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(DEFICIENCY[deficiency] @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


SETS = {
    "roles": style.ROLE_COLORS,
    "memories": style.MEMORY_COLORS,
    "tensors": style.TENSOR_COLORS,
    "rules": style.RULE_COLORS,
    "blocks": style.BLOCK_COLORS,
}


@pytest.mark.parametrize("deficiency", DEFICIENCY)
@pytest.mark.parametrize("name", SETS)
def test_colours_that_meet_in_a_figure_can_be_told_apart(name, deficiency):
    """A difference of 10 in L*a*b* is about four times what is just noticeable side by side."""
    for (one, a), (other, b) in itertools.combinations(SETS[name].items(), 2):
        distance = np.linalg.norm(lab(a, deficiency) - lab(b, deficiency))
        assert distance > 10, f"{one} and {other} under {deficiency}: {distance:.1f}"


def test_the_colour_test_can_fail():
    red, green = lab("#AA4400", "deuteranopia"), lab("#5F7000", "deuteranopia")
    assert np.linalg.norm(red - green) < 10 < np.linalg.norm(lab("#AA4400", "normal") - lab("#5F7000", "normal"))


def test_a_memory_is_never_the_colour_of_a_role():
    assert not set(style.ROLE_COLORS.values()) & set(style.MEMORY_COLORS.values())
    assert set(style.ROLE_COLORS) == {"load", "mma", "softmax0", "softmax1", "correction", "epilogue"}
    assert set(style.MEMORY_COLORS) == {"GMEM", "SMEM", "TMEM", "RMEM"}


def small_summary():
    dbs = {"O": 25.0, "dQ": 19.0, "dK": 14.0, "dV": 22.0}
    return StrictSummary(tuple(SqnrEntry("one", tensor, db, db - 5) for tensor, db in dbs.items()))


def sweep():
    db = {tensor: np.array([25.0, 24.0]) for tensor in ("O", "dQ", "dK", "dV")}
    return choices.Sweep(np.array([128.0, 256.0]), db, "made up")


def scale_of_p():
    db = {tensor: np.linspace(10, 25, 9) for tensor in ("O", "dQ", "dK", "dV")}
    return choices.ScaleOfP(np.arange(9), db, {"O": 25.0, "dV": 25.0}, "made up")


def made_up_launches():
    return [
        Launch(kernel, n, heads, "default", n * heads // 256, n * n * heads, n * n * heads / 1e7, 0.1, 800.0)
        for kernel in emulator_speed.KERNELS
        for n, heads in ((256, 1), (512, 1), (512, 2))
    ]


DRAWINGS = {
    "formats": (2, lambda ax: blocks.fig_formats([block_studies.format_grid(f) for f in ("e4m3", "e5m2")], ax=ax)),
    "block": (3, lambda ax: blocks.fig_block(block_studies.outlier_examples(), ax=ax)),
    "scale_rules": (3, lambda ax: blocks.fig_scale_rules(block_studies.scale_rules(points=65, rows=8), ax=ax)),
    "scale_map": (3, lambda ax: blocks.fig_scale_map(block_studies.scale_map(np.ones((64, 32)), "ones"), ax=ax)),
    "row_spread": (1, lambda ax: blocks.fig_row_spread(block_studies.row_spread(spreads=(0, 8), size=64), ax=ax)),
    "tensors": (1, lambda ax: blocks.fig_tensors(block_studies.quantized_tensors(small_inputs()), ax=ax)),
    "sqnr": (1, lambda ax: attention.fig_sqnr(small_summary(), ax=ax)),
    "lengths": (2, lambda ax: attention.fig_lengths({"a": sweep(), "b": sweep()}, ax=ax)),
    "p_scale": (1, lambda ax: attention.fig_p_scale({"a": scale_of_p()}, ax=ax)),
    "codes": (3, lambda ax: attention.fig_codes(choices.codes_of_p(logit_stds=(1,), seqlen=64), ax=ax)),
    "emulator_speed": (3, lambda ax: emulator_speed.fig_emulator_speed(made_up_launches(), "a machine", ax=ax)),
    "leak": (1, lambda ax: attention.fig_leak(choices.causal_leak(gains=(1, 2**12)), ax=ax)),
}


def small_inputs():
    return block_studies.example_inputs()[:1]


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_of_its_own_has_a_finding_and_a_caption(name):
    panels, draw = DRAWINGS[name]
    figure = draw(None)
    assert len([ax for ax in figure.axes if ax.get_label() != "<colorbar>"]) == panels
    assert len(figure.get_suptitle().split()) >= 5, "a title states a finding"
    caption = figure.get_supxlabel()
    assert caption.startswith("By definition: " if name == "formats" else "Emulated: ")
    for ax in figure.axes[:panels]:
        assert ax.get_xlabel() or name == "formats"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_draws_on_given_axes(name):
    panels, draw = DRAWINGS[name]
    figure, grid = plt.subplots(1, panels, squeeze=False)
    axes = list(grid.flat)
    assert draw(axes[0] if panels == 1 else axes) is figure
    assert figure.axes[:panels] == axes
    assert "Emulated" in texts(figure) or "By definition" in texts(figure)
    with pytest.raises(ValueError, match=f"ax holds {panels + 1} axes; this figure needs {panels}"):
        draw([*axes, axes[0]])


def test_drawing_leaves_the_global_style_alone():
    before = dict(matplotlib.rcParams)
    DRAWINGS["row_spread"][1](None)
    assert dict(matplotlib.rcParams) == before


def test_png_bytes_carry_no_date_and_no_version():
    first, second = (style.png_bytes(DRAWINGS["block"][1](None)) for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG") and b"Matplotlib" not in first and b"tIME" not in first


def test_the_published_range_is_in_the_picture():
    figure = DRAWINGS["sqnr"][1](None)
    assert BY_KEY["sqnr"].text() in texts(figure)
    low, high = BY_KEY["sqnr"].values
    (band,) = [patch for patch in figure.axes[0].patches]
    assert band.get_extents().width > 0
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((low, high))
    assert figure.get_suptitle().startswith("2 pass, 1 borderline, 1 fail")


def test_scales_of_ds_are_named_in_every_square():
    from mxfp8fa.plots.backward import fig_ds_scales
    from mxfp8fa.studies.backward import scale_atoms

    figure = fig_ds_scales(scale_atoms())
    tile, for_dk, for_dq = ([t.get_text() for t in ax.texts] for ax in figure.axes)
    assert tile == for_dk and for_dq[:5] == ["k0 q0", "k1 q0", "k2 q0", "k3 q0", "k0 q1"]

"""The committed measurement of the producers: that it is the raw one, and what is computed from it."""

import io
import json
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from mxfp8fa.plots.producers import fig_producers  # noqa: E402
from mxfp8fa.studies import producer_results as results  # noqa: E402
from mxfp8fa.studies.producers import BLOCK_KINDS, GEMM_SHAPES, SHAPES  # noqa: E402

RAW = Path(__file__).resolve().parents[1] / "bench" / "results" / "producers_h200.json"


def test_what_ships_is_the_raw_result():
    record, timings = results.shipped()
    assert json.loads(RAW.read_text()) == {**record, "timings": json.loads(RAW.read_text())["timings"]}
    assert len(timings) == len(json.loads(RAW.read_text())["timings"])
    assert record["kind"] == "measured" and record["device"] == "NVIDIA H200"


def test_every_shape_was_measured_with_its_copy():
    """Bytes that must move: BF16 in, a code and 1/32 of a scale out, twice that for squares; rstd for RMSNorm."""
    _, timings = results.shipped()
    for shape in SHAPES:
        copy = results.copy_beside(timings, shape)
        assert copy.moved_bytes == pytest.approx(shape[0] * shape[1] * (3 + 1 / 32), abs=32)
        for how in BLOCK_KINDS:
            scales = 2 / 32 if how == "square" else 1 / 32
            timing = results.find(timings, "rmsnorm_quantize", how, shape)
            assert timing.moved_bytes == shape[0] * shape[1] * (3 + scales) + 4 * shape[0]
    for shape in GEMM_SHAPES:
        assert results.find(timings, "gemm", "eager", shape).flops == 2 * shape[0] * shape[1] * shape[2]
    with pytest.raises(KeyError):
        results.find(timings, "quantize", "last axis", (1, 32))


def test_a_pass_against_what_attention_saves():
    """4 * 4096^2 * 16 * 128 operations at 2.00 and 2.85 PF; 3 * 4096 * 2048 elements of 3 1/32 bytes."""
    flops = 4 * 4096**2 * 16 * 128
    assert results.saved_us(4096, 16, 128) == pytest.approx(flops * (1 / 2.0e15 - 1 / 2.85e15) * 1e6)
    assert results.pass_us(4096, 16, 128, 8.0) == pytest.approx(3 * 4096 * 2048 * (3 + 1 / 32) / 8e12 * 1e6)


def test_the_figure_draws_measured_and_published_bars():
    figure = fig_producers(results.shipped()[1])
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert "2.6 to 4.0 TB/s" in texts and "0.91 to 0.98 PF" in texts
    assert len(texts) == sum(len(ax.patches) for ax in figure.axes) == 10 + 7
    assert figure.get_supxlabel().startswith("Measured: ")
    figure.savefig(io.BytesIO(), format="png")
    matplotlib.pyplot.close(figure)

"""What a user of the emulator is told before a long call, and while it runs."""

import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.attention import emulation, estimate, flash_attn_func  # noqa: E402
from mxfp8fa.attention.checks import check_call  # noqa: E402
from mxfp8fa.kernels import execution  # noqa: E402
from mxfp8fa.numerics.options import AttentionOptions  # noqa: E402


def call(seqlen_q, seqlen_k, heads, head_dim, causal=False):
    q, k = torch.empty(1, seqlen_q, heads, head_dim, device="meta"), torch.empty(1, seqlen_k, heads, head_dim, device="meta")
    return check_call((q, k, k), ([], [], []), ([], [], []), None, causal, AttentionOptions())


# Warp-instructions that the emulator counted: real activations of the demo, notebook 09, a causal call of two heads.
COUNTED = [((512, 512, 3, 64), False, 217_703), ((512, 256, 1, 128), False, 48_631), ((129, 129, 2, 64), True, 38_466)]


@pytest.mark.parametrize(("shape", "causal", "counted"), COUNTED)
def test_the_estimate_is_about_what_was_counted(shape, causal, counted):
    assert estimate.warp_instructions(call(*shape, causal)) == pytest.approx(counted, rel=0.2)


def test_a_long_call_is_announced_and_a_short_one_is_not(stand_in, monkeypatch, capsys):
    monkeypatch.setattr(execution, "_rates", [2_000.0])
    flash_attn_func(*torch.zeros(3, 1, 40, 1, 64))
    assert capsys.readouterr().err == ""
    flash_attn_func(*torch.zeros(3, 1, 300, 2, 64))
    said = capsys.readouterr().err
    assert said.startswith("mxfp8fa: attention of (1, 300, 2, 64) in the emulator: about 0.1 million warp-instructions, about ")
    assert said.endswith(" seconds (a GPU needs microseconds)\n") and said.count("\n") == 1


def test_who_asked_for_progress_of_another_kind_is_not_told_twice(stand_in, monkeypatch, capsys):
    monkeypatch.setattr(execution, "_rates", [2_000.0])
    with emulation(progress=lambda line: None):
        flash_attn_func(*torch.zeros(3, 1, 300, 2, 64))
    assert capsys.readouterr().err == ""


def test_durations_in_words():
    assert [estimate._duration(s) for s in (15, 119, 600, 7199, 9000)] == [
        "15 seconds", "119 seconds", "10 minutes", "120 minutes", "2 hours",
    ]  # fmt: skip

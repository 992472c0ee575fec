"""The module's modelled time, the options that steady training, its runs and their figures."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from mxfp8fa.cli import main
from mxfp8fa.cli.train_demo import origin, report
from mxfp8fa.published import BY_KEY
from mxfp8fa.studies import stabilization
from mxfp8fa.studies.module_speed import MODELLED_RATES, PUBLISHED_RATES, WAYS, Module, Rates, rows
from mxfp8fa.studies.stabilization import COPYING, REMEDIES, ablation, dq_scales, leaks
from mxfp8fa.studies.training import (
    ATTENTIONS,
    CONTROLS,
    PROJECTIONS,
    TASKS,
    Run,
    compare,
    gradient_signal,
    seed_spread,
    shipped_runs,
    standard_error,
)


def test_the_parts_by_hand():
    """Width 1,000, 1,000 keys: 6e6 FLOP of projection, 4e6 of attention, 2e6 of output projection, in ns at 1e15 FLOP/s."""
    others = {"epilogue_share": 0.5, "hbm_tb": 1, "norm_tb": 1, "eager_tb": 0.5}
    rates = Rates("by hand", 2.0, 4.0, 1.0, 2.0, projection_fused_pf=1.0, projection_unfused_pf=0.5, **others)
    bf16, fused, unfused = (Module(width=1000).parts(1000, rates, way) for way in (None, "fused", "unfused"))
    assert bf16 == pytest.approx(
        {"RMSNorm": 4.0, "Q, K, V projection": 3.0, "quantization": 0.0, "attention": 2.0, "output projection": 1.0}
    )
    assert fused["quantization"] == pytest.approx(3.0) and fused["attention"] == pytest.approx(1.0)
    assert unfused["quantization"] == pytest.approx(9.0)
    assert Module(width=1000).parts(1000, rates, "pass")["quantization"] == pytest.approx(3 * (2 + 1 + 1 / 32))
    assert Module(width=1000, causal=True).parts(1000, rates, None)["attention"] == pytest.approx(1.0)
    bf16, fused, whole, unfused = (Module(width=1000).backward_parts(1000, rates, way) for way in (None, *WAYS))
    assert bf16 == pytest.approx(
        {"RMSNorm": 6.0, "Q, K, V projection": 6.0, "quantization": 0.0, "attention": 10.0, "output projection": 2.0}
    )
    codes_and_scales = (1 + 2 / 32) + (1 + 1 / 32)  # of dO, whose scales are packed both ways, and of V along d
    assert fused["quantization"] == pytest.approx(codes_and_scales) and fused["attention"] == pytest.approx(5.0)
    assert whole["quantization"] == pytest.approx(4 + codes_and_scales) == pytest.approx(unfused["quantization"] / 2)
    step = Module(width=1000).step_parts(1000, rates, None, "training")
    assert sum(step.values()) == pytest.approx(10.0 + 24.0)


@pytest.mark.parametrize(("step", "limit"), [("forward", 2.85 / 2.0), ("training", (2 / 2.0 + 5 / 1.5) / (2 / 2.85 + 5 / 1.82))])
@pytest.mark.parametrize("way", WAYS)
def test_the_gain_is_one_at_the_crossover_and_tends_to_that_of_attention(way, step, limit):
    module = Module()
    crossover = module.crossover(PUBLISHED_RATES, way, step)
    assert module.gain(round(crossover), PUBLISHED_RATES, way, step) == pytest.approx(1.0, abs=1e-3)
    assert module.gain(10**9, PUBLISHED_RATES, way, step) == pytest.approx(limit, rel=1e-3)
    own = module.crossover(MODELLED_RATES, way, step)  # by the model our forward is faster than FlashAttention-4, all in all not
    assert (own is None) == (step == "training") and (own is None or own > crossover)


def test_fusion_decides_at_the_published_lengths():
    for row in rows():
        if row.rates == PUBLISHED_RATES.name:
            assert (row.gain > 1) == (row.way != "unfused")
            assert row.eaten < 0.06 if row.way != "unfused" else row.eaten > (0.5 if row.step == "forward" else 0.2)
        assert row.published == BY_KEY[f"module_latency_{row.kv_tokens}"].values[0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="way = 'eager'; allowed: 'fused', 'pass', 'unfused' or None"):
        Module().parts(1, PUBLISHED_RATES, "eager")
    with pytest.raises(ValueError, match="kv_tokens = 0"):
        Module().parts(0, PUBLISHED_RATES, None)
    with pytest.raises(ValueError, match="step = 'backward'; allowed: 'forward', 'training'"):
        Module().gain(1, PUBLISHED_RATES, "fused", "backward")


def test_the_command_says_modelled(capsys):
    assert main(["bench", "module"]) == 0
    out = capsys.readouterr().out
    assert "modelled" in out and "16,384" in out and "1.30x" in out and "never" in out
    assert main(["bench", "module", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 36


@pytest.fixture(scope="module")
def emulated():
    return {"ablation": ablation("minilm-layer0"), "copying": ablation(COPYING), "leaks": leaks(), "dq_scales": dq_scales()}


def test_what_the_options_do_to_the_signal(emulated):
    """On a real layer: delta before quantization costs dQ a decibel, P unscaled costs dV five, K without its mean gives dQ
    three, FP16 sums cost nothing.
    """
    found = emulated["ablation"]
    base = found["defaults"]
    assert set(found) == {remedy.name for remedy in REMEDIES}
    assert found["delta"]["dQ"] < base["dQ"] - 1 and found["delta"]["O"] == base["O"]
    assert found["coarse"]["dV"] < base["dV"] - 4
    assert found["k_mean"]["dQ"] > base["dQ"] + 2
    assert abs(found["dq16"]["dQ"] - base["dQ"]) < 0.1


def test_where_attention_copies_delta_decides(emulated):
    """P is nearly 1 there and dP - delta a small difference: with another dO in delta than in dP nothing of dQ is left."""
    found = emulated["copying"]
    assert found["defaults"]["dQ"] > 23 and found["delta"]["dQ"] < 4 and found["coarse"]["dQ"] < 4
    assert found["defaults"]["dQ"] - 3 < found["direct"]["dQ"] < found["rounded"]["dQ"] < found["defaults"]["dQ"] - 1


def test_what_the_scale_of_fp16_sums_is_for(emulated):
    """Without one a small dO falls below FP16, with a fixed one a large dO overflows, the automatic one holds 32 octaves."""
    none, fixed, auto = emulated["dq_scales"].values()
    assert list(none) == list(fixed) == list(auto) == [8, 0, -8, -16, -24]
    assert none[-24] < 10 < none[-16] and fixed[8] is None and fixed[-24] > 23
    assert max(auto.values()) - min(auto.values()) < 0.1


def test_which_options_leak(emulated):
    """By blocks of V along the keys all do a little; square blocks of Q and K, and K's mean, far more."""
    found = emulated["leaks"]
    assert set(found) == {remedy.name for remedy in REMEDIES}
    assert 0 < found["defaults"] < 1e-3 < 5e-3 < found["square"] < found["k_mean"]
    assert found["1x32"] == found["delta"] == found["dq16"] == found["defaults"]


def test_the_ablation_is_printed(emulated, capsys, monkeypatch):
    monkeypatch.setattr(stabilization, "CASES", ("minilm-layer0",))
    monkeypatch.setattr(stabilization, "ablation", lambda case: emulated["ablation"])
    monkeypatch.setattr(stabilization, "leaks", lambda: emulated["leaks"])
    monkeypatch.setattr(stabilization, "dq_scales", lambda: emulated["dq_scales"])
    assert main(["bench", "stabilization", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["kind"] == "emulated" and content["dq_scale_sqnr_db"]["2^12, the default"]["8"] is None
    assert main(["bench", "stabilization"]) == 0
    out = capsys.readouterr().out
    assert "overflow" in out and "k_mean        0.1" in out and "K less its mean" in out
    trained = out[out.index("In training") :]
    in_both = [remedy.name for remedy in REMEDIES if remedy.name in ATTENTIONS]
    assert len(in_both) == 8 and all(ATTENTIONS[name] in trained for name in (*in_both, "exact", "bf16_head", "dq16_raw"))


@pytest.mark.parametrize(("task", "others", "controls"), [("module", 12, 2), ("jagged", 6, 1)])
def test_shipped_runs(task, others, controls):
    """Three seeds of everything; every control is far outside of what seeds do, no other attention above it."""
    runs = shipped_runs(task)
    seeds = {name: {run.seed for run in runs if run.attention == name} for name in ATTENTIONS}
    assert all(found >= {0, 1, 2} for found in seeds.values() if found) and seeds["bf16"] == seeds["exact"] == seeds["float32"]
    assert all(run.origin["task"] == task and run.origin["device"] == "NVIDIA H200" for run in runs)
    assert all(run.origin["schedule"]["steps"] == 3000 == run.steps[-1] for run in runs)
    spread, compared = seed_spread(runs), compare(runs)
    harmed = [each for each in compared if each.attention in CONTROLS]
    within = [each for each in compared if each.attention not in CONTROLS]
    assert (len(within), len(harmed)) == (others, controls)
    assert min(each.mean for each in harmed) > 20 * spread and max(each.mean for each in within) < spread
    noise = standard_error(next(each.training for each in within if each.attention == "float32"))
    assert max(each.training.mean() for each in within) < 3 * noise < 0.1 * min(each.training.mean() for each in harmed)
    for run in runs:
        assert len(run.gradient_sqnr) == len(run.steps) == 12
        last = run.gradient_sqnr[-1]
        assert run.attention in CONTROLS or min(min(layers) for layers in last["bf16"].values()) > 30
        if run.attention == "exact":
            assert 13 < min(min(layers) for layers in last["mxfp8"].values()) < 30
        if run.attention == "unscaled":
            assert max(abs(x) for name in ("q_proj", "k_proj", "v_proj") for x in last["mxfp8"][name]) < 1  # noise is the signal


@pytest.mark.parametrize("task", TASKS)
def test_the_results_page_shows_what_the_command_prints(task):
    page = (Path(__file__).parents[1] / "bench" / "results" / "training.md").read_text()
    runs = shipped_runs(task)
    for part in (report(runs), origin(runs)):
        assert "\n".join(line.rstrip() for line in part.splitlines()) in page


def test_gradient_signal_by_hand():
    probe = {"step": 9, "bf16": {name: [40.0, 40.0] for name in PROJECTIONS}, "mxfp8": {n: [20.0, 30.0] for n in PROJECTIONS}}
    other = {**probe, "mxfp8": {name: [22.0, 12.0 if name == "q_proj" else 24.0] for name in PROJECTIONS}}
    record = {"attention": "exact", "seed": 0, "validation_loss": [[9, 1.0]], "train_loss_every_10": [9.0, *[2.0, 4.0] * 10]}
    runs = [Run.of({**record, "gradient_sqnr": [{}, each]}) for each in (probe, other)]
    assert gradient_signal(runs, "exact") == {"q_proj": 21.0, "k_proj": 24.0, "v_proj": 24.0, "o_proj": 24.0, "worst": 12.0}
    assert runs[0].training == 3.0  # the last 200 steps
    with pytest.raises(ValueError, match="no run of bf16 measured gradients"):
        gradient_signal(runs, "bf16")


def test_controls_take_gradients_away():
    """Of a small mean loss: without a scale nothing of dO is left, with 2^6 something, and with block scales nearly all."""
    torch = pytest.importorskip("torch")
    from mxfp8fa.nn.decoder import Decoder, DecoderSize

    tokens, found = torch.arange(2 * 33).reshape(2, 33), {}
    for name in ("bf16", "exact", "static", "unscaled"):
        torch.manual_seed(0)
        model = Decoder(DecoderSize(layers=1, heads=1, head_dim=32, context=32), name)
        (model.loss(tokens) * 2.0**-10).backward()
        found[name] = float(model.blocks[0].attention.v_proj.weight.grad.norm()) * 2.0**10
    assert found["exact"] == pytest.approx(found["bf16"], rel=0.05)
    assert found["unscaled"] == 0 and abs(found["static"] / found["exact"] - 1) > 1e-3


def test_names_of_attentions_are_those_of_the_decoder():
    pytest.importorskip("torch")
    from mxfp8fa.nn.decoder import LAYERS

    assert set(LAYERS) == set(TASKS["module"]) == set(ATTENTIONS)


def test_histories_are_what_they_are_said_to_be():
    """Lengths, sessions and habits of the made-up users, and the same on every machine."""
    torch = pytest.importorskip("torch")
    from mxfp8fa.nn.histories import HABIT, ITEMS_PER_TOPIC, make_users

    users = make_users(count=600, context=200, validation=10)
    again = make_users(count=600, context=200, validation=10)
    assert torch.equal(users.events, again.events)
    lengths, events = users.lengths.numpy(), users.events.numpy()
    assert lengths.min() >= 8 and lengths.max() == 201 and 75 < np.median(lengths) < 105
    topics = [len(set(row[:length] // ITEMS_PER_TOPIC)) for row, length in zip(events, lengths, strict=True)]
    assert max(topics) <= 3 and max(topics[::2]) <= 2
    repeats = total = 0
    for row in events[:100]:
        followed = {}
        for item, after in itertools.pairwise(row):
            if item in followed:
                repeats, total = repeats + (followed[item] == after), total + 1
            followed[item] = after
    assert HABIT < repeats / total < HABIT + 0.3  # habit, or the same item by chance


def test_figures_state_what_the_data_say():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from mxfp8fa.plots.module import fig_gradient_sqnr, fig_module_speed
    from mxfp8fa.plots.training import fig_training

    figure = fig_module_speed((Module(), PUBLISHED_RATES, MODELLED_RATES))
    assert "1,100 KV tokens on (in training 530)" in figure.get_suptitle().replace("\n", " ")
    assert "Modelled" in figure.get_supxlabel()
    figure = fig_gradient_sqnr([run for run in shipped_runs("module") if run.attention == "exact"])
    assert "35 dB, then 22 dB" in figure.get_suptitle() and "NVIDIA H200" in figure.get_supxlabel()
    title = fig_training(shipped_runs("module")).get_suptitle().replace("\n", " ")
    assert "1.21 or 1.13 nats per byte lost" in title and "no more than seeds differ by (0.046)" in title
    assert "nats per event" in fig_training(shipped_runs("jagged")).get_suptitle()
    plt.close("all")

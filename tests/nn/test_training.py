"""The training demo on a CPU at toy size: the same start for every attention, resumable to the bit, and learning."""

import json

import pytest
import torch

from mxfp8fa.cli import main
from mxfp8fa.nn.byte_model import ATTENTION_OPTIONS, ModelSize
from mxfp8fa.nn.corpus import Corpus, standard_library
from mxfp8fa.nn.decoder import NO_TARGET, DecoderSize, Histories
from mxfp8fa.nn.histories import ITEMS, make_users
from mxfp8fa.nn.module_training import JaggedTrainer
from mxfp8fa.nn.training import Schedule, Trainer, load, save, train

SIZE = ModelSize(layers=1, heads=2, head_dim=32, context=64)
SCHEDULE = Schedule(steps=12, batch=4, warm_up=4, validate_every=6, validation_batches=2)


@pytest.fixture(scope="module")
def corpus():
    text = torch.tensor(list(b"the quick brown fox jumps over the lazy dog; " * 400), dtype=torch.uint8)
    return Corpus(text, text[:2000], {"corpus": "a pangram"})


def trainer(corpus, attention="exact", schedule=SCHEDULE, seed=0):
    return Trainer(attention, seed, SIZE, schedule, corpus, "cpu")


def test_a_resumed_run_is_the_same_run(corpus, tmp_path):
    whole = trainer(corpus)
    assert train([whole])
    first = trainer(corpus)
    for _ in range(7):
        first.advance()
    save(first, tmp_path / "run.pt", 1.5)
    second = trainer(corpus)
    assert load(second, tmp_path / "run.pt") == 1.5
    assert second.done == 7 and train([second])
    assert torch.equal(second.losses, whole.losses)
    assert all(torch.equal(a, b) for a, b in zip(second.model.parameters(), whole.model.parameters(), strict=True))


def test_a_checkpoint_of_another_run_is_refused(corpus, tmp_path):
    save(trainer(corpus), tmp_path / "run.pt", 0.0)
    with pytest.raises(ValueError, match="seed = 0; this run has 1"):
        load(trainer(corpus, seed=1), tmp_path / "run.pt")


def test_every_attention_starts_alike(corpus):
    models = {name: trainer(corpus, name) for name in ATTENTION_OPTIONS}
    first = models["bf16"]
    for name, other in models.items():
        assert torch.equal(other.places, first.places)
        for a, b in zip(other.model.parameters(), first.model.parameters(), strict=True):
            assert torch.equal(a, b), name
    for other in models.values():
        other.advance()
        assert abs(other.losses[0] - first.losses[0]) < 1e-2


def test_mxfp8_attention_learns(corpus):
    schedule = Schedule(steps=60, batch=8, learning_rate=3e-3, warm_up=10, validate_every=60, validation_batches=2)
    run = trainer(corpus, "direct", schedule)
    train([run])
    assert run.losses[-1] < run.losses[0] - 1.5


def test_runs_side_by_side_are_the_runs_alone(corpus):
    together, seen = [trainer(corpus, seed=seed) for seed in (0, 1)], []
    assert train(together, report=lambda run, loss: seen.append((run.seed, run.done)))
    assert seen == [(0, 6), (1, 6), (0, 12), (1, 12)]
    for run in together:
        alone = trainer(corpus, seed=run.seed)
        train([alone])
        assert torch.equal(alone.losses, run.losses)


@pytest.fixture(scope="module")
def jagged():
    users = make_users(count=70, context=40, validation=10)
    size = DecoderSize(layers=1, heads=1, head_dim=32, context=40, vocabulary=ITEMS)
    return JaggedTrainer("exact", 0, size, Schedule(steps=30, batch=5), users, "cpu")


def test_every_step_of_histories_has_the_same_shapes(jagged):
    """One user of each class of length; the fillers make up for the rest and take part in no sequence of a user."""
    lengths, shapes, seen = jagged.corpus.lengths - 1, set(), set()
    for step in range(30):
        jagged.step.fill_(step)
        for batch in (jagged.training_batch(), *jagged.validation_batches()):
            shapes.add((batch.tokens.shape, batch.targets.shape, batch.cu_seqlens.shape))
            inside = batch.cu_seqlens.diff()
            assert batch.cu_seqlens[-1] == len(batch.tokens) and inside.min() >= 0 and inside.max() <= 40
            assert ((batch.targets != NO_TARGET).sum() == inside[:5].sum()) and (batch.targets[inside[:5].sum() :] < 0).all()
        users = jagged.places[step]
        assert torch.equal(lengths[users], jagged.training_batch().cu_seqlens.diff()[:5])
        seen |= set(users.tolist())
    assert len(shapes) == 1 and len(seen) > 40 and max(seen) < 60
    jagged.step.zero_()


def test_fillers_change_no_loss(jagged):
    batch, users = jagged.validation_batches()[0], jagged.held_out[0]
    lengths, events = jagged.corpus.lengths[users] - 1, jagged.corpus.events[users]
    inside = torch.arange(40) < lengths[:, None]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    plain = Histories(events[:, :-1][inside], events[:, 1:][inside], ends, 40)
    assert len(batch.tokens) > len(plain.tokens)
    with torch.no_grad():
        assert jagged.model.loss(batch).item() == pytest.approx(jagged.model.loss(plain).item(), abs=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_replayed_steps_are_the_steps_one_by_one():
    """Two runs as CUDA graphs on streams of their own, against the same without graphs."""
    users, schedule = make_users(count=70, context=40, validation=10), Schedule(steps=30, batch=5, validate_every=30)
    size = DecoderSize(layers=1, heads=1, head_dim=32, context=40, vocabulary=ITEMS)
    losses = []
    for captured in (True, False):
        runs = [JaggedTrainer("exact", seed, size, schedule, users, "cuda", captured=captured) for seed in (0, 1)]
        train(runs)
        losses.append(torch.stack([run.losses for run in runs]))
    assert losses[0].isfinite().all() and torch.allclose(*losses, rtol=2e-3) and not torch.allclose(*losses[0], rtol=2e-3)


def test_more_histories_a_step_than_users_are_refused(jagged):
    with pytest.raises(ValueError, match="batch = 20 with 10 users; allowed: at most one history of each"):
        JaggedTrainer("exact", 0, jagged.size, Schedule(steps=3, batch=20), jagged.corpus, "cpu")


@pytest.mark.parametrize("attention", ["bf16", "exact"])
def test_gradients_are_measured_on_the_way(jagged, attention):
    run = JaggedTrainer(attention, 0, jagged.size, Schedule(steps=2, batch=5, validate_every=1), jagged.corpus, "cpu")
    train([run])
    assert [probe["step"] for probe in run.gradient_sqnr] == [1, 2]
    assert set(run.gradient_sqnr[0]) - {"step"} == ({"bf16"} if attention == "bf16" else {"mxfp8", "bf16"})
    assert min(x for of in run.gradient_sqnr[0]["bf16"].values() for x in of) > 25


def test_a_deadline_stops(corpus):
    assert train([trainer(corpus)], deadline=0.0) is False


def test_the_schedule():
    rates = Schedule(steps=1000, warm_up=100, learning_rate=1e-3).rates()
    assert rates[0] == pytest.approx(1e-5) and rates[100] == pytest.approx(1e-3) and rates[-1] == pytest.approx(1e-4, rel=1e-3)
    assert (rates[100:].diff() < 0).all()


def test_the_corpus_is_python():
    found = standard_library()
    assert len(found.train) > 5e6 and len(found.validation) > 2e5
    assert b"def " in bytes(found.train[:200_000].tolist())
    assert standard_library().about == found.about


def test_the_command_trains_resumes_and_reports(tmp_path, capsys):
    size = ["--layers", "1", "--heads", "1", "--head-dim", "32", "--context", "32", "--batch", "2", "--steps", "3"]
    command = ["train-demo", "--task", "bytes", "--device", "cpu", "--seed", "0", "--out", str(tmp_path), *size]
    assert main([*command, "--attention", "bf16", "--stop-after", "0"]) == 0
    assert "goes on from here" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["bytes-bf16-seed0.pt"]
    assert main([*command, "--attention", "bf16", "direct"]) == 0
    assert "less bf16, same seeds" in capsys.readouterr().out
    results = {p.name: json.loads(p.read_text()) for p in tmp_path.glob("*.json")}
    assert set(results) == {"bytes-bf16-seed0.json", "bytes-direct-seed0.json"}
    (direct,) = (r for r in results.values() if r["attention"] == "direct")
    assert direct["validation_loss"][-1][0] == 3 and direct["device"] == "CPU"
    assert main(["train-demo", "--out", str(tmp_path), *size, "--seed", "0", "--attention", "bf16", "--device", "cpu"]) == 0

"""Kernels run where their tensors are, under the options that are open, and are compiled once for each kind of call."""

import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")

import cutlass  # noqa: E402
from cutlass import cute  # noqa: E402

from mxfp8fa import emulator  # noqa: E402
from mxfp8fa.attention import AttentionOptions, emulation, flash_attn_func  # noqa: E402
from mxfp8fa.kernels import execution, gmem, launch  # noqa: E402

CPU = torch.device("cpu")


@cute.jit
def add(mX: cute.Tensor, value: cutlass.Float32, times: cutlass.Constexpr[int]) -> None:
    """X += times * value, 32 elements a CTA."""
    add_kernel(mX, value, times).launch(grid=(cute.size(mX) // 32, 1, 1), block=(32, 1, 1))


@cute.kernel
def add_kernel(mX: cute.Tensor, value: cutlass.Float32, times: cutlass.Constexpr[int]) -> None:
    i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
    mX[i] = (mX[i] + times * value).to(mX.element_type)


def run_add(x, times=1, **keywords):
    execution.execute(
        add, gmem(x, divisible_by=(1,)), cutlass.Float32(0.5), device=CPU, constants=(times,), **keywords
    )


@pytest.fixture
def compilations(monkeypatch):
    """How often each constant was compiled, from an empty cache."""
    counts = Counter()
    monkeypatch.setattr(execution, "_compiled", {})
    compile_kernel = launch.compile_kernel

    def counting(function, *args, target):
        counts[args[-1]] += 1
        return compile_kernel(function, *args, target=target)

    monkeypatch.setattr(launch, "compile_kernel", counting)
    return counts


def test_all_lengths_share_one_compilation_and_other_constants_do_not(compilations):
    for length in (32, 64, 96):
        x = torch.arange(length, dtype=torch.float32)
        run_add(x)
        run_add(x, times=4)
        assert torch.equal(x, torch.arange(length) + 2.5)
    assert compilations == {1: 1, 4: 1}
    run_add(torch.zeros(32, dtype=torch.float16))
    assert compilations == {1: 2, 4: 1}


def test_emulation_reports_and_passes_options_on():
    with emulation(check="races", schedule="random", seed=5) as report:
        run_add(torch.zeros(64))
        run_add(torch.zeros(32))
    assert [launch.grid for launch in report.launches] == [(2, 1, 1), (1, 1, 1)]
    assert {(launch.schedule, launch.seed) for launch in report.launches} == {("random", 5)} and report.races == []
    run_add(torch.zeros(32))
    assert len(report.launches) == 2, "closed"


def test_options_of_the_call_give_way_to_those_that_are_open():
    with emulation() as report:
        run_add(torch.zeros(32), schedule="lazy")
        with emulation(schedule="random") as inner:
            run_add(torch.zeros(32), schedule="lazy")
    assert [report.launches[0].schedule, inner.launches[0].schedule] == ["lazy", "random"]
    assert len(report.launches) == 1


def test_progress_goes_to_an_open_emulation_first(monkeypatch):
    monkeypatch.setattr(emulator.api, "_PROGRESS_EVERY_SECONDS", 0.0)
    ours, theirs = [], []
    with execution.progress_lines(ours.append) as show:
        assert show is not None
        run_add(torch.zeros(32 * 40))
    with emulation(progress=theirs.append), execution.progress_lines(ours.append) as show:
        assert show is None
        said = len(ours)
        run_add(torch.zeros(32 * 40))
    assert len(ours) == said > 0 and theirs and "warp-instructions" in theirs[0]


def test_the_rate_is_measured(monkeypatch):
    monkeypatch.setattr(execution, "_rates", [])
    assert execution.emulated_rate() == execution.TYPICAL_RATE
    monkeypatch.setattr(execution, "TIMED_INSTRUCTIONS", 10)
    with emulation() as report:
        run_add(torch.zeros(64))
    assert execution.emulated_rate() == pytest.approx(report.warp_instructions / report.seconds)


def test_code_for_the_other_blackwell_is_compiled():
    compiled = execution.compile_once(
        add, gmem(torch.zeros(32), divisible_by=(1,)), cutlass.Float32(0), constants=(1,), target="sm_103a"
    )
    assert ".target sm_103a" in compiled.__ptx__


def test_a_cuda_tensor_is_launched_in_order_with_its_stream(monkeypatch):
    """No GPU here: what is asked of torch.cuda and of the compiled function, in which order."""
    log = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: Stream("default"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 3))
    targets = []

    def compile_once(function, *args, constants, target):
        targets.append(target)
        return lambda *args: log.append(f"launch {args}")

    monkeypatch.setattr(execution, "compile_once", compile_once)
    execution.execute(add, 7, device=torch.device("cuda", 0), constants=(1,))
    assert log == ["default waits for current", "launch (7,)", "current waits for default"] and targets == ["sm_103a"]


def test_fifty_lengths_of_attention_compile_once(monkeypatch):
    """Lengths, batch, heads and scale are left open; head_dim, mask, dtype of O and what P does are compiled in."""
    kinds = Counter()
    monkeypatch.setattr(execution, "_compiled", {})
    monkeypatch.setattr(launch, "compile_kernel", lambda function, *args, target: kinds.update([target]))
    monkeypatch.setattr(emulator, "run", lambda *args, **options: SimpleNamespace(warp_instructions=0, launches=[]))

    def call(seqlen_q=5, seqlen_k=5, batch=1, heads=(1, 1), head_dim=64, dtype=torch.bfloat16, **keywords):
        q = torch.zeros(batch, seqlen_q, heads[0], head_dim, dtype=dtype)
        k = torch.zeros(batch, seqlen_k, heads[1], head_dim, dtype=dtype)
        flash_attn_func(q, k, k, **keywords)
        return kinds.total()

    for length in range(1, 51):
        call(length, 7 * length, batch=1 + length % 3, heads=(2 + 2 * (length % 2), 2), softmax_scale=length)
    assert kinds == {"sm_100a": 1}
    call(options=AttentionOptions(rule="floor", v_blocks="square", qk_blocks="1x32"))
    assert kinds.total() == 1, "the kernel reads the same scales"
    for count, other in enumerate(
        [{"head_dim": 128}, {"causal": True}, {"dtype": torch.float16}, {"options": AttentionOptions(p_offset=7)}], 2
    ):
        assert call(**other) == count, other

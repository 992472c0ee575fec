"""What does not run, and why. Each test holds only as long as its reason does; the results table lists them."""

import math

import pytest
from peer_attention import Problem, band, forward, stack

from mxfp8fa.emulator.errors import BarrierError, PoisonError, UnsupportedInstruction

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.xfail(
    raises=PoisonError, strict=True,
    reason="flash-attn-4 forward, 3 query heads per key head, a tile that is not full: rows past the end stay unloaded in "
    "shared memory (the kernel says it need not clear them), and correction's vote over the warp branches on them",
)  # fmt: skip
def test_gqa_of_three_with_a_partial_tile(flash_attn, peer):
    q, k, v = random(1, 100, 3, 128, seed=0), random(1, 256, 1, 128, seed=1), random(1, 256, 1, 128, seed=2)
    problem = Problem(*(t.double().numpy()[0] for t in (q, k, v)), band(100, 256, None, 0), 1 / math.sqrt(128))

    def run():
        o, lse = flash_attn.flash_attn_func(q.cuda(), k.cuda(), v.cuda(), causal=True, return_lse=True)
        return {"O": o, "LSE": lse}

    expected = stack([forward(problem)], new_axis=True)
    peer("flash-attn-4 forward, gqa-3", "", run, expected, schedules=["eager"], sm_count=1)


ARRIVES_TWICE = pytest.mark.xfail(
    raises=BarrierError,
    strict=True,
    reason="flash-attn-4 forward with absorbed MLA (qv), 2-CTA kernel: every thread executes barrier.cluster.arrive twice "
    'in a row; PTX ISA, barrier.cluster: "Each thread must arrive at the barrier only once before the barrier completes"',
)
WEIGHT_STATIONARY = pytest.mark.xfail(
    raises=UnsupportedInstruction,
    strict=True,
    reason="flash-attn-4 forward with absorbed MLA (qv), 1-CTA kernel: tcgen05.mma.ws is refused by name",
)


@pytest.mark.parametrize(
    ("tokens", "one_cta"),
    [pytest.param(1, "0", marks=ARRIVES_TWICE, id="2cta"), pytest.param(2, "1", marks=WEIGHT_STATIONARY, id="1cta")],
)
def test_absorbed_mla(flash_attn, peer, tokens, one_cta, monkeypatch):
    monkeypatch.setenv("FLASH_ATTENTION_MLA_1CTA", one_cta)  # else releases choose by rules of their own
    q, qv = random(1, tokens, 16, 64, seed=0), random(1, tokens, 16, 512, seed=1)
    k, v = random(1, 128, 1, 64, seed=2), random(1, 128, 1, 512, seed=3)
    both_q, both_k = torch.cat([q, qv], -1), torch.cat([k, v], -1)
    values = (t.double().numpy()[0] for t in (both_q, both_k, v))
    expected = stack([forward(Problem(*values, band(tokens, 128), 1 / math.sqrt(576)))], new_axis=True)

    def run():
        o, lse = flash_attn.flash_attn_func(q.cuda(), k.cuda(), v.cuda(), qv=qv.cuda(), return_lse=True)
        return {"O": o, "LSE": lse.transpose(1, 2)}

    peer("flash-attn-4 forward, mla", "", run, expected, schedules=["eager"], sm_count=2)


@pytest.mark.xfail(
    raises=PoisonError, strict=True,
    reason='flash-attn-4 forward under wait_ld="required": it has no tcgen05.wait::ld, a register dependency orders its '
    "loads; this mode is for kernels that promise the instruction",
)  # fmt: skip
def test_required_wait_ld(flash_attn, peer):
    q, k, v = (random(1, 128, 1, 128, seed=seed) for seed in range(3))
    problem = Problem(*(t.double().numpy()[0] for t in (q, k, v)), band(128, 128), 1 / math.sqrt(128))

    def run():
        o, lse = flash_attn.flash_attn_func(q.cuda(), k.cuda(), v.cuda(), return_lse=True)
        return {"O": o, "LSE": lse}

    expected = stack([forward(problem)], new_axis=True)
    peer("flash-attn-4 forward", "", run, expected, schedules=["eager"], sm_count=1, wait_ld="required")


def test_cudnn_launcher():
    pytest.skip(
        "cuDNN's own launcher (SdpaFwdDslSm100.execute, the graph API): native code calls the compiled function without "
        "Python, where `active` cannot see it; test_cudnn_mxfp8 calls that function itself"
    )


def test_autotuned_quack():
    pytest.skip("quack's tuned=True (GEMM) and *_tuned (norms): they time candidates on a GPU and need triton")

"""Step 7: warps with one role each."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from attention_harness import check_attention, compile_attention, operands, run_attention  # noqa: E402
from step_harness import assert_same_bits, empty, tables_of  # noqa: E402

from mxfp8fa.emulator import Trace  # noqa: E402
from mxfp8fa.emulator.host import ptx_of  # noqa: E402
from mxfp8fa.emulator.mutate import SCHEDULES, record, run_study  # noqa: E402
from mxfp8fa.kernels import MXOperand, compile_kernel  # noqa: E402
from mxfp8fa.kernels.names import names_of  # noqa: E402
from mxfp8fa.kernels.steps import step6_kv_loop, step7_warp_specialised  # noqa: E402
from mxfp8fa.kernels.steps import step7_warp_specialised as step  # noqa: E402

SCALE = 0.11


@pytest.fixture(scope="module")
def kernel():
    """The compiled kernel of each head_dim, for all lengths."""
    return compile_attention(step, step.warp_specialised, SCALE)


@pytest.fixture(scope="module")
def in_order():
    """Step 6's."""
    return compile_attention(step6_kv_loop, step6_kv_loop.kv_loop, SCALE)


def test_equals_the_model_bit_for_bit(kernel, schedule, accumulate):
    """Four tiles of keys: every ring comes around, and every barrier's parity with it."""
    q, k, v = operands(64, 390, 64)
    o, lse, _ = check_attention(step, kernel(64), q, k, v, SCALE, accumulate=accumulate, **schedule)
    assert torch.isnan(lse).nonzero().tolist() == [[5]] and torch.isnan(o).all(0).nonzero().tolist() == [[5]]


def test_head_dim_128(kernel):
    check_attention(step, kernel(128), *operands(33, 256, 128), SCALE, accumulate="blackwell", schedule="lazy")


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (33, 127), (31, 129), (130, 257), (5, 640)])
def test_lengths(kernel, seqlen_q, seqlen_k):
    check_attention(step, kernel(64), *operands(seqlen_q, seqlen_k, 64), SCALE, schedule="random", seed=seqlen_k)


def test_a_nan_in_k_is_in_every_row(kernel):
    o, lse, _ = check_attention(step, kernel(64), *operands(40, 200, 64, nan_in_k=True), SCALE)
    assert torch.isnan(lse).all() and torch.isnan(o).all()


def test_nothing_waits_for_the_order_of_mma_and_cp(kernel):
    """Scale columns and P are rewritten only after the event that says they were read."""
    q, k, v = operands(64, 640, 64)
    run_attention(step, kernel(64), q, k, v, SCALE, schedule="lazy", assume_mma_cp_order=False)


def first_time(trace, barrier, what):
    return next(e.step for e in trace.barrier_events if e.barrier == barrier and e.what == what)


def test_same_bits_and_now_overlapped(kernel, in_order):
    """S of the second tile is there before P of the first is asked for: the tensor core is one tile ahead."""
    tensors = operands(64, 384, 64)
    traces, results = {}, []
    for name, module, get in (("in order", step6_kv_loop, in_order), ("overlapped", step7_warp_specialised, kernel)):
        traces[name] = Trace.named(names_of(module))
        o, lse, _ = run_attention(module, get(64), *tensors, SCALE, trace=traces[name], schedule="eager")
        results.append((o, lse))
    for a, b in zip(*results, strict=True):
        assert_same_bits(a, b)
    p_done = {name: first_time(trace, "p_full", "complete") for name, trace in traces.items()}
    assert first_time(traces["overlapped"], "s_full[1]", "complete") < p_done["overlapped"]
    second = [e.step for e in traces["in order"].barrier_events if e.barrier == "s_full" and e.what == "complete"][1]
    assert second > p_done["in order"]


def test_who_waits_for_what_is_what_the_table_says(kernel):
    """As observed in a run: the roles that pass each barrier, and those that arrive."""
    trace = Trace.named(names_of(step))
    run_attention(step, kernel(64), *operands(64, 512, 64), SCALE, trace=trace, schedule="eager")
    softmax = {f"warp {i}" for i in range(4)}
    graph = {name: tuple(map(set, sides)) for name, sides in trace.barrier_graph().items()}
    for stage in ("[0]", "[1]"):
        assert graph["k_full" + stage][1] == graph["v_full" + stage][1] == {"mma"}
        assert graph["s_full" + stage][1] == softmax | {"load"}
        assert graph["o_full" + stage][1] == softmax | {"load", "mma"}
    assert graph["p_full"] == (softmax, {"mma"}) and graph["q_full"][1] == {"mma"}


@pytest.mark.slow
def test_every_synchronisation_mutant_is_caught():
    """But one: QK of tile j waits for PV of tile j - 2, which it follows in the tensor core's own order anyway."""
    q, k, v = map(MXOperand.from_mx_tensor, operands(64, 640, 64))
    arguments = step.arguments(q, k, v, empty(64, 64), empty(64), SCALE)
    launches = record(compile_kernel(step.warp_specialised, *arguments), *arguments)
    study = run_study(launches, schedules=SCHEDULES[:4], wait_ld="required")
    assert study.count("survived") == study.count("not executed") == 0
    assert [v.mutant.change for v in study.of("equivalent")] == ["wait removed"]
    assert study.count("caught") > 40


def test_the_same_instructions_a_tile(kernel, in_order):
    """Roles move work, they do not add any: products, copies of scales and exponentials are those of step 6."""
    ours, theirs = ptx_of(kernel(64)), ptx_of(in_order(64))
    for instruction in ("ex2.approx.ftz.f32", "cvt.rn.satfinite.e4m3x2.f32", "tcgen05.mma.", "tcgen05.cp."):
        assert ours.count(instruction) == theirs.count(instruction), instruction


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 512 and "512 columns allocated" in docstring

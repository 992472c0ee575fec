"""Rules of barriers, proxies of global memory and of mbarriers, names in reports, and findings that are allowed."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from mxfp8fa.emulator.check import Finding, allowed
from mxfp8fa.emulator.elements import Elements
from mxfp8fa.emulator.errors import Site
from mxfp8fa.emulator.names import Buffer, Names
from mxfp8fa.layouts.swizzle import SW128
from tests.emulator.check.test_races import NEIGHBOUR, bulk, findings, tensor
from tests.emulator.machine.kernels import HEAD_LINES


def said(body, **options):
    """What is found, or the error."""
    return [f.what for f in findings(body, **options)]


# -- mbarriers ------------------------------------------------------------------------------------------------------------

INIT = " setp.eq.u32 %p1, %r1, 0;\n @%p1 mbarrier.init.shared.b64 [%r2], {count};\n bar.sync 0;\n"


def test_more_arrivals_than_expected():
    with pytest.raises(em.BarrierError, match="more arrivals than expected"):
        findings(INIT.format(count=41) + " mbarrier.arrive.shared.b64 _, [%r2], 2;", block=32)


def test_arrivals_of_one_instruction_in_two_phases():
    """31 of 32 lanes complete the phase; the last one counts for the next."""
    found = said(INIT.format(count=31) + " mbarrier.arrive.shared.b64 _, [%r2];", block=32)
    assert found[0].startswith("the arrivals of one warp-instruction fall into two phases")
    assert said(INIT.format(count=32) + " mbarrier.arrive.shared.b64 _, [%r2];", block=32) == []


def test_arrivals_that_nobody_waits_for_are_no_error():
    """flash-attn-4's correction warps arrive once more than anybody waits, before they exit."""
    assert said(INIT.format(count=96) + " mbarrier.arrive.shared.b64 _, [%r2];", block=64) == []


MISSED = INIT.format(count=1) + """
 @%p1 mbarrier.init.shared.b64 [%r2+8], 1;
 @%p1 mbarrier.init.shared.b64 [%r2+16], 1;
 bar.sync 0;
 setp.eq.u32 %p4, %r1, 32;
 setp.lt.u32 %p2, %r1, 32;
 @!%p2 bra WAIT;
READY:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r2+16], 0;
 @!%p3 bra READY;
 @%p1 mbarrier.arrive.shared.b64 _, [%r2];
 BETWEEN
 @%p1 mbarrier.arrive.shared.b64 _, [%r2];
 bra END;
WAIT:
 @%p4 mbarrier.arrive.shared.b64 _, [%r2+16];
LOOK:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;
 @!%p3 bra LOOK;
 SEEN
END:"""
BY_MBARRIER = (
    "W:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r2+8], 0;\n @!%p3 bra W;", "@%p4 mbarrier.arrive.shared.b64 _, [%r2+8];"
)  # fmt: skip
DELAY = "mov.u32 %r9, 0;\nD:\n add.u32 %r9, %r9, 1;\n setp.lt.u32 %p3, %r9, 30;\n @%p3 bra D;"
BY_THREADS = ("bar.sync 1, 64;", "bar.sync 1, 64;")


def missed(between="", seen="", **options):
    """Warp 1 says that it is ready and waits; warp 0 completes a phase, and then another.

    Returns:
        What is said of barriers, and whether the run came to its end.
    """
    body, done = MISSED.replace("BETWEEN", between).replace("SEEN", seen), True
    try:
        found = findings(body, **options)
    except em.DeadlockError as error:
        found, done = error.findings, False
    assert all(f.second[0] == "CTA (0, 0, 0) warp 1" and "try_wait" in f.second[1].text for f in found)
    return [f.what for f in found if f.kind == "barrier"], done


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_wait_that_a_whole_phase_passes_unseen(schedule):
    """Warp 1 begins to wait, two phases complete, and the parity is what it was: it waits for ever."""
    (text,), done = missed(schedule=schedule)
    assert "two phases completed before it was satisfied" in text and not done


def test_a_wait_that_a_whole_phase_can_pass_unseen():
    """Warp 0 takes its time, and warp 1 looks just in time: the run ends, and the checker says that this was luck."""
    runs = [missed(DELAY, schedule="random", seed=seed) for seed in range(12)]
    lucky = [said for said, done in runs if done]
    assert lucky and all(len(said) == 1 and "nothing keeps the next one from completing" in said[0] for said in lucky)
    assert all("can miss a whole phase" in text for said, _ in runs for text in said)


@pytest.mark.parametrize("how", [BY_MBARRIER, BY_THREADS], ids=["mbarrier", "thread barrier"])
def test_any_order_between_a_wait_and_the_next_phase_will_do(how):
    for options in ({"schedule": "eager"}, {"schedule": "lazy"}, *({"schedule": "random", "seed": seed} for seed in range(8))):
        assert missed(*how, **options) == ([], True)


# -- the asynchronous proxy -----------------------------------------------------------------------------------------------


def test_an_mbarrier_is_initialised_for_the_asynchronous_proxy():
    assert said(bulk()) == []
    assert said(bulk(init_fence="fence.proxy.async;")) == []
    (found,) = findings(bulk(init_fence=""))
    assert found.kind == "visibility" and "fence.mbarrier_init" in found.what
    assert "mbarrier.init" in found.first[1].text and "cp.async.bulk" in found.second[1].text


def test_the_fence_belongs_before_the_barrier_that_tells_the_others():
    late = bulk(init_fence="").replace(" bar.sync 0;", " bar.sync 0;\n fence.mbarrier_init.release.cluster;", 1)
    assert said(late) == []  # thread 0 issues the copy itself
    elsewhere = late.replace("@!%p1 bra CONSUME", "setp.eq.u32 %p4, %r1, 32;\n @!%p4 bra CONSUME")
    assert [f.kind for f in findings(elsewhere)] == ["visibility"]


GLOBAL = """
 st.global.u32 [%rd4], %r1;
 {fence}
 bar.sync 0;
"""


@pytest.mark.parametrize(
    ("fence", "silent"),
    [
        ("fence.proxy.async;", True),
        ("fence.proxy.async.global;", True),
        ("fence.proxy.async.shared::cta;", False),
        ("", False),
    ],
)
def test_a_copy_of_what_threads_wrote_to_global_memory(fence, silent):
    body = GLOBAL.format(fence=fence) + bulk().replace("[%rd2], 128", "[%rd1], 128")
    found = findings(body)
    assert (found == []) == silent
    assert silent or (found[0].kind == "visibility" and "global memory" in found[0].what)


BEFORE_THE_COPY = """
 add.s32 %r7, %r2, 128;
 shl.b32 %r8, %r1, 2;
 add.s32 %r8, %r8, %r7;
 setp.lt.u32 %p5, %r1, 32;
 {touch}
 {fence}
"""


def copy_over(touch, fence):
    """128 bytes that warp 0 touches, and TMA fills after a barrier."""
    return BEFORE_THE_COPY.format(touch="@%p5 " + touch, fence=fence) + bulk(init_fence="fence.mbarrier_init.release.cluster;")


@pytest.mark.parametrize(
    ("fence", "silent"), [("fence.proxy.async;", True), ("fence.proxy.async.shared::cta;", True), ("", False)]
)
def test_a_copy_over_what_threads_wrote(fence, silent):
    """Two writes through two proxies need the fence as a write and a read do."""
    found = findings(copy_over("st.shared.u32 [%r8], %r1;", fence))
    assert (found == []) == silent
    assert silent or (found[0].kind == "visibility" and found[0].what.startswith("write and write of shared memory"))


def test_a_fence_covers_only_what_was_done_before_it():
    body = copy_over("st.shared.u32 [%r8], %r1;", "fence.proxy.async;")
    assert [f.kind for f in findings(body.replace(" setp.eq", " @%p5 st.shared.u32 [%r8], %r1;\n setp.eq", 1))] == ["visibility"]


def test_a_copy_over_what_threads_read_is_an_assumption():
    fill = " st.shared.u32 [%r8], %r1;\n fence.proxy.async;\n"
    read, fenced = (
        copy_over("ld.shared.u32 %r9, [%r8];", fence).replace(" @%p5", fill + " @%p5", 1)
        for fence in ("", "fence.proxy.async;")
    )
    assert findings(read) == [] and findings(fenced, assume_read_order=False) == []
    (found,) = findings(read, assume_read_order=False)
    assert found.kind == "visibility" and found.what.startswith("read and write of shared memory")
    assert "ld.shared" in found.first[1].text and "cp.async.bulk" in found.second[1].text


# -- reports --------------------------------------------------------------------------------------------------------------


def test_names_in_reports():
    names = Names(roles={0: "load", 1: "mma"}, buffers={"tile": (0x400, 0x800)}, barriers={0x400: "full"})
    (found, *_) = findings(NEIGHBOUR.format(sync=""), names=names)
    assert {found.first[0], found.second[0]} == {"CTA (0, 0, 0) warp 0 (load)", "CTA (0, 0, 0) warp 1 (mma)"}


def place(**names):
    """Where the race of NEIGHBOUR is first seen: a word of warp 0's half of 256 bytes, or of warp 1's."""
    (found, *_) = findings(NEIGHBOUR.format(sync=""), names=Names(**names))
    offset = int(found.where.split()[2], 16)
    return offset, found.where.partition(" of CTA (0, 0, 0)")[2]


def test_places_in_shared_memory_are_offsets_or_rows_of_a_buffer():
    offset, text = place(buffers={"other": (0x100, 0x200), "tile": (0x400, 0x800)})
    assert text == f", tile + {offset - 0x400:#x}"
    offset, text = place(buffers={"tile": Buffer(0x400, 0x800, row_bytes=64)})
    assert text == f", tile row {(offset - 0x400) // 64}, byte {(offset - 0x400) % 64}"
    offset, text = place(barriers={0x400: "full", 0x480: "empty"})
    assert text == f", barrier {'full' if offset == 0x400 else 'empty'}"


def test_rows_of_a_swizzled_buffer():
    """Row 5 of a 128B-swizzled tile: its chunk c lies where chunk c ^ 5 would."""
    tile = Buffer(0x400, 0x1400, row_bytes=128, swizzle=SW128)
    assert tile.place(0x400 + 5 * 128 + 16 * (2 ^ 5) + 3) == "row 5, byte 35"
    assert tile.place(0x400) == "row 0, byte 0"


def test_places_in_tensor_memory_are_columns_of_what_lives_there():
    (found, *_) = findings(tensor(wait_st=""), names=Names(columns={"S": (0, 127), "P": (0, 31)}))
    assert found.where == "tensor memory lane 0, column 0 of CTA (0, 0, 0), column 0 of S or column 0 of P"


def test_places_in_global_memory_are_elements_of_a_tensor():
    (found,) = findings(" st.global.u32 [%rd1+64], %r1;", block=1, grid=2)
    assert found.where == "element [16] of parameter 0 (out)"


@pytest.mark.parametrize(
    ("array", "byte", "index"),
    [
        (np.zeros((3, 4, 5), np.float32), 4 * (20 + 15 + 2), (1, 3, 2)),
        (np.zeros((3, 4, 5), np.float32).transpose(2, 0, 1), 4 * (20 + 15 + 2), (2, 1, 3)),
        (np.zeros((4, 8), np.int16)[:, ::2], 4 * 7, (1, 3)),
        (np.zeros((4, 8), np.int16)[:, ::2], 2, None),
        (np.zeros((4, 8), np.int16)[:2], 40, None),
        (np.zeros((1, 8, 1), np.uint8), 5, (0, 5, 0)),
    ],
)
def test_the_element_at_an_address(array, byte, index):
    assert Elements.of(array).index(array.ctypes.data + byte) == index


def test_elements_of_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 3, 8, dtype=torch.bfloat16).transpose(0, 1)
    assert Elements.of(x).index(x[2, 1, 5].data_ptr()) == (2, 1, 5)
    assert Elements.of(3) is None


def test_both_sites_are_named():
    (found, *_) = findings(NEIGHBOUR.format(sync=""))
    assert {found.first[1].ptx_line, found.second[1].ptx_line} == {HEAD_LINES + 4, HEAD_LINES + 8}


# -- findings that are allowed --------------------------------------------------------------------------------------------


def finding(kernel, first, second, kind="visibility"):
    side = [("somebody", Site(kernel, (0, 0, 0), 0, None, 1, text)) for text in (first, second)]
    return Finding(kind, "", "", *side)


def test_known_benign_findings_carry_their_reason():
    """Only stores of the constant, only of cuDNN's kernels, only before tcgen05.cp."""
    store, copy = "st.shared.b8 [%r320+199680], 127;", "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %rd1;"
    name = "cudnn_kernel__kernel_TensorMapswizzleTensorMapSwizzles128b_3"
    assert "cuDNN" in allowed.reason_to_allow(finding(name, store, copy))
    assert allowed.reason_to_allow(finding("kernel_of_ours", store, copy)) == ""
    assert allowed.reason_to_allow(finding("kernel_cutlass_fmha_mxfp8", store, copy)) == ""
    assert allowed.reason_to_allow(finding(name, store, copy, kind="race")) == ""
    assert allowed.reason_to_allow(finding(name, store, "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1;")) == ""
    for other in ("st.shared.b8 [%r1], %rs2;", "st.shared.b8 [%r1], 126;", "st.shared.b32 [%r1], 2139062143;"):
        assert allowed.reason_to_allow(finding(name, other, copy)) == ""


def test_two_ctas_that_store_the_same():
    store = "st.global.b32 [%rd131], %r174;"
    name = "kernel_cutlass_kernel_flash_attncuteflash_bwd_preprocessFlashAttention"
    assert "same values" in allowed.reason_to_allow(finding(name, store, store, kind="race"))
    assert allowed.reason_to_allow(finding(name, store, "ld.global.b32 %r1, [%rd1];", kind="race")) == ""


def test_allowed_findings_are_kept_apart(monkeypatch):
    known = allowed.Allowed("^k$", "race", "st.shared", "ld.shared", "for the test")
    monkeypatch.setattr(allowed, "ALLOWED", (known,))
    out = np.zeros(4096, np.uint32)
    from tests.emulator.machine.kernels import launch

    report = launch(NEIGHBOUR.format(sync=""), out, out, block=64, check="races")
    assert [f.allowed for f in report.launches[0].allowed] == ["for the test"]
    assert all("ld.shared" not in f.second[1].text for f in report.races)

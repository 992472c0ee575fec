"""Order around the tensor core: commit, copies of scale factors, tcgen05.fence, tcgen05.ld and its waits."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import operands
from tests.emulator.tensor.kernels import SM, copy_in, run, wait
from tests.emulator.tensor.products import Case, commit, descriptor

SCHEDULES = ("eager", "lazy", "random")
TILE = str(operands.descriptor(SM, 0, 1024, "128B"))  # 128 rows of 128 bytes: 16 KiB
SCALES = str(operands.descriptor(SM, 16, 128, "none"))
FLAG = " setp.ne.u32 %p1, %r1, %r1;\n"
MMA = f" @%leader tcgen05.mma.cta_group::1.kind::f16 [%r5], {TILE}, {TILE}, {descriptor(Case(), 0)}, %p1;\n"
SCALED = Case("mxf8f6f4", a="e4m3", b="e4m3", scales=1)
MMA_SCALED = (
    f" add.u32 %b0, %r5, 64; @%leader tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r5], {TILE}, {TILE}, "
    f"{descriptor(SCALED, 0)}, [%b0], [%b0], %p1;\n"
)
CP = f" add.u32 %b0, %r5, 64; @%leader tcgen05.cp.cta_group::1.32x128b.warpx4 [%b0], {SCALES};\n"
LD = " {wait}shl.b32 %b1, %warp, 21; add.u32 %b1, %b1, %r5; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%a9}}, [%b1];\n"
USE = " add.u32 %a8, %a9, %a9;\n"  # not stored anywhere: what was never written may be loaded and moved


def races(body, **options):
    """Findings of a body; shared memory is filled with ones in every byte's lowest bit."""
    out, source = np.zeros(256, np.uint32), np.full(4096, 0x38383838, np.uint32)
    return run(body, out, source, columns=128, check="races", **options).races


def load(wait_ld="tcgen05.wait::ld.sync.aligned; "):
    return LD.format(wait="") + f" {wait_ld}\n" + USE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_commit_orders_the_product_before_its_readers(schedule):
    body = copy_in(16384) + FLAG + MMA + commit(1)
    assert races(body + wait() + load(), schedule=schedule) == []
    found = races(body + load() + wait(), schedule=schedule)
    assert {f.kind for f in found} == {"race"} and "tensor memory" in found[0].what
    assert "tensor core" in {found[0].first[0], found[0].second[0]}


def test_a_commit_covers_only_what_was_issued_before_it():
    body = copy_in(16384) + FLAG + commit(1) + MMA + wait() + load()
    assert any(f.kind == "race" and f.first[0] == "tensor core" for f in races(body))


def test_the_tensor_core_reads_shared_memory_through_the_asynchronous_proxy():
    body = copy_in(16384).replace("fence.proxy.async;", "") + FLAG + MMA + commit(1) + wait() + load()
    (found, *_) = races(body)
    assert found.kind == "visibility" and found.second[1].text.startswith("@%leader tcgen05.mma")


def test_shared_memory_is_free_when_the_commit_says_so():
    body = copy_in(16384) + FLAG + MMA + commit(1)
    overwrite = " shl.b32 %a0, %r1, 2; add.u32 %a0, %a0, %r3; st.shared.u32 [%a0], %r1;\n"
    assert races(body + wait() + overwrite) == []
    (found, *_) = races(body + overwrite + wait())
    assert found.kind == "race" and found.what.startswith("read and write of shared memory")


def test_scale_factors_copied_by_the_thread_that_multiplies():
    assert races(copy_in(16384) + FLAG + CP + MMA_SCALED + commit(1) + wait() + load()) == []
    assert races(copy_in(16384) + FLAG + CP + MMA_SCALED + commit(1) + wait() + load(), assume_mma_cp_order=False) == []


def test_a_copy_of_scale_factors_without_the_fence():
    body = copy_in(16384).replace("fence.proxy.async;", "") + CP + commit(1) + wait()
    (found, *_) = races(body)
    assert found.kind == "visibility" and "tcgen05.cp" in found.second[1].text


def test_mma_before_cp_is_an_assumption():
    """The second copy overwrites the scales that the first product reads; only the order of issue is between them."""
    body = copy_in(16384) + FLAG + CP + MMA_SCALED + CP + MMA_SCALED + commit(1) + wait() + load()
    assert races(body) == []
    (found, *_) = races(body, assume_mma_cp_order=False)
    assert found.kind == "race" and "tcgen05.mma" in found.first[1].text and "tcgen05.cp" in found.second[1].text


BEFORE, AFTER = "tcgen05.fence::before_thread_sync;\n", "tcgen05.fence::after_thread_sync;\n"


@pytest.mark.parametrize(
    ("before", "after", "silent"), [(BEFORE, AFTER, True), ("", AFTER, False), (BEFORE, "", False)]
)
def test_tcgen05_fences_count_when_they_are_asked_for(before, after, silent):
    """Warp 1 stores where warp 0 has loaded (a warp reaches its own lanes only, so the tensor core stores for it)."""
    body = copy_in(16384) + FLAG + load() + f" {before} bar.sync 0;\n {after}" + MMA + commit(1) + wait()
    assert races(body) == []
    found = races(body, assume_tcgen05_order=False)
    assert (found == []) == silent
    assert silent or (found[0].kind == "visibility" and "tcgen05.fence" in found[0].what)


def test_commit_implies_before_thread_sync():
    body = copy_in(16384) + FLAG + MMA + commit(1) + wait()
    assert races(body + AFTER + load(), assume_tcgen05_order=False) == []
    (found, *_) = races(body + load(), assume_tcgen05_order=False)
    assert found.kind == "visibility"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_load_is_over_at_wait_ld_or_when_a_register_is_used(schedule):
    """Otherwise the product that overwrites its columns may come first."""
    after = " bar.sync 0;\n" + FLAG + MMA + commit(1) + wait()
    loaded = copy_in(16384) + LD.format(wait="")
    assert races(loaded + " tcgen05.wait::ld.sync.aligned;\n" + after + USE, schedule=schedule) == []
    assert races(loaded + USE + after, schedule=schedule) == []
    found = races(loaded + after + USE, schedule=schedule)
    assert [f.kind for f in found] == ["race"] and found[0].what.startswith("read and write")


def test_wait_ld_required():
    """The same kernel, with and without a tcgen05.wait::ld, when only that counts."""
    body = copy_in(16384) + FLAG + MMA + commit(1) + wait()
    assert races(body + load(), wait_ld="required") == []
    store = " mul.wide.u32 %x9, %r1, 4; add.u64 %x9, %x9, %rd1; st.global.u32 [%x9], %a8;\n"
    assert races(body + load("") + store) == []
    with pytest.raises(em.PoisonError):
        races(body + load("") + store, wait_ld="required")

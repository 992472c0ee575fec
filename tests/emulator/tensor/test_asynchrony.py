"""Asynchrony is real: a missing wait gives another result under "lazy", and none of it shows in a correct program."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import boxes, products
from tests.emulator.tensor.boxes import UNTOUCHED, expect, fill_shared, load_text, loaded, tensor
from tests.emulator.tensor.kernels import SCHEDULES, copy_in, copy_out, run, tensor_in, tensor_out, wait
from tests.emulator.tensor.products import Case, commit, random_data

EAGER, LAZY = {"schedule": "eager"}, {"schedule": "lazy"}
BOX = tensor(boxes.U8, (64, 16), (32, 8))
WANTED = loaded(BOX, (16, 2))


# -- loads ----------------------------------------------------------------------------------------------------------------


def load_kernel(*, waiting: bool, fill: bool, **options) -> np.ndarray:
    out = np.zeros(256, np.uint8)
    body = (fill_shared(2048) if fill else "") + expect(256) + load_text(BOX.map, (16, 2))
    run(
        body + (wait() if waiting else " bar.sync 0;\n") + copy_out(256),
        out,
        maps=[BOX.map],
        allow=(BOX.memory,),
        **options,
    )
    return out


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_a_load_that_is_waited_for(options):
    for fill in (True, False):
        np.testing.assert_array_equal(load_kernel(waiting=True, fill=fill, **options), WANTED)


def test_a_load_that_is_read_too_early():
    """What was there before, or poison; an eager run hides it."""
    assert (load_kernel(waiting=False, fill=True, **LAZY) == UNTOUCHED).all()
    with pytest.raises(em.PoisonError, match=r"a value that was never written reaches a store to global memory"):
        load_kernel(waiting=False, fill=False, **LAZY)
    np.testing.assert_array_equal(load_kernel(waiting=False, fill=True, **EAGER), WANTED)
    races = {f.kind for f in _races(load_kernel_body(waiting=False))}
    assert "race" in races and _races(load_kernel_body(waiting=True)) == []


def load_kernel_body(*, waiting: bool) -> str:
    body = fill_shared(2048) + expect(256) + load_text(BOX.map, (16, 2))
    return body + (wait() if waiting else " bar.sync 0;\n") + copy_out(256) + ("" if waiting else wait())


def _races(body: str) -> list:
    return run(body, np.zeros(256, np.uint8), maps=[BOX.map], allow=(BOX.memory,), check="races").races


def test_a_source_in_global_memory_is_read_when_the_copy_runs():
    """Bytes written to the tensor after the issue are loaded as late as the schedule says."""
    body = (
        expect(256)
        + load_text(BOX.map, (16, 2))
        + " mov.b64 %x3, FIRST; mov.b32 %a0, 7; @%leader st.global.u8 [%x3], %a0;\n"
    )
    body = body.replace("FIRST", str(BOX.map.address + 2 * BOX.map.strides_bytes[0] + 16))
    for options, value in ((LAZY, 7), (EAGER, int(WANTED[0]))):
        out, memory = np.zeros(256, np.uint8), BOX.memory.copy()
        run(body + wait() + copy_out(256), out, maps=[BOX.map], allow=(BOX.memory,), **options)
        BOX.memory[:] = memory
        assert out[0] == value and (out[1:] == WANTED[1:]).all()


# -- products -------------------------------------------------------------------------------------------------------------

C = Case(n=32)
DATA = random_data(C)
SHARED, A, B = products.images(C, DATA)
SPOIL_A = fill_shared(B.start - A.start)  # everything below B
SPOILED = products.expected(
    C, products.Data(np.full_like(DATA.a, UNTOUCHED * 0x0101), DATA.b, DATA.sfa, DATA.sfb, DATA.c)
)
MMA = products.instructions(C, A, B)
PRODUCT = products.expected(C, DATA)
EMPTY_D = np.full((1, 128, 32), 0x42280000, np.uint32)  # 42.0


def product_kernel(middle: str, end: str = "", **options) -> np.ndarray:
    """(128, 32) cells of D, which starts as 42.0; `middle` follows the copies in, D is read, `end` follows."""
    out = np.zeros((128, 32), np.uint32)
    source = np.concatenate([SHARED.reshape(1, -1), EMPTY_D.reshape(1, -1).view(np.uint8)], axis=1)
    body = copy_in(SHARED.shape[1]) + tensor_in(SHARED.shape[1], 32) + middle + tensor_out(32) + end
    run(body, out, source, columns=512, shared_bytes=SHARED.shape[1], **options)
    return out


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_a_product_that_is_waited_for(options):
    """Operands are overwritten after the wait, D is read after it."""
    found = product_kernel(MMA + commit(1) + wait() + SPOIL_A, **options)
    np.testing.assert_array_equal(found, PRODUCT)


def test_an_operand_that_is_overwritten_before_the_commit_arrives():
    too_early = MMA + commit(1) + " bar.sync 0;\n" + SPOIL_A + wait()
    np.testing.assert_array_equal(product_kernel(too_early, **EAGER), PRODUCT)
    np.testing.assert_array_equal(product_kernel(too_early, **LAZY), SPOILED)


def test_an_accumulator_that_is_read_too_early():
    too_early = MMA + commit(1) + " bar.sync 0;\n"
    assert (product_kernel(too_early, wait(), **LAZY) == 0x42280000).all()
    np.testing.assert_array_equal(product_kernel(too_early, wait(), **EAGER), PRODUCT)


def test_an_accumulator_that_is_freed_too_early():
    """The product runs after the columns have been given back."""
    body = copy_in(SHARED.shape[1]) + MMA
    with pytest.raises(em.OutOfBounds, match=r"tcgen05.mma accumulator reaches column 0, which is not allocated"):
        run(body, np.zeros(4, np.uint32), SHARED, columns=512, shared_bytes=SHARED.shape[1], **LAZY)


def test_a_commit_arrives_when_what_it_tracks_is_done():
    """Two products with a commit each: the first barrier says nothing about the second product, the second both."""
    second = MMA.replace("%r5, 0;", "%r5, 64;", 1)
    second_commit = commit(1).replace("[%r4]", "[%r4+8]")
    clear = " mov.b32 %b9, 0x42280000; add.u32 %b8, %r5, 64;\n"
    clear += f" tcgen05.st.sync.aligned.32x32b.x32.b32 [%b8], {{{', '.join(['%b9'] * 32)}}};\n{WAIT_ST} bar.sync 0;\n"
    source = np.concatenate([SHARED.reshape(1, -1), EMPTY_D.reshape(1, -1).view(np.uint8)], axis=1)
    start = copy_in(SHARED.shape[1]) + tensor_in(SHARED.shape[1], 32) + clear + MMA + commit(1) + second + second_commit
    end = tensor_out(32) + " add.u64 %rd1, %rd1, 16384;\n" + tensor_out(32, 64) + wait(1)
    for barrier, seen_second in ((0, False), (1, True)):
        out = np.zeros((2, 128, 32), np.uint32)
        given = {"columns": 512, "shared_bytes": SHARED.shape[1], "barrier_counts": {1: 1}}
        run(start + wait(barrier) + end, out, source, **given, **LAZY)
        np.testing.assert_array_equal(out[0], PRODUCT)
        assert (out[1] == PRODUCT).all() if seen_second else (out[1] == 0x42280000).all()


@pytest.mark.parametrize(("options", "early"), [(EAGER, 1), (LAZY, 0)])
def test_a_barrier_right_after_the_commit(options, early):
    out = np.zeros(4, np.uint32)
    body = (
        copy_in(SHARED.shape[1])
        + MMA
        + commit(1)
        + " mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0; selp.b32 %a0, 1, 0, %p1;\n"
    )
    run(
        body + " @%leader st.global.u32 [%rd1], %a0;\n" + wait(),
        out,
        SHARED,
        columns=512,
        shared_bytes=SHARED.shape[1],
        **options,
    )
    assert out[0] == early


@pytest.mark.parametrize("options", SCHEDULES[:3], ids=str)
def test_a_commit_with_nothing_outstanding_still_arrives(options):
    run(
        commit(1) + wait() + " bar.sync 0;\n" + commit(1) + wait(parity=1),
        np.zeros(4, np.uint32),
        columns=32,
        **options,
    )


# -- fragments ------------------------------------------------------------------------------------------------------------

STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], "
LOAD = " tcgen05.ld.sync.aligned.32x32b.x1.b32 {%a1}, [%r5];\n"
WAIT_ST, WAIT_LD = " tcgen05.wait::st.sync.aligned;\n", " tcgen05.wait::ld.sync.aligned;\n"
KEEP = " mad.wide.u32 %x0, %r1, 4, %rd1; st.global.u32 [%x0], %a1;\n"
OLD = f" mov.b32 %b0, 1; {STORE}{{%b0}};\n{WAIT_ST}"
NEW = f" mov.b32 %b1, 2; {STORE}{{%b1}};\n"


def fragment(body: str, **options) -> int:
    """What all 32 threads wrote."""
    out = np.zeros(32, np.uint32)
    run(body + WAIT_ST, out, block=32, columns=32, **options)
    assert len(set(out.tolist())) == 1
    return int(out[0])


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
@pytest.mark.parametrize("wait_ld", ["dependency", "required"])
def test_fragments_that_are_waited_for(options, wait_ld):
    assert fragment(OLD + NEW + WAIT_ST + LOAD + WAIT_LD + KEEP, wait_ld=wait_ld, **options) == 2
    assert fragment(OLD + LOAD + WAIT_LD + NEW + WAIT_ST + KEEP, wait_ld=wait_ld, **options) == 1


def test_a_store_without_its_wait():
    assert fragment(OLD + NEW + LOAD + WAIT_LD + KEEP, **LAZY) == 1
    assert fragment(OLD + NEW + LOAD + WAIT_LD + KEEP, **EAGER) == 2
    assert {fragment(OLD + NEW + LOAD + WAIT_LD + KEEP, schedule="random", seed=s) for s in range(10)} <= {1, 2}


def test_a_load_is_complete_at_the_first_use_of_its_registers():
    """Without wait::ld the cells may be read as late as that; a later store then shows. A use in between pins it."""
    overwritten = OLD + LOAD + NEW + WAIT_ST + KEEP
    assert fragment(overwritten, **LAZY) == 2
    assert fragment(overwritten, **EAGER) == 1
    used = OLD + LOAD + " mov.b32 %a2, %a1;\n" + NEW + WAIT_ST + KEEP
    assert fragment(used, **LAZY) == fragment(used, **EAGER) == 1


@pytest.mark.parametrize("options", SCHEDULES[:4], ids=str)
def test_a_register_dependency_is_enough_unless_wait_ld_is_required(options):
    """flash-attn-4's forward relies on it; kernels of this package do not."""
    assert fragment(OLD + LOAD + KEEP, **options) == 1
    with pytest.raises(em.PoisonError, match=r"a value that was never written reaches a store to global memory"):
        fragment(OLD + LOAD + KEEP, wait_ld="required", **options)


def test_a_store_that_a_product_must_see():
    """A from tensor memory: without wait::st some order of completion takes the old A, with it none does."""
    c = Case(n=8, tensor_a=True)
    data = random_data(c)
    shared, a, b = products.images(c, data)
    cells = products.tensor_image(c, data)[0, :, products.A_COLUMN : products.A_COLUMN + 8]
    source = np.concatenate([shared.reshape(-1), np.ascontiguousarray(cells).view(np.uint8).reshape(-1)])
    wanted = products.expected(c, data)

    def kernel(waiting: str, **options) -> np.ndarray:
        out = np.zeros((128, 8), np.uint32)
        zero = (
            f" mov.b32 %b9, 0; shl.b32 %b8, %warp, 21; add.u32 %b8, %b8, %r5; add.u32 %b8, %b8, {products.A_COLUMN};\n"
        )
        zero += f" tcgen05.st.sync.aligned.32x32b.x8.b32 [%b8], {{{', '.join(['%b9'] * 8)}}};\n{WAIT_ST}"
        body = (
            copy_in(shared.shape[1])
            + zero
            + tensor_in(shared.shape[1], 8, products.A_COLUMN).replace(WAIT_ST.strip(), waiting)
        )
        body += products.instructions(c, a, b) + commit(1) + wait() + tensor_out(8)
        run(body, out, source[None], columns=512, shared_bytes=shared.shape[1], **options)
        return out

    for options in SCHEDULES:
        np.testing.assert_array_equal(kernel(WAIT_ST.strip(), **options), wanted)
    assert any((kernel("", schedule="random", seed=seed) != wanted).any() for seed in range(10))


# -- stores ---------------------------------------------------------------------------------------------------------------

OUT = tensor(boxes.U8, (64, 16), (32, 8), seed=3)


def store_kernel(waiting: str, **options) -> np.ndarray:
    """The bytes of the tensor after a box of 0x11 was stored and its source overwritten with 0x22."""
    OUT.memory[:] = 0
    fill = (
        " mov.b32 %a0, VALUE; mad.lo.u32 %a1, %r1, 4, %r3; setp.lt.u32 %p0, %r1, 64; @%p0 st.shared.b32 [%a1], %a0;\n"
    )
    fill += " fence.proxy.async; bar.sync 0;\n"
    name = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    body = (
        fill.replace("VALUE", str(0x11111111))
        + f" @%leader {name} [%map0, {{16, 2}}], [%r3];\n @%leader cp.async.bulk.commit_group;\n"
    )
    body += (
        waiting + " bar.sync 0;\n" + fill.replace("VALUE", str(0x22222222)) + " @%leader cp.async.bulk.wait_group 0;\n"
    )
    run(body, np.zeros(4, np.uint32), maps=[OUT.map], allow=(OUT.memory,), **options)
    return OUT.memory[OUT.start + 2 * 80 + 16 :][:32].copy()


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
@pytest.mark.parametrize("read", [".read", ""])
def test_a_store_whose_source_is_kept(options, read):
    assert (store_kernel(f" @%leader cp.async.bulk.wait_group{read} 0;\n", **options) == 0x11).all()


def test_a_store_whose_source_is_overwritten_before_it_was_read():
    assert (store_kernel("", **LAZY) == 0x22).all()
    assert (store_kernel("", **EAGER) == 0x11).all()

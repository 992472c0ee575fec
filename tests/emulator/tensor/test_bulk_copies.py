"""Bulk copies without a tensor map: both directions, masks, reductions, sizes, and the groups that wait for them."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor.boxes import UNTOUCHED, fill_shared
from tests.emulator.tensor.kernels import SCHEDULES, aligned, copy_in, copy_out, run, wait
from tests.emulator.tensor.test_tma_stores import INTEGERS, numbers, on

LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
COMMIT, WAIT = " @%leader cp.async.bulk.commit_group;\n", " @%leader cp.async.bulk.wait_group {};\n"
DONE = COMMIT + WAIT.format(0)


def source(size: int = 4096, seed: int = 0) -> np.ndarray:
    return aligned(np.random.default_rng(seed).integers(0, 256, size, np.uint8), 64)


def expect(size: int) -> str:
    return f" @%leader mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {size};\n"


@pytest.mark.parametrize("options", SCHEDULES[:4], ids=str)
@pytest.mark.parametrize("dst", ["shared::cluster", "shared::cta"])
def test_loads(dst, options):
    """Three pieces of different sizes on one barrier."""
    data, out = source(), np.zeros(4096, np.uint8)
    pieces = ((0, 16, 16), (512, 256, 512), (2064, 1024, 1040))
    body = fill_shared(4096) + expect(sum(size for _, _, size in pieces))
    for to, start, size in pieces:
        body += f" add.u32 %b0, %r3, {to}; add.u64 %x0, %rd2, {start};\n"
        body += f" @%leader {LOAD.replace('shared::cluster', dst)} [%b0], [%x0], {size}, [%r4];\n"
    run(body + wait() + copy_out(4096), out, data, **options)
    wanted = np.full(4096, UNTOUCHED, np.uint8)
    for to, start, size in pieces:
        wanted[to : to + size] = data[start : start + size]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("options", SCHEDULES[:4], ids=str)
def test_stores(options):
    data, out = source(), np.full(4096, UNTOUCHED, np.uint8)
    out = aligned(out)
    body = copy_in(4096)
    for start, to, size in ((0, 48, 16), (256, 512, 512), (1024, 2064, 1040)):
        body += f" add.u32 %b0, %r3, {start}; add.u64 %x0, %rd1, {to}; @%leader {STORE} [%x0], [%b0], {size};\n"
    run(body + DONE, out, data, **options)
    wanted = np.full(4096, UNTOUCHED, np.uint8)
    for start, to, size in ((0, 48, 16), (256, 512, 512), (1024, 2064, 1040)):
        wanted[to : to + size] = data[start : start + size]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("mask", [0x0001, 0x8000, 0xFFFF, 0x0000, 0xA5C3])
@pytest.mark.parametrize("hint", [False, True])
def test_masked_stores(mask, hint):
    """Bit i of the mask is byte i of every 16."""
    data, out = source(256), aligned(np.full(256, UNTOUCHED, np.uint8))
    form = STORE + (".L2::cache_hint" if hint else "") + ".cp_mask"
    operands = ("%x9, " if hint else "") + "%h1"
    body = f" mov.b64 %x9, 0x12F0000000000000; mov.b16 %h1, {mask};\n"
    run(copy_in(256) + body + f" @%leader {form} [%rd1], [%r3], 256, {operands};\n" + DONE, out, data)
    chosen = np.array([mask >> i % 16 & 1 for i in range(256)], bool)
    np.testing.assert_array_equal(out, np.where(chosen, data, UNTOUCHED))


REDUCTIONS = [(f"{op}.{t}", d, op) for t, d in (("u32", np.uint32), ("u64", np.uint64)) for op in ("add", "min", "max")]
REDUCTIONS += [(f"{op}.{t}", d, op) for t, d in (("s32", np.int32), ("s64", np.int64)) for op in ("min", "max")]
REDUCTIONS += [("add.s32", np.int32, "add"), ("inc.u32", np.uint32, "inc"), ("dec.u32", np.uint32, "dec")]
REDUCTIONS += [(f"{op}.{t}", d, op) for t, d in (("b32", np.uint32), ("b64", np.uint64)) for op in ("and", "or", "xor")]


@pytest.mark.parametrize(("form", "dtype", "op"), REDUCTIONS)
def test_integer_reductions_into_global_memory(form, dtype, op):
    data, out = source(512), source(512, 1)
    data[256:], out[256:] = data[256:] & 3, out[256:] & 3
    wanted = [
        on(dtype, INTEGERS[op])(*(x[i : i + np.dtype(dtype).itemsize] for x in (out, data)))
        for i in range(0, 512, np.dtype(dtype).itemsize)
    ]
    run(
        copy_in(512)
        + f" @%leader cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%rd1], [%r3], 512;\n"
        + DONE,
        out,
        data,
    )
    np.testing.assert_array_equal(out, np.concatenate(wanted))


FLOAT_FORMS = [("add.f32", np.float32), ("add.f64", np.float64), ("add.noftz.f16", np.float16)]
FLOAT_FORMS += [("min.f16", np.float16), ("max.f16", np.float16)]


@pytest.mark.parametrize(("form", "dtype"), FLOAT_FORMS)
def test_float_reductions_into_global_memory(form, dtype):
    data, out = aligned(numbers(dtype, 2)), aligned(numbers(dtype, 3))
    if dtype == np.float32:
        data[:3], out[:3] = np.float32(1e-45), np.float32(2e-45)  # subnormals are kept (measured on an H200)
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[form.partition(".")[0]]
    wanted = function(out, data)
    run(
        copy_in(data.nbytes)
        + f" @%leader cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%rd1], [%r3], {data.nbytes};\n"
        + DONE,
        out,
        data,
    )
    np.testing.assert_array_equal(out, wanted)


def test_bf16_reduction():
    data, out = (aligned((numbers(np.float32, s)[:256].view(np.uint32) >> 16).astype(np.uint16)) for s in (4, 5))
    sums = sum((x.astype(np.uint32) << 16).view(np.float32) for x in (data, out)).view(np.uint32)
    run(
        copy_in(512)
        + " @%leader cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1], [%r3], 512;\n"
        + DONE,
        out,
        data,
    )
    np.testing.assert_array_equal(out, (sums + 0x7FFF + (sums >> 16 & 1) >> 16).astype(np.uint16))


# -- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 8, 17])
@pytest.mark.parametrize("text", [f"{LOAD} [%r3], [%rd2], SIZE, [%r4]", f"{STORE} [%rd1], [%r3], SIZE"])
def test_sizes(size, text):
    with pytest.raises(
        em.IllegalOperation, match=f"cp.async.bulk of {size} bytes: a positive multiple of 16 is needed"
    ):
        run(f" @%leader {text.replace('SIZE', str(size))};\n", aligned(np.zeros(64, np.uint8)), source(64))


PLACES = [
    (
        f"{LOAD} [%r3+8], [%rd2], 16, [%r4]",
        em.IllegalOperation,
        r"destination of .* shared offset 0x408: a multiple of 16",
    ),
    (f"{LOAD} [%r3], [%rd2+8], 16, [%r4]", em.Misaligned, "not a multiple of 16"),
    (f"{STORE} [%rd1], [%r3+4], 16", em.IllegalOperation, r"source of .* shared offset 0x404: a multiple of 16"),
    (f"{STORE} [%rd1+4], [%r3], 16", em.Misaligned, "not a multiple of 16"),
    (f"{LOAD} [%r3], [%rd2], 256, [%r4]", em.OutOfBounds, r"bytes into parameter 1 \(in\)"),
    (f"{STORE} [%rd1+32], [%r3], 256", em.OutOfBounds, r"bytes into parameter 0 \(out\)"),
    (f"{LOAD} [%r3+66048], [%rd2], 64, [%r4]", em.OutOfBounds, r"the destination of cp.async.bulk"),
    (f"{STORE} [%rd1], [%r3], 16", em.PoisonError, r"shared memory at offset 0x400 was never written"),
]


@pytest.mark.parametrize(("text", "kind", "said"), PLACES)
def test_places(text, kind, said):
    with pytest.raises(kind, match=said):
        run(f" @%leader {text};\n" + DONE, aligned(np.zeros(64, np.uint8)), source(64))


def test_a_copy_must_not_cross_into_another_array():
    """Two arrays may be neighbours by chance; what is between them is not valid."""
    whole = source(192)
    pieces = ((whole.ctypes.data, 64), (whole.ctypes.data + 128, 64))
    body = f" mov.b64 %x0, {whole.ctypes.data}; @%leader {LOAD} [%r3], [%x0], 192, [%r4];\n"
    with pytest.raises(em.OutOfBounds, match=r"cp.async.bulk of 16 bytes at global address"):
        run(body, np.zeros(4, np.uint32), allow=pieces)


# -- groups ---------------------------------------------------------------------------------------------------------------


def groups(newest: int, count: int, *, read: str = "") -> int:
    """How many of `count` groups (one store each) were visible in global memory right after a wait, under "lazy"."""
    out = np.zeros((count + 1, 4), np.uint32)
    out = aligned(out)
    body = ""
    for i in range(count):
        body += f" mov.b32 %a0, {i + 1}; @%first st.shared.v4.b32 [%r3+{16 * i}], {{%a0, %a0, %a0, %a0}};\n"
    body += " fence.proxy.async;\n"
    for i in range(count):
        body += (
            f" add.u64 %x0, %rd1, {16 * i}; add.u32 %b0, %r3, {16 * i}; @%leader {STORE} [%x0], [%b0], 16;\n{COMMIT}"
        )
    body += f" @%leader cp.async.bulk.wait_group{read} {newest};\n mov.b32 %b1, 0;\n"
    for i in range(count):
        body += f" ld.global.u32 %b2, [%rd1+{16 * i}]; setp.ne.u32 %p1, %b2, 0; @%p1 add.u32 %b1, %b1, 1;\n"
    body += f" @%leader st.global.u32 [%rd1+{16 * count}], %b1;\n"
    run(body, out, block=32, schedule="lazy")
    assert (out[:count, 0] == np.arange(1, count + 1)).all()  # all of them complete in the end
    return int(out[count, 0])


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("newest", [0, 1, 2, 4, 7])
def test_wait_group_waits_for_all_but_the_newest(newest, count):
    """No more and, under "lazy", no less."""
    assert groups(newest, count) == max(count - newest, 0)


def test_wait_group_read_does_not_wait_for_the_writes():
    assert groups(0, 3, read=".read") == 0


REUSE = f"""
 mov.b32 %a0, 1; @%first st.shared.v4.b32 [%r3], {{%a0, %a0, %a0, %a0}};
 fence.proxy.async;
 @%leader {STORE} [%rd1], [%r3], 16;
{COMMIT} WAITING
 mov.b32 %a0, 2; @%first st.shared.v4.b32 [%r3], {{%a0, %a0, %a0, %a0}};
{DONE}"""


WAITS = {" @%leader cp.async.bulk.wait_group.read 0;": 1, " @%leader cp.async.bulk.wait_group 0;": 1}
WAITS |= {"": 2, " @%leader cp.async.bulk.wait_group.read 1;": 2}


@pytest.mark.parametrize(("waiting", "lazy"), WAITS.items())
def test_a_source_that_is_reused_too_early_shows(waiting, lazy):
    """Without a wait for the reads, the store takes the new value as late as the ISA allows; eagerly nothing shows."""
    for options, value in (({"schedule": "lazy"}, lazy), ({"schedule": "eager"}, 1)):
        out = aligned(np.zeros(4, np.uint32))
        run(REUSE.replace("WAITING", waiting), out, block=32, **options)
        assert (out == value).all()


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_the_correct_program_gives_the_same_under_every_schedule(options):
    out = aligned(np.zeros(4, np.uint32))
    run(REUSE.replace("WAITING", " @%leader cp.async.bulk.wait_group.read 0;"), out, block=32, **options)
    assert (out == 1).all()


def test_copies_that_were_not_committed_are_not_waited_for():
    out = aligned(np.zeros(8, np.uint32))
    body = REUSE.replace(
        COMMIT + " WAITING",
        " @%leader cp.async.bulk.wait_group 0;\n ld.global.u32 %b1, [%rd1];\n @%leader st.global.u32 [%rd1+16], %b1;\n",
        1,
    )
    run(body, out, block=32, schedule="lazy")
    assert out[4] == 0 and out[0] == 2


def test_groups_belong_to_threads():
    """A wait by another thread of the warp does not wait for this one's copies."""
    body = f"""
 mov.b32 %a0, 5; @%first st.shared.v4.b32 [%r3], {{%a0, %a0, %a0, %a0}};
 fence.proxy.async; setp.eq.u32 %p2, %r1, 1;
 @%leader {STORE} [%rd1], [%r3], 16;
{COMMIT} @%p2 cp.async.bulk.commit_group;
 @WHO cp.async.bulk.wait_group 0;
 ld.global.u32 %b1, [%rd1];
 @%leader st.global.u32 [%rd1+16], %b1;
"""
    for who, seen in (("%p2", 0), ("%leader", 5)):
        out = aligned(np.zeros(8, np.uint32))
        run(body.replace("WHO", who), out, block=32, schedule="lazy")
        assert out[4] == seen and out[0] == 5


def test_a_store_that_nobody_waits_for_is_found_by_the_checker():
    body = REUSE.replace("WAITING", "").replace(DONE, COMMIT)
    report = run(body, aligned(np.zeros(4, np.uint32)), block=32, check="races")
    assert {"race", "outstanding"} <= {f.kind for f in report.races}
    report = run(
        REUSE.replace("WAITING", " @%leader cp.async.bulk.wait_group.read 0;"),
        aligned(np.zeros(4, np.uint32)),
        block=32,
        check="races",
    )
    assert report.races == []

"""tcgen05.ld and .st: every shape against places found another way, packing, split offsets, and which lanes a warp reaches."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor.kernels import registers, run, tensor_in, tensor_out
from tests.layouts.cute_layout import offset
from tests.layouts.test_tmem import FRAGMENTS

# Every cell says where it is: the low half alone is unique, the high half marks it.
IMAGE = ((0xA000_0000 + np.arange(128)[:, None] * 512 + np.arange(512)[None, :]) | 0x0B00_0000).astype(np.uint32)
MOST = {"32x32b": 128, "16x64b": 128, "16x32bx2": 128, "16x128b": 64, "16x256b": 32}
PER_REPEAT = {"16x128b": 2, "16x256b": 4}
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}  # columns of one repeat


def image(shape: str, number: int, split: int, column: int, packed: bool) -> np.ndarray:
    """As many columns as an access reaches, filled up to a multiple of 8."""
    needed = WIDTH[shape] * number * (1 + packed) + split + column
    return IMAGE[:, : -(-needed // 8) * 8].copy()


def place(shape: str, register: int, thread: int, split: int) -> tuple[int, int]:
    """(lane, column) from CuTe's printed layouts; 16x32bx2 as the ISA describes it."""
    if shape == "16x32bx2":
        return thread % 16, register + (split if thread >= 16 else 0)
    _, (thread_shape, value_shape), (thread_stride, value_stride), row_bits = FRAGMENTS[shape]
    per = PER_REPEAT.get(shape, 1)
    bit = offset(thread_shape, thread_stride, thread) + offset(value_shape, value_stride, 32 * (register % per))
    return bit // row_bits, bit % row_bits // 32 + register // per * (row_bits // 32)


def cases() -> list[tuple[str, int, int, int]]:
    """(shape, number, lane within the warp's 32, split)."""
    found = []
    for shape, most in MOST.items():
        for number in (1, 4, most):
            for lane in (0,) if shape == "32x32b" else (0, 16):
                found.append((shape, number, lane, 37 if shape == "16x32bx2" else 0))
    return [*found, ("16x32bx2", 4, 0, 0), ("16x32bx2", 2, 16, 100)]


def after(shape: str, split: int) -> str:
    """The split offset of a load, after its address."""
    return f", {split}" if shape == "16x32bx2" else ""


def before(shape: str, split: int) -> str:
    """The split offset of a store, before its registers."""
    return f"{split}, " if shape == "16x32bx2" else ""


def load(shape: str, number: int, lane: int, split: int, packed: bool, column: int) -> np.ndarray:
    """(warp, register, thread) of a load by every warp at its own lanes."""
    count = number * PER_REPEAT.get(shape, 1)
    out = np.zeros((4, count, 32), np.uint32)
    pack = ".pack::16b" if packed else ""
    start = image(shape, number, split, column, packed)
    body = tensor_in(0, start.shape[1])
    body += f" shl.b32 %a2, %warp, 21; add.u32 %a2, %a2, {lane << 16 | column}; add.u32 %a2, %a2, %r5;\n"
    body += (
        f" tcgen05.ld.sync.aligned.{shape}.x{number}{pack}.b32 {registers(count, 'b')}, [%a2]{after(shape, split)};\n"
    )
    body += " tcgen05.wait::ld.sync.aligned;\n"
    body += f" mov.u32 %a3, %laneid; mad.lo.u32 %a3, %warp, {32 * count}, %a3; mul.wide.u32 %x0, %a3, 4; add.u64 %x0, %x0, %rd1;\n"
    body += "".join(f" st.global.u32 [%x0+{128 * j}], %b{j};\n" for j in range(count))
    run(body, out, start, columns=512)
    return out


@pytest.mark.parametrize(("shape", "number", "lane", "split"), cases())
def test_load(shape, number, lane, split):
    column = 5
    found = load(shape, number, lane, split, False, column)
    for warp in range(4):
        for j in range(found.shape[1]):
            for t in range(32):
                row, c = place(shape, j, t, split)
                assert found[warp, j, t] == IMAGE[32 * warp + lane + row, column + c], (warp, j, t)


@pytest.mark.parametrize(("shape", "number", "lane", "split"), [(s, 4, 0 if s == "32x32b" else 16, 20) for s in MOST])
def test_packed_load(shape, number, lane, split):
    """Two neighbouring columns in a register, the left one in its low half; the split offset counts real columns."""
    split = split if shape == "16x32bx2" else 0
    found = load(shape, number, lane, split, True, 6)
    for warp in range(4):
        for j in range(found.shape[1]):
            for t in range(32):
                row, c = place(shape, j, t, 0)
                column = 6 + 2 * c + (split if t >= 16 else 0)
                left, right = IMAGE[32 * warp + lane + row, column : column + 2] & 0xFFFF
                assert found[warp, j, t] == left | right << 16


def store(shape: str, number: int, lane: int, split: int, unpacked: bool, column: int) -> np.ndarray:
    """Tensor memory after a store by every warp; register j of a thread holds j << 16 | thread number + 1."""
    count = number * PER_REPEAT.get(shape, 1)
    start = image(shape, number, split, column, unpacked)
    out = np.zeros_like(start)
    unpack = ".unpack::16b" if unpacked else ""
    body = tensor_in(0, start.shape[1])
    body += f" shl.b32 %a2, %warp, 21; add.u32 %a2, %a2, {lane << 16 | column}; add.u32 %a2, %a2, %r5; add.u32 %b0, %r1, 1;\n"
    body += "".join(f" add.u32 %b{j}, %b{j - 1}, 65536;\n" for j in range(1, count))
    body += f" tcgen05.st.sync.aligned.{shape}.x{number}{unpack}.b32 [%a2], {before(shape, split)}{registers(count, 'b')};\n"
    body += " tcgen05.wait::st.sync.aligned;\n"
    run(body + tensor_out(start.shape[1]), out, start, columns=512)
    return out


@pytest.mark.parametrize(("shape", "number", "lane", "split"), [c for c in cases() if c[1] <= 4])
def test_store(shape, number, lane, split):
    """The cells written hold their registers, all others what they held."""
    found, expected = store(shape, number, lane, split, False, 3), image(shape, number, split, 3, False)
    for warp in range(4):
        for j in range(number * PER_REPEAT.get(shape, 1)):
            for t in range(32):
                row, c = place(shape, j, t, split)
                expected[32 * warp + lane + row, 3 + c] = j << 16 | (32 * warp + t + 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", MOST)
def test_unpacked_store(shape):
    """Halves go to neighbouring columns; what is above them there is not documented (zero here)."""
    split = 32 if shape == "16x32bx2" else 0
    found, expected = store(shape, 2, 0, split, True, 4), image(shape, 2, split, 4, True)
    for warp in range(4):
        for j in range(2 * PER_REPEAT.get(shape, 1)):
            for t in range(32):
                row, c = place(shape, j, t, 0)
                column = 4 + 2 * c + (split if t >= 16 else 0)
                expected[32 * warp + row, column] = 32 * warp + t + 1
                expected[32 * warp + row, column + 1] = j
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", MOST)
@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(shape, packed):
    """What .st wrote, .ld of the same shape reads, register by register, under the schedule that completes both late."""
    number, count = 4, 4 * PER_REPEAT.get(shape, 1)
    out = np.zeros((128, count), np.uint32)
    split = 64 if shape == "16x32bx2" else 0
    pack, unpack = (".pack::16b", ".unpack::16b") if packed else ("", "")
    body = " mul.lo.u32 %b0, %r1, 0x00010003; add.u32 %b0, %b0, 0x12345;\n"
    body += "".join(f" mul.lo.u32 %b{j}, %b{j - 1}, 0x9E3779B1;\n" for j in range(1, count))
    body += f" tcgen05.st.sync.aligned.{shape}.x{number}{unpack}.b32 [%r5], {before(shape, split)}{registers(count, 'b')};\n"
    body += " tcgen05.wait::st.sync.aligned;\n"
    body += f" tcgen05.ld.sync.aligned.{shape}.x{number}{pack}.b32 {registers(count)}, [%r5]{after(shape, split)};\n"
    body += " tcgen05.wait::ld.sync.aligned;\n"
    body += f" mul.wide.u32 %x0, %r1, {4 * count}; add.u64 %x0, %x0, %rd1;\n"
    body += "".join(f" xor.b32 %a{j}, %a{j}, %b{j}; st.global.u32 [%x0+{4 * j}], %a{j};\n" for j in range(count))
    out[:] = 1
    run(body, out, columns=256, schedule="lazy")
    assert (out == 0).all()


# -- lanes ----------------------------------------------------------------------------------------------------------------


def lane_of_warp(lane_field: int, shape: str = "32x32b", warps: int = 8) -> str:
    """A load by every warp at one lane field, first register of each thread to `out`."""
    split = ", 0" if shape == "16x32bx2" else ""
    count = PER_REPEAT.get(shape, 1)
    body = tensor_in(0, 8) if warps == 4 else ""
    body += f" add.u32 %a2, %r5, {lane_field << 16};\n"
    body += f" tcgen05.ld.sync.aligned.{shape}.x1.b32 {registers(count, 'b')}, [%a2]{split};\n"
    return body + " mad.wide.u32 %x0, %r1, 4, %rd1; st.global.u32 [%x0], %b0;\n"


def test_lane_field_zero_counts_from_the_warps_own_lanes():
    """Public kernels rely on it; the ISA does not say (inferred)."""
    out = np.zeros(128, np.uint32)
    run(lane_of_warp(0, warps=4), out, IMAGE[:, :8].copy(), columns=32)
    np.testing.assert_array_equal(out, IMAGE[:, 0])


def test_warps_4_to_7_reach_the_same_lanes_as_0_to_3():
    out = np.zeros(256, np.uint32)
    low = (
        " setp.lt.u32 %p5, %r1, 128;\n @!%p5 bra.uni READ;\n"
        + tensor_in(0, 8).replace("bar.sync 0;", "")
        + "READ:\n bar.sync 0;\n"
    )
    run(low + lane_of_warp(0), out, IMAGE[:, :8].copy(), block=256, columns=32)
    np.testing.assert_array_equal(out, np.tile(IMAGE[:, 0], 2))


@pytest.mark.parametrize(
    ("lane", "shape", "text"),
    [
        (32, "32x32b", "tcgen05.ld at lane 32: warp 0 may only reach lanes 0 to 31"),
        (96, "16x64b", "warp 0 may only reach lanes 0 to 31"),
        (16, "32x32b", ".32x32b starts at a multiple of 32"),
        (8, "16x128b", ".16x128b starts at a multiple of 16"),
        (1, "16x32bx2", ".16x32bx2 starts at a multiple of 16"),
        (200, "32x32b", "warp 0 may only reach lanes 0 to 31"),
    ],
)
def test_lanes_out_of_reach(lane, shape, text):
    with pytest.raises(em.IllegalOperation, match=text):
        run(lane_of_warp(lane, shape), np.zeros(32, np.uint32), block=32, columns=32)


def test_a_store_out_of_reach():
    body = " add.u32 %a2, %r5, 0x200000; tcgen05.st.sync.aligned.32x32b.x1.b32 [%a2], {%r1};"
    with pytest.raises(em.IllegalOperation, match=r"tcgen05.st at lane 32: warp 3 may only reach lanes 96 to 127"):
        run(" setp.lt.u32 %p1, %r1, 96;\n @%p1 bra OFF;\n" + body + "\nOFF:", np.zeros(4, np.uint32), columns=32)


def test_past_the_last_column():
    body = " add.u32 %a2, %r5, 508; tcgen05.st.sync.aligned.32x32b.x8.b32 [%a2], {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1};"
    with pytest.raises(em.OutOfBounds, match=r"reaches lane 31, column 515: tensor memory has 128 x 512"):
        run(body, np.zeros(4, np.uint32), block=32, columns=512)


def test_addresses_must_be_uniform():
    with pytest.raises(em.BarrierError, match=r"the address of tcgen05.ld differs between the threads"):
        run(" tcgen05.ld.sync.aligned.32x32b.x1.b32 {%a0}, [%r1];", np.zeros(4, np.uint32), block=32, columns=64)


def test_a_guard_that_leaves_lanes_out():
    body = " setp.lt.u32 %p1, %r1, 31;\n @%p1 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r1};"
    with pytest.raises(
        em.IllegalOperation, match=r"tcgen05.st is .aligned: all threads of the warp must execute it together"
    ):
        run(body, np.zeros(4, np.uint32), block=32, columns=32)


@pytest.mark.parametrize("spelling_", ["32x32b.x1.min.u32", "red.32x32b.x2.max.abs.f32"])
def test_reducing_loads_do_not_exist_on_sm_100a(spelling_):
    with pytest.raises(em.UnsupportedInstruction, match=r"tcgen05.ld"):
        run(
            f" tcgen05.ld.sync.aligned.{spelling_} {{%a0, %a1}}, %a2, [%r5];",
            np.zeros(4, np.uint32),
            block=32,
            columns=32,
        )

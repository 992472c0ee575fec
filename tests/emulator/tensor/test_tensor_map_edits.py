"""Tensor maps changed on the device: tensormap.replace of every field, and the copy to global memory with its fence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import boxes
from tests.emulator.tensor.boxes import BF16, F16, U8, U16, expect, fill_shared, loaded, tensor
from tests.emulator.tensor.kernels import SM, aligned, copy_out, run, wait

BASE = tensor(U16, (64, 12, 5), (16, 4, 2))
# Bits that the driver fills in and no field of tensormap.replace has: L2 promotion (18:17), large tensors (21).
OWN = 1 << 17 | 1 << 18 | 1 << 21

COPY_MAP = """
 { mul.lo.u32 %a0, %r1, 8; cvt.u64.u32 %x0, %a0; add.u64 %x0, %x0, %map0; add.u32 %a1, %a0, %r3; setp.lt.u32 %p0, %r1, 16;
 @%p0 ld.global.b64 %x1, [%x0]; @%p0 st.shared.b64 [%a1], %x1; bar.sync 0; }
"""
FENCE = """
 @%w0 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r3], 128;
 fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
 bar.sync 0;
"""


def edited(edits: list[str], start: boxes.Tensor = BASE) -> bytes:
    """The 128 bytes after edits in shared memory and the copy to global memory."""
    out = aligned(np.zeros(128, np.uint8), 128)
    lines = "".join(f" @%leader tensormap.replace.tile.{e};\n" for e in edits)
    run(COPY_MAP + lines + " bar.sync 0;\n" + FENCE, out, maps=[start.map], block=32)
    return out.tobytes()


def field(name: str, value: int, ordinal: int | None = None, type: str = "b32") -> str:
    ordinals = "" if ordinal is None else f"{ordinal}, "
    return f"{name}.shared::cta.b1024.{type} [%r3], {ordinals}{value}"


def words(raw: bytes) -> list[int]:
    found = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, 64, 4)]
    found[2] &= ~OWN
    return found


def test_without_edits_the_map_is_copied():
    assert edited([]) == BASE.map.encode()


@pytest.mark.parametrize(
    ("edits", "wanted"),
    [
        ([field("global_address", 0x0012_3456_7890_ABC0, type="b64")], {"address": 0x0012_3456_7890_ABC0}),
        ([field("global_dim", 100, 1)], {"dims": (64, 100, 5)}),
        ([field("global_dim", 2**32 - 1, 2)], {"dims": (64, 12, 2**32 - 1)}),
        ([field("global_stride", 4096, 0, "b64")], {"strides_bytes": (4096, BASE.map.strides_bytes[1])}),
        ([field("global_stride", 0x89_ABCD_EF10, 1, "b64")], {"strides_bytes": (BASE.map.strides_bytes[0], 0x89_ABCD_EF10)}),
        ([field("box_dim", 32, 0)], {"box": (32, 4, 2)}),
        ([field("box_dim", 256, 2)], {"box": (16, 4, 256)}),
        ([field("element_stride", 8, 1)], {"element_strides": (1, 8, 1)}),
        ([field("element_stride", 3, 2)], {"element_strides": (1, 1, 3)}),
        ([field("elemtype", 10)], {"data_type": BF16}),
        ([field("elemtype", 0), field("box_dim", 32, 0)], {"data_type": U8, "box": (32, 4, 2)}),
        ([field("swizzle_mode", 1)], {"swizzle": 1}),
        ([field("box_dim", 64, 0), field("swizzle_mode", 3), field("swizzle_atomicity", 1)], {"box": (64, 4, 2), "swizzle": 4}),
        ([field("elemtype", 6), field("fill_mode", 1)], {"data_type": F16, "oob_fill": 1}),
        ([field("box_dim", 8, 0), field("interleave_layout", 1)], {"box": (8, 4, 2), "interleave": 1}),
    ],
)  # fmt: skip
def test_fields(edits, wanted):
    """The bits are those of a map that the host would have made with the new value."""
    assert words(edited(edits)) == words(replace(BASE.map, **wanted).encode())


def test_the_rank_is_given_less_one():
    flat = replace(
        BASE.map, dims=(64, 12), strides_bytes=BASE.map.strides_bytes[:1], box=(16, 4), element_strides=(1, 1)
    )
    found = words(
        edited(
            [field("rank", 1), field("global_dim", 1, 2), field("box_dim", 1, 2), field("global_stride", 0, 1, "b64")]
        )
    )
    assert found == words(flat.encode())


def test_an_edited_map_loads_another_tensor():
    """Grouped kernels do this: address, sizes and strides of the next tensor, then the fence, then the copy."""
    other = tensor(U16, (48, 7, 4), (16, 4, 2), seed=5)
    edits = [field("global_address", other.map.address, type="b64")]
    edits += [field("global_dim", d, i) for i, d in enumerate(other.map.dims)]
    edits += [field("global_stride", s, i, "b64") for i, s in enumerate(other.map.strides_bytes)]
    lines = "".join(f" @%leader tensormap.replace.tile.{e};\n" for e in edits)
    raw = aligned(np.zeros(128 + 2048, np.uint8), 128)
    fence = FENCE.replace("[%rd1]", "[%x30]")
    body = f" mov.b64 %x30, %rd1;\n{COPY_MAP}{lines} bar.sync 0;\n{fence}{fill_shared(2048)}{expect(256)}"
    body += boxes.load_text(other.map, (40, 5, 3)).replace("%map0", "%x30")
    body += " add.u64 %rd1, %rd1, 128;\n" + wait() + copy_out(2048)
    for schedule in ("eager", "lazy"):
        run(body, raw, maps=[BASE.map], allow=(other.memory,), schedule=schedule)
        np.testing.assert_array_equal(raw[128:384], loaded(other, (40, 5, 3), start=SM))


def test_edits_in_global_memory():
    out = aligned(np.frombuffer(BASE.map.encode(), np.uint8), 128)
    run(" @%leader tensormap.replace.tile.box_dim.global.b1024.b32 [%rd1], 1, 7;\n", out, block=32)
    assert words(out.tobytes()) == words(replace(BASE.map, box=(16, 7, 2)).encode())


def test_a_map_that_was_never_written_is_poison():
    with pytest.raises(em.PoisonError, match=r"never written"):
        run(FENCE, aligned(np.zeros(128, np.uint8), 128), block=32)


@pytest.mark.parametrize(("size", "said"), [(64, "tensormap.cp_fenceproxy of 64 bytes: 128 are needed")])
def test_size_of_the_copy(size, said):
    with pytest.raises(em.IllegalOperation, match=said):
        run(
            COPY_MAP + FENCE.replace("[%r3], 128", f"[%r3], {size}"),
            aligned(np.zeros(128, np.uint8), 128),
            maps=[BASE.map],
            block=32,
        )

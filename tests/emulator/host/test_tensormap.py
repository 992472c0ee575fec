"""Tensor maps: every field in its documented place, every rule of the driver, the DSL's own encoder as a witness."""

import ctypes
import dataclasses
import struct

import pytest

from mxfp8fa.emulator.host import TiledMap, run_host
from mxfp8fa.emulator.host.driver import HostRun, callback_address

PLAIN = TiledMap(
    data_type=6, address=0x7F00_1234_5600, dims=(64, 32), strides_bytes=(128,), box=(64, 8), element_strides=(1, 1)
)


def words(tiled: TiledMap) -> list[int]:
    """The 16 meaningful 32-bit words; the rest of the 128 bytes must be zero."""
    data = tiled.encode()
    assert len(data) == 128 and data[64:] == bytes(64)
    return list(struct.unpack("<16I", data[:64]))


def change(**values) -> TiledMap:
    return dataclasses.replace(PLAIN, **values)


def test_plain_map_word_by_word():
    assert words(PLAIN) == [
        0x1234_5600,  # address, low
        0x0000_7F00,  # address, high
        2 | 1 << 4 | 6 << 7 | 2 << 17,  # marker, rank - 1, type f16, L2 promotion 128B
        128 >> 4,  # stride of dimension 1
        0, 0, 0, 0,  # strides of dimensions 2..4, high nibbles
        63, 31, 0, 0, 0,  # dims - 1
        63 << 24,  # element strides - 1, box of dimension 0 minus 1
        7,  # box of dimension 1 minus 1
        0,
    ]  # fmt: skip


def test_five_dimensions():
    strides = (1 << 39, (1 << 36) + 16, 48, 1 << 35)
    box, steps = (8, 256, 1, 2, 3), (1, 2, 3, 4, 8)
    tiled = change(dims=(8, 2**32, 3, 4, 5), strides_bytes=strides, box=box, element_strides=steps)
    w = words(tiled)
    assert w[2] >> 4 & 7 == 4
    assert w[3:7] == [(s >> 4) & 0xFFFFFFFF for s in strides]
    assert [w[7] >> 4 * i & 15 for i in range(4)] == [s >> 36 for s in strides] and w[7] >> 16 == 0
    assert w[8:13] == [7, 2**32 - 1, 2, 3, 4]
    assert [w[13] >> 3 * i & 7 for i in range(5)] == [0, 1, 2, 3, 7] and w[13] >> 24 == 7
    assert w[14] == 255 | 0 << 8 | 1 << 16 | 2 << 24


def test_one_dimension():
    w = words(change(dims=(64,), strides_bytes=(), box=(64,), element_strides=(1,)))
    assert w[2] >> 4 & 7 == 0 and w[3:8] == [0] * 5 and w[8] == 63 and w[13] == 63 << 24


@pytest.mark.parametrize(
    ("data_type", "ptx_type", "tf32"),
    # driver enumeration -> PTX ISA, "tensormap.replace", .elemtype; tf32 shares f32's code and has a bit of its own
    [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 4, 0), (5, 5, 0), (6, 6, 0), (7, 7, 0), (8, 9, 0), (9, 10, 0),
     (10, 8, 0), (11, 7, 1), (12, 8, 1), (13, 11, 0), (14, 12, 0), (15, 13, 0)],
)  # fmt: skip
def test_element_types(data_type, ptx_type, tf32):
    tiled = change(data_type=data_type, dims=(128, 32), strides_bytes=(1024,), box=(128, 8), address=0x1000)
    w = words(tiled)[2]
    assert (w >> 7 & 15, w >> 16 & 1) == (ptx_type, tf32)


@pytest.mark.parametrize(
    ("swizzle", "mode", "atomicity", "span_bytes"),
    [(0, 0, 0, 128), (1, 1, 0, 32), (2, 2, 0, 64), (3, 3, 0, 128), (4, 3, 1, 128), (5, 3, 2, 128), (6, 3, 3, 128)],
)
def test_swizzles(swizzle, mode, atomicity, span_bytes):
    w = words(change(swizzle=swizzle, box=(span_bytes // 2, 8)))[2]
    assert (w >> 13 & 3, w >> 19 & 3) == (mode, atomicity)


def test_remaining_flags():
    assert [words(change(l2_promotion=p))[2] >> 17 & 3 for p in range(4)] == [0, 1, 2, 3]
    assert [words(change(oob_fill=f))[2] >> 15 & 1 for f in range(2)] == [0, 1]
    three = change(dims=(64, 32, 2), strides_bytes=(128, 4096), box=(64, 8, 1), element_strides=(1, 1, 1))
    assert words(dataclasses.replace(three, interleave=1))[2] >> 11 & 3 == 1
    assert words(dataclasses.replace(three, interleave=2, swizzle=1))[2] >> 11 & 3 == 2


@pytest.mark.parametrize(("rows", "large"), [(1023, 0), (1024, 1), (1025, 1)])
def test_large_tensor_flag_from_128_kib_on(rows, large):
    assert words(change(dims=(64, rows)))[2] >> 21 & 1 == large  # 128 bytes per row


BROKEN_RULES = [
    ({"dims": (), "strides_bytes": (), "box": (), "element_strides": ()}, "tensorRank = 0"),
    ({"dims": (8,) * 6}, "tensorRank = 6"),
    ({"data_type": 16}, "tensorDataType = 16"),
    ({"data_type": -1}, "tensorDataType = -1"),
    ({"interleave": 3}, "interleave = 3"),
    ({"interleave": 1}, "interleave with tensorRank = 2"),
    ({"swizzle": 7}, "swizzle = 7"),
    ({"l2_promotion": 4}, "l2Promotion = 4"),
    ({"oob_fill": 2}, "oobFill = 2"),
    ({"oob_fill": 1, "data_type": 1}, "oobFill NaN with UINT16"),
    ({"address": 0x1008}, "globalAddress = 0x1008"),
    ({"dims": (64, 0)}, r"globalDim\[1\] = 0"),
    ({"dims": (64, 2**32 + 1)}, r"globalDim\[1\] = 4294967297"),
    ({"strides_bytes": (136,)}, r"globalStrides\[0\] = 136 bytes"),
    ({"strides_bytes": (2**40,)}, r"globalStrides\[0\]"),
    ({"box": (64, 0)}, r"boxDim\[1\] = 0"),
    ({"box": (64, 257)}, r"boxDim\[1\] = 257"),
    ({"box": (60, 8)}, r"boxDim\[0\] = 60 of 16 bits; allowed: a multiple of 16 bytes"),
    ({"element_strides": (1, 9)}, r"elementStrides\[1\] = 9"),
    ({"element_strides": (0, 1)}, r"elementStrides\[0\] = 0"),
    ({"swizzle": 1}, "an inner box of 128 bytes; allowed: at most the swizzle's 32"),
    ({"swizzle": 2}, "at most the swizzle's 64"),
    ({"swizzle": 3, "box": (72, 8)}, "at most the swizzle's 128"),
    ({"data_type": 14, "address": 0x1010}, "allowed: a multiple of 32"),
    ({"data_type": 14, "address": 0x1000, "strides_bytes": (1024,)}, r"globalDim\[0\] = 64 with 16U4_ALIGN16B"),
    ({"data_type": 15, "address": 0x1000, "strides_bytes": (1024,), "dims": (128, 4)}, r"boxDim\[0\] = 64"),
    ({"data_type": 13, "dims": (63, 4)}, r"globalDim\[0\] = 63 with 16U4_ALIGN8B"),
]


@pytest.mark.parametrize(("values", "message"), BROKEN_RULES)
def test_rules_of_the_driver(values, message):
    with pytest.raises(ValueError, match=message):
        change(**values).encode()


def test_interleave_32b_wants_swizzle_32b():
    three = change(dims=(64, 32, 2), strides_bytes=(128, 4096), box=(64, 8, 1), element_strides=(1, 1, 1), interleave=2)
    with pytest.raises(ValueError, match="swizzle = 0 with interleave 32B"):
        three.encode()


def call_driver(tiled: TiledMap, offset: int = 0, rank: int | None = None) -> tuple[int, bytes]:
    """Call the native callback as host code does; returns its code and the map."""
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    memory = ctypes.create_string_buffer(256)
    address = (ctypes.addressof(memory) + 63) // 64 * 64 + offset
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_int, u32, ctypes.c_void_p, *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 4
    )
    code = prototype(callback_address("_cuTensorMapEncodeTiled"))(
        address, tiled.data_type, rank or len(tiled.dims), tiled.address,
        (u64 * len(tiled.dims))(*tiled.dims), (u64 * max(1, len(tiled.strides_bytes)))(*tiled.strides_bytes),
        (u32 * len(tiled.box))(*tiled.box), (u32 * len(tiled.box))(*tiled.element_strides),
        tiled.interleave, tiled.swizzle, tiled.l2_promotion, tiled.oob_fill,
    )  # fmt: skip
    return code, ctypes.string_at(address, 128)


def host_run() -> HostRun:
    from mxfp8fa.emulator.host import Device

    return HostRun("", {}, {}, Device(), lambda launch: None)


@pytest.mark.parametrize("tiled", [PLAIN, change(dims=(64,), strides_bytes=(), box=(64,), element_strides=(1,))])
def test_the_callback_writes_the_map(tiled):
    with host_run().entered():
        assert call_driver(tiled) == (0, tiled.encode())


@pytest.mark.parametrize(
    ("tiled", "options", "message"),
    [
        (change(swizzle=1), {}, "swizzle's 32"),
        (PLAIN, {"offset": 16}, "tensorMap = .*; allowed: a multiple of 64"),
        (PLAIN, {"rank": 6}, "tensorRank = 6"),
    ],
)
def test_the_callback_reports_a_broken_rule(tiled, options, message):
    with pytest.raises(ValueError, match=message), host_run().entered():
        assert call_driver(tiled, **options)[0] != 0


CASES = [
    # torch dtype, CUtensorMapDataType that the DSL uses for it, columns of the box, swizzle bits = CUtensorMapSwizzle
    ("float16", 6, 64, 3),
    ("bfloat16", 9, 32, 2),
    ("float32", 7, 8, 1),
    ("uint8", 0, 16, 0),
    ("float8_e4m3fn", 0, 128, 3),
    ("int32", 2, 16, 2),
]


@pytest.mark.parametrize(("dtype", "data_type", "columns", "swizzle"), CASES)
@pytest.mark.parametrize(("shape", "dynamic"), [((96, 128), False), ((4096, 256), True)])
def test_against_the_maps_that_the_dsl_encodes(programs, launches, dtype, data_type, columns, swizzle, shape, dynamic):
    import torch
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    from mxfp8fa.emulator.host import as_cuda

    kind = getattr(torch, dtype)
    a = torch.zeros(shape[0], shape[1] * kind.itemsize, dtype=torch.uint8).view(kind)
    tensor = from_dlpack(as_cuda(a), assumed_align=16)
    if dynamic:
        tensor = tensor.mark_layout_dynamic()
    compiled = cute.compile(programs.tma, tensor, 64, columns, swizzle)
    run_host(compiled, (tensor,), {}, launches)
    (encoded,) = [p for p in launches[0].params if len(p) == 128]
    ours = TiledMap(
        data_type=data_type,
        address=a.data_ptr(),
        dims=(shape[1], shape[0]),
        strides_bytes=(shape[1] * kind.itemsize,),
        box=(columns, 64),
        element_strides=(1, 1),
        swizzle=swizzle,
    )
    assert encoded[:64] == ours.encode()[:64]  # the DSL leaves bytes 64..127 unwritten

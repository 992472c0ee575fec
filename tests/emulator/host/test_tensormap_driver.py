"""Tensor maps against the real driver: bytes of valid maps, and which broken rules it refuses. Needs libcuda and a GPU.

Run by hand on a machine with an NVIDIA GPU: pytest tests/emulator/host/test_tensormap_driver.py
"""

import ctypes
import dataclasses
import struct

import pytest
from test_tensormap import BROKEN_RULES, PLAIN, change

from mxfp8fa.emulator.host import TiledMap

CUDA_ERROR_INVALID_VALUE = 1


# Bits that differ between architectures: the marker in 3:0 is 0 before sm_100 and 2 from it on; bit 21 (footprint of
# 128 KiB or more) exists from sm_100 on only.
SM90_DIFFERENCES = 0xF | 1 << 21
SM100_TYPES, SM100_SWIZZLES = (13, 14, 15), (4, 5, 6)


class Driver:
    """The installed driver's cuTensorMapEncodeTiled, and the architecture of device 0."""

    def __init__(self):
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            pytest.skip("no CUDA driver")
        context, major = ctypes.c_void_p(), ctypes.c_int()
        codes = [
            self._library.cuInit(0),
            self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
            self._library.cuCtxSetCurrent(context),
            self._library.cuDeviceGetAttribute(ctypes.byref(major), 75, 0),
        ]
        if any(codes):
            pytest.skip(f"no GPU: the driver says {codes}")
        self.major = major.value

    def encode(self, tiled: TiledMap) -> tuple[int, bytes]:
        memory = ctypes.create_string_buffer(192)
        address = (ctypes.addressof(memory) + 63) // 64 * 64
        rank, u64, u32 = len(tiled.dims), ctypes.c_uint64, ctypes.c_uint32
        code = self._library.cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), ctypes.c_int(tiled.data_type), u32(rank), ctypes.c_void_p(tiled.address),
            (u64 * max(1, rank))(*tiled.dims), (u64 * max(1, rank))(*tiled.strides_bytes),
            (u32 * max(1, rank))(*tiled.box), (u32 * max(1, rank))(*tiled.element_strides),
            ctypes.c_int(tiled.interleave), ctypes.c_int(tiled.swizzle), ctypes.c_int(tiled.l2_promotion),
            ctypes.c_int(tiled.oob_fill),
        )  # fmt: skip
        return code, ctypes.string_at(address, 128)


@pytest.fixture(scope="module")
def driver():
    return Driver()


VALID = [
    PLAIN,
    change(dims=(64,), strides_bytes=(), box=(64,), element_strides=(1,)),
    change(dims=(64, 1023)),
    change(dims=(64, 1024)),
    change(dims=(64, 2**32)),
    change(
        dims=(8, 9, 3, 4, 5), strides_bytes=(1 << 39, 48, 1 << 20, 1 << 36), box=(8, 9, 1, 2, 3),
        element_strides=(1, 2, 3, 4, 8),
    ),
    *[change(data_type=t, dims=(128, 32), strides_bytes=(1024,), box=(16, 8)) for t in range(13)],
    change(data_type=13, dims=(128, 32), strides_bytes=(1024,), box=(128, 8)),
    *[
        change(data_type=t, dims=(128, 32), strides_bytes=(1024,), box=(128, 8), address=0x7000_0000_1000)
        for t in (14, 15)
    ],
    *[change(swizzle=s, box=(n, 8)) for s, n in ((1, 16), (2, 32), (3, 64), (4, 64), (5, 64), (6, 64), (3, 8))],
    *[change(l2_promotion=p) for p in range(4)],
    change(oob_fill=1),
]  # fmt: skip


THREE = change(dims=(64, 32, 2), strides_bytes=(128, 4096), box=(64, 8, 1), element_strides=(1, 1, 1))
VALID += [dataclasses.replace(THREE, interleave=1), dataclasses.replace(THREE, interleave=2, swizzle=1)]


@pytest.mark.parametrize("tiled", VALID, ids=str)
def test_bytes_of_valid_maps(driver, tiled):
    if driver.major < 10 and (tiled.data_type in SM100_TYPES or tiled.swizzle in SM100_SWIZZLES):
        pytest.skip("exists from sm_100 on")
    code, data = driver.encode(tiled)
    assert code == 0
    theirs, ours = (list(struct.unpack("<16I", d[:64])) for d in (data, tiled.encode()))
    if driver.major < 10:
        theirs[2] &= ~SM90_DIFFERENCES
        ours[2] &= ~SM90_DIFFERENCES
    assert [hex(w) for w in theirs] == [hex(w) for w in ours]


@pytest.mark.parametrize(("values", "message"), BROKEN_RULES)
def test_the_driver_refuses_what_we_refuse(driver, values, message):
    assert driver.encode(change(**values))[0] == CUDA_ERROR_INVALID_VALUE

"""Tensor maps against the real driver: bytes of valid maps, and which broken rules it refuses. Needs libcuda and a GPU.

Run by hand on a machine with an NVIDIA GPU: pytest tests/emulator/host/test_tensormap_driver.py
"""

import ctypes
import dataclasses

import pytest
from test_tensormap import BROKEN_RULES, PLAIN, change

from mxfp8fa.emulator.host import TiledMap

CUDA_ERROR_INVALID_VALUE = 1


@pytest.fixture(scope="module")
def encode():
    """cuTensorMapEncodeTiled of the installed driver: (code, 128 bytes)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no CUDA driver")
    if library.cuInit(0) != 0:
        pytest.skip("no GPU")

    def call(tiled: TiledMap) -> tuple[int, bytes]:
        memory = ctypes.create_string_buffer(192)
        address = (ctypes.addressof(memory) + 63) // 64 * 64
        rank, u64, u32 = len(tiled.dims), ctypes.c_uint64, ctypes.c_uint32
        code = library.cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), ctypes.c_int(tiled.data_type), u32(rank), ctypes.c_void_p(tiled.address),
            (u64 * max(1, rank))(*tiled.dims), (u64 * max(1, rank))(*tiled.strides_bytes),
            (u32 * max(1, rank))(*tiled.box), (u32 * max(1, rank))(*tiled.element_strides),
            ctypes.c_int(tiled.interleave), ctypes.c_int(tiled.swizzle), ctypes.c_int(tiled.l2_promotion),
            ctypes.c_int(tiled.oob_fill),
        )  # fmt: skip
        return code, ctypes.string_at(address, 128)

    return call


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


@pytest.mark.parametrize("tiled", VALID, ids=str)
def test_bytes_of_valid_maps(encode, tiled):
    code, data = encode(tiled)
    assert code == 0
    assert data[:64].hex(" ", 4) == tiled.encode()[:64].hex(" ", 4)


@pytest.mark.parametrize("interleave", [1, 2])
def test_interleaved_maps(encode, interleave):
    tiled = change(dims=(64, 32, 2), strides_bytes=(128, 4096), box=(64, 8, 1), element_strides=(1, 1, 1))
    tiled = dataclasses.replace(tiled, interleave=interleave, swizzle=interleave - 1)
    code, data = encode(tiled)
    assert code == 0
    assert data[:64].hex(" ", 4) == tiled.encode()[:64].hex(" ", 4)


@pytest.mark.parametrize(("values", "message"), BROKEN_RULES)
def test_the_driver_refuses_what_we_refuse(encode, values, message):
    assert encode(change(**values))[0] == CUDA_ERROR_INVALID_VALUE

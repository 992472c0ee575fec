"""Launch configurations as bytes, written here field by field, and the launches a device refuses."""

import ctypes
import dataclasses
import struct

import pytest

from mxfp8fa.emulator.errors import LaunchError
from mxfp8fa.emulator.host import Device, EntryParam, EntryPoint, Launch
from mxfp8fa.emulator.host.launch import check_launch, read_config

ENTRY = EntryPoint("k", (EntryParam("a", 8, 8, 0), EntryParam("b", 3, 1, 8)), None, None, None, 0)


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("<II", number, 0) + value.ljust(64, b"\0")


def config(grid, block, smem_bytes, attributes: list[bytes]):
    """A cudaLaunchConfig_t: dim3 grid, dim3 block, size_t smem, stream, attributes*, count; what must stay alive."""
    records = ctypes.create_string_buffer(b"".join(attributes) or b"\0")
    stream, count = 0xDEAD, len(attributes)
    data = struct.pack("<3I3IQQQII", *grid, *block, smem_bytes, stream, ctypes.addressof(records), count, 0)
    return ctypes.create_string_buffer(data, len(data)), records


def params(*values: bytes):
    buffers = [ctypes.create_string_buffer(v, len(v)) for v in values]
    return (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(b) for b in buffers)), buffers


def read(grid, block, smem_bytes, attributes, entry=ENTRY, index=0) -> Launch:
    memory, keep_config = config(grid, block, smem_bytes, attributes)
    pointers, keep_params = params(b"12345678", b"abc")
    launch = read_config(ctypes.addressof(memory), ctypes.addressof(pointers), entry, "ptx", index)
    del keep_config, keep_params
    return launch


def test_every_field_of_the_configuration():
    triple = lambda *n: struct.pack("<III", *n)  # noqa: E731
    attributes = [
        attribute(2, b"\1"),
        attribute(4, triple(2, 3, 1)),
        attribute(6, b"\1"),
        attribute(11, triple(4, 3, 1)),
        attribute(8, b"priority"),
    ]
    launch = read((4, 6, 8), (32, 2, 1), 5000, attributes, index=7)
    assert (launch.kernel, launch.ptx, launch.grid, launch.block) == ("k", "ptx", (4, 6, 8), (32, 2, 1))
    assert (launch.cluster, launch.preferred_cluster, launch.smem_bytes) == ((2, 3, 1), (4, 3, 1), 5000)
    assert launch.cooperative and launch.programmatic_stream_serialization and launch.index == 7
    assert launch.params == (b"12345678", b"abc")
    assert launch.attributes[8] == b"priority".ljust(64, b"\0") and set(launch.attributes) == {2, 4, 6, 8, 11}


def test_attributes_that_are_there_but_off():
    launch = read((1, 1, 1), (1, 1, 1), 0, [attribute(2, b"\0"), attribute(6, b"\0"), attribute(11, b"")])
    assert not launch.cooperative and not launch.programmatic_stream_serialization
    assert launch.cluster == (1, 1, 1) and launch.preferred_cluster is None


def test_cluster_of_the_kernel_applies_when_the_launch_names_none():
    entry = dataclasses.replace(ENTRY, required_cluster=(2, 1, 1))
    assert read((2, 1, 1), (1, 1, 1), 0, [], entry).cluster == (2, 1, 1)


GOOD = Launch("k", "", (4, 2, 1), (128, 1, 1), (2, 1, 1), None, 1000, ())


def test_allowed_launches_pass():
    check_launch(GOOD, ENTRY, Device())
    check_launch(dataclasses.replace(GOOD, block=(1024, 1, 1), smem_bytes=227 * 1024), ENTRY, Device())
    check_launch(dataclasses.replace(GOOD, grid=(16, 1, 1), cluster=(16, 1, 1)), ENTRY, Device())


@pytest.mark.parametrize(
    ("change", "entry", "message"),
    [
        ({"grid": (0, 1, 1)}, {}, "an axis is 0"),
        ({"block": (32, 0, 1)}, {}, "an axis is 0"),
        ({"grid": (4, 65536, 1)}, {}, r"grid \(4, 65536, 1\) exceeds"),
        ({"block": (1, 1, 65)}, {}, r"block \(1, 1, 65\) exceeds"),
        ({"block": (1024, 2, 1)}, {}, "exceeds 1024 threads"),
        ({}, {"required_block": (128, 2, 1)}, "compiled for exactly"),
        ({}, {"max_threads": 127}, "at most 127 threads"),
        ({}, {"required_cluster": (4, 1, 1)}, r"compiled for \(4, 1, 1\)"),
        ({"grid": (3, 2, 1)}, {}, "not a multiple of cluster"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, {}, "has 32 CTAs; at most 16"),
        ({"smem_bytes": 227 * 1024}, {"static_smem_bytes": 1}, "1 of static shared memory; at most 232448"),
    ],
)
def test_refused_launches_say_why(change, entry, message):
    with pytest.raises(LaunchError, match=message):
        check_launch(dataclasses.replace(GOOD, **change), dataclasses.replace(ENTRY, **entry), Device())

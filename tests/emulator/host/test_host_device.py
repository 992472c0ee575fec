"""Device attributes: the names behind the numbers, and what is refused."""

import pytest

from mxfp8fa.emulator.host import Device, HostError

EXPECTED = {
    "cudaDevAttrMaxThreadsPerBlock": 1024,
    "cudaDevAttrMaxBlockDimZ": 64,
    "cudaDevAttrMaxGridDimX": 2**31 - 1,
    "cudaDevAttrMaxGridDimY": 65535,
    "cudaDevAttrWarpSize": 32,
    "cudaDevAttrMultiProcessorCount": 148,
    "cudaDevAttrMaxThreadsPerMultiProcessor": 2048,
    "cudaDevAttrComputeCapabilityMajor": 10,
    "cudaDevAttrComputeCapabilityMinor": 0,
    "cudaDevAttrMaxSharedMemoryPerMultiprocessor": 228 * 1024,
    "cudaDevAttrMaxSharedMemoryPerBlockOptin": 227 * 1024,
    "cudaDevAttrMaxRegistersPerMultiprocessor": 64 * 1024,
    "cudaDevAttrMaxBlocksPerMultiprocessor": 32,
    "cudaDevAttrReservedSharedMemoryPerBlock": 1024,
    "cudaDevAttrCooperativeLaunch": 1,
}


@pytest.mark.parametrize(("name", "value"), EXPECTED.items())
def test_attribute_numbers_mean_what_cuda_says(name, value):
    runtime = pytest.importorskip("cuda.bindings.runtime")
    assert Device().attribute(int(getattr(runtime.cudaDeviceAttr, name))) == value


def test_settable_numbers():
    device = Device(sm_count=3, smem_bytes_max=100_000)
    assert device.attribute(16) == 3 and device.attribute(97) == 100_000


def test_unknown_attribute_is_refused_by_number():
    with pytest.raises(HostError, match="device attribute 38"):
        Device().attribute(38)


IMPOSSIBLE = [("sm_count", 0), ("smem_bytes_max", 0), ("smem_bytes_max", 228 * 1024 + 1)]


@pytest.mark.parametrize(("option", "value"), IMPOSSIBLE)
def test_impossible_devices_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} = {value}"):
        Device(**{option: value})


@pytest.mark.parametrize(
    ("threads", "smem_bytes", "blocks"),
    # 2048 threads, 228 KB with 1 KB reserved per block, 32 blocks: one case per limit, then their edges
    [(1024, 0, 2), (1023, 0, 2), (992, 0, 2), (96, 0, 21), (32, 0, 32), (1, 0, 32), (32, 113 * 1024, 2),
     (32, 113 * 1024 + 1, 1)],
)  # fmt: skip
def test_blocks_per_sm(threads, smem_bytes, blocks):
    assert Device().max_blocks_per_sm(threads, smem_bytes) == blocks

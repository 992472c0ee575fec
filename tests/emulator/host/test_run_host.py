"""Host code of compiled functions: what arrives as a launch, and what happens when something goes wrong."""

import ctypes
import gc
import math
import struct
import threading
import weakref

import pytest

from mxfp8fa.emulator.errors import LaunchError
from mxfp8fa.emulator.host import HostError, driver, run_host
from mxfp8fa.emulator.host.program import resolve

torch = pytest.importorskip("torch")
cutlass = pytest.importorskip("cutlass")
cute = pytest.importorskip("cutlass.cute")
runtime = pytest.importorskip("cutlass.cute.runtime")


def f32(value: float) -> bytes:
    return struct.pack("<f", value)


def address(tensor) -> bytes:
    return struct.pack("<Q", tensor.data_ptr())


def dynamic(tensor):
    return runtime.from_dlpack(tensor).mark_layout_dynamic()


def test_tensors_and_scalars_arrive_as_parameter_bytes(scale_add, launches):
    a, b, c = torch.zeros(384), torch.zeros(384), torch.zeros(384)
    assert run_host(scale_add, (dynamic(a), dynamic(b), dynamic(c), 2.5), {}, launches) == 0
    (launch,) = launches
    assert (launch.grid, launch.block, launch.cluster, launch.smem_bytes) == ((3, 1, 1), (128, 1, 1), (1, 1, 1), 0)
    assert launch.kernel in launch.ptx and ".entry" in launch.ptx
    # A vector with dynamic length and unit stride: data pointer, length as int32, 4 bytes of padding
    assert [p[:12] for p in launch.params[:3]] == [address(t) + struct.pack("<i", 384) for t in (a, b, c)]
    assert [len(p) for p in launch.params] == [16, 16, 16, 4] and launch.params[3] == f32(2.5)


@pytest.mark.parametrize("style", ["torch", "numpy", "from_dlpack", "keyword", "constexpr given"])
def test_every_way_to_pass_the_same_arguments(scale_add, launches, style):
    a, b, c = torch.zeros(128), torch.zeros(128), torch.zeros(128)
    calls = {
        "torch": ((a, b, c, 1.5), {}),
        "numpy": ((a.numpy(), b.numpy(), c.numpy(), 1.5), {}),
        "from_dlpack": ((dynamic(a), dynamic(b), dynamic(c), 1.5), {}),
        "keyword": ((a, b), {"scale": 1.5, "c": c}),
        "constexpr given": ((a, 3, b), {"c": c, "scale": 1.5}),
    }
    if style == "constexpr given":
        calls[style] = ((a, 3, b, c, 1.5), {})
    run_host(scale_add, *calls[style], launches)
    assert [p[:8] for p in launches[0].params[:3]] == [address(a), address(b), address(c)]
    assert launches[0].params[3] == f32(1.5)


def test_constexpr_by_keyword_is_left_out(scale_add, launches):
    a = torch.zeros(128)
    run_host(scale_add, (a, a, a, 1.0), {"times": 3}, launches)
    assert launches[0].params[3] == f32(1.0)


def test_too_many_arguments_are_refused(scale_add, launches):
    a = torch.zeros(128)
    message = r"takes 4 runtime arguments \(a, b, c, scale\), got 6; times are Constexpr"
    with pytest.raises(ValueError, match=message):
        run_host(scale_add, (a, 3, a, a, 1.0, 2.0), {}, launches)
    assert not launches


def test_several_kernels_and_launch_attributes(three_launches, launches):
    from cuda.bindings.driver import CUstream

    a, b = torch.zeros(512), torch.zeros(512)
    run_host(three_launches, (a, b, 40_000, CUstream(0)), {}, launches)
    first, second, third = launches
    assert [launch.index for launch in launches] == [0, 1, 2]
    assert (first.grid, first.block, first.smem_bytes) == ((1, 2, 3), (32, 2, 1), 40_000)
    assert first.params == (address(a), f32(1.0))
    assert not first.cooperative and not first.programmatic_stream_serialization
    assert (second.grid, second.block, second.cluster) == ((4, 1, 1), (128, 1, 1), (2, 1, 1))
    assert second.programmatic_stream_serialization and second.smem_bytes == 0
    assert second.params == (address(a), address(b), address(b), f32(2.0))
    assert third.cooperative and third.cluster == (1, 1, 1) and third.params == (address(b), f32(3.0))
    assert "fill_kernel" in first.kernel and "scale_add_kernel" in second.kernel and "fill_kernel" in third.kernel
    assert len({launch.kernel for launch in launches}) == 3  # each launch site is a kernel of its own
    assert len({launch.ptx for launch in launches}) == 1


def test_preferred_cluster(programs, launches):
    a = torch.zeros(512)
    run_host(cute.compile(programs.preferred_cluster, runtime.from_dlpack(a)), (a,), {}, launches)
    assert launches[0].cluster == (2, 1, 1) and launches[0].preferred_cluster == (2, 4, 1)


SCALARS = [
    ("Int8", -5, struct.pack("<b", -5)),
    ("Uint8", 200, b"\xc8"),
    ("Int16", -300, struct.pack("<h", -300)),
    ("Uint32", 4_000_000_000, struct.pack("<I", 4_000_000_000)),
    ("Int64", -(2**40), struct.pack("<q", -(2**40))),
    ("Boolean", True, b"\1"),
    ("Float16", 1.5, b"\x00\x3e"),
    ("Float32", 2.5, f32(2.5)),
    ("Float64", -3.5, struct.pack("<d", -3.5)),
]


def test_scalars_of_every_width(programs, launches):
    out = torch.zeros(4)
    typed = [getattr(cutlass, name)(value) for name, value, _ in SCALARS]
    compiled = cute.compile(programs.scalars, runtime.from_dlpack(out), *typed)
    run_host(compiled, (out, *(value for _, value, _ in SCALARS)), {}, launches)
    assert launches[0].params == (address(out), *(data for _, _, data in SCALARS))


def test_dataclass_tuple_pointer_and_none(programs, launches):
    out, memory = torch.zeros(4), torch.zeros(8)
    pointer = runtime.make_ptr(cutlass.Float32, memory.data_ptr(), cute.AddressSpace.gmem, assumed_align=4)
    settings = programs.Settings(runtime.from_dlpack(out), 2.0)
    args = (settings, (runtime.from_dlpack(memory), 3), pointer, None)
    compiled = cute.compile(programs.nested, *args)
    run_host(compiled, args, {}, launches)
    expected = (address(out), f32(2.0), address(memory), struct.pack("<i", 3), address(memory))
    assert launches[0].params == expected


# What goes wrong


class StopError(Exception):
    pass


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_exception_of_on_launch_arrives_and_ends_the_call(three_launches, at):
    from cuda.bindings.driver import CUstream

    seen = []

    def on_launch(launch):
        seen.append(launch.index)
        if launch.index == at:
            raise StopError("here")

    args = (torch.zeros(512), torch.zeros(512), 0, CUstream(0))
    with pytest.raises(StopError, match="here") as caught:
        run_host(three_launches, args, {}, on_launch)
    assert seen == list(range(at + 1))
    assert caught.value.__notes__ == ["raised while host code called _cudaLaunchKernelEx"]
    seen.clear()
    run_host(three_launches, args, {}, lambda launch: seen.append(launch.index))  # nothing stayed behind
    assert seen == [0, 1, 2]


def test_keyboard_interrupt_arrives_too(scale_add):
    def on_launch(launch):
        raise KeyboardInterrupt

    a = torch.zeros(128)
    with pytest.raises(KeyboardInterrupt):
        run_host(scale_add, (a, a, a, 1.0), {}, on_launch)


def test_a_launch_that_the_device_refuses(three_launches, launches):
    from cuda.bindings.driver import CUstream

    args = (torch.zeros(512), torch.zeros(512), 100_001, CUstream(0))
    with pytest.raises(LaunchError, match="100001 bytes of dynamic"):
        run_host(three_launches, args, {}, launches, smem_bytes_max=100_000)
    assert not launches


def test_an_empty_grid_is_refused(scale_add, launches):
    a = torch.zeros(0)
    with pytest.raises(LaunchError, match="an axis is 0"):
        run_host(scale_add, (a, a, a, 1.0), {}, launches)


def test_missing_ptx_says_what_to_do(scale_add, launches, monkeypatch):
    monkeypatch.setattr(scale_add.artifacts, "PTX", None)
    with pytest.raises(HostError, match=r"Import mxfp8fa\.emulator before the function is compiled"):
        run_host(scale_add, (), {}, launches)
    monkeypatch.setattr(scale_add.artifacts, "PTX", "a-path-that-is-gone.ptx")
    with pytest.raises(HostError, match="compile again"):
        run_host(scale_add, (), {}, launches)


def test_a_function_without_kernels_is_not_ours(programs, launches):
    with pytest.raises(HostError, match="launches no kernel"):
        run_host(cute.compile(programs.no_kernel, 3), (3,), {}, launches)


def test_unknown_symbols_are_refused_by_name_and_purpose():
    names = {"_cudaGetDevice", "_cudaGraphLaunch", "_cudaMalloc", "no_such_function", "abort"}
    with pytest.raises(HostError) as caught:
        resolve(names)
    message = str(caught.value)
    assert "_cudaGraphLaunch (builds or launches CUDA graphs)" in message
    assert "_cudaMalloc (allocates device memory)" in message
    assert "no_such_function (unknown function)" in message and "abort (stops the process" in message
    assert "_cudaGetDevice" not in message


def test_an_object_with_an_unknown_symbol_is_not_loaded(scale_add):
    from mxfp8fa.emulator.host import program
    from mxfp8fa.emulator.host.elf import ObjectSymbols, read_symbols

    data = scale_add.dump_to_object("other")
    symbols = read_symbols(data)
    assert symbols.undefined - {"_GLOBAL_OFFSET_TABLE_"} <= set(driver._EXPORTS)
    with pytest.raises(HostError, match="_cudaGraphLaunch"):
        program._load(data, ObjectSymbols(symbols.defined, symbols.undefined | {"_cudaGraphLaunch"}, symbols.machine))


def test_c_library_names_resolve():
    from mxfp8fa.emulator.host import program

    assert all(resolve(program._C_LIBRARY).values())


def test_host_code_that_computes_and_prints(programs, launches, capfd):
    a = torch.zeros(32)
    compiled = cute.compile(programs.host_arithmetic, runtime.from_dlpack(a), 5, 1.0)
    run_host(compiled, (a, 5, 0.5), {}, launches)
    assert launches[0].grid == (6, 1, 1)
    value = struct.unpack("<f", launches[0].params[1])[0]
    assert value == pytest.approx(math.exp(0.5) + math.tanh(0.5), rel=1e-6)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "x = 5\n"


def test_host_assertions_are_refused_by_name(programs, launches):
    a = torch.zeros(32)
    options = "--enable-assertions"
    compiled = cute.compile(programs.host_assertion, runtime.from_dlpack(a), 5, options=options)
    with pytest.raises(HostError, match=r"abort .*enable-assertions"):
        run_host(compiled, (a, 5), {}, launches)


def test_callbacks_outside_a_run_fail_quietly():
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(driver.callback_address("_cudaGetDevice"))
    value = ctypes.c_int(77)
    assert function(ctypes.addressof(value)) != 0 and value.value == 77


# Nothing stays behind


def test_two_threads_run_their_own_calls(scale_add):
    results = {}

    def work(n):
        tensors = [torch.zeros(128 * n) for _ in range(3)]
        seen = []
        for _ in range(20):
            run_host(scale_add, (*tensors, float(n)), {}, seen.append)
        results[n] = {(launch.grid, launch.params[0][:8], launch.params[3]) for launch in seen}, address(tensors[0])

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, (seen, pointer) in results.items():
        assert seen == {((n, 1, 1), pointer, f32(n))}
    assert len(results) == 3


def test_a_run_inside_a_run(scale_add):
    a = torch.zeros(128)
    inner = []

    def on_launch(launch):
        run_host(scale_add, (a, a, a, 9.0), {}, inner.append)

    outer = []
    run_host(scale_add, (a, a, a, 1.0), {}, lambda launch: (on_launch(launch), outer.append(launch)))
    assert inner[0].params[3] == f32(9.0) and outer[0].params[3] == f32(1.0)
    assert not driver._stack()


def test_the_program_goes_with_the_compiled_function(programs):
    a = torch.zeros(512)
    compiled = cute.compile(programs.preferred_cluster, runtime.from_dlpack(a))
    run_host(compiled, (a,), {}, lambda launch: None)
    program = weakref.ref(compiled._mxfp8fa_program)
    assert program() is not None
    del compiled
    gc.collect()
    assert program() is None


# Host functions that tests call directly, because no small program needs them


def call(name, *arguments, memory=()):
    """Call one native callback in a run of its own; arguments are ints or ctypes objects (passed by address)."""
    from mxfp8fa.emulator.host import Device

    run = driver.HostRun("", {}, {}, Device(sm_count=5), lambda launch: None, memory=memory)
    export = driver._EXPORTS[name]
    function = ctypes.CFUNCTYPE(export.result, *export.arguments)(driver.callback_address(name))
    with run.entered():
        return function(*(a if isinstance(a, int) else ctypes.addressof(a) for a in arguments))


def test_device_queries():
    value = ctypes.c_int(-1)
    assert call("_cudaGetDevice", value) == 0 and value.value == 0
    assert call("_cudaGetDeviceCount", value) == 0 and value.value == 1
    assert call("_cudaDeviceGetAttribute", value, 16, 0) == 0 and value.value == 5
    assert call("_cudaSetDevice", 0) == 0
    with pytest.raises(HostError, match="selects device 1"):
        call("_cudaSetDevice", 1)


def test_memset_and_memcpy_stay_inside_the_tensors():
    from mxfp8fa.emulator.host import memory_ranges

    device, host = torch.arange(16, dtype=torch.uint8), torch.arange(100, 116, dtype=torch.uint8)
    valid = memory_ranges((device,))
    assert call("_cudaMemsetAsync", device.data_ptr() + 2, 0x1FF, 3, 0, memory=valid) == 0
    assert device.tolist()[:6] == [0, 1, 255, 255, 255, 5]
    assert call("_cudaMemcpyAsync", device.data_ptr(), host.data_ptr(), 16, 1, 0, memory=valid) == 0
    assert torch.equal(device, host)
    host.zero_()
    assert call("_cudaMemcpy", host.data_ptr(), device.data_ptr(), 16, 2, memory=valid) == 0
    assert torch.equal(device, host)
    for name, arguments in (
        ("_cudaMemset", (device.data_ptr() + 15, 0, 2)),
        ("_cudaMemcpy", (device.data_ptr() - 1, host.data_ptr(), 4, 1)),
        ("_cudaMemcpy", (host.data_ptr(), device.data_ptr() + 10, 7, 2)),
        ("_cudaMemcpy", (host.data_ptr(), device.data_ptr(), 1, 3)),
    ):
        with pytest.raises(HostError, match="outside the storages"):
            call(name, *arguments, memory=valid)


def test_a_failed_assertion_of_the_dialect_is_an_error():
    assert call("cuda_dialect_assert_success", 0) is None
    with pytest.raises(HostError, match="CUDA error 700"):
        call("cuda_dialect_assert_success", 700)

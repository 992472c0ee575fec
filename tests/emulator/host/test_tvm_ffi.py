"""Functions compiled with --enable-tvm-ffi: their own argument checks run, CPU tensors are accepted."""

import struct
from dataclasses import dataclass

import pytest

from mxfp8fa.emulator.errors import LaunchError
from mxfp8fa.emulator.host import active, as_cuda, run_host

torch = pytest.importorskip("torch")
cutlass = pytest.importorskip("cutlass")
cute = pytest.importorskip("cutlass.cute")
runtime = pytest.importorskip("cutlass.cute.runtime")
pytest.importorskip("tvm_ffi")


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, scale: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    c[thread] = a[thread] + b[thread] * scale


@cute.jit
def add_twice(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream, scale: cutlass.Float32 = 2.0):
    for _ in cutlass.range_constexpr(2):
        add_kernel(a, b, c, scale).launch(grid=(2, 1, 1), block=(cute.size(a), 1, 1), stream=stream)


@dataclass
class Pair:
    left: cute.Tensor
    right: cute.Tensor


@cute.jit
def add_pair(pair: Pair, c: cute.Tensor, scale: cutlass.Float32):
    add_kernel(pair.left, pair.right, c, scale).launch(grid=(1, 1, 1), block=(cute.size(c), 1, 1))


@cute.jit
def positional(a: cute.Tensor, scale: cutlass.Float32):
    add_kernel(a, a, a, scale).launch(grid=(1, 1, 1), block=(32, 1, 1))


def vector(length):
    return runtime.make_fake_compact_tensor(cutlass.Float32, (length,), assumed_align=4)


@pytest.fixture(scope="module")
def compiled(programs):
    length = cute.sym_int()
    stream = runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    fakes = [vector(length) for _ in range(3)]
    return cute.compile(add_twice, *fakes, stream, cutlass.Float32(1.0), options="--enable-tvm-ffi")


def pointers(launch):
    return [struct.unpack_from("<Q", p)[0] for p in launch.params[:3]]


@pytest.mark.parametrize("wrap", [lambda t: t, as_cuda, lambda t: t.numpy(), lambda t: as_cuda(t.numpy())])
def test_tensors_of_every_kind(compiled, launches, wrap):
    tensors = [torch.zeros(64) for _ in range(3)]
    assert run_host(compiled, [wrap(t) for t in tensors], {"scale": 3.0}, launches) == 0
    assert [pointers(launch) for launch in launches] == [[t.data_ptr() for t in tensors]] * 2
    assert {(launch.grid, launch.block, launch.params[3]) for launch in launches} == {
        ((2, 1, 1), (64, 1, 1), struct.pack("<f", 3.0))
    }


def test_defaults_and_keywords(compiled, launches):
    a, b, c = (torch.zeros(32) for _ in range(3))
    run_host(compiled, (a,), {"c": c, "b": b}, launches)
    assert pointers(launches[0]) == [t.data_ptr() for t in (a, b, c)]
    assert launches[0].params[3] == struct.pack("<f", 2.0)


def test_its_own_argument_checks_run(compiled, launches):
    with pytest.raises(ValueError, match=r"expected to match a\.shape"):
        run_host(compiled, (torch.zeros(32), torch.zeros(31), torch.zeros(32)), {}, launches)
    with pytest.raises((TypeError, ValueError), match="float32"):
        run_host(compiled, [torch.zeros(32, dtype=torch.int32)] * 3, {}, launches)
    assert not launches


def test_an_exception_of_on_launch_arrives(compiled):
    seen = []

    def on_launch(launch):
        seen.append(launch.index)
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        run_host(compiled, [torch.zeros(32)] * 3, {}, on_launch)
    assert seen == [0]
    run_host(compiled, [torch.zeros(32)] * 3, {}, lambda launch: seen.append(launch.index))
    assert seen == [0, 0, 1]


def test_a_refused_launch(compiled, launches):
    with pytest.raises(LaunchError, match="exceeds"):
        run_host(compiled, [torch.zeros(2000)] * 3, {}, launches)


@pytest.fixture
def own_converter(monkeypatch):
    """The DSL's converter of arguments: quack and cuDNN replace it on import by one that fails on dataclasses with this DSL."""
    from cutlass.cute import _tvm_ffi_args_spec_converter as module

    converter = module._convert_single_arg
    while converter.__name__ == "_patched_convert_single_arg":
        converter = converter.__globals__["_original_convert_single_arg"]
    monkeypatch.setattr(module, "_convert_single_arg", converter)


@pytest.mark.usefixtures("own_converter")
def test_a_dataclass_of_tensors(programs, launches):
    length = cute.sym_int()
    pair = Pair(vector(length), vector(length))
    function = cute.compile(add_pair, pair, vector(length), cutlass.Float32(1.0), options="--enable-tvm-ffi")
    a, b, c = (torch.zeros(32) for _ in range(3))
    run_host(function, (Pair(a, b), c, 4.0), {}, launches)
    assert pointers(launches[0]) == [t.data_ptr() for t in (a, b, c)]


def test_under_active(compiled):
    seen, a = [], torch.zeros(32)
    with active(lambda call: (call.execute(seen.append), seen.append(call.memory_ranges()))):
        compiled(a, a, a, scale=5.0)
    assert len(seen) == 3 and seen[0].params[3] == struct.pack("<f", 5.0)
    assert [r.address for r in seen[2]] == [a.data_ptr()]


def test_a_direct_call(programs, monkeypatch):
    """A @cute.jit function called directly with TVM-FFI switched on for the whole DSL."""
    from cutlass.cutlass_dsl import CuTeDSL

    monkeypatch.setattr(CuTeDSL._get_dsl().envar, "enable_tvm_ffi", True)
    seen, a = [], torch.zeros(32)
    with active(lambda call: call.execute(seen.append)):
        positional(runtime.from_dlpack(as_cuda(a), enable_tvm_ffi=True), 6.0)
    assert pointers(seen[0]) == [a.data_ptr()] * 3 and seen[0].params[3] == struct.pack("<f", 6.0)

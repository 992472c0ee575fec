"""active(): calls of compiled functions reach the runner, and everything is as before afterwards."""

import struct
import threading

import pytest

from mxfp8fa.emulator.host import active

torch = pytest.importorskip("torch")
cute = pytest.importorskip("cutlass.cute")
runtime = pytest.importorskip("cutlass.cute.runtime")


@pytest.fixture
def classes(programs):
    """Every class that active() touches, with what it has now."""
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.cutlass_dsl import cuda_jit_executor, tvm_ffi_provider

    found = [BaseDSL, cuda_jit_executor.CudaDialectJitCompiledFunction]
    found += [cls for cls in vars(tvm_ffi_provider).values() if isinstance(cls, type) and issubclass(cls, found[1])]
    return {cls: dict(vars(cls)) for cls in found}


def unchanged(classes) -> bool:
    return all(
        set(before) == set(vars(cls)) and all(vars(cls)[name] is value for name, value in before.items())
        for cls, before in classes.items()
    )


class Recorder:
    """A runner that executes the host code and keeps calls and launches."""

    def __init__(self):
        self.calls, self.launches = [], []

    def __call__(self, call):
        self.calls.append(call)
        call.execute(self.launches.append)


def vectors(n=128):
    return [torch.zeros(n) for _ in range(3)]


def first_pointers(launch):
    return [struct.unpack_from("<Q", p)[0] for p in launch.params[:3]]


def test_a_compiled_function(scale_add, classes):
    recorder, (a, b, c) = Recorder(), vectors()
    with active(recorder):
        assert scale_add(a, b, c, scale=2.0) is None
    assert unchanged(classes)
    assert first_pointers(recorder.launches[0]) == [t.data_ptr() for t in (a, b, c)]
    assert recorder.calls[0].compiled is scale_add and recorder.calls[0].kwargs == {"scale": 2.0}


def test_a_direct_call_of_a_jit_function(programs, classes):
    recorder, tensors = Recorder(), [runtime.from_dlpack(t) for t in vectors()]
    with active(recorder):
        programs.scale_add(tensors[0], 3, tensors[1], tensors[2], 2.0)
        programs.scale_add(tensors[0], 3, tensors[1], tensors[2], 4.0)
    assert unchanged(classes)
    assert [first_pointers(launch) for launch in recorder.launches] == [[t.data_ptr for t in tensors]] * 2
    assert [launch.params[3] for launch in recorder.launches] == [struct.pack("<f", 2), struct.pack("<f", 4)]
    names = {r.address: r.name for r in recorder.calls[1].memory_ranges()}
    assert names == {t.data_ptr: name for t, name in zip(tensors, ("a", "b", "c"), strict=True)}


def test_executors_and_converted_arguments(scale_add, classes):
    recorder, (a, b, c) = Recorder(), vectors()
    with active(recorder):
        executor = scale_add.to(None)
        executor(a, b, c, 1.0)
        execution_args, keep_alive = executor.generate_execution_args(a, b, c, 1.0)
        executor.run_compiled_program(execution_args)
        scale_add.run_compiled_program(execution_args)
        del keep_alive
    assert unchanged(classes)
    expected = [t.data_ptr() for t in (a, b, c)]
    assert [first_pointers(launch) for launch in recorder.launches] == [expected] * 3
    assert all(len(call.memory_ranges()) == 3 for call in recorder.calls)


def test_functions_without_kernels_run_as_ever(programs, capfd):
    recorder = Recorder()
    with active(recorder):
        compiled = cute.compile(programs.no_kernel, 3)
        compiled(5)
        programs.no_kernel(6)
    assert not recorder.calls
    assert capfd.readouterr().out.split() == ["host", "only", "5", "host", "only", "6"]


def test_errors_reach_the_program_and_everything_is_put_back(scale_add, classes):
    def runner(call):
        raise LookupError("from the runner")

    with pytest.raises(LookupError, match="from the runner"), active(runner):
        scale_add(*vectors(), 1.0)
    assert unchanged(classes)


def test_direct_calls_raise_the_runner_s_error_as_it_is(programs, classes):
    def runner(call):
        raise LookupError("from the runner")

    tensors = [runtime.from_dlpack(t) for t in vectors()]
    with pytest.raises(LookupError, match="from the runner"), active(runner):
        programs.scale_add(tensors[0], 3, tensors[1], tensors[2], 2.0)
    assert unchanged(classes)


def test_the_innermost_runner_gets_the_calls(scale_add, classes):
    outer, inner = Recorder(), Recorder()
    with active(outer):
        scale_add(*vectors(), 1.0)
        with active(inner):
            scale_add(*vectors(), 2.0)
        assert not unchanged(classes)
        scale_add(*vectors(), 3.0)
    assert unchanged(classes)
    assert [launch.params[3] for launch in outer.launches] == [struct.pack("<f", 1), struct.pack("<f", 3)]
    assert [launch.params[3] for launch in inner.launches] == [struct.pack("<f", 2)]


def test_calls_of_other_threads_reach_the_same_runner(scale_add, classes):
    recorder = Recorder()
    with active(recorder):
        thread = threading.Thread(target=scale_add, args=(*vectors(), 7.0))
        thread.start()
        thread.join()
    assert unchanged(classes) and recorder.launches[0].params[3] == struct.pack("<f", 7)


def test_calls_afterwards_go_to_the_dsl_again(scale_add):
    with active(lambda call: None):
        scale_add(*vectors(), 1.0)
    assert scale_add._default_executor is None  # no emulated executor stays in the compiled function

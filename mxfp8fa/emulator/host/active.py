"""While open, calls of compiled CuTe DSL functions go to the emulator: unmodified programs run without a GPU.

What is replaced, on the DSL's classes and therefore in the whole process, and put back when the last `active` closes:

    CudaDialectJitCompiledFunction.__call__, .run_compiled_program, .to     (and the same of its TVM-FFI subclasses)
    BaseDSL.generate_mlir         remembers the arguments of a direct call of a @cute.jit function

A function without device code (`has_gpu_module` False) is left to the DSL. `active` may be nested: the innermost
runner gets the calls. Opening, closing and looking up the runner are guarded by one lock, and calls made by other
threads while it is open reach the same runner; what a runner does with concurrent calls is its own affair. Not caught:
an executor that `compiled.to(device)` made on a machine with a GPU before `active` was opened.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .call import HostCall
from .patching import Patches

Runner = Callable[[HostCall], Any]

_lock = threading.RLock()
_runners: list[Runner] = []
_patches = Patches()
_traced = threading.local()


@contextlib.contextmanager
def active(runner: Runner) -> Iterator[None]:
    """Send every call of a compiled function that launches kernels to `runner`.

    Args:
        runner: takes a HostCall and executes it; what it raises is raised by the call in the program.
    """
    with _lock:
        if not _runners:
            _install()
        _runners.append(runner)
    try:
        yield
    finally:
        with _lock:
            del _runners[len(_runners) - 1 - _runners[::-1].index(runner)]
            if not _runners:
                _patches.undo()


def _run(call: HostCall) -> Any:
    with _lock:
        runner = _runners[-1]
    runner(call)
    return None


class _Executor:
    """Stands in for the DSL's JitExecutor: what `compiled.to(device)` returns."""

    def __init__(self, compiled: Any):
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run(HostCall(self._compiled, args, kwargs))

    def generate_execution_args(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
        execution_args, adapted = self._compiled.execution_args.generate_execution_args(args, kwargs)
        return _ExecutionArgs(execution_args, args, kwargs), adapted

    def run_compiled_program(self, execution_args: list[Any]) -> Any:
        return _run_converted(self._compiled, execution_args)


class _Source(NamedTuple):
    """The Python arguments of a call, and their names where the compiled function's own names do not apply."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] | None = None


_NO_SOURCE = _Source((), {})


class _ExecutionArgs(list):
    """Converted arguments that remember what they were converted from."""

    def __init__(self, execution_args: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        super().__init__(execution_args)
        self.source = _Source(args, kwargs)


def _run_converted(compiled: Any, execution_args: list[Any]) -> Any:
    if isinstance(execution_args, _ExecutionArgs):
        source = execution_args.source
    else:
        source = getattr(_traced, "sources", [_NO_SOURCE])[-1]
    return _run(HostCall(compiled, source.args, source.kwargs, execution_args, source.names))


def _install() -> None:
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    for cls in _with_subclasses(CudaDialectJitCompiledFunction):
        for name, wrap in (("__call__", _wrap_call), ("run_compiled_program", _wrap_converted), ("to", _wrap_to)):
            if name in vars(cls) or cls is CudaDialectJitCompiledFunction:
                _patches.set(cls, name, wrap(getattr(cls, name)))
    _patches.set(BaseDSL, "generate_mlir", _wrap_trace(BaseDSL.generate_mlir))


def _with_subclasses(cls: Any) -> list[Any]:
    # TVM-FFI's subclasses exist only once a function was compiled with it; import them here, so none appears later.
    with contextlib.suppress(ImportError):
        import cutlass.cutlass_dsl.tvm_ffi_provider  # noqa: F401
    found = [cls]
    for sub in cls.__subclasses__():
        found += _with_subclasses(sub)
    return found


def _wrap_call(original: Any) -> Any:
    @functools.wraps(original)
    def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:
        if not compiled.has_gpu_module:
            return original(compiled, *args, **kwargs)
        return _run(HostCall(compiled, args, kwargs))

    return call


def _wrap_converted(original: Any) -> Any:
    @functools.wraps(original)
    def run_compiled_program(compiled: Any, execution_args: list[Any]) -> Any:
        if not compiled.has_gpu_module:
            return original(compiled, execution_args)
        return _run_converted(compiled, execution_args)

    return run_compiled_program


def _wrap_to(original: Any) -> Any:
    @functools.wraps(original)
    def to(compiled: Any, device: int | None = None) -> Any:
        return _Executor(compiled) if compiled.has_gpu_module else original(compiled, device)

    return to


def _wrap_trace(original: Any) -> Any:
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def generate_mlir(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        if not hasattr(_traced, "sources"):
            _traced.sources = [_NO_SOURCE]
        _traced.sources.append(_Source(given["args"], given["kwonlyargs"], tuple(given["sig"].parameters)))
        try:
            return original(*args, **kwargs)
        finally:
            _traced.sources.pop()

    return generate_mlir

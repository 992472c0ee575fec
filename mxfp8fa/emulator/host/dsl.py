"""Two small additions to the CuTe DSL, made when it is imported: functions keep their PTX, tensors their source.

The DSL keeps the PTX of a compiled function only when asked to before the compilation (environment variable
`CUTE_DSL_KEEP=ptx` or option `--keep-ptx`), and then writes it to the working directory and switches its compile cache
off. `install` asks for it on every compilation instead, with a temporary directory that is gone when the compilation
ends; the text stays in `compiled.__ptx__`, and the in-memory cache works as before. The cache on disk is skipped, since
what it gives back has no PTX.

A `from_dlpack` tensor knows its data pointer, shape and strides but not the storage it is a view of; `install` makes it
remember the object it was made from, so that bounds checks cover the whole storage.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from .cuda_view import SOURCE_ATTRIBUTE, CudaArray, is_cuda_tensor, plain
from .errors import HostError

_COMPILER, _RUNTIME = "cutlass.base_dsl.dsl", "cutlass.cute.runtime"
_PATCHED = "_mxfp8fa_patched"


def install() -> None:
    """Make the additions now for what is imported, and on import for what is not. Repeating it does nothing."""
    for module, patch in ((_COMPILER, _keep_ptx), (_RUNTIME, _remember_sources)):
        if module in sys.modules:
            patch(sys.modules[module])
        elif not any(isinstance(f, _AfterImport) and f.module == module for f in sys.meta_path):
            sys.meta_path.insert(0, _AfterImport(module, patch))


def ptx_of(compiled: Any) -> str:
    """PTX text of a compiled function.

    Raises:
        HostError: the function has none; the message says what to do.
    """
    ptx = getattr(compiled, "__ptx__", None)
    if isinstance(ptx, bytes):
        ptx = ptx.decode()
    if not isinstance(ptx, str) or ".entry" not in ptx:
        name = getattr(compiled, "function_name", type(compiled).__name__)
        raise HostError(
            f"{name} was compiled without keeping its PTX. Import mxfp8fa.emulator before the function is compiled "
            "(cute.compile, or the first call of a @cute.jit function), or set CUTE_DSL_KEEP=ptx in the environment, "
            "and compile again. Functions that a library caches on disk have no PTX: switch that cache off."
        )
    return ptx


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs a function on one module right after that module was executed, then steps aside."""

    def __init__(self, module: str, patch: Callable[[Any], None]):
        self.module = module
        self._patch = patch
        self._loader: Any = None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        module.__spec__.loader = module.__loader__ = self._loader
        self._patch(module)


def _keep_ptx(module: Any) -> None:
    """Wrap the one method through which every compilation goes."""
    original = module.BaseDSL.compile_and_cache
    if hasattr(original, _PATCHED):
        return

    @functools.wraps(original)
    def compile_and_cache(dsl: Any, ir_module: Any, module_hash: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        with _ptx_kept(module, dsl, name):
            return original(dsl, ir_module, module_hash, name, *args, **kwargs)

    setattr(compile_and_cache, _PATCHED, True)
    module.BaseDSL.compile_and_cache = compile_and_cache


@contextlib.contextmanager
def _ptx_kept(module: Any, dsl: Any, function_name: str) -> Iterator[None]:
    """Ask for the PTX in a temporary directory, unless the user already asks for it somewhere else."""
    option = dsl.compile_options.options[module.KeepPTX]
    file_caching = dsl.envar.disable_file_caching
    with tempfile.TemporaryDirectory(prefix="mxfp8fa-ptx-") as directory:
        ours = not option.value
        if ours:
            option.value = True
            arch = dsl.compile_options.gpu_arch or dsl.envar.arch
            dsl.compile_options._set_artifact_dump_paths(option, directory, function_name, arch, "ptx", "full_ptx_path")
        dsl.envar.disable_file_caching = True
        try:
            yield
        finally:
            dsl.envar.disable_file_caching = file_caching
            if ours:
                option.value = False


def _remember_sources(module: Any) -> None:
    """Let a `from_dlpack` tensor keep the object it was made from."""
    original = module._Tensor.__init__
    if hasattr(original, _PATCHED):
        return

    @functools.wraps(original)
    def init(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
        # TVM-FFI reads the C++ tensor behind a torch subclass, which knows that it is on the CPU.
        exporter = CudaArray(plain(tensor).detach()) if is_cuda_tensor(tensor) else tensor
        original(self, exporter, *args, **kwargs)
        self.__dict__[SOURCE_ATTRIBUTE] = tensor

    setattr(init, _PATCHED, True)
    module._Tensor.__init__ = init

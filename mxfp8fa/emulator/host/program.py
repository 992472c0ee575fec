"""Load the host code of a compiled CuTe DSL function into this process and call it, with no CUDA library.

`compiled.dump_to_object` gives an ELF object with the host function and the device code. llvmlite loads it. Every name
that the object needs is looked up beforehand: in our CUDA functions (`driver`), in TVM-FFI's library for functions
compiled with it, in the C library for a few harmless names. A name found in none of them is an error, because the
loader would otherwise bind it to the DSL's own runtime library when that happens to be loaded, and that library aborts
the process when there is no CUDA driver.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from functools import lru_cache
from typing import Any

from . import driver
from .elf import MACHINES, ObjectSymbols, read_symbols
from .errors import HostError
from .ptx_entries import EntryPoint, scan_entries

_PREFIX = "mxfp8fa"
_CACHE_ATTRIBUTE = "_mxfp8fa_program"
_PROVIDED_BY_LOADER = {"_GLOBAL_OFFSET_TABLE_"}
_MATH = [
    *("ceil", "floor", "round", "rint", "trunc", "fmod", "fma", "fabs", "fmin", "fmax", "sqrt", "cbrt", "pow"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "erf", "erfc"),
]
# Harmless names of the C library; all of them work on host memory only.
_C_LIBRARY = (
    {"memcpy", "memmove", "memset", "memcmp", "strlen", "malloc", "calloc", "realloc", "free", "aligned_alloc"}
    | {"printf", "puts", "putchar", "snprintf", "fflush"}
    | {name + suffix for suffix in ("", "f") for name in _MATH}
)
# Functions of the DSL's runtime that host code can call and that have no meaning here; said in the error.
_PURPOSES = {
    "Graph": "builds or launches CUDA graphs",
    "Capture": "captures a stream into a CUDA graph",
    "Malloc": "allocates device memory",
    "Free": "frees device memory",
    "Managed": "looks up managed memory",
    "GetGlobal": "looks up a device variable",
    "ElapsedTime": "measures GPU time",
    "Im2col": "encodes an im2col tensor map",
    "ReplaceAddress": "patches a tensor map",
    "DeviceProperties": "reads the whole device description",
    "Callback": "runs a host callback on a stream",
    "Memcpy3D": "copies a three-dimensional block",
    "abort": "stops the process when a host assertion fails (compile without --enable-assertions)",
}
_load_lock = threading.RLock()


class HostProgram:
    """One loaded object.

    Attributes:
        ptx: text of the PTX module.
        entries: its kernels by name.
        kernels: kernel handles that the loaded code holds.
        is_tvm_ffi: the function was compiled with `--enable-tvm-ffi`.
    """

    def __init__(self, compiled: Any, ptx: str):
        self.ptx = ptx
        self.entries = scan_entries(ptx)
        self.kernels: dict[int, EntryPoint] = {}
        self._name = compiled.function_name
        data = _dump_object(compiled)
        symbols = read_symbols(data)
        self.is_tvm_ffi = self._tvm_ffi_name() in symbols.defined
        self._engine = _load(data, symbols)
        self._defined = symbols.defined
        self._is_initialised = False
        self._tvm_ffi_function: Any = None

    def address(self, name: str) -> int:
        """Address of a function of the object."""
        if name not in self._defined:
            raise HostError(f"the object of {self._name} has no function {name!r}; it has {sorted(self._defined)}")
        return int(self._engine.get_function_address(name))

    def call(self, argument_addresses: list[int], run: driver.HostRun) -> int:
        """Run the host function.

        Args:
            argument_addresses: for each argument of the host function, where its value lies.
            run: receives what the host code does.

        Returns:
            The host code's cudaError_t.
        """
        result = ctypes.c_int32(0)
        with run.entered():
            self._initialise(run)
            if run.error is None:
                main = self.address(f"_mlir_{_PREFIX}_{self._name}")
                _call_packed(main, [*argument_addresses, ctypes.addressof(result)])
        return result.value

    def tvm_ffi_function(self) -> Any:
        """The function's TVM-FFI entry point, which unpacks and checks positional arguments itself."""
        if self._tvm_ffi_function is None:
            import tvm_ffi

            self._tvm_ffi_function = tvm_ffi.Function.__from_extern_c__(self.address(self._tvm_ffi_name()))
        return self._tvm_ffi_function

    def _tvm_ffi_name(self) -> str:
        return f"{_PREFIX}___tvm_ffi_{self._name}"

    def _initialise(self, run: driver.HostRun) -> None:
        """Let the host code load its library and fetch its kernel handles; once per program."""
        if self._is_initialised:
            return
        library = ctypes.c_void_p()
        library_address = ctypes.c_void_p(ctypes.addressof(library))
        code, device = ctypes.c_int32(0), ctypes.c_int32(0)
        outer = ctypes.addressof(library_address)
        _call_packed(self.address(f"_mlir_{_PREFIX}_cuda_init"), [outer, ctypes.addressof(code)])
        if run.error is None and code.value == driver.SUCCESS:
            addresses = [outer, ctypes.addressof(device), ctypes.addressof(code)]
            _call_packed(self.address(f"_mlir_{_PREFIX}_cuda_load_to_device"), addresses)
        if run.error is None and code.value != driver.SUCCESS:
            run.error = HostError(f"loading the kernels of {self._name} failed with CUDA error {code.value}")
        self._is_initialised = run.error is None


def load_program(compiled: Any, ptx: str) -> HostProgram:
    """The loaded host code of a compiled function; loaded once and kept with the function."""
    with _load_lock:
        program = getattr(compiled, "__dict__", {}).get(_CACHE_ATTRIBUTE)
        if program is None:
            program = HostProgram(compiled, ptx)
            setattr(compiled, _CACHE_ATTRIBUTE, program)
        return program


def _dump_object(compiled: Any) -> bytes:
    if getattr(compiled, "ir_module", None) is None:
        raise HostError(
            "this function was loaded from an object file (a kernel cache on disk, perhaps): there is no PTX to run; "
            "compile it from source in this process"
        )
    data: bytes = compiled.dump_to_object(_PREFIX)
    return data


def _call_packed(function: int, addresses: list[int]) -> None:
    """Call a function of the DSL's C interface: one argument, an array of the addresses of the real arguments."""
    packed = (ctypes.c_void_p * len(addresses))(*addresses)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(ctypes.addressof(packed))


def _load(data: bytes, symbols: ObjectSymbols) -> Any:
    """Load an object with every undefined name bound; returns the engine that owns the code."""
    if platform.machine().lower() not in MACHINES.get(symbols.machine, ()):
        raise HostError(f"the host object is for ELF machine {symbols.machine}, this process is {platform.machine()}")
    addresses = resolve(symbols.undefined - _PROVIDED_BY_LOADER)
    llvm = _llvm()
    for name, address in addresses.items():
        llvm.add_symbol(name, address)
    target = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return engine


@lru_cache(maxsize=1)
def _llvm() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise HostError("running host code needs llvmlite: pip install llvmlite") from None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def resolve(names: frozenset[str] | set[str]) -> dict[str, int]:
    """Addresses for every name.

    Raises:
        HostError: lists the names that nothing here provides, and what they are for where that is known.
    """
    addresses = {name: _address(name) for name in names}
    missing = sorted(name for name, address in addresses.items() if address is None)
    if missing:
        described = ", ".join(f"{name} ({_purpose(name)})" for name in missing)
        raise HostError(f"the host code calls functions that cannot run on a CPU: {described}")
    return {name: address for name, address in addresses.items() if address is not None}


def _address(name: str) -> int | None:
    if name.startswith("TVMFFI"):
        return _library_address(_tvm_ffi_library(), name)
    if name in _C_LIBRARY:
        return _library_address(ctypes.CDLL(None), name) or _library_address(ctypes.CDLL("libm.so.6"), name)
    if name == "CuteDSLRT_TVMFFISetRaisedCudaError":
        return _tvm_ffi_error_address()
    return driver.callback_address(name)


def _library_address(library: ctypes.CDLL, name: str) -> int | None:
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@lru_cache(maxsize=1)
def _tvm_ffi_library() -> ctypes.CDLL:
    import tvm_ffi.libinfo

    return ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())


@lru_cache(maxsize=1)
def _tvm_ffi_error_callback() -> Any:
    raise_error = _tvm_ffi_library().TVMFFIErrorSetRaisedFromCStr
    raise_error.argtypes, raise_error.restype = [ctypes.c_char_p, ctypes.c_char_p], None

    def set_raised(_: int, code: int) -> None:
        raise_error(b"RuntimeError", f"CUDA error {code}".encode())

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(set_raised)


def _tvm_ffi_error_address() -> int | None:
    return ctypes.cast(_tvm_ffi_error_callback(), ctypes.c_void_p).value


def _purpose(name: str) -> str:
    known = [text for part, text in _PURPOSES.items() if part in name]
    return known[0] if known else "unknown function"

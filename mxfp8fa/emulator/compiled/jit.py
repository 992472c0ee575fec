"""Machine code from LLVM IR, by llvmlite: parse, generate an object, load it.

The host's own instruction set is used. Two features are required because without them LLVM calls library functions that
need not exist: FMA (fma.rn in one instruction) and F16C (conversions of f16).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

REQUIRED_FEATURES = ("fma", "f16c", "avx2")
_LOCK = threading.Lock()


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether machine code can be made here: llvmlite is installed and the processor is one we generate code for."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    if not llvm.get_process_triple().startswith("x86_64"):
        return False
    features = llvm.get_host_cpu_features()
    return all(features.get(name, False) for name in REQUIRED_FEATURES)


@lru_cache(maxsize=1)
def wide_vectors() -> bool:
    """Whether vectors of 512 bits are one register here (AVX-512)."""
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get("avx512f", False))


class Jit:
    """Compiles modules and keeps them loaded."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        self._llvm = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        self._machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1, jit=True
        )
        empty = llvm.parse_assembly("")
        empty.triple = self._machine.triple
        self._engine: Any = llvm.create_mcjit_compiler(empty, self._machine)

    def compile(self, functions: Iterable[str], declarations: Iterable[str]) -> bytes:
        """The object file of a module."""
        text = "\n".join([*sorted(set(declarations)), *functions])
        module = self._llvm.parse_assembly(text)
        module.triple = self._machine.triple
        module.data_layout = str(self._machine.target_data)
        module.verify()
        return self._machine.emit_object(module)

    def load(self, data: bytes, names: Sequence[str]) -> list[int]:
        """Addresses of functions of an object file, which stays loaded."""
        self._engine.add_object_file(self._llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()
        return [self._engine.get_function_address(name) for name in names]


@lru_cache(maxsize=1)
def the_jit() -> Jit:
    """The compiler of this process."""
    with _LOCK:
        return Jit()

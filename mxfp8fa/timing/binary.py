"""Device code of a compiled CuTe DSL function: the cubin that ships, disassembled.

A cubin compiled with line information (`--generate-line-info`) carries a second line table, of the PTX text it was made
from; `nvdisasm --print-line-info-ptx` prints it. A cubin without one is made again from its PTX by ptxas with -lineinfo:
a twin, whose opcodes are compared with those of the one that ships.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mxfp8fa.emulator.host import ptx_of
from mxfp8fa.timing.sass import Function, parse_sass

GPU_ARCH = "sm_100a"
_PACKAGES = {"nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump", "ptxas": "nvidia-cuda-nvcc"}
_ELF_MAGIC = b"\x7fELF\x02\x01"
_ELF_MACHINE = 18  # offset of e_machine
_CUDA_MACHINE = 190  # EM_CUDA
_TIMEOUT_S = 120


class ToolError(RuntimeError):
    """A program that is needed is missing, or refused its input."""


@dataclass(frozen=True)
class Resources:
    """What `cuobjdump --dump-resource-usage` says of a kernel.

    Attributes:
        registers: per thread, at launch.
        stack_bytes: per thread.
        shared_bytes: static shared memory.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Binary:
    """The device code of one kernel.

    Attributes:
        kernel: name of the entry point.
        function: its SASS.
        resources: registers and memory.
        ptx: the PTX it was made from.
        shipped: whether `function` is the SASS that ships; else it is that of the twin made by ptxas.
        differing: opcodes in which the twin differs from what ships, counted; 0 when `shipped`.
    """

    kernel: str
    function: Function
    resources: Resources
    ptx: str
    shipped: bool
    differing: int


@cache
def tool(name: str) -> str:
    """Path of nvdisasm, cuobjdump or ptxas: of the Python packages, else of a CUDA toolkit on the path.

    Raises:
        ToolError: it is in neither.
    """
    site = Path(sysconfig.get_path("purelib"))
    for candidate in sorted(site.glob(f"nvidia/*/bin/{name}")):
        return str(candidate)
    found = shutil.which(name)
    if found is None:
        raise ToolError(f"{name} is not installed. It is in the package {_PACKAGES[name]}: pip install 'mxfp8fa[timing]'")
    return found


def cubin_of(compiled: Any) -> bytes:
    """The cubin inside a compiled function's host object."""
    data: bytes = compiled.dump_to_object("mxfp8fa_timing")
    start = data.find(_ELF_MAGIC, 1)
    while start >= 0:
        if struct.unpack_from("<H", data, start + _ELF_MACHINE)[0] == _CUDA_MACHINE:
            return data[start : start + _elf_bytes(data, start)]
        start = data.find(_ELF_MAGIC, start + 1)
    raise ToolError(f"the object of {compiled.function_name} contains no cubin")


def _elf_bytes(data: bytes, start: int) -> int:
    """Length of a 64-bit ELF image: its header tables come last."""
    programs, sections = struct.unpack_from("<QQ", data, start + 32)
    program_bytes, program_count, section_bytes, section_count = struct.unpack_from("<HHHH", data, start + 54)
    return int(max(programs + program_bytes * program_count, sections + section_bytes * section_count))


def assemble(ptx: str, arch: str = GPU_ARCH) -> bytes:
    """A cubin from PTX by ptxas, with the PTX line table."""
    with tempfile.TemporaryDirectory(prefix="mxfp8fa-ptxas-") as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        _run(tool("ptxas"), f"-arch={arch}", "-lineinfo", str(source), "-o", str(target))
        return target.read_bytes()


def binaries_of(compiled: Any) -> dict[str, Binary]:
    """Every kernel of a compiled function, by name."""
    ptx, shipped = ptx_of(compiled), cubin_of(compiled)
    functions, resources = disassemble(shipped), resource_usage(shipped)
    if all(f.has_ptx_lines for f in functions.values()):
        return {name: Binary(name, f, resources[name], ptx, True, 0) for name, f in functions.items()}
    twins = disassemble(assemble(ptx))
    return {
        name: Binary(name, twins[name], resources[name], ptx, False, _differing(f, twins[name]))
        for name, f in functions.items()
    }


def _differing(shipped: Function, twin: Function) -> int:
    """Instructions of one that have no partner of the same opcode in the other."""
    a, b = (Counter(i.opcode for i in f.instructions) for f in (shipped, twin))
    return max((a - b).total(), (b - a).total())


def disassemble(cubin: bytes) -> dict[str, Function]:
    """SASS of every entry point of a cubin, with PTX lines and encodings."""
    with tempfile.TemporaryDirectory(prefix="mxfp8fa-sass-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return parse_sass(_run(tool("nvdisasm"), "-c", "-hex", "--print-line-info-ptx", str(path)))


def resource_usage(cubin: bytes) -> dict[str, Resources]:
    """Registers and memory of every entry point of a cubin."""
    with tempfile.TemporaryDirectory(prefix="mxfp8fa-sass-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = _run(tool("cuobjdump"), "--dump-resource-usage", str(path))
    found, name = {}, ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "Function":
            name = words[1].rstrip(":")
        elif name and line.strip().startswith("REG:"):
            values = dict(word.split(":") for word in words if word.count(":") == 1)
            found[name] = Resources(int(values["REG"]), int(values["STACK"]), int(values["SHARED"]))
            name = ""
    return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise ToolError(f"{Path(command[0]).name} failed ({done.returncode}): {done.stderr.strip()[:200]}")
    return done.stdout


def main_kernel(binaries: Sequence[Binary]) -> Binary:
    """The one with the most instructions, when a function launches several."""
    return max(binaries, key=lambda binary: len(binary.function.instructions))

"""The entry points of a PTX module: names, parameter sizes and launch bounds. A scan, not a parser.

The host side needs three things of the PTX before any instruction is looked at: how many bytes each kernel parameter
has (the launch call passes only addresses), which block and cluster shape the kernel insists on, and how much static
shared memory it declares. Source: PTX ISA, "Kernel and Function Directives", "Performance-Tuning Directives".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

Dim3 = tuple[int, int, int]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$%.]+)\s*(?:\((.*?)\))?([^{;]*)\{", re.DOTALL)
# What follows a state space: alignment, element bits, attributes (.ptr .global .align 16), name, number of elements.
_VARIABLE = r"\s+(?:\.align\s+(\d+)\s+)?\.[a-z]+?(\d+)(?:\s+\.\w+(?:\s+\d+)?)*\s+([\w$%]+)\s*(?:\[(\d*)\])?"
_PARAM = re.compile(r"\.param" + _VARIABLE)
_SHARED = re.compile(r"(\.extern\s+)?(?:\.(?:visible|weak)\s+)?\.shared" + _VARIABLE)


@dataclass(frozen=True)
class EntryParam:
    """One kernel parameter: its name, and where it lies in the parameter block (bytes)."""

    name: str
    size_bytes: int
    align_bytes: int
    offset_bytes: int


@dataclass(frozen=True)
class EntryPoint:
    """One kernel as its header declares it.

    Attributes:
        name: the kernel's symbol.
        params: parameters in order.
        required_block: `.reqntid`, or None.
        max_threads: product of `.maxntid`, or None.
        required_cluster: `.reqnctapercluster`, or None.
        static_smem_bytes: shared memory declared with a size, used by this kernel.
    """

    name: str
    params: tuple[EntryParam, ...]
    required_block: Dim3 | None
    max_threads: int | None
    required_cluster: Dim3 | None
    static_smem_bytes: int


@lru_cache(maxsize=64)
def scan_entries(ptx: str) -> dict[str, EntryPoint]:
    """Find every `.entry` of a PTX module by name."""
    text = _COMMENT.sub("", ptx)
    headers = list(_ENTRY.finditer(text))
    entries = {}
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        name, params, directives = header.group(1), header.group(2) or "", header.group(3)
        threads = _directive(directives, "maxntid")
        entries[name] = EntryPoint(
            name=name,
            params=_params(params),
            required_block=_directive(directives, "reqntid"),
            max_threads=None if threads is None else threads[0] * threads[1] * threads[2],
            required_cluster=_directive(directives, "reqnctapercluster"),
            static_smem_bytes=_static_smem_bytes(text[: headers[0].start()], body),
        )
    return entries


def _directive(text: str, name: str) -> Dim3 | None:
    """Read `.name x{, y{, z}}` of a kernel header; missing numbers are 1."""
    match = re.search(rf"\.{name}\s+(\d+(?:\s*,\s*\d+)*)", text)
    if match is None:
        return None
    numbers = [int(n) for n in match.group(1).split(",")] + [1, 1]
    return numbers[0], numbers[1], numbers[2]


def _params(text: str) -> tuple[EntryParam, ...]:
    params = []
    offset = 0
    for match in _PARAM.finditer(text):
        align, bits, name, count = match.groups()
        element_bytes = int(bits) // 8
        align_bytes = int(align) if align else element_bytes
        offset = -(-offset // align_bytes) * align_bytes
        params.append(EntryParam(name, element_bytes * int(count or 1), align_bytes, offset))
        offset += params[-1].size_bytes
    if len(params) != text.count(".param"):
        raise ValueError(f"cannot read the kernel parameter list {text.strip()!r}")
    return tuple(params)


def _static_smem_bytes(module: str, body: str) -> int:
    """Bytes of sized `.shared` variables that `body` declares, or that it names and the module declares."""
    total = 0
    used = set(re.findall(r"[\w$%]+", body))
    for text, everything in ((module, False), (body, True)):
        for extern, align, bits, name, count in _SHARED.findall(text):
            if extern or not (everything or name in used):
                continue
            element_bytes = int(bits) // 8
            align_bytes = int(align) if align else element_bytes
            total = -(-total // align_bytes) * align_bytes + element_bytes * int(count or 1)
    return total

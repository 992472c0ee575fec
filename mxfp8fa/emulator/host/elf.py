"""Which symbols a relocatable ELF object defines and which it needs. Source of the layout: System V ABI, ELF-64."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SHT_SYMTAB = 2
_SHN_UNDEF = 0
_SYMBOL = struct.Struct("<IBBHQQ")  # st_name, st_info, st_other, st_shndx, st_value, st_size
_SECTION = struct.Struct("<IIQQQQIIQQ")  # sh_name, sh_type, flags, addr, offset, size, link, info, align, entsize
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}  # e_machine -> names that platform.machine() uses


@dataclass(frozen=True)
class ObjectSymbols:
    """Names in an object's symbol table.

    Attributes:
        defined: names the object defines.
        undefined: names the loader has to supply.
        machine: e_machine of the ELF header.
    """

    defined: frozenset[str]
    undefined: frozenset[str]
    machine: int


def read_symbols(data: bytes) -> ObjectSymbols:
    """Read the symbol table of a little-endian 64-bit ELF object.

    Raises:
        ValueError: `data` is no such object, or has no symbol table.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"not a little-endian 64-bit ELF object: it starts with {data[:6]!r}")
    (machine,) = struct.unpack_from("<H", data, 18)
    (section_offset,) = struct.unpack_from("<Q", data, 40)
    section_size, section_count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, section_offset + i * section_size) for i in range(section_count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != _SHT_SYMTAB:
            continue
        strings = sections[link][4]
        for position in range(offset, offset + size, _SYMBOL.size):
            name_at, _, _, section, _, _ = _SYMBOL.unpack_from(data, position)
            name = _string(data, strings + name_at)
            if name:
                (undefined if section == _SHN_UNDEF else defined).add(name)
    if not defined:
        raise ValueError("the ELF object has no symbol table")
    return ObjectSymbols(frozenset(defined), frozenset(undefined), machine)


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()

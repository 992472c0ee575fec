"""Calls of the system functions that device code has: vprintf and __assertfail (CUDA C++ Programming Guide, "Formatted Output").

Device functions of the module (`.func` with a body) are not supported; the CuTe DSL inlines all of its own.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import Trap, UnsupportedInstruction
from mxfp8fa.emulator.isa.registry import define
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.binding import Step, guarded
from mxfp8fa.emulator.machine.warp import Warp, indices_of, lanes_of
from mxfp8fa.emulator.ptx import syntax

_SPECIFIER = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp]))")
_STRING_LIMIT_BYTES = 4096


@define("control", "call{.uni} d, a, b", section="9.7.12 call", not_modelled="device functions with a body")
@define("control", "call{.uni} a, b", section="9.7.12 call", not_modelled="device functions with a body")
def call(instruction: syntax.Instruction, program: Any, *, uni: bool = False) -> Step:
    """Call vprintf (prints to standard output, lanes in order) or __assertfail (ends the launch with its message)."""
    callee, arguments = instruction.operands[-2:]
    name = callee.name if isinstance(callee, syntax.Symbol) else str(callee)
    handlers = {"vprintf": _vprintf, "__assertfail": _assertfail}
    if name not in handlers or not isinstance(arguments, syntax.Arguments):
        raise UnsupportedInstruction(f"`{instruction}`: only vprintf and __assertfail can be called")
    places = [program.address_of(a) for a in arguments.items if isinstance(a, syntax.Symbol)]
    returned = instruction.operands[0]
    result = (
        program.address_of(returned.items[0])
        if len(instruction.operands) == 3 and isinstance(returned, syntax.Arguments)
        else None
    )
    handler = handlers[name]

    def step(warp: Warp, bits: int) -> None:
        count = handler(warp, bits, places)
        if result is not None:
            access.store(warp, bits, "generic", np.full(32, result, np.uint64), [(count, None)])

    return step if instruction.guard is None else guarded(step, instruction.guard)


def _word(warp: Warp, lane: int, address: int, size: int) -> int:
    """One little-endian word at a generic address, as lane sees it."""
    ((value, shadow),) = access.load(warp, 1 << lane, "generic", np.full(32, address, np.uint64), size)
    access.refuse_poison(shadow, np.array([lane]), "a printed or asserted value")
    return int(value[lane])


def _string(warp: Warp, lane: int, address: int) -> str:
    text = bytearray()
    while len(text) < _STRING_LIMIT_BYTES:
        byte = _word(warp, lane, address + len(text), 1)
        if byte == 0:
            break
        text.append(byte)
    return text.decode("utf-8", "replace")


def _vprintf(warp: Warp, bits: int, places: list[int]) -> np.ndarray:
    printed = np.zeros(32, np.uint32)
    for lane in indices_of(bits):
        form = _string(warp, int(lane), _word(warp, int(lane), places[0], 8))
        text, count = _format(warp, int(lane), form, _word(warp, int(lane), places[1], 8))
        printed[lane] = count
        warp.machine.write(text)
    return np.where(lanes_of(bits), printed, 0).astype(np.uint32)


def _format(warp: Warp, lane: int, form: str, arguments: int) -> tuple[str, int]:
    """The formatted text and the number of arguments; each is aligned to its own size in the argument buffer."""
    offset, count, pieces, end = 0, 0, [], 0
    for match in _SPECIFIER.finditer(form):
        pieces.append(form[end : match.start()])
        end = match.end()
        kind = match["kind"]
        if kind is None:
            pieces.append("%")
            continue
        size = 8 if kind in "eEfFgGaAsp" or match["length"] in ("l", "ll", "j", "z", "t") else 4
        offset = -(-offset // size) * size
        pieces.append(_one(warp, lane, match, _word(warp, lane, arguments + offset, size), size))
        offset, count = offset + size, count + 1
    pieces.append(form[end:])
    return "".join(pieces), count


def _one(warp: Warp, lane: int, match: re.Match[str], raw: int, size: int) -> str:
    kind, spec = match["kind"], match[0].replace(match["length"] or "", "", 1) if match["length"] else match[0]
    if kind in "eEfFgG":
        return spec % struct.unpack("<d", raw.to_bytes(8, "little"))[0]
    if kind in "aA":
        return struct.unpack("<d", raw.to_bytes(8, "little"))[0].hex()
    if kind == "s":
        return spec % _string(warp, lane, raw)
    if kind == "p":
        return f"{raw:#x}"
    if kind == "c":
        return spec % chr(raw & 0xFF)
    width = {"hh": 8, "h": 16}.get(match["length"] or "", 8 * size)
    raw &= (1 << width) - 1
    signed = raw - (1 << width) if kind in "di" and raw >> (width - 1) else raw
    return (spec[:-1] + ("d" if kind in "diu" else kind)) % signed


def _assertfail(warp: Warp, bits: int, places: list[int]) -> np.ndarray:
    lane = int(indices_of(bits)[0])
    message, file, line = (_word(warp, lane, places[i], size) for i, size in ((0, 8), (1, 8), (2, 4)))
    raise Trap(f"assertion failed: {_string(warp, lane, message)} ({_string(warp, lane, file)}:{line})", lane=lane)

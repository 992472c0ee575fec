"""SASS as nvdisasm prints it: instructions with their PTX lines and the control bits of their encodings.

Positions of the control bits (bits 105 to 121 of the 128) are those that NVIDIA's encodings have had since Volta; on
sm_100 they are inferred, and tests/timing/test_sass.py checks them on known latencies. NVIDIA documents none of this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

INSTRUCTION_BYTES = 16
NO_BARRIER = 7

_LINE = re.compile(r'//## File "\.nv_debug_ptx_txt", line (\d+)')
_ENTRY = re.compile(r"^\s*\.section\s+\.text\.([\w$.]+),")
_LABEL = re.compile(r"^(\.L_x_\d+|[\w$]+):\s*$")
_CODE = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*(?:;|)\s*/\* 0x([0-9a-f]{16}) \*/"
)
_HIGH = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_TABLE = re.compile(r"BRANCH_TARGETS ([^\"]+)")


@dataclass(frozen=True)
class Control:
    """What the compiler tells the scheduler.

    Attributes:
        stall: cycles until the warp's next instruction may issue.
        write_barrier, read_barrier: scoreboard (0 to 5) released when the result is written, when the operands are
            read; 7: none.
        wait: scoreboards, one bit each, that must be released before this instruction issues.
    """

    stall: int
    write_barrier: int
    read_barrier: int
    wait: int

    @classmethod
    def of(cls, high: int) -> Control:
        """From the upper 64 bits of an encoding."""
        bits = high >> 41
        return cls(bits & 15, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63)


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction.

    Attributes:
        address: in bytes, from the start of the function.
        guard: predicate, "" for none: "P0", "!UP4".
        opcode: with its modifiers: "MUFU.EX2".
        operands: as printed.
        ptx_line: 0 when the line table names none.
        control: scheduling bits.
        targets: addresses that it may jump to.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    ptx_line: int
    control: Control
    targets: tuple[int, ...] = ()

    @property
    def mnemonic(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> list[str]:
        """What follows the mnemonic."""
        return self.opcode.split(".")[1:]

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow."""
        return bool(self.guard) or self.mnemonic not in ("EXIT", "BRA", "BRX", "RET", "BPT", "JMX") or self._is_uniform

    @property
    def _is_uniform(self) -> bool:
        """BRA.U has its predicate among its operands."""
        return self.mnemonic == "BRA" and re.match(r"!?U?P\d", self.operands) is not None


@dataclass(frozen=True)
class Function:
    """The SASS of one entry point.

    Attributes:
        name: of the entry point.
        instructions: by address.
    """

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def index(self) -> dict[int, int]:
        """Address -> position."""
        return {instruction.address: i for i, instruction in enumerate(self.instructions)}

    @property
    def has_ptx_lines(self) -> bool:
        """Whether the line table was there."""
        return any(i.ptx_line for i in self.instructions)


@dataclass
class _Raw:
    address: int
    guard: str
    opcode: str
    operands: str
    ptx_line: int
    high: int = 0


def parse_sass(text: str) -> dict[str, Function]:
    """Entry points in the output of `nvdisasm -c -hex --print-line-info-ptx`."""
    functions: dict[str, Function] = {}
    name, line = "", 0
    raws: list[_Raw] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    for row in text.splitlines():
        if (entry := _ENTRY.match(row)) is not None:
            if raws:
                functions[name] = _function(name, raws, labels)
            name, line, raws, labels, pending = entry[1], 0, [], {}, []
        elif (code := _CODE.match(row)) is not None:
            raws.append(_Raw(int(code[1], 16), code[2] or "", code[3], code[4], line))
            labels |= dict.fromkeys(pending, raws[-1].address)
            pending = []
        elif (high := _HIGH.match(row)) is not None and raws:
            raws[-1].high = int(high[1], 16)
        elif (place := _LINE.search(row)) is not None:
            line = int(place[1])
        elif (label := _LABEL.match(row)) is not None:
            pending.append(label[1])
    if raws:
        functions[name] = _function(name, raws, labels)
    return functions


def _function(name: str, raws: list[_Raw], labels: dict[str, int]) -> Function:
    return Function(
        name,
        tuple(
            Instruction(r.address, r.guard, r.opcode, r.operands, r.ptx_line, Control.of(r.high), _targets(r, labels))
            for r in raws
        ),
    )


def _targets(raw: _Raw, labels: dict[str, int]) -> tuple[int, ...]:
    mnemonic = raw.opcode.partition(".")[0]
    if mnemonic not in ("BRA", "BRX", "CALL", "JMX"):  # BSSY only says where threads will meet
        return ()
    table = _TABLE.search(raw.operands)
    named = table[1].split(",") if table else _TARGET.findall(raw.operands)
    return tuple(labels[label] for label in dict.fromkeys(named) if label in labels)

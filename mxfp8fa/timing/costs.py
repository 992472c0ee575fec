"""What each SASS instruction costs: the units it occupies, its latency, and what the compiler says about waiting for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from mxfp8fa.timing.facts import columns_of
from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.sass import NO_BARRIER, Instruction
from mxfp8fa.timing.units import Unit, unit_of

LANES = 32
SHARED_ACCESSES = ("LDS", "STS", "LDSM", "STSM", "ATOMS")


class Pipe(IntEnum):
    """A unit that instructions queue for: those of a scheduler, then those of the SM."""

    FMA = 0
    IMAD = 1
    ALU = 2
    CONVERT = 3
    UNIFORM = 4
    MUFU = 5
    TMEM_LOAD = 6
    TMEM_STORE = 7
    SMEM = 8


SCHEDULER_PIPES, QUEUED = 8, (Pipe.MUFU, Pipe.TMEM_LOAD, Pipe.TMEM_STORE, Pipe.SMEM)
QUEUE_CYCLES = 32  # a warp goes on until this much work waits in front of a queued unit


@dataclass(frozen=True)
class Cost:
    """One instruction.

    Attributes:
        pipes: (unit, cycles) that it occupies.
        latency: cycles from leaving the units to its result, where a scoreboard waits for it.
        stall: cycles to the warp's next instruction.
        write, read: scoreboards that its result and its operands release; 7: none.
        wait: mask of scoreboards to wait for.
        read_latency: cycles until its operands are read.
        jumps: whether it may leave the straight line.
    """

    pipes: tuple[tuple[Pipe, float], ...]
    latency: float
    stall: int
    write: int
    read: int
    wait: int
    read_latency: float
    jumps: bool


_FIXED = {Unit.FMA: Pipe.FMA, Unit.ALU: Pipe.ALU, Unit.CONVERT: Pipe.CONVERT, Unit.UNIFORM: Pipe.UNIFORM}


def cost_of(instruction: Instruction, rates: Rates, wavefronts: float | None = None) -> Cost:
    """Look an instruction up in the table of rates.

    Args:
        instruction: to look up.
        rates: the table.
        wavefronts: cycles of the shared memory port that an access needed in the emulated run, if that is known.
    """
    pipes, latency = _occupation(instruction, rates)
    if wavefronts is not None and instruction.mnemonic in SHARED_ACCESSES:
        pipes = ((Pipe.SMEM, wavefronts),)
    control = instruction.control
    return Cost(
        pipes, latency, max(control.stall, 1), control.write_barrier, control.read_barrier, control.wait,
        rates["operand_read"], bool(instruction.targets),
    )  # fmt: skip


def _occupation(i: Instruction, rates: Rates) -> tuple[tuple[tuple[Pipe, float], ...], float]:
    name, unit, other = i.mnemonic, unit_of(i), rates["other_latency"]
    if unit is Unit.FMA:
        if name in ("FFMA2", "FMUL2", "FADD2"):
            return ((Pipe.FMA, rates["fma2"]),), other
        if name.startswith("F"):
            return ((Pipe.FMA, rates["fma"]),), other
        return ((Pipe.FMA, rates["fma"]), (Pipe.IMAD, rates["imad"])), other
    if unit is Unit.ALU:
        key = {"FMNMX": "fmnmx", "FMNMX3": "fmnmx3"}.get(name, "alu")
        return ((Pipe.ALU, rates[key]),), other
    if unit is Unit.MUFU:
        return ((Pipe.MUFU, rates["mufu"]),), rates["mufu_latency"]
    if unit is Unit.CONVERT:
        return ((Pipe.CONVERT, rates[_conversion(i)]),), rates["f2fp_latency"]
    if unit is Unit.UNIFORM:
        return ((Pipe.UNIFORM, rates["uniform"]),), other
    if unit is Unit.TMEM:
        load = name.startswith("LD")
        cycles = columns_of(i) * rates["ldtm" if load else "sttm"]
        return ((Pipe.TMEM_LOAD if load else Pipe.TMEM_STORE, cycles),), rates["ldtm_latency" if load else "sttm_latency"]
    if unit is Unit.LSU:
        return _memory(i, rates)
    return (), rates["fence"] if name in ("FENCE", "MEMBAR") else other


def _conversion(i: Instruction) -> str:
    """Name of the rate of a conversion."""
    if i.mnemonic == "F2IP":
        return "f2ip"
    if i.mnemonic == "F2FP" and re.search(r"E4M3|E5M2|E2M|E3M", i.opcode) is None:
        return "f2fp_16"
    return "unpack_8" if "UNPACK" in i.opcode else "f2fp_8"


def _memory(i: Instruction, rates: Rates) -> tuple[tuple[tuple[Pipe, float], ...], float]:
    name = i.mnemonic
    if name in ("SHFL", "REDUX", "CREDUX", "MATCH"):
        return ((Pipe.SMEM, rates["shfl"]),), rates["shfl_latency"]
    if name in ("LDC", "CCTL", "QSPC"):
        return (), rates["other_latency"]
    width = next((int(m) for m in i.modifiers if m in ("64", "128")), 32)
    cycles = LANES * width / 8 / rates["smem"]
    return ((Pipe.SMEM, cycles),), rates["lds_latency" if name in SHARED_ACCESSES else "global_latency"]


def has_scoreboard(cost: Cost) -> bool:
    """Whether someone may wait for the result by scoreboard."""
    return cost.write != NO_BARRIER

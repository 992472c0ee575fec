"""Fixed compiled functions: the dispatcher that runs a warp from node to node, and branches.

Compiled once per process; everything particular to a kernel is in its nodes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache, lru_cache

from mxfp8fa.emulator.compiled import barriers, memory, multiply
from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.jit import the_jit
from mxfp8fa.emulator.compiled.state import NODE_WORDS, REFUSED, NodeField, State


class Stop(IntEnum):
    """Why the dispatcher came back."""

    STEP = 0  # the instruction at PC is Python's
    TURN = 1  # the turn is over
    GROUP = 2  # another group of the warp is met, or comes first


def _field(name: str, record: str, field: IntEnum) -> str:
    return f"  {name} = getelementptr i64, ptr {record}, i64 {int(field)}"


RUN = f"""
define i64 @run(ptr %state) {{
entry:
{_field("%nodes.at", "%state", State.NODES)}
  %nodes = load ptr, ptr %nodes.at
{_field("%pc.at", "%state", State.PC)}
  %pc.first = load i64, ptr %pc.at
{_field("%left.at", "%state", State.LEFT)}
  %left.first = load i64, ptr %left.at
{_field("%stops.at", "%state", State.STOPS)}
  %stops = load i64, ptr %stops.at
  %alone = icmp eq i64 %stops, 0
{_field("%from.at", "%state", State.STOP_FROM)}
  %from = load i64, ptr %from.at
{_field("%list", "%state", State.STOP_AT)}
  br label %loop
loop:
  %pc = phi i64 [ %pc.first, %entry ], [ %next, %ran ]
  %left = phi i64 [ %left.first, %entry ], [ %left.next, %ran ]
  br i1 %alone, label %here, label %groups
groups:
  %past = icmp sge i64 %pc, %from
  br i1 %past, label %group, label %each
each:
  %k = phi i64 [ 0, %groups ], [ %k.next, %other ]
  %stop.at = getelementptr i64, ptr %list, i64 %k
  %stop = load i64, ptr %stop.at
  %met = icmp eq i64 %stop, %pc
  br i1 %met, label %group, label %other
other:
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %stops
  br i1 %more, label %each, label %here
here:
  %index = mul i64 %pc, {NODE_WORDS}
  %node = getelementptr i64, ptr %nodes, i64 %index
  %function = load ptr, ptr %node
  %none = icmp eq ptr %function, null
  br i1 %none, label %step, label %turn
turn:
{_field("%turn.at", "%node", NodeField.TURN)}
  %turn.word = load i64, ptr %turn.at
  %may.end = icmp ne i64 %turn.word, 0
  %spent = icmp sle i64 %left, 0
  %over = and i1 %may.end, %spent
  br i1 %over, label %ended, label %go
go:
  %next = call i64 %function(ptr %state, ptr %node)
  %refused = icmp eq i64 %next, {REFUSED}
  br i1 %refused, label %step, label %ran
ran:
{_field("%runs.at", "%node", NodeField.RUNS)}
  %runs = load i64, ptr %runs.at
  %runs.next = add i64 %runs, 1
  store i64 %runs.next, ptr %runs.at
{_field("%count.at", "%node", NodeField.COUNT)}
  %count = load i64, ptr %count.at
  %left.next = sub i64 %left, %count
  br label %loop
step:
  br label %leave
ended:
  br label %leave
group:
  br label %leave
leave:
  %why = phi i64 [ {int(Stop.STEP)}, %step ], [ {int(Stop.TURN)}, %ended ], [ {int(Stop.GROUP)}, %group ]
  store i64 %pc, ptr %pc.at
  store i64 %left, ptr %left.at
  ret i64 %why
}}
"""

JUMP = f"""
define i64 @jump(ptr %state, ptr %node) {{
{_field("%a.at", "%node", NodeField.TARGET)}
  %a = load i64, ptr %a.at
  ret i64 %a
}}
"""

BRANCH = f"""
define i64 @branch(ptr %state, ptr %node) {{
entry:
  %registers = load ptr, ptr %state
{_field("%poison.at", "%state", State.POISON)}
  %poison = load ptr, ptr %poison.at
{_field("%mask.at", "%state", State.MASK)}
  %mask.word = load i64, ptr %mask.at
  %mask = trunc i64 %mask.word to i32
{_field("%b.at", "%node", NodeField.GUARD)}
  %b = load i64, ptr %b.at
  %bad.at = getelementptr i32, ptr %poison, i64 %b
  %bad = load i32, ptr %bad.at
  %bad.here = and i32 %bad, %mask
  %clean = icmp eq i32 %bad.here, 0
  br i1 %clean, label %test, label %refused
test:
{_field("%c.at", "%node", NodeField.GUARD_ROW)}
  %c = load i64, ptr %c.at
  %row = getelementptr i8, ptr %registers, i64 %c
  %lanes = load <32 x i8>, ptr %row, align 32
  %true = icmp ne <32 x i8> %lanes, zeroinitializer
  %word = bitcast <32 x i1> %true to i32
{_field("%d.at", "%node", NodeField.NEGATED)}
  %d = load i64, ptr %d.at
  %flip = trunc i64 %d to i32
  %flips = sub i32 0, %flip
  %holds = xor i32 %word, %flips
  %taken = and i32 %holds, %mask
  %nobody = icmp eq i32 %taken, 0
  br i1 %nobody, label %through, label %somebody
somebody:
  %all = icmp eq i32 %taken, %mask
  br i1 %all, label %target, label %refused
target:
{_field("%a.at", "%node", NodeField.TARGET)}
  %a = load i64, ptr %a.at
  ret i64 %a
through:
{_field("%next.at", "%node", NodeField.NEXT)}
  %next = load i64, ptr %next.at
  ret i64 %next
refused:
  ret i64 {REFUSED}
}}
"""

@lru_cache(maxsize=1)
def dispatcher() -> Callable[[int], int]:
    """run(address of a state) -> Stop."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address("run"))


_MEMORY = {"load_shared": memory.load_shared, "store_shared": memory.store_shared}
_MEMORY |= {"load_global": memory.load_global, "store_global": memory.store_global}
_SINGLE = {"pass_by": memory.pass_by, "wait_tensor": memory.wait_tensor, "warp_sync": barriers.warp_sync}
_BY_NUMBER: dict[str, Callable[[int], FunctionWriter]] = {"wait_parity": barriers.wait_parity, "arrive": barriers.arrive}
_BY_NUMBER |= {"commit": barriers.commit, "multiply": multiply.multiply}
_BY_NUMBER |= {"load_tensor": memory.load_tensor, "store_tensor": memory.store_tensor}


def _text(name: str) -> tuple[str, set[str]]:
    """IR and declarations of a runtime function."""
    if name in ("run", "jump", "branch"):
        return {"run": RUN, "jump": JUMP, "branch": BRANCH}[name], set()
    if name in _SINGLE:
        writer = _SINGLE[name]()
    elif name.startswith("load_parameter"):
        writer = memory.load_parameter(*map(int, name.split("_")[2:]))
    else:
        base, number = name.rsplit("_", 1)
        if base in _BY_NUMBER:
            writer = _BY_NUMBER[base](int(number))
        else:
            base, *sizes = name.rsplit("_", 2)
            writer = _MEMORY[base](*map(int, sizes))
    return writer.body, writer.declarations


@cache
def address(name: str) -> int:
    """The address of a runtime function, compiled on first use: "branch", "load_shared_4_32", ..."""
    text, declarations = _text(name)
    jit = the_jit()
    return jit.load(jit.compile([text], declarations), [name])[0]

"""Fixed compiled functions: the scheduler, the dispatcher that runs a warp from node to node, and branches.

Compiled once per process; everything particular to a kernel is in its nodes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache, lru_cache

from mxfp8fa.emulator.compiled import barriers, copies, memory, multiply
from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.jit import the_jit
from mxfp8fa.emulator.compiled.state import NEVER, NODE_WORDS, REFUSED, Mode, NodeField, Schedule, State


class Stop(IntEnum):
    """Why the dispatcher came back."""

    STEP = 0  # the instruction at PC is Python's
    TURN = 1  # the turn is over
    GROUP = 2  # of a warp whose groups are apart: another one is met, or comes first
    BLOCKED = 3  # the warp waits


class Verdict(IntEnum):
    """What the scheduler says when it comes back, beside index of a warp << 4 | Stop."""

    IDLE = -1  # no warp can run
    LIMIT = -2  # the turns that it was given are over


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
{_field("%apart.at", "%state", State.APART)}
{_field("%from.at", "%state", State.STOP_FROM)}
{_field("%list", "%state", State.STOP_AT)}
  br label %loop
loop:
  %pc = phi i64 [ %pc.first, %entry ], [ %next, %ran ], [ %pc.chosen, %choose ]
  %left = phi i64 [ %left.first, %entry ], [ %left.next, %ran ], [ %left, %choose ]
  %stops = load i64, ptr %stops.at
  %alone = icmp eq i64 %stops, 0
  br i1 %alone, label %here, label %groups
groups:
  %from = load i64, ptr %from.at
  %past = icmp sge i64 %pc, %from
  %apart.word = load i64, ptr %apart.at
  %apart = icmp ne i64 %apart.word, 0
  br i1 %apart, label %strangers, label %friends
friends:
  br i1 %past, label %choose, label %here
choose:
  %pc.chosen = call i64 @choose(ptr %state, i64 %pc)
  br label %loop
strangers:
  br i1 %past, label %group, label %each
each:
  %k = phi i64 [ 0, %strangers ], [ %k.next, %other ]
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
{_field("%turn.at", "%node", NodeField.TURN)}
  %turn.word = load i64, ptr %turn.at
  %may.end = icmp ne i64 %turn.word, 0
  %spent = icmp sle i64 %left, 0
  %over = and i1 %may.end, %spent
  br i1 %over, label %ended, label %turn
turn:
  %none = icmp eq ptr %function, null
  br i1 %none, label %step, label %go
go:
  %next = call i64 %function(ptr %state, ptr %node)
  %kept = icmp sge i64 %next, 0
  br i1 %kept, label %ran, label %not
ran:
{_field("%runs.at", "%node", NodeField.RUNS)}
  %runs = load i64, ptr %runs.at
  %runs.next = add i64 %runs, 1
  store i64 %runs.next, ptr %runs.at
{_field("%count.at", "%node", NodeField.COUNT)}
  %count = load i64, ptr %count.at
  %left.next = sub i64 %left, %count
  br label %loop
not:
  %refused = icmp eq i64 %next, {REFUSED}
  br i1 %refused, label %step, label %blocked
blocked:
  %left.blocked = sub i64 %left, 1
  br label %leave
step:
  br label %leave
ended:
  br label %leave
group:
  br label %leave
leave:
  %why = phi i64 [ {Stop.STEP:d}, %step ], [ {Stop.TURN:d}, %ended ], [ {Stop.GROUP:d}, %group ], [ {Stop.BLOCKED:d}, %blocked ]
  %left.last = phi i64 [ %left, %step ], [ %left, %ended ], [ %left, %group ], [ %left.blocked, %blocked ]
  store i64 %pc, ptr %pc.at
  store i64 %left.last, ptr %left.at
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
  br i1 %all, label %target, label %some
some:
{_field("%apart.at", "%state", State.APART)}
  %apart = load i64, ptr %apart.at
  %together = icmp eq i64 %apart, 0
  br i1 %together, label %diverge, label %refused
diverge:
{_field("%there.at", "%node", NodeField.TARGET)}
  %there = load i64, ptr %there.at
{_field("%beside.at", "%node", NodeField.NEXT)}
  %beside = load i64, ptr %beside.at
  %rest = xor i32 %taken, %mask
  %rest.word = zext i32 %rest to i64
  %taken.word = zext i32 %taken to i64
  store i64 %taken.word, ptr %mask.at
  call void @leave_behind(ptr %state, i64 %beside, i64 %rest.word)
  %chosen = call i64 @choose(ptr %state, i64 %there)
  ret i64 %chosen
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

# The groups of a warp of which none waits: the one with the lowest program counter runs, those that meet become one.
GROUPS = f"""
define void @leave_behind(ptr %state, i64 %pc, i64 %lanes) {{
entry:
{_field("%stops.at", "%state", State.STOPS)}
{_field("%from.at", "%state", State.STOP_FROM)}
{_field("%pcs", "%state", State.STOP_AT)}
{_field("%masks", "%state", State.STOP_LANES)}
  %stops = load i64, ptr %stops.at
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %on ]
  %more = icmp slt i64 %k, %stops
  br i1 %more, label %look, label %new
look:
  %at = getelementptr i64, ptr %pcs, i64 %k
  %there = load i64, ptr %at
  %k.next = add i64 %k, 1
  %met = icmp eq i64 %there, %pc
  br i1 %met, label %join, label %on
on:
  br label %loop
join:
  %mask.at = getelementptr i64, ptr %masks, i64 %k
  %mask = load i64, ptr %mask.at
  %both = or i64 %mask, %lanes
  store i64 %both, ptr %mask.at
  ret void
new:
  %new.at = getelementptr i64, ptr %pcs, i64 %stops
  store i64 %pc, ptr %new.at
  %new.mask = getelementptr i64, ptr %masks, i64 %stops
  store i64 %lanes, ptr %new.mask
  %none = icmp eq i64 %stops, 0
  %from = load i64, ptr %from.at
  %first = icmp slt i64 %pc, %from
  %lower = or i1 %none, %first
  %from.next = select i1 %lower, i64 %pc, i64 %from
  store i64 %from.next, ptr %from.at
  %stops.next = add i64 %stops, 1
  store i64 %stops.next, ptr %stops.at
  ret void
}}

define i64 @choose(ptr %state, i64 %pc) {{
entry:
{_field("%stops.at", "%state", State.STOPS)}
{_field("%from.at", "%state", State.STOP_FROM)}
{_field("%mask.at", "%state", State.MASK)}
{_field("%pcs", "%state", State.STOP_AT)}
{_field("%masks", "%state", State.STOP_LANES)}
  %stops = load i64, ptr %stops.at
  %from = load i64, ptr %from.at
  %before = icmp slt i64 %pc, %from
  br i1 %before, label %stay, label %find
stay:
  ret i64 %pc
find:
  %k = phi i64 [ 0, %entry ], [ %k.next, %find ]
  %at = getelementptr i64, ptr %pcs, i64 %k
  %there = load i64, ptr %at
  %k.next = add i64 %k, 1
  %met = icmp eq i64 %there, %from
  br i1 %met, label %take, label %find
take:
  %their.at = getelementptr i64, ptr %masks, i64 %k
  %theirs = load i64, ptr %their.at
  %mine = load i64, ptr %mask.at
  %last = sub i64 %stops, 1
  %last.at = getelementptr i64, ptr %pcs, i64 %last
  %last.pc = load i64, ptr %last.at
  store i64 %last.pc, ptr %at
  %last.mask.at = getelementptr i64, ptr %masks, i64 %last
  %last.mask = load i64, ptr %last.mask.at
  store i64 %last.mask, ptr %their.at
  store i64 %last, ptr %stops.at
  br label %lowest
lowest:
  %j = phi i64 [ 0, %take ], [ %j.next, %see ]
  %low = phi i64 [ {NEVER}, %take ], [ %low.next, %see ]
  %rest = icmp slt i64 %j, %last
  br i1 %rest, label %see, label %found
see:
  %j.at = getelementptr i64, ptr %pcs, i64 %j
  %j.pc = load i64, ptr %j.at
  %less = icmp slt i64 %j.pc, %low
  %low.next = select i1 %less, i64 %j.pc, i64 %low
  %j.next = add i64 %j, 1
  br label %lowest
found:
  store i64 %low, ptr %from.at
  %same = icmp eq i64 %pc, %from
  br i1 %same, label %merge, label %swap
merge:
  %both = or i64 %mine, %theirs
  store i64 %both, ptr %mask.at
  ret i64 %pc
swap:
  store i64 %theirs, ptr %mask.at
  call void @leave_behind(ptr %state, i64 %pc, i64 %mine)
  ret i64 %from
}}
"""


SCHEDULE = f"""
define i64 @schedule(ptr %schedule) {{
entry:
{_field("%count.at", "%schedule", Schedule.COUNT)}
  %count = load i64, ptr %count.at
{_field("%warps.at", "%schedule", Schedule.WARPS)}
  %warps = load ptr, ptr %warps.at
{_field("%turn.at", "%schedule", Schedule.TURN)}
{_field("%epoch.at", "%schedule", Schedule.EPOCH)}
{_field("%limit.at", "%schedule", Schedule.LIMIT)}
{_field("%quantum.at", "%schedule", Schedule.QUANTUM)}
  %quantum = load i64, ptr %quantum.at
{_field("%instructions.at", "%schedule", Schedule.INSTRUCTIONS)}
{_field("%epoch.before.at", "%schedule", Schedule.BEFORE)}
{_field("%current.at", "%schedule", Schedule.CURRENT)}
  br label %loop
loop:
  %limit = load i64, ptr %limit.at
  %limit.next = sub i64 %limit, 1
  store i64 %limit.next, ptr %limit.at
  %enough = icmp sle i64 %limit, 0
  br i1 %enough, label %interrupted, label %all
interrupted:
  ret i64 {int(Verdict.LIMIT)}
all:
  %epoch = load i64, ptr %epoch.at
  br label %see
see:
  %i = phi i64 [ 0, %all ], [ %i.next, %seen ]
  %ready = phi i64 [ 0, %all ], [ %ready.next, %seen ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %seen, label %counted
seen:
  %i.at = getelementptr ptr, ptr %warps, i64 %i
  %i.state = load ptr, ptr %i.at
  %i.runs = call i64 @runnable(ptr %i.state, i64 %epoch)
  %ready.next = add i64 %ready, %i.runs
  %i.next = add i64 %i, 1
  br label %see
counted:
  %nobody = icmp eq i64 %ready, 0
  br i1 %nobody, label %idle, label %pick
idle:
  ret i64 {int(Verdict.IDLE)}
pick:
  %turn = load i64, ptr %turn.at
  %turn.next = add i64 %turn, 1
  store i64 %turn.next, ptr %turn.at
  %place = srem i64 %turn.next, %ready
  br label %seek
seek:
  %j = phi i64 [ 0, %pick ], [ %j.next, %sought ]
  %left = phi i64 [ %place, %pick ], [ %left.next, %sought ]
  %state.at = getelementptr ptr, ptr %warps, i64 %j
  %state = load ptr, ptr %state.at
  %runs = call i64 @runnable(ptr %state, i64 %epoch)
  %last = icmp eq i64 %left, 0
  %can = icmp ne i64 %runs, 0
  %this = and i1 %last, %can
  br i1 %this, label %start, label %sought
sought:
  %left.next = sub i64 %left, %runs
  %j.next = add i64 %j, 1
  br label %seek
start:
  store i64 %j, ptr %current.at
  store i64 %epoch, ptr %epoch.before.at
{_field("%its.left.at", "%state", State.LEFT)}
  store i64 %quantum, ptr %its.left.at
  %verdict.high = shl i64 %j, 4
{_field("%mode.at", "%state", State.MODE)}
  %mode = load i64, ptr %mode.at
  %python = icmp ne i64 %mode, {int(Mode.READY)}
  br i1 %python, label %hand.over, label %run
hand.over:
  %verdict.step = or i64 %verdict.high, {int(Stop.STEP)}
  ret i64 %verdict.step
run:
  %why = call i64 @run(ptr %state)
{_field("%its.epoch.at", "%state", State.EPOCH)}
  %its.epoch = load i64, ptr %its.epoch.at
  store i64 0, ptr %its.epoch.at
  %epoch.now = add i64 %epoch, %its.epoch
  store i64 %epoch.now, ptr %epoch.at
  %verdict = or i64 %verdict.high, %why
{_field("%stops.at", "%state", State.STOPS)}
  %stops = load i64, ptr %stops.at
  %single = icmp eq i64 %stops, 0
  %changed = icmp ne i64 %its.epoch, 0
  %quiet.end = and i1 %changed, %single
  %is.turn = icmp eq i64 %why, {int(Stop.TURN)}
  %turn.fine = and i1 %is.turn, %quiet.end
  %is.blocked = icmp eq i64 %why, {int(Stop.BLOCKED)}
  %fine = or i1 %turn.fine, %is.blocked
{_field("%woken.at", "%state", State.WOKEN)}
  %woken = load i64, ptr %woken.at
  %asleep = icmp eq i64 %woken, 0
  %go.on = and i1 %fine, %asleep
  br i1 %go.on, label %over, label %back
back:
  ret i64 %verdict
over:
  %left.now = load i64, ptr %its.left.at
  %spent = sub i64 %quantum, %left.now
  %instructions = load i64, ptr %instructions.at
  %instructions.next = add i64 %instructions, %spent
  store i64 %instructions.next, ptr %instructions.at
  br label %loop
}}

define internal i64 @runnable(ptr %state, i64 %epoch) {{
{_field("%blocked.at", "%state", State.BLOCKED)}
  %blocked = load i64, ptr %blocked.at
  %free = icmp eq i64 %blocked, 0
{_field("%mode.at", "%state", State.MODE)}
  %mode = load i64, ptr %mode.at
  %able = icmp ne i64 %mode, {int(Mode.WAITS)}
{_field("%spin.at", "%state", State.SPIN)}
  %spin = load i64, ptr %spin.at
  %moves = icmp ne i64 %spin, %epoch
  %a = and i1 %free, %able
  %b = and i1 %a, %moves
  %word = zext i1 %b to i64
  ret i64 %word
}}
"""

_SYSTEM = {"run": RUN, "jump": JUMP, "branch": BRANCH, "schedule": SCHEDULE}


@lru_cache(maxsize=1)
def scheduler() -> Callable[[int], int]:
    """schedule(address of a schedule) -> Verdict, or index of a warp << 4 | Stop."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address("schedule"))


@lru_cache(maxsize=1)
def dispatcher() -> Callable[[int], int]:
    """run(address of a state) -> Stop."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address("run"))


_MEMORY = {"load_shared": memory.load_shared, "store_shared": memory.store_shared}
_MEMORY |= {"load_global": memory.load_global, "store_global": memory.store_global}
_SINGLE = {"pass_by": memory.pass_by, "wait_tensor": memory.wait_tensor, "warp_sync": barriers.warp_sync}
_SINGLE |= {"load_bulk": copies.load_bulk, "copy_rows": copies.copy_rows}
_SINGLE |= {"bar_sync": barriers.bar_sync, "bar_arrive": barriers.bar_arrive}
_BY_NUMBER: dict[str, Callable[[int], FunctionWriter]] = {"wait_parity": barriers.wait_parity, "arrive": barriers.arrive}
_BY_NUMBER |= {"commit": barriers.commit, "multiply": multiply.multiply}
_BY_NUMBER |= {"load_box": copies.load_box}
_BY_NUMBER |= {"load_tensor": memory.load_tensor, "store_tensor": memory.store_tensor}


def _text(name: str) -> tuple[str, set[str]]:
    """IR and declarations of a runtime function."""
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


@lru_cache(maxsize=1)
def _system() -> dict[str, int]:
    """Addresses of the scheduler, the dispatcher and branches."""
    jit = the_jit()
    return dict(zip(_SYSTEM, jit.load(jit.compile([GROUPS, *_SYSTEM.values()], set()), list(_SYSTEM)), strict=True))


@cache
def address(name: str) -> int:
    """The address of a runtime function, compiled on first use: "branch", "load_shared_4_32", ..."""
    if name in _SYSTEM:
        return _system()[name]
    text, declarations = _text(name)
    jit = the_jit()
    return jit.load(jit.compile([text], declarations), [name])[0]

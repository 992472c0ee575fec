"""The records that compiled code and Python share: the state of a warp, the node of an entry point, the schedule.

All are rows of 64-bit integers. Compiled functions have one signature, ``next = f(state, node)``: the program counter
to go on with; REFUSED if nothing was done and the Python step has to do it; BLOCK if the warp waits for what BLOCKED and
KEY say, and then executes the same instruction again.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Words of a warp's state."""

    REGISTERS = 0  # address of the rows
    POISON = 1  # address of a word per register: lanes that hold poison
    PC = 2
    MASK = 3  # active lanes
    LEFT = 4  # instructions left of the turn
    LIVE = 5  # lanes that have not exited
    NODES = 6  # address of the node of instruction 0
    STOPS = 7  # how many other groups the warp has
    STOP_FROM = 8  # program counter from which another group comes first
    RANK = 9  # of the CTA in its cluster
    DIRECT = 10  # 1: memory may be accessed here, nobody observes
    EAGER = 11  # 1: asynchronous work completes at once
    EPOCH = 12  # grows with everything that others may see
    SHARED = 13  # shared memory of the CTA: address of offset 0
    SHARED_SHADOW = 14
    SHARED_END = 15  # first offset after it
    TENSOR = 16  # tensor memory of the CTA
    TENSOR_SHADOW = 17
    TENSOR_OWNED = 18  # a byte per column: allocated
    FIRST_LANE = 19  # of tensor memory that the warp reaches
    GLOBAL_FROM = 20  # the range of global memory that was used last
    GLOBAL_END = 21
    GLOBAL_WRITABLE = 22
    ARRIVALS = 23  # a word per mbarrier, at its offset: who arrived last
    WARP_MARK = 24  # of this warp in such a word
    SHARED_LOAD = 25  # bytes moved
    SHARED_STORE = 26
    GLOBAL_LOAD = 27
    GLOBAL_STORE = 28
    TENSOR_LOAD = 29
    TENSOR_STORE = 30
    WOKEN = 31  # how many mbarriers completed a phase
    WOKEN_AT = 32  # their offsets
    STOP_AT = 48  # program counters of the other groups, up to 31
    STOP_LANES = 96  # their threads
    RANGES = 128  # address of the valid ranges of global memory (`copies`)
    RANGE_COUNT = 129
    PRODUCTS = 80  # 1: tcgen05.mma and commit may be done here (eager, accumulate="float32", cta_group::1)
    MEANINGS = 81  # address of the table of descriptors, see `multiply`
    SCRATCH = 82  # address of memory for the operands of a product
    APART = 83  # 1: groups of the warp wait, or take turns: Python decides which one runs
    PARAMETER_LOAD = 84  # bytes moved
    SCHEDULE = 85  # address of the launch's schedule, or 0: then nothing blocks in compiled code
    BLOCKED = 86  # what the warp's one group waits for, a `Blocked`
    KEY = 87  # offset of the mbarrier, or number of the barrier
    TOKEN = 88  # the phase of a barrier that the group has arrived in and waits for, or -1
    BARRIERS = 89  # address of the CTA's named barriers
    CTA = 90  # number of the CTA
    THREADS = 91  # of the CTA, in whole warps
    MODE = 92  # a `Mode`
    MAPS = 94  # address of what is known of tensor maps (`copies`), or 0
    SPIN = 93  # the epoch in which the warp was last seen going round in circles, or -1


class Blocked(IntEnum):
    """What a warp waits for in compiled code."""

    NOTHING = 0
    MBARRIER = 1
    NAMED = 2


class Mode(IntEnum):
    """Who runs a warp."""

    READY = 0  # compiled code
    PYTHON = 1
    WAITS = 2  # nobody: all of its groups wait in Python's records, or have exited


class Schedule(IntEnum):
    """Words of a launch's schedule (`turns`)."""

    COUNT = 0  # resident warps
    WARPS = 1  # address of the addresses of their states
    TURN = 2  # turns so far
    EPOCH = 3  # of the machine
    LIMIT = 4  # turns until Python wants to hear
    QUANTUM = 5  # instructions of a turn
    INSTRUCTIONS = 6  # of finished turns
    BEFORE = 7  # the epoch in which the present turn began
    CURRENT = 8  # whose turn it is: an index
    WAITERS = 9  # 1: some group waits in Python's records
    WORDS = 10


class NodeField(IntEnum):
    """Words of a node."""

    FUNCTION = 0  # 0: the Python step
    COUNT = 1  # instructions it executes
    RUNS = 2  # how often it ran
    TURN = 3  # 1 where a turn may end
    NEXT = 4  # the instruction after it
    TARGET = 5  # of a branch
    GUARD = 6  # number of the guard's register
    GUARD_ROW = 7  # offset of its row
    NEGATED = 8  # 1 if the branch is taken where the guard is false
    LIST = 5  # address of the slots of operands
    WORDS = 6  # words of an access
    OFFSET = 7  # added to the address
    EXPECT = 8  # 1: the arrival expects bytes; the wait may block; the barrier is everybody's
    CONSTANT = 9  # added to the second operand
    GUARD_SLOT = 10  # of memory instructions: the guard, or -1
    GUARD_NEGATED = 11
    SLOT = 5  # of collectives: number of each register << 32 | offset of its row


STATE_WORDS = 160
NODE_WORDS = 16
WOKEN = 16
NEVER = 1 << 62  # a program counter that nothing has
REFUSED, BLOCK = -1, -2  # instead of the next instruction

"""The two records that compiled code and Python share: the state of a running warp, and the node of an entry point.

Both are rows of 64-bit integers. Compiled functions have one signature, ``next = f(state, node)``: the program counter
to go on with, or -1 if nothing was done and the Python step has to do it.
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
    EXECUTED = 5  # instructions executed since Python looked
    LIVE = 6  # lanes that have not exited
    NODES = 7  # address of the node of instruction 0
    STOPS = 8  # how many other groups the warp has
    STOP_FROM = 9  # program counter from which another group of the warp comes first
    RANK = 10  # of the CTA in its cluster
    STOP_AT = 64  # program counters of the other groups, up to 31


class NodeField(IntEnum):
    """Words of a node."""

    FUNCTION = 0  # 0: the Python step
    COUNT = 1  # instructions it executes
    RUNS = 2  # how often it ran
    TURN = 3  # 1 where a turn may end
    A = 4  # operands of runtime functions
    B = 5
    C = 6
    D = 7
    NEXT = 8  # the instruction after it
    SLOT = 9  # of collectives: number of each register << 32 | offset of its row


STATE_WORDS = 96
NODE_WORDS = 16
REFUSED = -1

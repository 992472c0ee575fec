"""Collectives of a warp without memory: PTX ISA 9.7.9 shfl.sync, 9.7.13 vote, match, activemask, redux, elect.

The membermask names the lanes that take part. Before one of these runs, every lane in it is known to be active, and
each lane's own bit is set (else the ISA leaves the result undefined and the machine reports it); lanes that execute
the instruction together may belong to different groups, so every lane works with its own membermask.

A poisoned input of one member reaches the others: each definition says how by its `shadow` rule (see logic.py), except
shfl.sync, which only moves bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mxfp8fa.emulator.isa.integer import greater, lesser
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.values import Value, ballot, const, gather, lane, popc, select

WARP_LANES = 32  # PTX ISA, "Special Registers: WARP_SZ"
NAN_F32 = 0x7FFFFFFF  # PTX ISA, redux.sync: the canonical NaN
Arrays = Sequence[np.ndarray]


def active() -> Value:
    """u32: the mask of active lanes."""
    return ballot(const(1, "pred"))


def _poisoned_members(shadow: np.ndarray, membermask: np.ndarray) -> np.ndarray:
    """u32 per lane: which lanes of its group hold an input with a poisoned bit."""
    return np.packbits(shadow != 0, bitorder="little").view(np.uint32)[0] & membermask


def group_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of a 32-bit or predicate result to which every member contributes: all of it, or nothing."""
    unsure = (_poisoned_members(shadows[0], values[-1]) != 0) | (shadows[-1] != 0)
    return (np.where(unsure, np.uint32(0xFFFFFFFF), np.uint32(0)),)


def vote_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """group_shadow for a predicate result."""
    return (group_shadow(values, shadows)[0] != 0,)


def match_all_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """group_shadow for a mask and a predicate."""
    (word,) = group_shadow(values, shadows)
    return word, word != 0


def ballot_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of a ballot: the bits of the lanes whose predicate is poisoned."""
    return (_poisoned_members(shadows[0], values[-1]) | shadows[-1],)


def elect_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of an election: that of the membermask."""
    unsure = shadows[0] != 0
    return np.where(unsure, np.uint32(0xFFFFFFFF), np.uint32(0)), unsure


@pure("shfl.sync.mode.b32 d|p, a, b:u32, c:u32, membermask:u32", mode=("up", "down", "bfly", "idx"),
      section="9.7.9 shfl.sync", moves=("a",), extra={"membermask": "membermask"},
      not_modelled="the value read from a lane outside membermask is undefined: that lane's register here")  # fmt: skip
def shfl_sync(a: Value, b: Value, c: Value, membermask: Value, *, mode: str) -> tuple[Value, Value]:
    """d = a of lane j, p = true if j is in range, else d = a; j = lane - b, + b, ^ b or b, within a segment.

    c packs the bound of the range (bits 4:0) and the mask that splits the warp into segments (bits 12:8).
    """
    me, offset, bound, segment = lane(), b & 31, c & 31, (c >> 8) & 31
    first = me & segment
    last = first | (bound & ~segment)
    if mode == "up":
        in_range = me.bits("s32") - offset.bits("s32") >= last.bits("s32")
        source = me - offset
    else:
        source = {"down": me + offset, "bfly": me ^ offset, "idx": first | (offset & ~segment)}[mode]
        in_range = source <= last
    return gather(a, select(in_range, source, me)), in_range


_VOTE = {"section": "9.7.13 vote.sync", "extra": {"membermask": "membermask", "shadow": vote_shadow}}


@pure("vote.sync.mode.pred d, a, membermask:u32", mode=("all", "any", "uni"), **_VOTE)
def vote_sync(a: Value, membermask: Value, *, mode: str) -> Value:
    """d = whether a holds in all members, in any, or is the same in all (uni)."""
    yes, no = ballot(a) & membermask, ballot(~a) & membermask
    return {"all": no.eq(0), "any": yes.ne(0), "uni": yes.eq(0) | no.eq(0)}[mode]


@pure("vote.sync.ballot.b32 d, a:pred, membermask:u32", section="9.7.13 vote.sync",
      extra={"membermask": "membermask", "shadow": ballot_shadow})  # fmt: skip
def vote_sync_ballot(a: Value, membermask: Value) -> Value:
    """d = the mask of the members in which a holds."""
    return ballot(a) & membermask


@pure("match.any.sync.type d:u32, a, membermask:u32", type=("b32", "b64"), section="9.7.13 match.sync",
      extra={"membermask": "membermask", "shadow": group_shadow})  # fmt: skip
def match_any_sync(a: Value, membermask: Value, *, type: str) -> Value:
    """d = the mask of the members whose a equals this lane's."""
    same = const(0, "u32")
    for j in range(WARP_LANES):
        same = same | select(gather(a, const(j, "u32")).eq(a), const(1 << j, "u32"), 0)
    return same & membermask & active()


@pure("match.all.sync.type d:u32|p, a, membermask:u32", type=("b32", "b64"), section="9.7.13 match.sync",
      extra={"membermask": "membermask", "shadow": match_all_shadow})  # fmt: skip
def match_all_sync(a: Value, membermask: Value, *, type: str) -> tuple[Value, Value]:
    """p = whether a is equal in all members; d = their mask if so, else 0."""
    members = membermask & active()
    different = ballot(a.ne(gather(a, _lowest_lane(members)))) & members
    p = different.eq(0)
    return select(p, members, 0), p


@pure("activemask.b32 d", section="9.7.13 activemask")
def activemask() -> Value:
    """d = the mask of the lanes that execute this instruction."""
    return active()


def _lowest_lane(mask: Value) -> Value:
    """Index of the lowest set bit of a u32, as a lane (0 if there is none)."""
    return popc((mask & -mask) - 1) & 31


def reduce(a: Value, members: Value, identity: int, operate: Callable[[Value, Value], Value]) -> Value:
    """a of all members, combined; lanes outside contribute `identity`."""
    total = const(identity, a.type)
    for j in range(WARP_LANES):
        member = (members & (1 << j)).ne(0)
        total = operate(total, select(member, gather(a, const(j, "u32")), identity))
    return total


_REDUX = {"section": "9.7.13 redux.sync", "extra": {"membermask": "membermask", "shadow": group_shadow}}
_BITWISE: dict[str, tuple[int, Callable[[Value, Value], Value]]] = {
    "and": (0xFFFFFFFF, lambda x, y: x & y),
    "or": (0, lambda x, y: x | y),
    "xor": (0, lambda x, y: x ^ y),
}


@pure("redux.sync.add.type d, a, membermask:u32", type=("u32", "s32"), **_REDUX)
def redux_sync_add(a: Value, membermask: Value, *, type: str) -> Value:
    """d = the sum of a over the members, wrapping."""
    return reduce(a, membermask & active(), 0, lambda x, y: x + y)


@pure("redux.sync.op.type d, a, membermask:u32", op=("min", "max"), type=("u32", "s32"), **_REDUX)
def redux_sync_extremum(a: Value, membermask: Value, *, op: str, type: str) -> Value:
    """d = the smallest or largest a of the members."""
    bottom, top = (0, 2**32 - 1) if type == "u32" else (-(2**31), 2**31 - 1)
    if op == "min":
        return reduce(a, membermask & active(), top, lesser)
    return reduce(a, membermask & active(), bottom, greater)


@pure("redux.sync.op.b32 d, a, membermask:u32", op=("and", "or", "xor"), **_REDUX)
def redux_sync_bitwise(a: Value, membermask: Value, *, op: str) -> Value:
    """d = the bitwise and, or or xor of a over the members."""
    return reduce(a, membermask & active(), *_BITWISE[op])


def _order_key(x: Value) -> Value:
    """An s32 that orders f32 bit patterns (-0.0 below +0.0); applied twice it gives the pattern back."""
    s = x.bits("s32")
    return s ^ ((s >> 31) & 0x7FFFFFFF)


@pure("redux.sync.op{.abs}{.NaN}.f32 d, a, membermask:u32", op=("min", "max"), **_REDUX)
def redux_sync_f32(a: Value, membermask: Value, *, op: str, abs: bool, NaN: bool) -> Value:
    """d = the smallest or largest a (.abs: |a|) of the members; +0.0 > -0.0.

    NaNs are left out, and only if there is nothing else the result is NaN; .NaN: NaN if any member has one.
    """
    raw = a.bits("u32") & (0x7FFFFFFF if abs else 0xFFFFFFFF)
    nans = ballot(a.ne(a))
    members = membermask & active()
    numbers = members & ~nans
    top, bottom = 0x7FFFFFFF, -(2**31)  # keys of NaNs: beyond those of both infinities
    identity, extremum = (top, lesser) if op == "min" else (bottom, greater)
    d = _order_key(reduce(_order_key(raw), numbers, identity, extremum)).bits("u32")
    is_nan = (members & nans).ne(0) if NaN else numbers.eq(0)
    return select(is_nan, const(NAN_F32, "u32"), d).bits("f32")


@pure("elect.sync d|p, membermask:u32", section="9.7.13 elect.sync", confidence="inferred",
      not_modelled="which member is elected is unspecified: the lowest lane here",
      extra={"membermask": "membermask", "shadow": elect_shadow})  # fmt: skip
def elect_sync(membermask: Value) -> tuple[Value, Value]:
    """d = the lane elected among the members, p = whether it is this one."""
    leader = _lowest_lane(membermask & active())
    return leader, lane().eq(leader)

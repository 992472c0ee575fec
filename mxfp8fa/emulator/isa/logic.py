"""Logic and shifts, PTX ISA section 9.7.8.

and, or, xor, not and lop3 carry a `shadow` rule: a bit of the result is poisoned exactly when the poisoned input bits
can change it. `values` and `shadows` are the raw input arrays and their poison masks (a one marks an unwritten bit);
one mask per output comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.values import BITS, Value, is_signed, select

LOGIC = ("pred", "b16", "b32", "b64")
RAW = ("b16", "b32", "b64")
Arrays = Sequence[np.ndarray]
Word = TypeVar("Word", Value, np.ndarray)


def shift_left(a: Value, n: Value) -> Value:
    """a << n for any u32 n: zero once n reaches the width."""
    width = BITS[a.type]
    return select(n < width, a << (n & (width - 1)).to(a.type), 0)


def shift_right(a: Value, n: Value) -> Value:
    """a >> n for any u32 n: all sign bits (signed) or zero (unsigned) once n reaches the width."""
    width = BITS[a.type]
    if is_signed(a.type):
        return a >> select(n < width, n, width - 1).to(a.type)
    return select(n < width, a >> (n & (width - 1)).to(a.type), 0)


def and_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of a & b: a known 0 on either side makes the bit known."""
    (a, b), (sa, sb) = values, shadows
    return ((sa | a) & (sb | b) & (sa | sb),)


def or_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of a | b: a known 1 on either side makes the bit known."""
    (a, b), (sa, sb) = values, shadows
    return ((sa | ~a) & (sb | ~b) & (sa | sb),)


def xor_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of a ^ b: either input's."""
    return (shadows[0] | shadows[1],)


def not_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of ~a: that of a."""
    return (shadows[0],)


@pure("and.type d, a, b", type=LOGIC, section="9.7.8 and", extra={"shadow": and_shadow})
def bitwise_and(a: Value, b: Value, *, type: str) -> Value:
    """d = a & b, bit by bit."""
    return a & b


@pure("or.type d, a, b", type=LOGIC, section="9.7.8 or", extra={"shadow": or_shadow})
def bitwise_or(a: Value, b: Value, *, type: str) -> Value:
    """d = a | b, bit by bit."""
    return a | b


@pure("xor.type d, a, b", type=LOGIC, section="9.7.8 xor", extra={"shadow": xor_shadow})
def bitwise_xor(a: Value, b: Value, *, type: str) -> Value:
    """d = a ^ b, bit by bit."""
    return a ^ b


@pure("not.type d, a", type=LOGIC, section="9.7.8 not", extra={"shadow": not_shadow})
def bitwise_not(a: Value, *, type: str) -> Value:
    """d = ~a, bit by bit."""
    return ~a


@pure("cnot.type d, a", type=RAW, section="9.7.8 cnot")
def cnot(a: Value, *, type: str) -> Value:
    """d = 1 if a is 0, else 0."""
    return a.eq(0).to(a.type)


def _table_row(table: Word, k: int) -> Word:
    """All ones where bit k of a lop3 table is set, else zero."""
    return -((table >> k) & 1)


def lookup(a: Word, b: Word, c: Word, table: Word) -> Word:
    """Bit i of the result is bit 4*a[i] + 2*b[i] + c[i] of the table (PTX ISA, lop3: 0xF0, 0xCC, 0xAA)."""
    by_c = [_table_row(table, k) & ~c | _table_row(table, k + 1) & c for k in (0, 2, 4, 6)]
    by_b = [by_c[0] & ~b | by_c[1] & b, by_c[2] & ~b | by_c[3] & b]
    return by_b[0] & ~a | by_b[1] & a


def lop3_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of lop3: the bits for which the poisoned inputs leave both table values within reach."""
    *inputs, table = values[:4]
    possible = [(~x | s, x | s) for x, s in zip(inputs, shadows, strict=False)]  # can the bit be 0, can it be 1
    can_be_one, can_be_zero = np.zeros_like(table), np.zeros_like(table)
    for k in range(8):
        reachable = possible[0][k >> 2] & possible[1][k >> 1 & 1] & possible[2][k & 1]
        row = _table_row(table, k)
        can_be_one |= row & reachable
        can_be_zero |= ~row & reachable
    return (can_be_one & can_be_zero | shadows[3],)


def _nonzero_with_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """lop3's d != 0, the poison of that predicate, and the poison of d: a known one bit settles the predicate."""
    (poison,) = lop3_shadow(values, shadows)
    d = lookup(*values[:4])
    return d != 0, (poison != 0) & (d & ~poison == 0), poison


def lop3_or_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of the two results of lop3.or."""
    nonzero, unsure, poison = _nonzero_with_shadow(values, shadows)
    return poison, *or_shadow((nonzero, values[4]), (unsure, shadows[4]))


def lop3_and_shadow(values: Arrays, shadows: Arrays) -> tuple[np.ndarray, ...]:
    """Poison of the two results of lop3.and."""
    nonzero, unsure, poison = _nonzero_with_shadow(values, shadows)
    return poison, *and_shadow((nonzero, values[4]), (unsure, shadows[4]))


@pure("lop3.b32 d, a, b, c, e:u32", section="9.7.8 lop3", extra={"shadow": lop3_shadow})
def lop3(a: Value, b: Value, c: Value, e: Value) -> Value:
    """d = F(a, b, c) bit by bit, where e is F(0xF0, 0xCC, 0xAA), the table of the function F."""
    return lookup(a, b, c, e)


@pure("lop3.or.b32 d|p, a, b, c, e:u32, r:pred", section="9.7.8 lop3", extra={"shadow": lop3_or_shadow})
def lop3_or(a: Value, b: Value, c: Value, e: Value, r: Value) -> tuple[Value, Value]:
    """d = F(a, b, c) as in lop3; p = (d != 0) or r."""
    d = lookup(a, b, c, e)
    return d, d.ne(0) | r


@pure("lop3.and.b32 d|p, a, b, c, e:u32, r:pred", section="9.7.8 lop3", extra={"shadow": lop3_and_shadow})
def lop3_and(a: Value, b: Value, c: Value, e: Value, r: Value) -> tuple[Value, Value]:
    """d = F(a, b, c) as in lop3; p = (d != 0) and r."""
    d = lookup(a, b, c, e)
    return d, d.ne(0) & r


@pure("shl.type d, a, b:u32", type=RAW, section="9.7.8 shl", moves=("a",))
def shl(a: Value, b: Value, *, type: str) -> Value:
    """d = a << b; 0 when b is the width or more."""
    return shift_left(a, b)


@pure("shr.type d, a, b:u32", type=(*RAW, "u16", "s16", "u32", "s32", "u64", "s64"), section="9.7.8 shr", moves=("a",))
def shr(a: Value, b: Value, *, type: str) -> Value:
    """d = a >> b, filled with the sign (signed types) or zeros; only fill when b is the width or more."""
    return shift_right(a, b)


def _funnel(a: Value, b: Value, c: Value, mode: str) -> tuple[Value, Value]:
    """The 64-bit value b:a and the shift amount, at most 32 (clamp) or modulo 32 (wrap)."""
    amount = select(c < 32, c, 32) if mode == "clamp" else c & 31
    return (b.to("u64") << 32) | a.to("u64"), amount.to("u64")


@pure("shf.l.mode.b32 d, a, b, c:u32", mode=("clamp", "wrap"), section="9.7.8 shf", moves=("a", "b"))
def shf_l(a: Value, b: Value, c: Value, *, mode: str) -> Value:
    """d = the upper 32 bits of b:a << n; n = min(c, 32) or c mod 32."""
    pair, amount = _funnel(a, b, c, mode)
    return ((pair << amount) >> 32).to("u32")


@pure("shf.r.mode.b32 d, a, b, c:u32", mode=("clamp", "wrap"), section="9.7.8 shf", moves=("a", "b"))
def shf_r(a: Value, b: Value, c: Value, *, mode: str) -> Value:
    """d = the lower 32 bits of b:a >> n; n = min(c, 32) or c mod 32."""
    pair, amount = _funnel(a, b, c, mode)
    return (pair >> amount).to("u32")

"""Extended-precision integer arithmetic, PTX ISA section 9.7.2: addition and multiplication with a carry flag.

The condition code CC.CF is one predicate per thread that no instruction names. Definitions with `carry_in` take it as a
last argument, those with `carry_out` give it as a last result; the binder connects them.
"""

from __future__ import annotations

from mxfp8fa.emulator.isa.integer import high_half
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.values import BITS, Value

TYPES = ("u32", "s32", "u64", "s64")
SECTION = "9.7.2 add.cc to madc"
OUT = {"carry_out": True}
IN = {"carry_in": True}
BOTH = OUT | IN


def _unsigned(a: Value) -> Value:
    return a.bits(f"u{BITS[a.type]}")


def add_with_carry(a: Value, b: Value, carry: Value | None) -> tuple[Value, Value]:
    """a + b + carry in their type, and the carry out of the top bit."""
    x, y = _unsigned(a), _unsigned(b)
    total = x + y
    out = total < x
    if carry is not None:
        more = total + carry.to(total.type)
        out = out | (more < total)
        total = more
    return total.bits(a.type), out


def subtract_with_borrow(a: Value, b: Value, borrow: Value | None) -> tuple[Value, Value]:
    """a - (b + borrow) in their type, and the borrow."""
    x, y = _unsigned(a), _unsigned(b)
    difference = x - y
    out = x < y
    if borrow is not None:
        more = difference - borrow.to(difference.type)
        out = out | (more > difference)
        difference = more
    return difference.bits(a.type), out


def half_product(a: Value, b: Value, half: str) -> Value:
    """The lower or upper half of a * b."""
    return a * b if half == "lo" else high_half(a, b)


@pure("add.cc.type d, a, b", type=TYPES, section=SECTION, extra=OUT)
def add_cc(a: Value, b: Value, *, type: str) -> tuple[Value, Value]:
    """d = a + b; the carry is kept."""
    return add_with_carry(a, b, None)


@pure("addc.cc.type d, a, b", type=TYPES, section=SECTION, extra=BOTH)
def addc_cc(a: Value, b: Value, carry: Value, *, type: str) -> tuple[Value, Value]:
    """d = a + b + carry; the carry is kept."""
    return add_with_carry(a, b, carry)


@pure("addc.type d, a, b", type=TYPES, section=SECTION, extra=IN)
def addc(a: Value, b: Value, carry: Value, *, type: str) -> Value:
    """d = a + b + carry."""
    return add_with_carry(a, b, carry)[0]


@pure("sub.cc.type d, a, b", type=TYPES, section=SECTION, extra=OUT)
def sub_cc(a: Value, b: Value, *, type: str) -> tuple[Value, Value]:
    """d = a - b; the borrow is kept."""
    return subtract_with_borrow(a, b, None)


@pure("subc.cc.type d, a, b", type=TYPES, section=SECTION, extra=BOTH)
def subc_cc(a: Value, b: Value, borrow: Value, *, type: str) -> tuple[Value, Value]:
    """d = a - (b + borrow); the borrow is kept."""
    return subtract_with_borrow(a, b, borrow)


@pure("subc.type d, a, b", type=TYPES, section=SECTION, extra=IN)
def subc(a: Value, b: Value, borrow: Value, *, type: str) -> Value:
    """d = a - (b + borrow)."""
    return subtract_with_borrow(a, b, borrow)[0]


@pure("mad.half.cc.type d, a, b, c", half=("lo", "hi"), type=TYPES, section=SECTION, extra=OUT)
def mad_cc(a: Value, b: Value, c: Value, *, half: str, type: str) -> tuple[Value, Value]:
    """d = the lower or upper half of a * b, plus c; the carry of that sum is kept."""
    return add_with_carry(half_product(a, b, half), c, None)


@pure("madc.half.cc.type d, a, b, c", half=("lo", "hi"), type=TYPES, section=SECTION, extra=BOTH)
def madc_cc(a: Value, b: Value, c: Value, carry: Value, *, half: str, type: str) -> tuple[Value, Value]:
    """d = the lower or upper half of a * b, plus c and the carry; the carry of that sum is kept."""
    return add_with_carry(half_product(a, b, half), c, carry)


@pure("madc.half.type d, a, b, c", half=("lo", "hi"), type=TYPES, section=SECTION, extra=IN)
def madc(a: Value, b: Value, c: Value, carry: Value, *, half: str, type: str) -> Value:
    """d = the lower or upper half of a * b, plus c and the carry."""
    return add_with_carry(half_product(a, b, half), c, carry)[0]

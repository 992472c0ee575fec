"""Integer arithmetic, PTX ISA section 9.7.1."""

from __future__ import annotations

from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.values import Value, const, select

INTEGER = ("u16", "s16", "u32", "s32", "u64", "s64")


@pure("add.type d, a, b", type=(*INTEGER, "b32"), section="9.7.1 add")
def add(a: Value, b: Value, *, type: str) -> Value:
    """d = a + b, wrapping."""
    return a + b


@pure("add.sat.s32 d, a, b", section="9.7.1 add")
def add_sat(a: Value, b: Value) -> Value:
    """d = a + b, clamped to the range of s32."""
    wide = a.to("s64") + b.to("s64")
    top, bottom = const(2**31 - 1, "s64"), const(-(2**31), "s64")
    return select(wide > top, top, select(wide < bottom, bottom, wide)).to("s32")

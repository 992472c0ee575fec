"""Lane values: the small language in which every register-to-register instruction is defined once.

A definition such as ``return a + b`` is called with `Value` objects and builds an expression graph of typed
primitives. Back ends turn that graph into code: `lanes.py` into NumPy over 32-lane vectors; a compiler can turn
the same graph into machine code, so no definition has to be written again.

Types: ``pred``; ``u8 u16 u32 u64`` and ``s8 s16 s32 s64``; ``f16 f32 f64``. PTX's untyped ``b8..b64`` are the
unsigned types. bfloat16 and the narrow formats have no arithmetic here: they are bit patterns in unsigned types,
and definitions widen them to f32 or f64 first.

Python control flow in a definition may depend on modifiers and types, never on a Value: a Value has no truth value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

UNSIGNED = ("u8", "u16", "u32", "u64")
SIGNED = ("s8", "s16", "s32", "s64")
FLOATS = ("f16", "f32", "f64")
BITS = {"pred": 1} | {t: int(t[1:]) for t in UNSIGNED + SIGNED + FLOATS}
RAW = {
    "b8": "u8",
    "b16": "u16",
    "b32": "u32",
    "b64": "u64",
    "bf16": "u16",
    "f16x2": "u32",
    "bf16x2": "u32",
    "f32x2": "u64",
}


def value_type(ptx_type: str) -> str:
    """The value type that carries a PTX type: ``b32`` -> ``u32``, ``bf16x2`` -> ``u32``, ``f32`` -> ``f32``."""
    return RAW.get(ptx_type, ptx_type)


def is_float(t: str) -> bool:
    """Whether arithmetic on type t is floating point."""
    return t in FLOATS


def is_signed(t: str) -> bool:
    """Whether t is a signed integer type."""
    return t in SIGNED


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One node of an expression graph.

    Attributes:
        op: primitive name (see `PRIMITIVES`), or ``arg`` / ``const``.
        type: value type of the result.
        args: operand nodes.
        attr: the constant (Python int, raw bits), or the argument's index.
    """

    op: str
    type: str
    args: tuple[Value, ...] = ()
    attr: int = field(default=0)

    def __bool__(self) -> bool:
        raise TypeError("a Value has no truth value: use select(), or decide by modifiers and types")

    # Arithmetic. Integers wrap; floats round to nearest even.
    def __add__(self, other: Value | int) -> Value:
        return _binary("add", self, other)

    def __sub__(self, other: Value | int) -> Value:
        return _binary("sub", self, other)

    def __mul__(self, other: Value | int) -> Value:
        return _binary("mul", self, other)

    def __and__(self, other: Value | int) -> Value:
        return _binary("and", self, other)

    def __or__(self, other: Value | int) -> Value:
        return _binary("or", self, other)

    def __xor__(self, other: Value | int) -> Value:
        return _binary("xor", self, other)

    def __invert__(self) -> Value:
        return Value("not", self.type, (self,))

    def __neg__(self) -> Value:
        return Value("neg", self.type, (self,))

    def __lshift__(self, other: Value | int) -> Value:
        return _binary("shl", self, other)

    def __rshift__(self, other: Value | int) -> Value:
        """Arithmetic for signed types, logical for unsigned ones. The count must be below the width."""
        return _binary("shr", self, other)

    # Comparisons. Floats: ordered (false when an operand is NaN), except ne, which is unordered.
    def eq(self, other: Value | int) -> Value:
        """self == other, as a pred."""
        return _compare("eq", self, other)

    def ne(self, other: Value | int) -> Value:
        """self != other, as a pred; true for NaN."""
        return _compare("ne", self, other)

    def __lt__(self, other: Value | int) -> Value:
        return _compare("lt", self, other)

    def __le__(self, other: Value | int) -> Value:
        return _compare("le", self, other)

    def __gt__(self, other: Value | int) -> Value:
        return _compare("lt", _as(self.type, other), self)

    def __ge__(self, other: Value | int) -> Value:
        return _compare("le", _as(self.type, other), self)

    def bits(self, t: str) -> Value:
        """The same bits as type t (same width)."""
        t = value_type(t)
        if BITS[t] != BITS[self.type] or "pred" in (t, self.type):
            raise TypeError(f"cannot reinterpret {self.type} as {t}: widths differ")
        return self if t == self.type else Value("bits", t, (self,))

    def to(self, t: str) -> Value:
        """Convert to type t.

        Integer to integer: truncate, or extend by the sign of the source type. Integer to float and float to float:
        round to nearest even. Float to integer: truncate toward zero; the value must fit (clamp first).
        pred to integer: 0 or 1.
        """
        t = value_type(t)
        return self if t == self.type else Value("to", t, (self,))


PRIMITIVES = (
    "add", "sub", "mul", "and", "or", "xor", "not", "neg", "shl", "shr",
    "eq", "ne", "lt", "le", "bits", "to", "select", "divide", "remainder", "popc",
    "float_div", "sqrt", "fma", "fma_sign", "rint", "floor", "ceil", "trunc", "exp2", "log2",
    "rsqrt", "tanh", "sin", "cos", "gather", "ballot", "lane",
)  # fmt: skip


def _as(t: str, x: Value | int) -> Value:
    return x if isinstance(x, Value) else const(x, t)


def _binary(op: str, a: Value, b: Value | int) -> Value:
    b = _as(a.type, b)
    if a.type != b.type:
        raise TypeError(f"{op}: operand types {a.type} and {b.type} differ")
    return Value(op, a.type, (a, b))


def _compare(op: str, a: Value, b: Value | int) -> Value:
    b = _as(a.type, b)
    if a.type != b.type:
        raise TypeError(f"{op}: operand types {a.type} and {b.type} differ")
    return Value(op, "pred", (a, b))


def const(x: int, t: str) -> Value:
    """The constant whose raw bits are x (taken modulo the width), as type t. Floats too: pass their bit pattern."""
    t = value_type(t)
    return Value("const", t, (), x & ((1 << BITS[t]) - 1))


def arg(i: int, t: str) -> Value:
    """The i-th argument of a definition."""
    return Value("arg", value_type(t), (), i)


def select(p: Value, a: Value, b: Value | int) -> Value:
    """a where p, else b."""
    b = _as(a.type, b)
    if p.type != "pred" or a.type != b.type:
        raise TypeError(f"select: needs pred and two equal types, got {p.type}, {a.type}, {b.type}")
    return Value("select", a.type, (p, a, b))


def divide(a: Value, b: Value) -> Value:
    """Integer quotient, truncated toward zero. Division by zero gives all ones (PTX: unspecified)."""
    return _binary("divide", a, b)


def remainder(a: Value, b: Value) -> Value:
    """Integer remainder with the sign of a. Remainder by zero gives all ones (PTX: unspecified)."""
    return _binary("remainder", a, b)


def popc(a: Value) -> Value:
    """Number of one bits of an unsigned value, in its own type."""
    return Value("popc", a.type, (a,))


def float_div(a: Value, b: Value) -> Value:
    """IEEE quotient, round to nearest even."""
    return _binary("float_div", a, b)


def fma(a: Value, b: Value, c: Value) -> Value:
    """a * b + c rounded once, to nearest even (f32 or f64)."""
    if not a.type == b.type == c.type:
        raise TypeError(f"fma: operand types {a.type}, {b.type}, {c.type} differ")
    return Value("fma", a.type, (a, b, c))


def fma_sign(a: Value, b: Value, c: Value, d: Value) -> Value:
    """The sign of the exact a * b + c - d as an f64: -1, 0 or 1 (f64 only).

    Finite a, b, c with an infinite d give the sign against that infinity; with anything else that is not finite the
    result is 0. Directed rounding in f64 needs it; no narrower type does.
    """
    if {a.type, b.type, c.type, d.type} != {"f64"}:
        raise TypeError(f"fma_sign: needs four f64 operands, got {a.type}, {b.type}, {c.type}, {d.type}")
    return Value("fma_sign", "f64", (a, b, c, d))


def _unary(op: str, doc: str) -> Callable[[Value], Value]:
    def build(a: Value) -> Value:
        return Value(op, a.type, (a,))

    build.__name__ = op
    build.__doc__ = doc
    return build


sqrt = _unary("sqrt", "IEEE square root, round to nearest even.")
rint = _unary("rint", "Round to an integral float, ties to even.")
floor = _unary("floor", "Largest integral float not above a.")
ceil = _unary("ceil", "Smallest integral float not below a.")
trunc = _unary("trunc", "Integral float toward zero.")
exp2 = _unary("exp2", "2**a, correctly rounded to f32 (mxfp8fa.numerics.exp2).")
log2 = _unary("log2", "log2(a), correctly rounded to f32.")
rsqrt = _unary("rsqrt", "1/sqrt(a), correctly rounded to f32.")
tanh = _unary("tanh", "tanh(a), correctly rounded to f32.")
sin = _unary("sin", "sin(a), correctly rounded to f32.")
cos = _unary("cos", "cos(a), correctly rounded to f32.")


def gather(a: Value, index: Value) -> Value:
    """Lane i receives a of lane index[i] (u32, 0..31): the cross-lane primitive."""
    return Value("gather", a.type, (a, index))


def ballot(p: Value) -> Value:
    """u32, equal in every lane: bit i is set when lane i is active and p holds there."""
    return Value("ballot", "u32", (p,))


def lane() -> Value:
    """u32: this lane's index, 0..31."""
    return Value("lane", "u32")

"""The NumPy back end: an expression graph of `values.py` becomes one Python function over 32-lane vectors.

This is the readable evaluator. `compile_graph` writes the source of a function with one NumPy expression per node;
`source` shows it. Arrays come in and go out as the raw unsigned bits of registers (pred: bool).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mxfp8fa.emulator import elementary
from mxfp8fa.emulator.values import BITS, Value

LANES = 32  # PTX ISA, "Warp": WARP_SZ on every architecture so far
_LANE = np.arange(LANES, dtype=np.uint32)

DTYPES: dict[str, type] = {"pred": np.bool_, "f16": np.float16, "f32": np.float32, "f64": np.float64}
DTYPES |= {f"u{n}": getattr(np, f"uint{n}") for n in (8, 16, 32, 64)}
DTYPES |= {f"s{n}": getattr(np, f"int{n}") for n in (8, 16, 32, 64)}


def raw_dtype(t: str) -> type:
    """The unsigned dtype that stores the bits of type t in a register (bool for pred)."""
    return np.bool_ if t == "pred" else DTYPES[f"u{BITS[t]}"]


def ballot(mask: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Bit i set where lane i is in mask and p holds; the same u32 in every lane."""
    word = np.packbits(mask & p, bitorder="little").view(np.uint32)[0]
    return np.full(LANES, word, np.uint32)


def integer_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient truncated toward zero; all ones where b is 0; the most negative value over -1 wraps."""
    zero = b == 0
    if a.dtype.kind == "u":
        return np.where(zero, ~np.zeros_like(a), a // np.where(zero, b.dtype.type(1), b))
    wraps = b == -1  # a // -1 traps in C for the most negative a: negate instead
    safe = np.where(zero | wraps, b.dtype.type(1), b)
    quotient = a // safe
    quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(zero, a.dtype.type(-1), np.where(wraps, -a, quotient))


def integer_remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b * (a / b) with the sign of a; all ones where b is 0, as an H200 has it."""
    return np.where(b == 0, ~np.zeros_like(a), a - b * integer_divide(a, b))


_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
_INFIX |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "float_div": "/"}
_CALLS: dict[str, Callable[..., Any]] = {
    "divide": integer_divide,
    "remainder": integer_remainder,
    "popc": np.bitwise_count,
    "sqrt": np.sqrt,
    "rint": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "fma": elementary.fma,
    "fma_sign": elementary.fma_sign,
    "exp2": elementary.exp2,
    "log2": elementary.log2,
    "rsqrt": elementary.rsqrt,
    "tanh": elementary.tanh,
    "sin": elementary.sin,
    "cos": elementary.cos,
    "ballot": ballot,
}


def _expression(node: Value, names: Sequence[str], constants: dict[str, Any]) -> str:
    """The Python expression of one node, given the names of its operands."""
    op = node.op
    if op in _INFIX:
        return f"{names[0]} {_INFIX[op]} {names[1]}"
    if op in ("not", "neg"):
        return f"{'~' if op == 'not' else '-'}{names[0]}"
    if op == "select":
        return f"where({', '.join(names)})"
    if op == "bits":
        return f"{names[0]}.view({node.type})"
    if op == "to":
        return f"{names[0]}.astype({node.type})"
    if op == "gather":
        return f"{names[0]}[{names[1]}]"
    if op == "lane":
        return "LANE"
    if op == "ballot":
        return f"ballot(mask, {names[0]})"
    if op == "popc":
        return f"popc({names[0]}).astype({node.type})"
    if op == "const":
        key = f"c{len(constants)}"
        raw: np.ndarray = np.array(node.attr, dtype=raw_dtype(node.type))
        constants[key] = raw.view(DTYPES[node.type])[()]
        return key
    return f"{op}({', '.join(names)})"


def _schedule(outputs: Sequence[Value]) -> list[Value]:
    """Every node once, operands before users."""
    order: list[Value] = []
    seen: set[int] = set()

    def visit(node: Value) -> None:
        if id(node) not in seen:
            seen.add(id(node))
            for operand in node.args:
                visit(operand)
            order.append(node)

    for output in outputs:
        visit(output)
    return order


def source(outputs: Sequence[Value], argument_types: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Python source of the function that evaluates a graph, and the constants it refers to."""
    constants: dict[str, Any] = {}
    name: dict[int, str] = {}
    parameters = "".join(f", a{i}" for i in range(len(argument_types)))
    lines = [f"def evaluate(mask{parameters}):"]
    for node in _schedule(outputs):
        if node.op == "arg":
            raw_is_typed = node.type == "pred" or node.type[0] == "u"
            name[id(node)] = f"a{node.attr}" if raw_is_typed else f"v{len(name)}"
            if not raw_is_typed:
                lines.append(f"    {name[id(node)]} = a{node.attr}.view({node.type})")
            continue
        expression = _expression(node, [name[id(x)] for x in node.args], constants)
        if node.op == "const":
            name[id(node)] = expression
            continue
        name[id(node)] = f"v{len(name)}"
        lines.append(f"    {name[id(node)]} = {expression}")
    results = []
    for output in outputs:
        varies = any(n.op in ("arg", "lane") for n in _schedule([output]))
        text = name[id(output)] if varies else f"full(LANES, {name[id(output)]})"
        raw = "" if output.type == "pred" or output.type[0] == "u" else f".view({'u' + str(BITS[output.type])})"
        results.append(text + raw)
    lines.append(f"    return {', '.join(results)}" + ("," if len(results) == 1 else ""))
    return "\n".join(lines), constants


def compile_graph(outputs: Sequence[Value], argument_types: Sequence[str]) -> Callable[..., tuple[np.ndarray, ...]]:
    """A function (mask, *raw argument arrays) -> tuple of raw result arrays, all of 32 lanes."""
    text, constants = source(outputs, argument_types)
    scope: dict[str, Any] = dict(DTYPES) | _CALLS | {"where": np.where, "full": np.full, "LANE": _LANE, "LANES": LANES}
    scope |= constants
    exec(compile(text, "<lanes>", "exec"), scope)  # the source is written above, from typed primitives only
    return scope["evaluate"]

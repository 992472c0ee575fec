"""From a pure definition and its modifiers to a compiled lane function (cached), and a way to evaluate one by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from mxfp8fa.emulator import lanes
from mxfp8fa.emulator.isa import registry
from mxfp8fa.emulator.values import Value, arg


@cache
def _graph(
    index: tuple[str, int], modifiers: tuple[tuple[str, Any], ...], count: int
) -> tuple[list[Value], list[str], list[str]]:
    definition = registry.REGISTRY[index[0]][index[1]]
    mods = dict(modifiers)
    specs = [s for s in definition.operands if not s.output][:count]
    types = [definition.operand_type(s.type, mods) for s in specs]
    if definition.extra.get("carry_in"):  # the carry flag, which no operand names, is the last argument
        types = [*types[: len(specs)], "pred"]
    result = definition.function(*(arg(i, t) for i, t in enumerate(types)), **mods)
    outputs = list(result) if isinstance(result, tuple) else [result]
    return outputs, types, [o.type for o in outputs]


def graph(
    definition: registry.Definition, modifiers: dict[str, Any], count: int
) -> tuple[list[Value], list[str], list[str]]:
    """(output nodes, argument types, output types) of a pure definition with `count` inputs given."""
    index = registry.REGISTRY[definition.opcode].index(definition)
    return _graph((definition.opcode, index), tuple(sorted(modifiers.items())), count)


@cache
def _compiled(
    index: tuple[str, int], modifiers: tuple[tuple[str, Any], ...], count: int
) -> Callable[..., tuple[np.ndarray, ...]]:
    outputs, types, _ = _graph(index, modifiers, count)
    return lanes.compile_graph(outputs, types)


def compiled(
    definition: registry.Definition, modifiers: dict[str, Any], count: int
) -> Callable[..., tuple[np.ndarray, ...]]:
    """The lane function (mask, *raw arrays) -> raw arrays of a pure definition."""
    index = registry.REGISTRY[definition.opcode].index(definition)
    return _compiled((definition.opcode, index), tuple(sorted(modifiers.items())), count)


def evaluate(mnemonic: str, *inputs: Any, mask: np.ndarray | None = None) -> Any:
    """Evaluate one pure instruction on up to 32 lanes of input, for tests and notebooks.

    Args:
        mnemonic: opcode and qualifiers, "fma.rn.f32".
        *inputs: arrays or scalars: floats are values, integers for a float operand are its raw bits; a scalar goes to
            every lane, anything else shorter than 32 lanes is padded with zeros.
        mask: active lanes (only ballot-like instructions look at it).

    Returns:
        Raw result bits per lane (bool for predicates), or a tuple of them. View as np.float32 where that helps.
    """
    import mxfp8fa.emulator.isa  # noqa: F401  (fills the registry)

    opcode, *qualifiers = mnemonic.split(".")
    found = _find_pure(opcode, qualifiers, len(inputs))
    if found is None:
        raise ValueError(f"{mnemonic} with {len(inputs)} inputs is not a pure instruction of the emulator")
    definition, modifiers = found
    _, types, _ = graph(definition, modifiers, len(inputs))
    count = max(np.size(x) for x in inputs) if inputs else lanes.LANES
    raw = [_raw(x, t) for x, t in zip(inputs, types, strict=True)]
    active = np.ones(lanes.LANES, bool) if mask is None else mask
    with np.errstate(all="ignore"):
        results = tuple(r[:count] for r in compiled(definition, modifiers, len(inputs))(active, *raw))
    return results[0] if len(results) == 1 else results


def lane_function(mnemonic: str) -> Callable[..., tuple[np.ndarray, ...]]:
    """The compiled lane function of a pure two-input instruction: how atomics share their arithmetic."""
    opcode, *qualifiers = mnemonic.split(".")
    found = _find_pure(opcode, qualifiers, 2)
    if found is None:
        raise ValueError(f"{mnemonic} is not a pure instruction of two inputs")
    return compiled(*found, 2)


def _find_pure(opcode: str, qualifiers: list[str], count: int) -> tuple[registry.Definition, dict[str, Any]] | None:
    text = "".join(f".{q}" for q in qualifiers)
    for definition in registry.REGISTRY.get(opcode, ()):
        inputs = [s for s in definition.operands if not s.output]
        if definition.kind == "pure" and sum(not s.optional for s in inputs) <= count <= len(inputs):
            modifiers = definition.modifiers(text)
            if modifiers is not None:
                return definition, modifiers
    return None


def _raw(x: Any, t: str) -> np.ndarray:
    dtype = lanes.DTYPES[t]
    array = np.atleast_1d(np.asarray(x))
    if array.dtype != dtype and array.dtype != lanes.raw_dtype(t):
        array = array.astype(dtype) if array.dtype.kind == "f" else _integers(x, t)
    padded = np.zeros(lanes.LANES, array.dtype)
    padded[: array.size] = array.reshape(-1)
    if array.size == 1:
        padded[:] = array.reshape(-1)[0]
    return padded if t == "pred" else padded.view(lanes.raw_dtype(t))


def _integers(x: Any, t: str) -> np.ndarray:
    """Python integers taken modulo the operand's width, as raw bits."""
    raw = np.dtype(lanes.raw_dtype(t))
    values = np.asarray(x, dtype=object).reshape(-1)
    if t == "pred":
        return np.array([bool(v) for v in values])
    return np.array([int(v) & ((1 << 8 * raw.itemsize) - 1) for v in values], dtype=raw)

"""From a pure definition and its modifiers to a compiled lane function (cached)."""

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


def lane_function(mnemonic: str) -> Callable[..., tuple[np.ndarray, ...]]:
    """The compiled lane function of a pure two-input instruction: how atomics share their arithmetic."""
    opcode, *qualifiers = mnemonic.split(".")
    found = find_pure(opcode, qualifiers, 2)
    if found is None:
        raise ValueError(f"{mnemonic} is not a pure instruction of two inputs")
    return compiled(*found, 2)


def find_pure(opcode: str, qualifiers: list[str], count: int) -> tuple[registry.Definition, dict[str, Any]] | None:
    """The definition that takes these qualifiers and `count` inputs, and its modifiers."""
    text = "".join(f".{q}" for q in qualifiers)
    for definition in registry.REGISTRY.get(opcode, ()):
        inputs = [s for s in definition.operands if not s.output]
        if definition.kind == "pure" and sum(not s.optional for s in inputs) <= count <= len(inputs):
            modifiers = definition.modifiers(text)
            if modifiers is not None:
                return definition, modifiers
    return None

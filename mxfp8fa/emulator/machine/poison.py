"""How never-written bits go from the inputs of a pure instruction to its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mxfp8fa.emulator.isa.registry import Definition
from mxfp8fa.emulator.lanes import LANES
from mxfp8fa.emulator.values import Value

Tracked = tuple[np.ndarray, np.ndarray | None]
Propagate = Callable[[np.ndarray, list[Tracked], Sequence[np.ndarray]], list[np.ndarray | None]]


def propagation(
    definition: Definition, names: list[str], outputs: Sequence[Value], evaluate: Callable[..., tuple[np.ndarray, ...]]
) -> Propagate:
    """How poison goes from inputs to results: by a rule of the definition, bit by bit where bits only move, else at once."""
    rule = definition.extra.get("shadow")
    moved_arguments = {i for i, name in enumerate(names) if name in definition.moves}
    reaches = [_depends_on(node, moved_arguments) for node in outputs]

    def zeros(t: Tracked) -> np.ndarray:
        return np.zeros_like(t[0]) if t[1] is None else t[1]

    def at_once(
        mask: np.ndarray, tracked: list[Tracked], results: Sequence[np.ndarray], chosen: Sequence[int]
    ) -> list[np.ndarray | None]:
        bad = np.zeros(LANES, bool)
        for k in chosen:
            shadow = tracked[k][1]
            if shadow is not None:
                bad |= shadow.astype(bool)
        if definition.extra.get("membermask") and (bad & mask).any():
            bad = np.ones(LANES, bool)  # a lane's value may reach any other
        return [np.where(bad, ~np.zeros_like(r), np.zeros_like(r)) if bad.any() else None for r in results]

    def propagate(mask: np.ndarray, tracked: list[Tracked], results: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        if rule is not None:
            return [s if s.any() else None for s in rule([t[0] for t in tracked], [zeros(t) for t in tracked])]
        if not definition.moves:
            return at_once(mask, tracked, results, range(len(tracked)))
        lost = np.zeros(LANES, bool)  # lanes whose choice of bits is itself poison, of those that are here
        for n, (_, shadow) in zip(names, tracked, strict=True):
            if n not in definition.moves and shadow is not None:
                lost |= shadow.astype(bool) & mask
        if definition.extra.get("membermask") and lost.any():
            return at_once(mask, tracked, results, range(len(tracked)))
        moved = evaluate(
            mask, *[zeros(t) if n in definition.moves else t[0] for n, t in zip(names, tracked, strict=True)]
        )
        shadows = [m if r else np.zeros_like(m) for m, r in zip(moved, reaches, strict=True)]
        if lost.any():
            shadows = [np.where(lost, ~np.zeros_like(s), s) for s in shadows]
        return [s if s.any() else None for s in shadows]

    return propagate


def _depends_on(node: Value, arguments: set[int]) -> bool:
    """Whether a node's value depends on one of the arguments (each shared node is looked at once)."""
    seen, waiting = {id(node)}, [node]
    while waiting:
        current = waiting.pop()
        if current.op == "arg" and current.attr in arguments:
            return True
        new = [a for a in current.args if id(a) not in seen]
        seen |= {id(a) for a in new}
        waiting += new
    return False

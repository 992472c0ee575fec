"""What a CTA's roles share while they run: its barriers as events, and everything else that stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import cute

from mxfp8fa.kernels.forward.plan import BARRIERS, CHUNK_STAGES, KV_STAGES, Q_TILES
from mxfp8fa.kernels.steps.step7_warp_specialised import Event

RINGS = {name: KV_STAGES for name in ("k_full", "k_empty", "v_full", "v_empty")} | {
    name: CHUNK_STAGES for name in ("chunk_full", "chunk_empty")
}


class Fixed:
    """Values that no loop changes: the compiler need not carry them from one trip to the next."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        """For type checkers: the names are those given."""
        raise AttributeError(name)

    def __extract_mlir_values__(self) -> list:
        """Nothing to carry."""
        return []

    def __new_from_mlir_values__(self, values: list) -> Fixed:
        return self


class Carried:
    """A few integers that loops do change, replaced as a whole: `a = a.but(scores=a.scores + 1)`."""

    def __init__(self, **values: cutlass.Int32) -> None:
        self.values = {name: cutlass.Int32(value) for name, value in values.items()}

    def __getattr__(self, name: str) -> cutlass.Int32:
        if name == "values" or name not in self.values:
            raise AttributeError(name)
        return self.values[name]

    def but(self, **changed: cutlass.Int32) -> Carried:
        """The same with some values changed."""
        return Carried(**{**self.values, **changed})

    def __extract_mlir_values__(self) -> list:
        """What the compiler carries."""
        return [value.ir_value() for value in self.values.values()]

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> Carried:
        return Carried(**dict(zip(self.values, map(cutlass.Int32, values), strict=True)))


def events_of(storage: Any) -> Fixed:
    """The events of a CTA by name.

    K, V and chunks of O go around rings: `events.k_full.wait(n)` is for the n-th tile of K. The others belong to a Q
    tile, `events.s_full(i).wait(n)` for the n-th S of Q tile i; that of row sums has two barriers that take turns.
    """
    found: dict[str, Any] = {}
    for barrier in BARRIERS:
        first = getattr(storage, barrier.name).data_ptr()
        ring = RINGS.get(barrier.name)
        found[barrier.name] = Event(first, ring) if ring else OfTile(first, barrier.stages // Q_TILES)
    return Fixed(**found)


class OfTile(Fixed):
    """One event per Q tile."""

    def __init__(self, first: cute.Pointer, stages: int) -> None:
        super().__init__(first=first, stages=stages)

    def __call__(self, i: cutlass.Int32) -> Event:
        return Event(self.first + i * self.stages, self.stages)

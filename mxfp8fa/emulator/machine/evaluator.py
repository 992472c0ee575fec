"""What executes the instructions of a launch, as the machine sees it: here Python steps; `emulator.compiled` is above.

The machine and the steps tell an evaluator what they meet (a product, a load, a key that wakes somebody), and never ask
which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mxfp8fa.emulator.machine.warp import Warp

if TYPE_CHECKING:
    import numpy as np

    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.machine import Machine
    from mxfp8fa.emulator.machine.tensor_core import Product
    from mxfp8fa.emulator.machine.tensor_map import Box, TensorMap


@dataclass(frozen=True)
class Turn:
    """A turn that Python has to go on with.

    Attributes:
        warp: whose.
        left: instructions left of it.
        before: the machine's epoch when it began.
    """

    warp: Warp
    left: int
    before: int


class Turns(Protocol):
    """A schedule that gives turns without Python.

    Attributes:
        idle: whether no warp could run when it came back last.
    """

    idle: bool

    def arrange(self) -> None:
        """Clusters came or went."""

    def enter(self) -> None:
        """Python hands over."""

    def wake(self, key: Any) -> None:
        """Wake what waits for this."""

    def run(self) -> Turn | None:
        """Give turns until one needs Python, nobody can run (then `idle` is set), or for a while."""

    def ran(self, warp: Any) -> None:
        """Python ran a warp."""

    def show_waits(self) -> None:
        """Let the groups of all warps say what they wait for, for Python to read and change."""


class Evaluator:
    """Executes each instruction by its Python step.

    Attributes:
        warp_class: of the launch's warps.
        turns: who gives turns in the machine's place, or None.
    """

    warp_class: type[Warp] = Warp
    turns: Turns | None = None

    def begin(self, machine: Machine) -> None:
        """A launch begins; once."""

    def multiply(self, ctas: list[CTA], product: Product) -> bool:
        """Do a product under accumulate="float32"; False, and nothing done, where the Python step has to."""
        return False

    def loaded(self, address: int, tensor: TensorMap, box: Box) -> None:
        """TMA loads a box by the tensor map at an address."""

    def copied(self, word: int, form: str, rows: np.ndarray) -> None:
        """tcgen05.cp reads by the descriptor `word`; rows: (rows, words) byte addresses."""



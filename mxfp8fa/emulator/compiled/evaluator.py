"""The evaluator that runs what a kernel repeats as machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxfp8fa.emulator.compiled import copies, product
from mxfp8fa.emulator.compiled.engine import engine_of
from mxfp8fa.emulator.compiled.turns import Turns
from mxfp8fa.emulator.compiled.warp import CompiledWarp, Workspace
from mxfp8fa.emulator.machine import tensor_map
from mxfp8fa.emulator.machine.evaluator import Evaluator
from mxfp8fa.emulator.machine.machine import QUANTUM
from mxfp8fa.emulator.machine.watch import Watch

if TYPE_CHECKING:
    import numpy as np

    from mxfp8fa.emulator.compiled.engine import Engine
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.machine import Machine
    from mxfp8fa.emulator.machine.tensor_core import Product
    from mxfp8fa.emulator.machine.tensor_map import Box, TensorMap


class CompiledEvaluator(Evaluator):
    """As `Evaluator`, with the compiled code of one launch's program.

    Attributes:
        workspace: what the launch's warps share.
    """

    warp_class = CompiledWarp

    def begin(self, machine: Machine) -> None:
        """Get the program's code ready; under the eager schedule, while nobody observes, compiled code also gives turns."""
        self._machine = machine
        self._engine: Engine = engine_of(machine.program)
        self._engine.begin()
        self.workspace = Workspace()
        if machine.options.schedule == "eager" and type(machine.watch) is Watch:
            self.turns, self.workspace.copies = Turns(machine, QUANTUM["eager"]), copies.Copies(machine.memory.ranges())

    def multiply(self, ctas: list[CTA], p: Product) -> bool:
        """As `Evaluator.multiply`; what the descriptors of a product of one CTA mean is kept for compiled code."""
        if not product.multiply(ctas, p):
            return False
        if len(ctas) == 1:
            product.learn(self._engine.products, p)
        return True

    def loaded(self, address: int, tensor: TensorMap, box: Box) -> None:
        """Keep what the map of a whole box means."""
        known = self.workspace.copies
        if known is None or not box.whole:
            return
        memory, origin = self._machine.memory, int(box.addresses.min())
        raw = memory.bytes(address, tensor_map.DECODED_BYTES).tobytes()
        valid = memory.find(origin, int(box.addresses.max()) + tensor.element_bytes - origin)
        known.learn(address, raw, tensor, box, valid)

    def copied(self, word: int, form: str, rows: np.ndarray) -> None:
        """Keep where the rows of a descriptor lie."""
        copies.learn_rows(self._engine.products, word, form, rows)

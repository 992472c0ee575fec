"""What the machine tells an observer. `Watch` observes nothing; the checker (`emulator.check`) and traces are Watches.

The machine calls these methods at every access and synchronisation; an observer never changes what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.asynchronous import AsyncOp
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.warp import Warp

Cells = np.ndarray | slice


class Watch:
    """Observes nothing. `watching` tells the machine whether it need prepare what it would report."""

    watching = False

    # -- who acts -----------------------------------------------------------------------------------------------------

    def run_warp(self, warp: Warp) -> None:
        """From now on the warp acts."""

    def ran_warp(self, warp: Warp) -> None:
        """The warp's turn is over."""

    def issued(self, op: AsyncOp) -> None:
        """The actor starts an asynchronous operation."""

    def begin(self, op: AsyncOp) -> None:
        """From now on the operation acts, until `end`."""

    def end(self, op: AsyncOp) -> None:
        """The operation is complete."""

    def waited(self, op: AsyncOp) -> None:
        """The actor knows that the operation is complete."""

    # -- accesses -----------------------------------------------------------------------------------------------------

    def shared(
        self, cta: CTA, offsets: np.ndarray | slice, size_bytes: int, *, write: bool, atomic: bool = False
    ) -> None:
        """Access of size_bytes at each offset of a CTA's shared memory (a slice: all bytes of it)."""

    def memory(self, addresses: np.ndarray, size_bytes: int, *, write: bool, atomic: bool = False) -> None:
        """Access of size_bytes at each address of global memory."""

    def tensor(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray, *, write: bool) -> None:
        """Access of cells of tensor memory."""

    def tensor_pending(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray) -> None:
        """A tcgen05.ld of these cells was issued; its read may happen until `tensor` reports it done."""

    # -- synchronisation ----------------------------------------------------------------------------------------------

    def release(self, key: Hashable, *, relaxed: bool = False) -> None:
        """The actor makes what it did known to whoever acquires `key` after the next `publish`.

        relaxed: only what it did before its latest fence.
        """

    def publish(self, key: Hashable) -> None:
        """A phase of `key` completed."""

    def acquire(self, key: Hashable) -> None:
        """The actor learns what was released before the latest completed phase of `key`."""

    def fence(self, kind: str) -> None:
        """The actor executes a fence: "proxy.async", "mbarrier_init", "tcgen05.after_thread_sync", ..."""

    def barrier_initialised(self, cta: CTA, offset: int) -> None:
        """An mbarrier begins."""

    def barrier_used(self, cta: CTA, offset: int) -> None:
        """An mbarrier is arrived on, waited for or completed."""

    def barrier_split(self, cta: CTA, offset: int) -> None:
        """The lanes of one arrival fell into two phases."""

    def barrier_missed(self, cta: CTA, offset: int, parity: int) -> None:
        """A wait for the phase of this parity was not satisfied."""

    # -- ends ---------------------------------------------------------------------------------------------------------

    def cta_done(self, cta: CTA) -> None:
        """Every thread of the CTA has exited."""

    def findings(self) -> list[Any]:
        """What was found."""
        return []

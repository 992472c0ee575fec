"""The mbarrier object, PTX ISA "Parallel Synchronization and Communication Instructions: mbarrier".

The eight bytes in shared memory hold phase, expected and pending arrivals and the transaction count. The ISA keeps the
encoding opaque; this one is ours, and a token returned by arrive has the same form.

    bits 0..19 pending   20..39 expected   40..60 tx-count, two's complement   61 phase parity   62 valid
"""

from __future__ import annotations

from dataclasses import dataclass

from mxfp8fa.emulator.errors import BarrierError

COUNT_MAX = (1 << 20) - 1  # PTX ISA, "Contents of the mbarrier object"
_FIELD = COUNT_MAX
_VALID = 1 << 62


@dataclass
class MBarrier:
    """Decoded state of an mbarrier."""

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0

    def encode(self) -> int:
        """The 64 bits kept in shared memory."""
        return self.pending | self.expected << 20 | (self.tx & ((1 << 21) - 1)) << 40 | self.phase << 61 | _VALID

    @staticmethod
    def decode(word: int) -> MBarrier:
        """The state in a 64-bit word; BarrierError if no initialised mbarrier is there."""
        if not word & _VALID or word >> 63:
            raise BarrierError("there is no initialised mbarrier at this address")
        tx = word >> 40 & ((1 << 21) - 1)
        return MBarrier(word >> 20 & _FIELD, word & _FIELD, tx - (1 << 21) if tx >> 20 else tx, word >> 61 & 1)

    @staticmethod
    def init(count: int) -> MBarrier:
        """A fresh barrier that expects `count` arrivals a phase."""
        if not 1 <= count <= COUNT_MAX:
            raise BarrierError(f"mbarrier.init with count {count}: allowed are 1 to {COUNT_MAX}")
        return MBarrier(count, count)

    def arrive(self, count: int = 1, *, no_complete: bool = False) -> bool:
        """Count arrivals down; True when this completes the phase."""
        if not 1 <= count <= COUNT_MAX:
            raise BarrierError(f"mbarrier arrive with count {count}: allowed are 1 to {COUNT_MAX}")
        if count > self.pending:
            raise BarrierError(
                f"{count} arrival(s) on an mbarrier with {self.pending} pending of {self.expected} expected: "
                "more arrivals than expected in this phase"
            )
        self.pending -= count
        if no_complete and self.pending == 0 and self.tx == 0:
            raise BarrierError("arrive.noComplete would complete the phase")
        return self._complete()

    def drop(self, count: int = 1, *, no_complete: bool = False) -> bool:
        """Arrive, and expect `count` fewer from the next phase on."""
        self.expected -= count
        return self.arrive(count, no_complete=no_complete)

    def expect_one_more(self) -> None:
        """One more arrival is pending in this phase (cp.async.mbarrier.arrive without .noinc)."""
        if self.pending == COUNT_MAX:
            raise BarrierError(f"the pending count is at its maximum, {COUNT_MAX}")
        self.pending += 1

    def expect_tx(self, size_bytes: int) -> None:
        """Raise the transaction count."""
        self._set_tx(self.tx + size_bytes)

    def complete_tx(self, size_bytes: int) -> bool:
        """Lower the transaction count; True when this completes the phase. May come before its expect_tx."""
        self._set_tx(self.tx - size_bytes)
        return self._complete()

    def _set_tx(self, tx: int) -> None:
        if abs(tx) > COUNT_MAX:
            raise BarrierError(f"the transaction count becomes {tx}: allowed are -{COUNT_MAX} to {COUNT_MAX}")
        self.tx = tx

    def _complete(self) -> bool:
        if self.pending or self.tx:
            return False
        self.phase ^= 1
        self.pending = self.expected
        return True

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity has completed (a fresh barrier has passed parity 1)."""
        return self.phase != parity

    def __str__(self) -> str:
        return f"phase {self.phase}, {self.pending} of {self.expected} arrivals pending, tx-count {self.tx}"

"""CTAs and clusters: who runs together, and the shared memory and barriers they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, OutOfBounds
from mxfp8fa.emulator.machine.barriers import LIVE_ROW, BarrierWord, ClusterBarrier, NamedBarrier, arrival_of
from mxfp8fa.emulator.machine.memory import SHARED_OFFSET_MASK, SHARED_RANK_SHIFT, SharedMemory
from mxfp8fa.emulator.machine.tensor_memory import TensorMemory
from mxfp8fa.emulator.machine.warp import FULL, WARP_LANES, Warp

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.machine import Machine

NAMED_BARRIERS = 16  # PTX ISA, "bar, barrier": numbers 0 to 15


class CTA:
    """One thread block.

    Attributes:
        index: (x, y, z) in the grid.
        rank: rank in its cluster (%cluster_ctarank).
        arrivals: per 8 bytes of shared memory, a mark of compiled code: who arrived last at the mbarrier there.
        barrier_words: of the named barriers.
        number: tells it from every other object of the launch, also from those that are gone (`id` would not).
    """

    def __init__(self, machine: Machine, cluster: Cluster, index: tuple[int, int, int], rank: int):
        self.machine = machine
        self.number = machine.next_number()
        self.cluster = cluster
        self.index = index
        self.rank = rank
        launch = machine.launch
        self.shared = SharedMemory(machine.program.static_shared_bytes + launch.smem_bytes)
        self.threads = int(np.prod(launch.block))
        self.threads_rounded = -(-self.threads // WARP_LANES) * WARP_LANES
        self.tensor = TensorMemory()
        self.barrier_words = np.zeros((NAMED_BARRIERS + 1, len(BarrierWord)), np.int64)
        self.barriers = [NamedBarrier(self, i) for i in range(NAMED_BARRIERS)]
        self._last_arrivals: dict[int, str] = {}
        self.arrivals = np.zeros(self.shared.words.data.size // 8, np.int64)
        self.warps = [
            machine.evaluator.warp_class(
                self,
                i // WARP_LANES,
                FULL if i + WARP_LANES <= self.threads else (1 << (self.threads - i)) - 1,
                machine.program,
            )
            for i in range(0, self.threads, WARP_LANES)
        ]
        self._count_live()

    def _count_live(self) -> None:
        self.barrier_words[LIVE_ROW, 0] = WARP_LANES * sum(not w.done for w in self.warps)

    def arrived(self, offset: int, who: str) -> None:
        """Note who used the mbarrier at an offset last ("": it is new)."""
        self._last_arrivals[offset] = who
        self.arrivals[offset // 8] = 0

    def last_arrival(self, offset: int) -> str:
        """Who used the mbarrier at an offset last, for reports."""
        warp, pc = arrival_of(int(self.arrivals[offset // 8]))
        if pc < 0:
            return self._last_arrivals.get(offset) or "nobody"
        by = self.warps[warp].describe(pc)
        instruction = self.machine.program.instructions[pc]
        if instruction.opcode == "cp":
            return f"{by} ({'TMA load' if 'tensor' in instruction.qualifiers else 'cp.async.bulk'})"
        return f"{by} (tcgen05.commit)" if instruction.opcode == "tcgen05" else by

    @property
    def live_threads(self) -> int:
        """Threads of the warps that have not exited, in whole warps."""
        return int(self.barrier_words[LIVE_ROW, 0])

    @property
    def done(self) -> bool:
        """Whether every thread has exited."""
        return all(w.done for w in self.warps)

    def on_exit(self, warp: Warp, bits: int) -> None:
        """Barriers count exited threads no longer."""
        self.machine.progress()
        self._count_live()
        for barrier in self.barriers:
            barrier.check()
        self.cluster.barrier.exited(warp, bits)

    def shared_address(self, offset: int) -> int:
        """The shared address of an offset in this CTA."""
        return self.rank << SHARED_RANK_SHIFT | offset

    def __str__(self) -> str:
        return f"CTA {self.index}"


class Cluster:
    """CTAs that run together and reach each other's shared memory."""

    def __init__(self, machine: Machine, first: tuple[int, int, int], shape: tuple[int, int, int]):
        self.machine = machine
        self.number = machine.next_number()
        self.shape = shape
        self.first = first
        sx, sy, sz = shape
        positions = [(x, y, z) for z in range(sz) for y in range(sy) for x in range(sx)]
        self.ctas = [
            CTA(machine, self, (first[0] + x, first[1] + y, first[2] + z), rank)
            for rank, (x, y, z) in enumerate(positions)
        ]
        self.barrier = ClusterBarrier(self)

    @property
    def warps(self) -> list[Warp]:
        """Every warp, by CTA."""
        return [w for cta in self.ctas for w in cta.warps]

    @property
    def live_threads(self) -> int:
        """Threads that have not exited."""
        return sum(w.live.bit_count() for cta in self.ctas for w in cta.warps)

    @property
    def done(self) -> bool:
        """Whether every thread has exited."""
        return all(cta.done for cta in self.ctas)

    def cta_of(self, address: int, *, own: CTA | None = None) -> CTA:
        """The CTA that a shared address belongs to; with `own`, it must be that one (shared::cta)."""
        rank = address >> SHARED_RANK_SHIFT
        if rank >= len(self.ctas):
            raise OutOfBounds(
                f"shared address {address:#x} names CTA rank {rank}: the cluster has {len(self.ctas)} CTA(s)"
            )
        cta = self.ctas[rank]
        if own is not None and cta is not own:
            raise IllegalOperation(
                f"shared address {address:#x} belongs to the CTA of rank {rank}, but this instruction (shared::cta) may "
                f"only reach its own (rank {own.rank})"
            )
        if cta.done:
            raise IllegalOperation(f"shared address {address:#x} belongs to {cta}, which has exited already")
        return cta


def offset_of(address: int) -> int:
    """The offset within its CTA of a shared address."""
    return address & SHARED_OFFSET_MASK

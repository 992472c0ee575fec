"""One launch of one kernel: the scheduler that runs warps and asynchronous work to the end of the grid.

Clusters run one after another in grid order; another one starts early only when everything resident waits (so kernels
whose CTAs wait for each other work as they do on a device that holds them all). Warps are coroutines: each runs until
it waits, exits, or has used its quantum; the schedule picks the next. Nothing depends on time or on hash order, so the
same seed gives the same run.

A deadlock is exact: no warp can run, nothing asynchronous is pending, no cluster is left to start, and every wait that
may time out has done so without anything changing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.errors import DeadlockError, LaunchError, SpinError
from mxfp8fa.emulator.machine.asynchronous import AsyncEngine
from mxfp8fa.emulator.machine.cluster import Cluster
from mxfp8fa.emulator.machine.memory import LOCAL_LIMIT_BYTES, SHARED_LIMIT_BYTES, GlobalMemory
from mxfp8fa.emulator.machine.warp import Group, Warp
from mxfp8fa.emulator.machine.watch import Watch

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.evaluator import Evaluator, Turns
    from mxfp8fa.emulator.machine.launch import LaunchSpec, Options
    from mxfp8fa.emulator.machine.program import Program

QUANTUM = {"eager": 4096, "lazy": 4096}
RANDOM_QUANTUM = 64
GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, "Compute Capabilities"
BLOCK_LIMITS = (1024, 1024, 64)
POLL_QUANTUM = 16  # turn of a warp that was last seen polling
SPIN_LIMIT_INSTRUCTIONS = 2_000_000  # a warp that ran this long while nothing anywhere changed is reported as spinning
PATIENCE_INSTRUCTIONS = (
    200_000  # each time a warp ran this long without an effect, another cluster starts: it may wait for it
)
TIME_OUT_LIMIT = 10_000  # a wait that timed out this often while nothing anywhere changed is reported as a deadlock


class Machine:
    """Runs one launch.

    Attributes:
        launch: grid, block, cluster, shared memory, parameters.
        program: the bound kernel.
        memory: global memory.
        epoch: grows whenever something another thread can see changes.
        waiting: the groups that wait, or have waited, by what wakes them.
        bytes_moved: bytes read and written, by memory ("global load", ...).
        evaluator: what executes instructions.
    """

    def __init__(
        self,
        program: Program,
        launch: LaunchSpec,
        memory: GlobalMemory,
        options: Options,
        evaluator: Evaluator,
        watch: Watch | None = None,
    ):
        self.program = program
        self.launch = launch
        self.memory = memory
        self.options = options
        self.rng = Random(options.seed)
        self.watch = watch or Watch()
        self.asynchronous = AsyncEngine(options.schedule, self.rng, self.watch)
        self.epoch = 0
        self.bytes_moved: dict[str, int] = {}
        self.resident: list[Cluster] = []
        self.waiting: dict[Any, list[Group]] = {}
        self.finished_clusters = 0
        self.tcgen05_group = ""
        self.instructions = 0
        self._waiting = self._cluster_origins()
        self._seen_states: set[Any] = set()
        self._state_epoch = -1
        self._turn = 0
        self._number = 0
        self._check_launch()
        self.evaluator = evaluator
        evaluator.begin(self)
        self.turns: Turns | None = evaluator.turns

    def _check_launch(self) -> None:
        launch, threads = self.launch, int(np.prod(self.launch.block))
        if min(*launch.grid, *launch.block, *launch.cluster) < 1:
            raise LaunchError(
                f"grid {launch.grid}, block {launch.block}, cluster {launch.cluster}: every size must be at least 1"
            )
        if threads > 1024:
            raise LaunchError(f"block {launch.block} has {threads} threads: at most 1024")
        for what, shape, limits in (("grid", launch.grid, GRID_LIMITS), ("block", launch.block, BLOCK_LIMITS)):
            if any(n > limit for n, limit in zip(shape, limits, strict=True)):
                raise LaunchError(f"{what} {shape}: at most {limits}")
        if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
            raise LaunchError(f"grid {launch.grid} is not a multiple of cluster {launch.cluster}")
        if int(np.prod(launch.cluster)) > 16:
            raise LaunchError(f"cluster {launch.cluster} has {int(np.prod(launch.cluster))} CTAs: at most 16")
        if self.program.local_bytes > LOCAL_LIMIT_BYTES:
            raise LaunchError(
                f"{self.program.local_bytes} bytes of local memory for a thread: at most {LOCAL_LIMIT_BYTES}"
            )
        smem = self.program.static_shared_bytes + launch.smem_bytes
        if smem > SHARED_LIMIT_BYTES:
            raise LaunchError(
                f"{launch.smem_bytes} dynamic and {self.program.static_shared_bytes} static bytes of shared memory: "
                f"at most {SHARED_LIMIT_BYTES} together"
            )

    def _cluster_origins(self) -> Iterator[tuple[int, int, int]]:
        (gx, gy, gz), (cx, cy, cz) = self.launch.grid, self.launch.cluster
        for z in range(0, gz, cz):
            for y in range(0, gy, cy):
                for x in range(0, gx, cx):
                    yield (x, y, z)

    # -- events -------------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Something another thread may see has changed."""
        self.epoch += 1

    def wake(self, key: Any) -> None:
        """Make every group that waits for `key` runnable."""
        for group in self.waiting.pop(key, ()):
            if group.wait is not None and group.wait.key == key:
                group.wait = None
                group.timed_out = False
        if self.turns is not None:
            self.turns.wake(key)

    def enter_compiled(self) -> None:
        """Compiled code is about to run a warp."""
        if self.turns is not None:
            self.turns.enter()

    def next_number(self) -> int:
        """1, 2, 3, ...: tells apart warps, CTAs, clusters, and asynchronous operations that need a queue of their own."""
        self._number += 1
        return self._number

    def write(self, text: str) -> None:
        """Print what the kernel prints."""
        sys.stdout.write(text)

    def count_bytes(self, kind: str, size: int) -> None:
        """Add to the bytes moved."""
        self.bytes_moved[kind] = self.bytes_moved.get(kind, 0) + size

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, tick: Callable[[Machine], None] | None = None) -> None:
        """Run the launch to its end. `tick` is called now and then (progress)."""
        self._start_cluster()
        while self.resident or self._start_cluster():
            if tick is not None:
                tick(self)
            self._step()
            self._retire_clusters()
        while self.asynchronous:
            self.asynchronous.complete_one(at_random=False)

    def _start_cluster(self) -> bool:
        first = self.next_cluster()
        if first is None:
            return False
        self.resident.append(Cluster(self, first, self.launch.cluster))
        if self.turns is not None:
            self.turns.arrange()
        return True

    def next_cluster(self) -> tuple[int, int, int] | None:
        """Origin of the next cluster that has not started (clusterlaunchcontrol takes them from here too)."""
        return next(self._waiting, None)

    def _step(self) -> None:
        if self.turns is not None:
            self._step_compiled(self.turns)
            return
        warp = self._pick()
        random = self.options.schedule == "random"
        if warp is not None:
            self._run_warp(warp, self._quantum(warp))
            if random and self.asynchronous and self.rng.random() < 0.3:
                self.asynchronous.complete_one(at_random=True)
        else:
            self._idle(at_random=random)

    def _step_compiled(self, turns: Turns) -> None:
        """As many turns as compiled code can give, then the one that it could not."""
        found = turns.run()
        if found is None:
            if turns.idle:
                self._idle(at_random=False)
            return
        quantum = self._quantum(found.warp)
        left = found.left if found.left < QUANTUM["eager"] else quantum
        self._after_turn(found.warp, found.warp.run(quantum, left), found.before)
        turns.ran(found.warp)

    def _idle(self, *, at_random: bool) -> None:
        """No warp can run."""
        if self.asynchronous:
            self.asynchronous.complete_one(at_random=at_random)
            return
        if self.turns is not None:
            self.turns.show_waits()
        if not self._time_out_waits() and not self._start_cluster():
            self._deadlock()

    def _pick(self) -> Warp | None:
        """The next warp: round robin (eager), reversed (lazy), or any (random)."""
        epoch = self.epoch
        runnable = [
            w
            for cluster in self.resident
            for cta in cluster.ctas
            for w in cta.warps
            if w.groups and not (w.spinning and w.spin_epoch == epoch) and not w.waits
        ]
        if not runnable:
            return None
        if self.options.schedule == "random":
            return self.rng.choice(runnable)
        self._turn += 1
        return (
            runnable[self._turn % len(runnable)]
            if self.options.schedule == "eager"
            else runnable[-1 - self._turn % len(runnable)]
        )

    def _quantum(self, warp: Warp) -> int:
        """Instructions of a warp's turn."""
        if self.options.schedule == "random":
            return self.rng.randint(1, RANDOM_QUANTUM)
        return POLL_QUANTUM if warp.polls else QUANTUM[self.options.schedule]

    def _run_warp(self, warp: Warp, quantum: int) -> None:
        before = self.epoch
        self.watch.run_warp(warp)
        executed = warp.run(quantum)
        self.watch.ran_warp(warp)
        self._after_turn(warp, executed, before)

    def _after_turn(self, warp: Warp, executed: int, before: int) -> None:
        """Note what a turn did; `before`: the epoch when it began."""
        self.instructions += executed
        warp.executed = 0
        if self.epoch != before or warp.waits:
            warp.spinning = warp.polls = False
            warp.quiet = 0
            warp.spin_signatures.clear()
            return
        if warp.quiet // PATIENCE_INSTRUCTIONS != (warp.quiet + executed) // PATIENCE_INSTRUCTIONS:
            self._start_cluster()
        warp.quiet += executed
        signature = warp.signature()
        if signature in warp.spin_signatures or warp.quiet > SPIN_LIMIT_INSTRUCTIONS:
            warp.spinning, warp.spin_epoch, warp.polls = True, self.epoch, True
        warp.spin_signatures.add(signature)

    def _time_out_waits(self) -> bool:
        """Let every wait that may time out do so, unless that was already tried in this very state."""
        groups = [
            g for c in self.resident for w in c.warps for g in w.groups if g.wait is not None and g.wait.may_time_out
        ]
        if not groups:
            return False
        if self._state_epoch != self.epoch:
            self._seen_states.clear()
            self._state_epoch = self.epoch
        state = tuple(w.signature() for c in self.resident for w in c.warps if w.groups)
        if state in self._seen_states or len(self._seen_states) >= TIME_OUT_LIMIT:
            return False
        self._seen_states.add(state)
        for group in groups:
            group.wait = None
            group.timed_out = True
        return True

    def _retire_clusters(self) -> None:
        for cluster in [c for c in self.resident if c.done]:
            self.resident.remove(cluster)
            for cta in cluster.ctas:
                self.watch.cta_done(cta)
                for warp in cta.warps:
                    warp.retired()
            self.finished_clusters += 1
            if self.turns is not None:
                self.turns.arrange()

    # -- reports ------------------------------------------------------------------------------------------------------

    def _deadlock(self) -> None:
        lines, spinning, first = [], [], None
        for cluster in self.resident:
            for warp in cluster.warps:
                for group in warp.groups:
                    site = warp.site(group.pc)
                    first = first or site
                    if group.wait is not None:
                        lanes = group.bits.bit_count()
                        who = f"{lanes} lane{'s' if lanes > 1 else ''}"
                        lines.append(f"  CTA {warp.cta.index} warp {warp.index} ({who}): {group.wait.reason}")
                        lines.append(
                            f"      at PTX line {site.ptx_line}{', ' + site.source if site.source else ''}: {site.text}"
                        )
                    else:
                        spinning.append(
                            f"  CTA {warp.cta.index} warp {warp.index} repeats itself at PTX line {site.ptx_line}: {site.text}"
                        )
        if spinning:
            message = "warps poll memory that nobody left can write:\n" + "\n".join(spinning + lines)
            raise SpinError(message, site=first)
        raise DeadlockError("deadlock: no warp can run and nothing is pending\n" + "\n".join(lines), site=first)

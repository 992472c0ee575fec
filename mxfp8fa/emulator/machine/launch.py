"""What is launched, and under which options."""

from __future__ import annotations

from dataclasses import dataclass

from mxfp8fa.emulator.machine.asynchronous import SCHEDULES

CHOICES = {
    "schedule": SCHEDULES,
    "uninitialised": ("poison", "strict"),
    "accumulate": ("float32", "blackwell", "exact"),
    "wait_ld": ("dependency", "required"),
    "check": ("off", "races"),
    "engine": ("compiled", "numpy"),
}
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchSpec:
    """One kernel launch.

    Attributes:
        grid, block, cluster: shapes (x, y, z): CTAs, threads of a CTA, CTAs of a cluster.
        smem_bytes: dynamic shared memory of a CTA.
        params: the parameter block, laid out as the kernel's `.param` list says.
        overlaps: it may start before the launch before it has ended (programmatic dependent launch).
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    smem_bytes: int = 0
    params: bytes = b""
    overlaps: bool = False


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run.

    Attributes:
        schedule: "eager": warps in turn, asynchronous work completes at issue; "lazy": warps in reverse, asynchronous
            work completes only when no warp can run; "random": both at random.
        seed: of the random schedule. The same seed gives the same run.
        uninitialised: "poison": never-written memory may be read and moved, but must not reach a branch, an address, a
            barrier or global memory; "strict": no load may touch it.
        accumulate: arithmetic of tcgen05.mma: "float32", "blackwell" (the published model of the hardware) or "exact".
        wait_ld: "dependency": a tcgen05.ld completes at wait::ld or when a register of it is used, as on the hardware;
            "required": its registers are poison until wait::ld.
        check: "races" runs the happens-before checker (`emulator.check`); its findings are in the report.
        assume_mma_cp_order: for the checker, tcgen05.mma before a later tcgen05.cp of one thread counts as ordered.
        assume_tcgen05_order: for the checker, barriers order tcgen05 instructions of different threads by themselves; under
            False only together with tcgen05.fence::before_thread_sync and ::after_thread_sync, as the ISA says.
        assume_read_order: for the checker, a barrier alone orders a thread's read before the asynchronous write (TMA) that
            overwrites what it read; under False only together with fence.proxy.async, as the ISA says.
        engine: "compiled": hot instructions run as machine code (where llvmlite is installed); "numpy": all of them run in
            Python, with the same results.
        sm_count: number of SMs that host code and kernels see.
    """

    schedule: str = "eager"
    seed: int = 0
    uninitialised: str = "poison"
    accumulate: str = "float32"
    wait_ld: str = "dependency"
    check: str = "off"
    assume_mma_cp_order: bool = True
    assume_tcgen05_order: bool = True
    assume_read_order: bool = True
    engine: str = "compiled"
    sm_count: int = 148

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r}: allowed are {', '.join(allowed)}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed {self.seed!r}: an integer is needed")
        if not isinstance(self.sm_count, int) or self.sm_count < 1:
            raise ValueError(f"sm_count {self.sm_count!r}: an integer of at least 1 is needed")

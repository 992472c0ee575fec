"""Every constant of the timing model, with its range, how sure it is, and who measured it.

None was measured by this project. Cycles are SM clocks. Confidence: "high" - two independent sources, or a measurement that
can be re-derived; "medium" - one credible measurement; "low" - inference, contested, or second-hand. A constant whose
range is not a point is uncertain, and results carry the range through (`timing.sensitivity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_SEMI = "SemiAnalysis, microbench-blackwell (B200, 2026)"
_QUICK = "QuickRunCUDA (B300, 2026)"
_STUDY = "third-party B200/B300 study"
_BPG = "CUDA C++ Programming Guide, arithmetic throughput"
_FA4 = "FlashAttention-4 paper"


@dataclass(frozen=True)
class Constant:
    """One constant.

    Attributes:
        value: used by default.
        low, high: the range.
        unit: of all three.
        confidence: "high", "medium" or "low".
        source: who measured or said it.
        what: what it is.
    """

    value: float
    low: float
    high: float
    unit: str
    confidence: str
    source: str
    what: str


def _known(value: float, unit: str, confidence: str, source: str, what: str) -> Constant:
    return Constant(value, value, value, unit, confidence, source, what)


_CYCLES, _PER_COLUMN, _PER_CYCLE = "cycles", "cycles per column", "bytes per cycle"

CONSTANTS: dict[str, Constant] = {
    # -- cycles for which a warp instruction occupies its unit of a scheduler ---------------------------------------------
    "fma": _known(1, _CYCLES, "high", _BPG, "FFMA, FMUL, FADD: 128 lanes per SM"),
    "fma2": _known(
        2, _CYCLES, "medium", "peak FLOPS of the data sheet",
        "FFMA2, FMUL2, FADD2: 64 lanes per SM, two results each",
    ),
    "imad": _known(2, _CYCLES, "high", _BPG, "IMAD and half-precision arithmetic: 64 lanes per SM"),
    "alu": _known(2, _CYCLES, "high", _BPG, "integer, logic, selection: 64 lanes per SM"),
    "fmnmx": Constant(2, 1, 2, _CYCLES, "low", f"{_BPG} (128 lanes) against a B300 pipe catalogue (64)", "FMNMX"),
    "fmnmx3": _known(2, _CYCLES, "low", "B300 pipe catalogue", "FMNMX3 on the ALU: 64 lanes per SM"),
    "mufu": _known(8, _CYCLES, "high", _FA4, "MUFU: 16 lanes per SM"),
    "f2fp_16": Constant(2, 2, 4, _CYCLES, "low", f"{_STUDY} (62 lanes) against {_QUICK} (32)", "F2FP to BF16 or FP16"),
    "f2fp_8": Constant(
        4, 2, 4, _CYCLES, "medium", f"{_STUDY} and {_QUICK}: 32 lanes; one later heading disagrees",
        "F2FP to E4M3",
    ),
    "unpack_8": Constant(2, 2, 4, _CYCLES, "medium", f"{_QUICK}: 64 lanes", "F2FP from E4M3 to FP16"),
    "f2ip": Constant(2, 2, 4, _CYCLES, "low", "none; Hopper converts 64 lanes", "F2IP: two numbers to packed integers"),
    "uniform": Constant(1, 1, 2, _CYCLES, "low", "none; stall counts of ptxas allow it", "uniform datapath"),
    "ldtm": Constant(
        2.3, 1.0, 2.3, _PER_COLUMN, "low", f"{_QUICK}: 53 to 57 bytes a cycle and warp; a chain may hide 128, a column a cycle",
        "tcgen05.ld, per column and warp",
    ),
    "sttm": Constant(0.6, 0.5, 0.8, _PER_COLUMN, "medium", f"{_STUDY}; {_QUICK}", "tcgen05.st, per column and warp"),
    # -- units that an SM has once ----------------------------------------------------------------------------------------
    "smem": _known(
        128, _PER_CYCLE, "high", f"{_SEMI}; quack notes",
        "shared memory port: operands of the tensor core, TMA, LSU",
    ),
    "shfl": _known(1, _CYCLES, "high", "quack notes; CUDA C++ Programming Guide", "SHFL shares the port"),
    "mma_columns": _known(
        0.5, _PER_COLUMN, "high", f"{_SEMI}, all shapes within 1 cycle",
        "tcgen05.mma: N / 2 cycles for 32 bytes of K (128 rows)"
    ),
    "utccp": Constant(
        16, 4, 75, _CYCLES, "low", f"{_STUDY}: 75 to 97 for calls of 32 to 256 columns",
        "tcgen05.cp of 512 bytes, in the tensor queue"
    ),
    "tma_bandwidth": Constant(70, 60, 80, _PER_CYCLE, "medium", "TileSight: 20.5 TB/s of L2", "TMA, per SM"),
    # -- latencies --------------------------------------------------------------------------------------------------------
    "mufu_latency": Constant(16, 14, 18, _CYCLES, "medium", f"{_QUICK}", "MUFU"),
    "f2fp_latency": _known(6, _CYCLES, "low", "none", "conversions awaited by scoreboard"),
    "lds_latency": _known(29, _CYCLES, "high", "quack notes", "shared memory load"),
    "shfl_latency": _known(24, _CYCLES, "medium", "quack notes", "SHFL"),
    "ldtm_latency": Constant(30, 15, 60, _CYCLES, "low", "not published", "tcgen05.ld, beyond its columns"),
    "sttm_latency": _known(12, _CYCLES, "medium", f"{_STUDY}: 13 cycles for one column", "tcgen05.st, beyond its columns"),
    "operand_read": _known(12, _CYCLES, "low", "none", "scoreboard of operands that were read"),
    "other_latency": _known(25, _CYCLES, "low", "none", "S2R, R2UR, LDC and what else a scoreboard guards"),
    "global_latency": Constant(600, 350, 1200, _CYCLES, "medium", f"{_SEMI}: 340 to 400 in L2, 1100 to 1200 in HBM", "LDG"),
    "branch": Constant(6, 0, 12, _CYCLES, "low", "none", "a taken branch, beyond its stall count"),
    "mma_start": Constant(
        25, 5, 40, _CYCLES, "medium", f"{_SEMI}: part of 116 (TS) to 148 (SS)",
        "tcgen05.mma, issue to its first cycle",
    ),
    "mma_commit": Constant(
        65, 50, 90, _CYCLES, "high", f"{_SEMI}; {_STUDY}: commit and wait add about 118",
        "last cycle of tcgen05.mma to arrival",
    ),
    "arrive": Constant(20, 10, 35, _CYCLES, "medium", f"{_STUDY}: 54 to 88 for a round trip", "mbarrier arrival to completion"),
    "wake": Constant(
        35, 20, 60, _CYCLES, "medium", f"{_STUDY}: 54 to 88 for a round trip",
        "completion to the waiting warp's next instruction",
    ),
    "try_wait": Constant(
        30, 15, 60, _CYCLES, "low", f"{_STUDY}: 71 to 85 in a trace (with its branch)",
        "mbarrier.try_wait of a complete phase",
    ),
    "bar": _known(18, _CYCLES, "high", f"{_STUDY}: 15 cycles for 32 threads, 21 for 128", "named barrier"),
    "cluster_bar": _known(190, _CYCLES, "medium", f"{_QUICK}", "cluster barrier"),
    "tma_latency": Constant(
        700, 500, 1000, _CYCLES, "medium", f"{_SEMI}: 900 to 1050 from HBM; L2 hits less",
        "TMA load, issue to arrival",
    ),
    "tma_store": Constant(400, 200, 800, _CYCLES, "low", "none", "TMA store, issue to completion"),
    "fence": Constant(10, 2, 30, _CYCLES, "low", f"{_STUDY}: 2 to 13 with nothing pending", "proxy fences"),
    "alloc": _known(253, _CYCLES, "medium", f"{_QUICK}", "tcgen05.alloc"),
    # -- a launch ---------------------------------------------------------------------------------------------------------
    "cta_start": Constant(
        800, 300, 1500, _CYCLES, "low", "none",
        "from one CTA's exit to the first instruction of the next on an SM",
    ),
    "launch_us": Constant(3.0, 2.0, 6.0, "us", "low", "none", "launch, and the end of the grid, as timers see them"),
    "hbm": Constant(7.2, 6.7, 7.5, "TB/s", "high", f"{_SEMI}; torchao", "global memory bandwidth of the chip"),
    "sm_count": _known(148, "SMs", "high", "device query", "SMs of a B200"),
}  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """The constants, some of them changed.

    Attributes:
        changes: name -> value.
    """

    changes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.changes:
            if name not in CONSTANTS:
                raise ValueError(f"{name!r} is no constant of the model: allowed are {', '.join(CONSTANTS)}")

    def __getitem__(self, name: str) -> float:
        return self.changes.get(name, CONSTANTS[name].value)

    def but(self, **changes: float) -> Rates:
        """With other values."""
        return Rates({**self.changes, **changes})


def uncertain() -> Iterator[tuple[str, Constant]]:
    """The constants whose range is not a point."""
    return ((name, constant) for name, constant in CONSTANTS.items() if constant.low != constant.high)

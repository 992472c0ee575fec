"""The forward kernel under observation, for notebook 09: one CTA with full tensor memory, its waits taken away one by one.

Needs the extra `kernels`; importing this does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.emulator import EmulationError, Report, Trace, run
from mxfp8fa.emulator.check import Finding
from mxfp8fa.emulator.mutate import mutants, record
from mxfp8fa.numerics import attention_mxfp8, quantize
from mxfp8fa.numerics.inputs import synthetic_llm

if TYPE_CHECKING:
    from mxfp8fa.kernels.plan import TmemMap

HEAD_DIM = 128  # tensor memory is full at this one


@dataclass
class WaitingTrace(Trace):
    """A trace that also notes in which PTX lines each barrier is waited for.

    Attributes:
        wait_lines: name of a barrier -> PTX lines of waits that it satisfied.
    """

    wait_lines: dict[str, set[int]] = field(default_factory=dict)

    def acquire(self, key: Any) -> None:
        """A wait is satisfied."""
        super().acquire(key)
        if key[0] == "mbarrier":
            self.wait_lines.setdefault(self.barrier_name(key), set()).add(self._site_line())


class OneCta:
    """The compiled kernel with arguments for one CTA.

    Args:
        seqlen_q: queries; 256 make a work tile.
        seqlen_k: keys.
        interleave: whether products of the next work tile are issued among the last ones of this.
    """

    def __init__(self, *, seqlen_q: int = 512, seqlen_k: int = 256, interleave: bool = True):
        from mxfp8fa.kernels import MXOperand
        from mxfp8fa.kernels.forward import forward_arguments
        from mxfp8fa.kernels.forward.names import names

        x = synthetic_llm(seqlen_q=seqlen_q, seqlen_k=seqlen_k, num_heads_q=1, head_dim=HEAD_DIM)
        q, k, v = (quantize(t, axes=axis) for t, axis in ((x.q, 3), (x.k, 3), (x.v, 1)))
        self.softmax_scale = x.softmax_scale
        self.model, _ = attention_mxfp8(q, k, v, softmax_scale=self.softmax_scale)
        operands = (MXOperand.from_mx_tensor(t) for t in (q, k, v))
        self.compiled, self.arguments, self.call = forward_arguments(
            *operands, softmax_scale=self.softmax_scale, ctas=1, interleave=interleave
        )
        self.names = names(HEAD_DIM)

    def run(self, **options: Any) -> tuple[WaitingTrace, Report, NDArray[np.float32]]:
        """Trace, report and O of one run with the checker."""
        trace = WaitingTrace.named(self.names)
        assert isinstance(trace, WaitingTrace)
        report = run(self.compiled, *self.arguments, trace=trace, names=self.names, check="races", **options)
        return trace, report, self.call.o.numpy().copy()

    def without_waits(self, lines: set[int], **options: Any) -> list[Finding | EmulationError]:
        """What the checker says when the waits in these PTX lines are gone."""
        (recorded,) = record(self.compiled, *self.arguments, sm_count=1)
        steps = recorded.program.steps
        chosen = [m for m in mutants(recorded.program) if m.change == "wait removed" and m.site.ptx_line in lines]
        kept = {m.pc: steps[m.pc] for m in chosen}
        for mutant in chosen:
            steps[mutant.pc] = mutant.step
        try:
            return list(run(self.compiled, *self.arguments, names=self.names, check="races", **options).races)
        except EmulationError as error:
            return [*error.findings, error]
        finally:
            for pc, step in kept.items():
                steps[pc] = step


def tensor_memory_rows(tmem: TmemMap | None = None) -> list[tuple[int, int]]:
    """Columns for a picture, first and last of each row: what a kernel's map declares, and the rest of its accumulators.

    Args:
        tmem: the map; the forward's if None.
    """
    if tmem is None:
        from mxfp8fa.kernels.forward.plan import TMEM

        tmem = TMEM
    inner = sorted({(r.start, r.stop - 1) for r in tmem if r.over})
    rows = list(inner)
    for outer in (r for r in tmem if not r.over):
        used = max((last for first, last in inner if outer.start <= first < outer.stop), default=outer.start - 1)
        rows.append((used + 1, outer.stop - 1))
    return sorted(rows)


def products(trace: Trace) -> list[str]:
    """The products in the order in which the tensor core did them, by what they wrote: "S0", "S1", "O0", "O1"."""
    from mxfp8fa.kernels.forward.plan import TMEM

    accumulators = {r.name: range(r.start, r.stop) for r in TMEM if not r.over}
    done: list[str] = []
    for access in trace.tensor_accesses:
        wide = access.last_column - access.first_column + 1 >= HEAD_DIM
        if access.write and access.actor == "tensor core" and wide:
            name = next(n for n, columns in accumulators.items() if access.first_column in columns)
            if not done or done[-1] != name:
                done.append(name)
    return done


def in_short(finding: Finding | EmulationError) -> str:
    """A finding in a line: what is not ordered, in whose columns, and between whom."""
    if isinstance(finding, EmulationError):
        return f"{type(finding).__name__}: {finding.message.splitlines()[0]}"
    columns = finding.where.rsplit("), ", 1)[-1]
    sides = [side[0].rsplit("(", 1)[-1].rstrip(")") for side in (finding.first, finding.second) if side is not None]
    return f"{finding.what}: {columns}; first {', then '.join(sides)}"

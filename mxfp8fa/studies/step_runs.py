"""Recorded runs of the step kernels in the emulator. Needs the extra `kernels`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mxfp8fa.emulator import Trace, run


@dataclass(frozen=True)
class StepRun:
    """One run of a step.

    Attributes:
        trace: what happened.
        names: what the kernel calls its columns of tensor memory: name -> first and last.
        parameters: what was run, for captions.
    """

    trace: Trace
    names: dict[str, tuple[int, int]]
    parameters: str


def block_scaled_run(*, k: int = 640, schedule: str = "eager", seed: int = 0) -> StepRun:
    """Step 3, a block-scaled product of 128 x 128 x k with a ring of three stages.

    Args:
        k: a multiple of 128.
        schedule: as for `emulator.run`.
        seed: likewise.

    Raises:
        RuntimeError: the product is not that of the NumPy model, so the pictures would show a broken run.
    """
    import torch

    from mxfp8fa.kernels import MXOperand, compile_kernel
    from mxfp8fa.kernels.steps import step3_block_scaled as step
    from mxfp8fa.numerics import mma, quantize

    rng = np.random.default_rng(0)
    a, b = (quantize(rng.standard_normal((128, k)).astype(np.float32)) for _ in range(2))
    d = torch.zeros(128, 128)
    arguments = step.arguments(MXOperand.from_mx_tensor(a), MXOperand.from_mx_tensor(b), d)
    trace = Trace(roles={step.LOAD_WARP: "load", step.MMA_WARP: "mma"})
    run(compile_kernel(step.block_scaled, *arguments), *arguments, trace=trace, schedule=schedule, seed=seed)
    if not np.array_equal(d.numpy(), mma(a, b)):
        raise RuntimeError("step 3 does not give the product of the NumPy model")
    how = schedule if schedule != "random" else f"random (seed {seed})"
    parameters = f"kernels/steps/step3_block_scaled.py, M = N = 128, K = {k}, schedule {how}"
    return StepRun(trace, {r.name: (r.start, r.stop - 1) for r in step.TMEM}, parameters)

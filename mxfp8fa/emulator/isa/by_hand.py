"""One pure instruction evaluated by hand, for tests and experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

import mxfp8fa.emulator.isa  # noqa: F401  (fills the registry)
from mxfp8fa.emulator import lanes
from mxfp8fa.emulator.isa.trace import compiled, find_pure, graph


def evaluate(mnemonic: str, *inputs: Any, mask: np.ndarray | None = None) -> Any:
    """Evaluate one pure instruction on up to 32 lanes of input, for tests and notebooks.

    Args:
        mnemonic: opcode and qualifiers, "fma.rn.f32".
        *inputs: arrays or scalars: floats are values, integers for a float operand are its raw bits; a scalar goes to
            every lane, anything else shorter than 32 lanes is padded with zeros.
        mask: active lanes (only ballot-like instructions look at it).

    Returns:
        Raw result bits per lane (bool for predicates), or a tuple of them. View as np.float32 where that helps.
    """
    opcode, *qualifiers = mnemonic.split(".")
    found = find_pure(opcode, qualifiers, len(inputs))
    if found is None:
        raise ValueError(f"{mnemonic} with {len(inputs)} inputs is not a pure instruction of the emulator")
    definition, modifiers = found
    _, types, _ = graph(definition, modifiers, len(inputs))
    count = max(np.size(x) for x in inputs) if inputs else lanes.LANES
    raw = [_raw(x, t) for x, t in zip(inputs, types, strict=True)]
    active = np.ones(lanes.LANES, bool) if mask is None else mask
    with np.errstate(all="ignore"):
        results = tuple(r[:count] for r in compiled(definition, modifiers, len(inputs))(active, *raw))
    return results[0] if len(results) == 1 else results


def _raw(x: Any, t: str) -> np.ndarray:
    dtype = lanes.DTYPES[t]
    array = np.atleast_1d(np.asarray(x))
    if array.dtype != dtype and array.dtype != lanes.raw_dtype(t):
        array = array.astype(dtype) if array.dtype.kind == "f" else _integers(x, t)
    padded = np.zeros(lanes.LANES, array.dtype)
    padded[: array.size] = array.reshape(-1)
    if array.size == 1:
        padded[:] = array.reshape(-1)[0]
    return padded if t == "pred" else padded.view(lanes.raw_dtype(t))


def _integers(x: Any, t: str) -> np.ndarray:
    """Python integers taken modulo the operand's width, as raw bits."""
    raw = np.dtype(lanes.raw_dtype(t))
    values = np.asarray(x, dtype=object).reshape(-1)
    if t == "pred":
        return np.array([bool(v) for v in values])
    return np.array([int(v) & ((1 << 8 * raw.itemsize) - 1) for v in values], dtype=raw)

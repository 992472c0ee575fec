"""One pure form: its inputs, what the emulator makes of them, and which results the ISA defines."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from mxfp8fa.emulator.isa import trace
from mxfp8fa.emulator.isa.snippets import Form, Operand, forms
from mxfp8fa.emulator.lanes import LANES, raw_dtype
from mxfp8fa.emulator.values import BITS
from silicon import collectives
from silicon.inputs import COUNT, FLOATS, PACKED, pool, unary_pool

_TYPES = {n: k.bits for n, k in FLOATS.items()} | {n: np.dtype(d).itemsize * 8 for n, (_, d) in PACKED.items()}
_TYPES |= {f"{letter}{width}": width for letter in "bus" for width in (8, 16, 32, 64)}
IMMEDIATE_COUNT = 128  # inputs per constant, for forms that are executed once for each of many constants


@lru_cache(maxsize=1)
def all_forms() -> dict[str, Form]:
    """Every form by key."""
    return {f.key: f for f in forms()}


def kind_of(operand: Operand, form: Form, *, output: bool = False) -> str:
    """The kind of values an operand holds (see `inputs.pool`).

    An operand that the pattern calls by an unsigned type may hold packed or bfloat16 numbers: the mnemonic says so by
    its last type (cvt's source), for outputs by its first.
    """
    if operand.type == "pred":
        return "pred"
    if operand.ptx_type in FLOATS or operand.ptx_type in PACKED:
        return operand.ptx_type
    width = BITS[operand.type]
    if operand.type[0] == "u":
        types = [q for q in form.mnemonic.split(".")[1:] if q in _TYPES]
        name = (types or [""])[0 if output else -1]
        if _TYPES.get(name) == width and (name in FLOATS or name in PACKED):
            return name
    return operand.type if operand.type in FLOATS else f"i{width}"


def inputs(form: Form) -> tuple[list[np.ndarray], np.ndarray]:
    """(one array per entry of form.arrays, active) for a form."""
    if form.collective:
        return collectives.inputs(form)
    kinds = [kind_of(o, form) for o in form.arrays]
    arrays = [unary_pool(kinds[0])] if len(kinds) == 1 else [pool(k, p) for p, k in enumerate(kinds)]
    if form.immediate:
        arrays = [a[COUNT - IMMEDIATE_COUNT :] for a in arrays]
    return arrays, np.ones(len(arrays[0]), bool)


def emulate(form: Form, arrays: list[np.ndarray], active: np.ndarray) -> list[np.ndarray]:
    """The emulator's results: per output, for constant k at k * len(active)."""
    evaluate = trace.compiled(form.definition, form.modifiers, len(form.inputs))
    with np.errstate(all="ignore"):
        if form.collective:
            return _emulate_warps(form, evaluate, arrays, active)
        parts = [evaluate(active, *_with_constant(form, arrays, c)) for c in form.constants]
    return [np.concatenate([_full(p[i], len(active)) for p in parts]) for i in range(len(form.outputs))]


def _with_constant(form: Form, arrays: list[np.ndarray], constant: int) -> list[np.ndarray]:
    remaining = iter(arrays)
    n = len(arrays[0])
    named = [
        np.full(n, constant, raw_dtype(o.type)) if o.name == form.immediate else next(remaining) for o in form.inputs
    ]
    return [*named, *remaining]  # a carry flag comes last


def _full(result: np.ndarray, count: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(result, (count,)) if np.size(result) == 1 else result)


def _emulate_warps(
    form: Form, evaluate: Callable[..., tuple[np.ndarray, ...]], arrays: list[np.ndarray], active: np.ndarray
) -> list[np.ndarray]:
    """Results of a collective; lanes that do not execute it keep zero, as in the kernel."""
    outputs = [np.zeros(len(active), raw_dtype(o.type)) for o in form.outputs]
    for start in range(0, len(active), LANES):
        lanes = slice(start, start + LANES)
        results = evaluate(active[lanes], *(a[lanes] for a in arrays))
        for output, result in zip(outputs, results, strict=True):
            output[lanes] = np.where(active[lanes], result, output[lanes])
    return outputs


def defined(form: Form, arrays: list[np.ndarray], active: np.ndarray) -> list[np.ndarray]:
    """Per output, which results the ISA defines."""
    everywhere = [np.ones(len(active) * len(form.constants), bool) for _ in form.outputs]
    rule = _DEFINED.get(form.definition.opcode)
    return everywhere if rule is None else rule(form, arrays, active, everywhere)


Masks = list[np.ndarray]


def _nonzero_divisor(form: Form, arrays: list[np.ndarray], active: np.ndarray, everywhere: Masks) -> Masks:
    """Integer division by zero "yields an unspecified, machine-specific value" (PTX ISA, div and rem)."""
    return [arrays[1] != 0] if form.outputs[0].type[0] in "us" else everywhere


def _member_source(form: Form, arrays: list[np.ndarray], active: np.ndarray, everywhere: Masks) -> Masks:
    """shfl.sync from a lane outside the membermask is undefined; the source lane is what a shuffle of lane numbers delivers."""
    lane = np.tile(np.arange(LANES, dtype=np.uint32), len(active) // LANES)
    source = emulate(form, [lane, *arrays[1:]], active)[0]
    return [(arrays[3] >> source & 1).astype(bool) | ~active, everywhere[1]]


def _byte_counts(form: Form, arrays: list[np.ndarray], active: np.ndarray, everywhere: Masks) -> Masks:
    """Position and length of a bit field are "restricted to the 8-bit value range 0..255" (PTX ISA, bfe and bfi)."""
    position, length = arrays[-2:]
    return [(position < 256) & (length < 256)]


def _small_base(form: Form, arrays: list[np.ndarray], active: np.ndarray, everywhere: Masks) -> Masks:
    """fns with a base above 31 is undefined (PTX ISA, fns)."""
    return [arrays[1] < 32]


_DEFINED: dict[str, Callable[[Form, list[np.ndarray], np.ndarray, Masks], Masks]] = {
    "div": _nonzero_divisor,
    "rem": _nonzero_divisor,
    "shfl": _member_source,
    "fns": _small_base,
    "bfe": _byte_counts,
    "bfi": _byte_counts,
}

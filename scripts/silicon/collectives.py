"""Inputs for instructions in which the lanes of a warp exchange values: operands, membermasks and who takes part."""

from __future__ import annotations

import numpy as np

from mxfp8fa.emulator.isa.snippets import Form
from silicon.inputs import float_edges, integer_edges, random_words

LANES = 32
WARPS = 256
GROUPINGS = ("all", "some", "two groups", "one lane")  # which lanes execute, and with which membermask
FEW_VALUES = 3  # distinct values per warp for match, so that lanes agree


def _words(form: Form, what: str, count: int) -> np.ndarray:
    return random_words(f"{form.mnemonic} {what}", count)


def participation(form: Form) -> tuple[np.ndarray, np.ndarray]:
    """(active, membermask) per thread; warps cycle through GROUPINGS.

    "two groups": both execute the same instruction, each with its own membermask.
    """
    random = (_words(form, "members", WARPS) & np.uint64(0xFFFFFFFF)).astype(np.uint64)
    active = np.zeros((WARPS, LANES), bool)
    masks = np.zeros((WARPS, LANES), np.uint32)
    lane = np.arange(LANES)
    for warp in range(WARPS):
        chosen = int(random[warp]) or 1
        kind = GROUPINGS[warp % len(GROUPINGS)]
        if kind == "all":
            chosen = 0xFFFFFFFF
        elif kind == "one lane":
            chosen = 1 << (chosen % LANES)
        inside = (chosen >> lane & 1).astype(bool)
        active[warp] = inside | (kind == "two groups")
        masks[warp] = np.where(inside, chosen, ~chosen & 0xFFFFFFFF)
    if form.definition.opcode in ("elect", "activemask"):  # these read the active mask itself: one group per warp
        masks[:] = np.where(active, masks, 0).max(axis=1, keepdims=True)
        active &= (masks >> lane & 1).astype(bool)
    return active.reshape(-1), masks.reshape(-1)


def _operand_words(form: Form, name: str, kind: str) -> np.ndarray:
    """One operand's 64-bit words for all threads."""
    count = WARPS * LANES
    words = _words(form, name, count)
    if kind == "pred":
        density = _words(form, name + " density", WARPS).repeat(LANES) % np.uint64(5)  # none, few, half, most, all
        limit = np.array([0, 2, 8, 14, 16], np.uint64)[density.astype(np.int64)]
        return (words % np.uint64(16) < limit).astype(np.uint64)
    if form.definition.opcode == "match":
        pools = _words(form, name + " values", WARPS * FEW_VALUES).reshape(WARPS, FEW_VALUES).repeat(LANES, axis=0)
        few = _words(form, name + " few", WARPS).repeat(LANES) % np.uint64(FEW_VALUES) + np.uint64(1)
        return pools[np.arange(count), (words % few).astype(np.int64)]
    if kind == "f32":
        edges = float_edges("f32")[(words % np.uint64(80)).astype(np.int64)]
        return np.where(words >> np.uint64(60) < 8, edges, words >> np.uint64(8))
    edges = integer_edges(32)[(words % np.uint64(80)).astype(np.int64)]
    return np.where(words >> np.uint64(60) < 4, edges, words >> np.uint64(8))


def _shfl_control(form: Form) -> dict[str, np.ndarray]:
    """b and c of shfl.sync: offsets mostly small; c as compilers write it (segments of 2, 4 ... 32) or anything."""
    count = WARPS * LANES
    words = _words(form, "offset", count)
    offset = np.where(words >> np.uint64(61) < 6, words % np.uint64(32), words >> np.uint64(5) & np.uint64(0xFF))
    uniform = words[::LANES].repeat(LANES) % np.uint64(32)
    offset = np.where(_words(form, "uniform", WARPS).repeat(LANES) % np.uint64(2) == 0, uniform, offset)
    segment = np.uint64(32) - (np.uint64(1) << (_words(form, "segment", WARPS).repeat(LANES) % np.uint64(6)))
    bound = np.uint64(0 if form.modifiers["mode"] == "up" else 31)
    control = segment << np.uint64(8) | bound
    odd = _words(form, "control", count) & np.uint64(0x1F1F)
    usual = (np.arange(WARPS) % 8 < 6).repeat(LANES)
    return {"b": offset, "c": np.where(usual, control, odd)}


def inputs(form: Form) -> tuple[list[np.ndarray], np.ndarray]:
    """(arrays of the form's operands, active) for WARPS warps."""
    active, masks = participation(form)
    words = {"membermask": masks.astype(np.uint64)}
    if form.definition.opcode == "shfl":
        words |= _shfl_control(form)
    arrays = []
    for operand in form.arrays:
        found = words.get(operand.name)
        if found is None:
            found = _operand_words(form, operand.name, operand.ptx_type)
        arrays.append(found.astype(bool) if operand.type == "pred" else found.astype(f"u{_bytes(operand.type)}"))
    return arrays, active


def _bytes(value_type: str) -> int:
    return int(value_type[1:]) // 8

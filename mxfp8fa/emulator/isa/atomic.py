"""Atomics, PTX ISA sections 9.7.13 atom and red. The arithmetic is that of the ordinary instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxfp8fa.emulator.isa.memory import L2, space_of
from mxfp8fa.emulator.isa.registry import machine, pure
from mxfp8fa.emulator.isa.trace import lane_function
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.memory import SHARED_WINDOW
from mxfp8fa.emulator.machine.warp import Warp, lanes_of
from mxfp8fa.emulator.values import BITS, Value, select, value_type

INTEGER_OPS = ("and", "or", "xor", "add", "inc", "dec", "min", "max")
INTEGER_TYPES = ("b32", "b64", "u32", "u64", "s32", "s64")
FLOAT_TYPES = ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
MODS: dict[str, Any] = {
    "sem": ("relaxed", "acquire", "release", "acq_rel"), "scope": ("cta", "cluster", "gpu", "sys"),
    "ss": ("global", "shared", "shared::cta", "shared::cluster"), "l2": L2,
}  # fmt: skip


@pure("inc.type d, a, b", type=("u32",), section="9.7.13 atom")
def inc(a: Value, b: Value, *, type: str) -> Value:
    """d = a >= b ? 0 : a + 1 (the operation of atom.inc; not an instruction of its own)."""
    return select(a >= b, a & 0, a + 1)


@pure("dec.type d, a, b", type=("u32",), section="9.7.13 atom")
def dec(a: Value, b: Value, *, type: str) -> Value:
    """d = a == 0 or a > b ? b : a - 1 (the operation of atom.dec; not an instruction of its own)."""
    return select(a.eq(0) | (a > b), b, a - 1)


def _combine(op: str, type: str, space: str) -> Callable[..., tuple[np.ndarray, ...]]:
    """The lane function of old op b."""
    if type in FLOAT_TYPES:
        flush = (
            type == "f32" and op == "add" and space == "global"
        )  # PTX ISA: atom.add.f32 on global flushes subnormals
        return lane_function(f"{op}{'.ftz' if flush else ''}.{type}")
    if op in ("add", "min", "max"):
        type = "u" + type[1:] if type[0] == "b" else type
    elif op in ("and", "or", "xor"):
        type = f"b{BITS[value_type(type)]}"
    return lane_function(f"{op}.{type}")


def _place(space: str, bits: int, a: np.ndarray) -> str:
    """Global or shared, for the rounding rules that differ (a warp's generic addresses are taken to agree)."""
    if space != "generic":
        return space
    return "shared::cluster" if (a[lanes_of(bits)] >= SHARED_WINDOW).all() else "global"


def _atomic(
    warp: Warp, bits: int, ss: str | None, a: np.ndarray, values: Any, op: str, type: str
) -> list[access.Tracked]:
    space = space_of(ss)
    size = BITS[value_type(type)] // 8
    words = values if isinstance(values, list) else [values]
    combine = _combine(op, type, _place(space, bits, a))

    def one(i: int, word: np.ndarray) -> access.Tracked:
        where = a + np.uint64(i * size)
        return access.update(warp, bits, space, where, size, lambda now, old: combine(lanes_of(now), old, word)[0])

    return [one(i, word) for i, word in enumerate(words)]


@machine(
    "atom{.sem}{.scope}{.ss}.op{.L2::cache_hint}.type d, [a], b{, e:b64}",
    op=INTEGER_OPS,
    type=INTEGER_TYPES,
    section="9.7.13 atom",
    **MODS,
)
@machine(
    "atom{.sem}{.scope}{.ss}.op{.noftz}{.L2::cache_hint}{.vec}.type d, [a], b{, e:b64}",
    op=("add", "min", "max"),
    vec=("v2", "v4", "v8"),
    type=FLOAT_TYPES,
    section="9.7.13 atom",
    **MODS,
)
def atom(
    warp: Warp, bits: int, a: np.ndarray, b: Any, e: Any = None, *, op: str, type: str, ss: str | None = None, **_: Any
) -> Any:
    """d = [a]; [a] = [a] op b, atomically (lanes in ascending order)."""
    return _atomic(warp, bits, ss, a, b, op, type)


@machine(
    "red{.sem}{.scope}{.ss}.op{.L2::cache_hint}.type [a], b{, e:b64}",
    op=INTEGER_OPS,
    type=INTEGER_TYPES,
    section="9.7.13 red",
    **MODS,
)
@machine(
    "red{.sem}{.scope}{.ss}.op{.noftz}{.L2::cache_hint}{.vec}.type [a], b{, e:b64}",
    op=("add", "min", "max"),
    vec=("v2", "v4", "v8"),
    type=FLOAT_TYPES,
    section="9.7.13 red",
    **MODS,
)
def red(
    warp: Warp, bits: int, a: np.ndarray, b: Any, e: Any = None, *, op: str, type: str, ss: str | None = None, **_: Any
) -> None:
    """[a] = [a] op b, atomically (lanes in ascending order)."""
    _atomic(warp, bits, ss, a, b, op, type)


@machine(
    "atom{.sem}{.scope}{.ss}.exch{.L2::cache_hint}.type d, [a], b{, e:b64}",
    type=("b32", "b64"),
    section="9.7.13 atom",
    **MODS,
)
def atom_exch(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, e: Any = None, *, type: str, ss: str | None = None, **_: Any
) -> Any:
    """d = [a]; [a] = b, atomically."""
    return access.update(warp, bits, space_of(ss), a, BITS[value_type(type)] // 8, lambda now, old: b)


@machine(
    "atom{.sem}{.scope}{.ss}.cas{.L2::cache_hint}.type d, [a], b, c{, e:b64}",
    type=("b16", "b32", "b64"),
    section="9.7.13 atom",
    **MODS,
)
def atom_cas(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, e: Any = None, *, type: str, ss: str | None = None, **_: Any) -> Any:  # fmt: skip
    """d = [a]; [a] = c if it equals b, atomically."""
    return access.update(
        warp, bits, space_of(ss), a, BITS[value_type(type)] // 8, lambda now, old: np.where(old == b, c, old)
    )

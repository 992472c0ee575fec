"""Loads, stores, address conversion and prefetch, PTX ISA section 9.7.9."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.isa.registry import machine, pure
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.memory import LOCAL_WINDOW, SHARED_RANK_SHIFT, SHARED_WINDOW, WINDOW_BYTES
from mxfp8fa.emulator.machine.warp import Warp
from mxfp8fa.emulator.values import BITS, Value, const, select, value_type

SCALARS = (*(f"{k}{n}" for k in "bus" for n in (8, 16, 32, 64)), "f32", "f64", "b128")
SPACES = (
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
    "const",
)
SEMANTICS = ("weak", "volatile", "relaxed", "acquire", "release", "mmio")
SCOPES = ("cta", "cluster", "gpu", "sys")
CACHES = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
L1 = tuple(f"L1::{p}" for p in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"))
L2 = tuple(f"L2::{p}" for p in ("evict_normal", "evict_first", "evict_last"))
PREFETCH = ("L2::64B", "L2::128B", "L2::256B")
HINTS = {"sem": SEMANTICS, "scope": SCOPES, "cop": CACHES, "l1": L1, "l2": L2, "size": PREFETCH}
HINT_TEXT = "{.l1}{.l2}{.L2::cache_hint}{.size}"
VECTORS = ("v2", "v4", "v8")


def space_of(ss: str | None) -> str:
    """The memory an access names. Kernel parameters and constants live in global memory here, arguments of calls in local."""
    if ss is None:
        return "generic"
    if ss.startswith("param"):
        return "param"
    return "global" if ss == "const" else ss


def words_of(type: str, vec: str | None) -> tuple[int, int]:
    """(bytes of a word, number of words) of an access."""
    count = int(vec[1:]) if vec else 1
    return (8, 2 * count) if type == "b128" else (BITS[value_type(type)] // 8, count)


@machine(
    "ld{.sem}{.scope}{.ss}{.cop}{.nc}" + HINT_TEXT + "{.vec}.type d, [a]{, b:b64}",
    ss=SPACES, vec=VECTORS, type=SCALARS, section="9.7.9 ld", **HINTS,
    not_modelled="caches and their hints; memory is sequentially consistent, so sem and scope change nothing",
)  # fmt: skip
@machine(
    "ld.ss.sem{.scope}{.vec}.type d, [a]", ss=SPACES, vec=VECTORS, type=SCALARS, sem=SEMANTICS, scope=SCOPES,
    section="9.7.9 ld", confidence="inferred", not_modelled="not in the ISA's syntax, but ptxas takes it and programs use it",
)  # fmt: skip
def ld(
    warp: Warp,
    bits: int,
    a: np.ndarray,
    b: Any = None,
    *,
    type: str,
    ss: str | None = None,
    vec: str | None = None,
    sem: str = "weak",
    **_: Any,
) -> Any:
    """d = the words at [a]; a register wider than the type is sign- or zero-extended."""
    size, count = words_of(type, vec)
    return access.load(warp, bits, space_of(ss), a, size, count, atomic=sem != "weak")


@machine("ldu{.ss}{.vec}.type d, [a]", ss=("global",), vec=VECTORS, type=SCALARS, section="9.7.9 ldu")
def ldu(warp: Warp, bits: int, a: np.ndarray, *, type: str, ss: str | None = None, vec: str | None = None) -> Any:
    """d = the words at [a], which is the same for the whole warp."""
    size, count = words_of(type, vec)
    return access.load(warp, bits, space_of(ss), a, size, count)


@machine(
    "st{.sem}{.scope}{.ss}{.cop}" + HINT_TEXT + "{.vec}.type [a], b{, c:b64}",
    ss=SPACES, vec=VECTORS, type=SCALARS, section="9.7.9 st", **HINTS, extra={"tracked": ("b",)},
    not_modelled="caches and their hints; memory is sequentially consistent, so sem and scope change nothing",
)  # fmt: skip
def st(
    warp: Warp,
    bits: int,
    a: np.ndarray,
    b: Any,
    c: Any = None,
    *,
    type: str,
    ss: str | None = None,
    vec: str | None = None,
    sem: str = "weak",
    **_: Any,
) -> None:
    """The words at [a] = b."""
    access.store(warp, bits, space_of(ss), a, b, atomic=sem != "weak")


@pure(
    "cvta.space.type d, a", space=("global", "param", "const"), type=("u32", "u64"), section="9.7.9 cvta", moves=("a",)
)
def cvta_global(a: Value, *, space: str, type: str) -> Value:
    """d = the generic address of a global, constant or parameter address (the same number here)."""
    return a


@pure("cvta.param::entry.type d, a", type=("u32", "u64"), section="9.7.9 cvta", moves=("a",))
def cvta_entry(a: Value, *, type: str) -> Value:
    """d = the generic address of a kernel parameter."""
    return a


@pure(
    "cvta.to.space.type d, a",
    space=("global", "param", "const"),
    type=("u32", "u64"),
    section="9.7.9 cvta",
    moves=("a",),
)
def cvta_to_global(a: Value, *, space: str, type: str) -> Value:
    """d = the global, constant or parameter address of a generic address."""
    return a


WINDOWED = ("shared", "shared::cta", "shared::cluster", "local")


@pure(
    "cvta.space.u64 d, a",
    space=WINDOWED,
    section="9.7.9 cvta",
    confidence="inferred",
    not_modelled="the real window positions",
)
def cvta_window(a: Value, *, space: str) -> Value:
    """d = the generic address of a shared or local address."""
    return a + (LOCAL_WINDOW if space == "local" else SHARED_WINDOW)


@pure(
    "cvta.to.space.u64 d, a",
    space=WINDOWED,
    section="9.7.9 cvta",
    confidence="inferred",
    not_modelled="the real window positions",
)
def cvta_to_window(a: Value, *, space: str) -> Value:
    """d = the shared or local address of a generic address."""
    return a - (LOCAL_WINDOW if space == "local" else SHARED_WINDOW)


@pure(
    "isspacep.space d:pred, a:u64",
    space=("global", "const", "local", "shared::cluster", "param", "param::entry"),
    section="9.7.9 isspacep",
    not_modelled="telling constants and parameters from global memory",
)
def isspacep(a: Value, *, space: str) -> Value:
    """d = whether the generic address a lies in the named space."""
    shared = (a >= SHARED_WINDOW) & (a < SHARED_WINDOW + WINDOW_BYTES)
    local = (a >= LOCAL_WINDOW) & (a < LOCAL_WINDOW + WINDOW_BYTES)
    if space.startswith("shared"):
        return shared
    if space == "local":
        return local
    return ~(shared | local) if space == "global" else (a < 0)


@machine("isspacep.space d:pred, a:u64", space=("shared", "shared::cta"), section="9.7.9 isspacep")
def isspacep_own(warp: Warp, bits: int, a: np.ndarray, *, space: str) -> np.ndarray:
    """d = whether the generic address a lies in the shared memory of the thread's own CTA."""
    first = np.uint64(SHARED_WINDOW + (warp.cta.rank << SHARED_RANK_SHIFT))
    return (a >= first) & (a - first < np.uint64(1 << SHARED_RANK_SHIFT))


@pure(
    "mapa.ss.type d, a, b:u32",
    ss=("shared::cluster",),
    type=("u32", "u64"),
    section="9.7.9 mapa",
    confidence="inferred",
)
def mapa_shared(a: Value, b: Value, *, ss: str, type: str) -> Value:
    """d = the shared address of variable a in the CTA of rank b (SASS: bits 31:24 replaced by the rank)."""
    return (a & 0x00FFFFFF) | (b.to(a.type) << 24)


@pure("mapa.type d, a, b:u32", type=("u64",), section="9.7.9 mapa", confidence="inferred")
def mapa_generic(a: Value, b: Value, *, type: str) -> Value:
    """d = the generic address of shared variable a in the CTA of rank b."""
    low = a - SHARED_WINDOW
    return ((low & 0x00FFFFFF) | (b.to("u64") << 24)) + SHARED_WINDOW


@pure(
    "getctarank.ss.type d:u32, a",
    ss=("shared::cluster",),
    type=("u32", "u64"),
    section="9.7.9 getctarank",
    confidence="inferred",
)
def getctarank_shared(a: Value, *, ss: str, type: str) -> Value:
    """d = rank of the CTA that a shared address belongs to."""
    return ((a >> 24) & 0xFF).to("u32")


@pure("getctarank.type d:u32, a", type=("u64",), section="9.7.9 getctarank", confidence="inferred")
def getctarank_generic(a: Value, *, type: str) -> Value:
    """d = rank of the CTA that a generic address of shared memory belongs to; all ones for another space."""
    inside = (a >= SHARED_WINDOW) & (a < SHARED_WINDOW + WINDOW_BYTES)
    return select(inside, ((a >> 24) & 0xFF).to("u32"), const(0xFFFFFFFF, "u32"))


@machine(
    "prefetch{.space}.level [a]",
    space=("global", "local"),
    level=("L1", "L2", "L2::evict_last", "L2::evict_normal"),
    section="9.7.9 prefetch",
    not_modelled="caches: a prefetch does nothing",
)
def prefetch(warp: Warp, bits: int, a: np.ndarray, *, level: str, space: str | None = None) -> None:
    """A cache hint."""


@machine(
    "prefetch{.space}.tensormap [a]",
    space=("const", "param"),
    section="9.7.9 prefetch",
    not_modelled="caches: a prefetch does nothing",
)
def prefetch_tensormap(warp: Warp, bits: int, a: np.ndarray, *, space: str | None = None) -> None:
    """A cache hint."""


@machine("prefetchu.L1 [a]", section="9.7.9 prefetch", not_modelled="caches: a prefetch does nothing")
def prefetchu(warp: Warp, bits: int, a: np.ndarray) -> None:
    """A cache hint."""


@pure("createpolicy.fractional.primary{.secondary}.b64 d, a:f32", primary=L2, secondary=L2, section="9.7.9 createpolicy", confidence="inferred",
      not_modelled="the policy's bits beyond the constants seen in SASS; policies have no effect here")  # fmt: skip
def createpolicy(a: Value, *, primary: str, secondary: str | None = None) -> Value:
    """d = a cache policy (its bits reach only cache hints)."""
    top = {"L2::evict_first": 0x12F0, "L2::evict_last": 0x14F0, "L2::evict_normal": 0x16F0}[primary]
    return const(top << 48, "u64") + (a.bits("u32").to("u64") & 0)

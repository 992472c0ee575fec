"""Cluster launch control, PTX ISA section 9.7.13.17 and .18: a running cluster takes over the work of one that has not started."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import PoisonError, UnsupportedInstruction
from mxfp8fa.emulator.isa import mbarriers
from mxfp8fa.emulator.isa.registry import define, machine
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.asynchronous import AsyncOp
from mxfp8fa.emulator.machine.binding import Step, guarded, writer
from mxfp8fa.emulator.machine.warp import Warp, indices_of
from mxfp8fa.emulator.ptx import syntax

RESPONSE_BYTES = 16


@machine(
    "clusterlaunchcontrol.try_cancel.async{.ss}.mbarrier::complete_tx::bytes{.multicast::cluster::all}.b128 [d], [a]",
    ss=("shared::cta",), section="9.7.13.17 clusterlaunchcontrol.try_cancel", confidence="inferred",
    not_modelled="a device may refuse although clusters are left; here the next one in grid order is always handed out",
)  # fmt: skip
def try_cancel(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, *, multicast_cluster_all: bool = False, ss: str | None = None
) -> None:
    """Ask for a cluster that has not started: a 16-byte answer at [d], then 16 bytes complete on mbarrier [a]."""
    lane = int(indices_of(bits)[0])
    cta, offset = access.shared_word(warp, "shared::cta", int(d[lane]), RESPONSE_BYTES, "the response of try_cancel")
    barrier = access.shared_word(warp, "shared::cta", int(a[lane]), 8, "mbarrier")[1]
    targets = warp.cta.cluster.ctas if multicast_cluster_all else [cta]
    origin = warp.machine.next_cluster()
    by, site = mbarriers.who(warp), warp.site(warp.group.pc)

    def run() -> None:
        for target in targets:
            target.machine.watch.shared(target, slice(offset, offset + RESPONSE_BYTES), RESPONSE_BYTES, write=True)
            target.shared.words.write_bytes(offset, _response(origin))
            mbarriers.change(target, barrier, lambda m: m.complete_tx(RESPONSE_BYTES), f"{by} (try_cancel)")

    warp.machine.asynchronous.issue(AsyncOp(("try_cancel", warp.number), run, site, "clusterlaunchcontrol.try_cancel"))


def _response(origin: tuple[int, int, int] | None) -> np.ndarray:
    """The answer: first CTA of the cluster as x; y | z << 16; bit 0 of word 2 says whether there is one (sm_100a SASS)."""
    x, y, z = origin or (0, 0, 0)
    return np.array([x, y | z << 16, origin is not None, 0], np.uint32).view(np.uint8)


def _query(instruction: syntax.Instruction, compute: Any, types: str) -> Step:
    to, source = instruction.operands
    if not isinstance(source, syntax.Register) or source.type != "b128":
        raise UnsupportedInstruction(f"{instruction}: the source must be a 128-bit register")
    writers = [writer(o, types) for o in (to.elements if isinstance(to, syntax.Vector) else [to])]
    index = source.id

    def step(warp: Warp, bits: int) -> None:
        shadow = warp.shadow[index]
        if shadow is not None and shadow[indices_of(bits)].any():
            raise PoisonError("the response of try_cancel was read before it was written")
        for write, value in zip(writers, compute(warp.regs[index].view(np.uint32)), strict=False):
            write(warp, bits, value, None)

    return step if instruction.guard is None else guarded(step, instruction.guard)


@define(
    "control",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, a",
    section="9.7.13.18 clusterlaunchcontrol.query_cancel",
)
def is_canceled(instruction: syntax.Instruction, program: Any) -> Step:
    """p = whether the answer a hands out a cluster."""
    return _query(instruction, lambda words: [(words[:, 2] & 1).astype(bool)], "pred")


@define(
    "control",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 d, a",
    section="9.7.13.18 clusterlaunchcontrol.query_cancel",
)
def get_first_ctaid(instruction: syntax.Instruction, program: Any) -> Step:
    """{x, y, z, _} = index of the first CTA of the cluster that answer a hands out."""
    return _query(instruction, _ctaid, "u32")


@define(
    "control",
    "clusterlaunchcontrol.query_cancel.axis.b32.b128 d, a",
    axis=tuple(f"get_first_ctaid::{i}" for i in "xyz"),
    section="9.7.13.18 clusterlaunchcontrol.query_cancel",
)
def get_first_ctaid_axis(instruction: syntax.Instruction, program: Any, *, axis: str) -> Step:
    """d = x, y or z of the first CTA of the cluster that answer a hands out."""
    i = "xyz".index(axis[-1])
    return _query(instruction, lambda words: [_ctaid(words)[i]], "u32")


def _ctaid(words: np.ndarray) -> list[np.ndarray]:
    y, z = words[:, 1] & np.uint32(0xFFFF), words[:, 1] >> np.uint32(16)
    return [np.ascontiguousarray(words[:, 0]), y, z, np.zeros(32, np.uint32)]

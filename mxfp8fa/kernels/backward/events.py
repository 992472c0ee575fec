"""The barriers of the main kernel as events."""

from typing import Any

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.plan import BARRIERS
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.steps.step7_warp_specialised import Event


class WarpEvent(Event):
    """An event at which warps arrive, not threads: a warp is one voice, after its lanes have met."""

    def arrive(self, i: cutlass.Int32) -> None:
        """All lanes of the calling warp have done their part for tile i."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.at(i))


def events_of(storage: Any) -> Fixed:
    """By name; each happens once per tile of queries, kv_full and dkv_full once."""
    return Fixed(**{b.name: WarpEvent(getattr(storage, b.name).data_ptr(), b.stages) for b in BARRIERS})

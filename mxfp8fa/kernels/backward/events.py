"""Events with a whole warp's arrival: a warp is one voice, after its lanes have met."""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.steps.step7_warp_specialised import Event


class WarpEvent(Event):
    """An `Event` to which warps arrive, not threads."""

    def arrive(self, i: cutlass.Int32) -> None:
        """All lanes of the calling warp have done their part for tile i."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.at(i))

"""What a CTA leaves behind: shared and tensor memory at the moment it ends.

remains = MemoryAtExit()
run(compiled, ..., trace=remains)
remains.smem[0, 0, 0].values       # bytes, by shared offset
remains.tmem[0, 0, 0].values       # (128, 512) cells of 32 bits
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.emulator.machine.watch import Watch

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA

Index = tuple[int, int, int]


@dataclass(frozen=True)
class Contents:
    """A memory.

    Attributes:
        values: its cells, uint8 for shared memory, uint32 for tensor memory.
        written: which of them were ever written completely.
    """

    values: NDArray[Any]
    written: NDArray[np.bool_]


@dataclass
class MemoryAtExit(Watch):
    """Keeps the memories of every CTA of a launch; of several launches those of the last.

    Attributes:
        smem: CTA -> shared memory; index 0 is shared offset 0, a CTA's own variables begin at 0x400.
        tmem: CTA -> tensor memory, (128, 512); deallocated columns keep what they held.
    """

    smem: dict[Index, Contents] = field(default_factory=dict)
    tmem: dict[Index, Contents] = field(default_factory=dict)

    def cta_done(self, cta: CTA) -> None:
        """Copy."""
        words = cta.shared.words
        self.smem[cta.index] = Contents(words.data.copy(), words.shadow == 0)
        self.tmem[cta.index] = Contents(cta.tensor.data.copy(), cta.tensor.shadow == 0)

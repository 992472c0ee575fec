"""Tiles of tensor memory as a role reads them, step by step: S, the codes of P, O of a running attention kernel.

dump = TileDump(first=0, last=127, reader="softmax0", roles={0: "softmax0", ...})
run(compiled, ..., trace=dump)
dump.tiles[2].values.view(np.float32)       # the third S tile, (lanes, columns)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.emulator.names import agent_name

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.asynchronous import AsyncOp
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.warp import Warp


@dataclass(frozen=True)
class Tile:
    """What stood in some columns when a role first read them.

    Attributes:
        cta: index of the CTA.
        reader: who read.
        ptx_line: of the first reading instruction.
        values: (128, columns) cells of 32 bits; see `written`.
        written: which of them had ever been written completely.
    """

    cta: tuple[int, int, int]
    reader: str
    ptx_line: int
    values: NDArray[np.uint32]
    written: NDArray[np.bool_]


@dataclass
class TileDump(Watch):
    """Keeps the contents of columns first to last at every first read after a write.

    Attributes:
        first, last: columns of tensor memory.
        reader: role or agent whose reads count ("softmax0", "warp 3", "tensor core"); "" for anybody's.
        roles: warp index -> role.
        tiles: what was read, in order.
    """

    first: int
    last: int
    reader: str = ""
    roles: Mapping[int, str] = field(default_factory=dict)
    tiles: list[Tile] = field(default_factory=list)
    _who: list[tuple[str, int]] = field(default_factory=lambda: [("", 0)])
    _warp: Warp | None = None
    _fresh: dict[tuple[int, int, int], bool] = field(default_factory=dict)

    watching = True

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < 512:
            raise ValueError(f"columns {self.first} to {self.last}: allowed are 0 to 511, in this order")

    def run_warp(self, warp: Warp) -> None:
        """A warp acts."""
        self._warp, self._who = warp, [(self.roles.get(warp.index, f"warp {warp.index}"), 0)]

    def begin(self, op: AsyncOp) -> None:
        """An agent acts."""
        self._who.append((agent_name(op.queue), op.site.ptx_line))

    def end(self, op: AsyncOp) -> None:
        """It is done."""
        self._who.pop()

    def tensor(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray, *, write: bool) -> None:
        """A write makes the columns fresh; the first read of fresh columns is kept."""
        if int(columns.max()) < self.first or int(columns.min()) > self.last:
            return
        who, line = self._who[-1]
        if write:
            self._fresh[cta.index] = True
        elif self._fresh.get(cta.index) and self.reader in ("", who):
            self._fresh[cta.index] = False
            if len(self._who) == 1 and self._warp is not None:
                line = self._warp.program.instructions[self._warp.group.pc].ptx_line
            window = slice(self.first, self.last + 1)
            values, shadow = cta.tensor.data[:, window], cta.tensor.shadow[:, window]
            self.tiles.append(Tile(cta.index, who, line, values.copy(), shadow == 0))

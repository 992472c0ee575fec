"""Where the numbers live: the scale-factor atom and the offsets of packed sequences. NumPy only."""

from mxfp8fa.layouts.jagged import TILE_TOKENS, block_starts, cu_blocks, cu_tiles, padded_index
from mxfp8fa.layouts.scale_atom import (
    ATOM_BYTES,
    ATOM_COLUMNS,
    ATOM_ROWS,
    pack_atoms,
    pack_scales,
    scale_offset,
    unpack_atoms,
    unpack_scales,
)

__all__ = [
    "ATOM_BYTES",
    "ATOM_COLUMNS",
    "ATOM_ROWS",
    "TILE_TOKENS",
    "block_starts",
    "cu_blocks",
    "cu_tiles",
    "pack_atoms",
    "pack_scales",
    "padded_index",
    "scale_offset",
    "unpack_atoms",
    "unpack_scales",
]

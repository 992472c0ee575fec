"""Solutions to the exercises of 03_a_blackwell_sm_in_python.ipynb."""

from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor
from mxfp8fa.layouts.swizzle import NONE


def address(base, warp, column):
    return base + (32 * (warp % 4) << 16) + column


def side_by_side(start_bytes):
    # The next 16-byte column is the next 128 bytes; the next 8 rows come after two columns.
    return MatrixDescriptor(start_bytes, 128, 256, NONE)


def scale_place(row, block):
    return row % 32, row // 32, block


def barrier_after(count, events):
    parity, pending, tx = 0, count, 0
    for name, n in events:
        if name == "arrive":
            pending -= n
        else:
            tx += n if name == "expect_tx" else -n
        if pending == 0 and tx == 0:
            parity, pending = 1 - parity, count
    return parity, pending, tx

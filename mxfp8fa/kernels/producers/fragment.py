"""Quantizing what a warp holds in registers: the part that all producers share.

A warp holds 32 tokens by 32 n columns of float32, so that every block, 1x32 in either direction or square, is inside it.
Each thread has a tensor x of shape (rows, 8, n): tokens, then 8 of the 32 columns of a block, then blocks of columns.
Lane bits 0 and 1 tell the four threads that share a row of a block apart, the others (`row_lanes`) those with other
tokens. Two ways to come by that, one for rows loaded 16 bytes at a time, one for accumulators of a tensor core:

                   rows  row_lanes   token of row i         columns of a block
    from memory    8     8, 16       4 i + lane // 8        8 (lane % 4) + 0..7, and lane bit 2 chooses the block
    accumulator    4     4, 8, 16    8 i + lane // 4        8 (lane % 4) + 0..7

A maximum over lanes costs shuffles. Scale codes grow with the maximum, so the maximum of codes is the code of the
maximum: two 16-bit codes share a shuffle and an instruction (max.u16x2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from mxfp8fa.numerics.formats import FLOAT32_ABS_MASK, FLOAT32_BIAS, FLOAT32_INF_BITS, FLOAT32_MANTISSA_BITS
from mxfp8fa.numerics.mx_tensor import BLOCK, element_format
from mxfp8fa.numerics.scale_rules import SCALE_NAN, carry_of_rule

COLUMN_LANES = (1, 2)  # distances of the lanes that share a row of a block
VECTOR = 8  # columns of a block that a thread holds
NAN_BITS = 0x7FFFFFFF
_ELEMENT_TYPES = {"e4m3": cutlass.Float8E4M3FN, "e5m2": cutlass.Float8E5M2}


@dataclass(frozen=True)
class Blocks:
    """Which blocks, and by which rule: what a kernel is compiled for.

    Attributes:
        last: blocks along the last axis; with `token`, squares.
        token: blocks along the tokens.
        fmt: "e4m3" or "e5m2".
        rule: "floor", "ceil", "even" or "rceil".
    """

    last: bool
    token: bool
    fmt: str = "e4m3"
    rule: str = "rceil"

    @property
    def element_type(self) -> type[cutlass.Numeric]:
        """CuTe type of a code."""
        return _ELEMENT_TYPES[self.fmt]

    @property
    def carry(self) -> int:
        """What the rule adds to the bits of amax."""
        return carry_of_rule(self.rule, element_format(self.fmt))

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest element."""
        return element_format(self.fmt).max_exponent


@dataclass(frozen=True)
class Scales:
    """Scale codes of a fragment as Int32, in the calling thread.

    Attributes:
        of_row: by row and block of columns, where blocks run along the last axis.
        of_column: by column and block of columns, where they run along the tokens.
    """

    of_row: list[list[Any]] | None
    of_column: list[list[Any]] | None


def quantize_fragment(x: cute.Tensor, row_lanes: tuple[int, ...], blocks: Blocks) -> tuple[cute.Tensor, Scales]:
    """Codes, in the shape of `x`, and scales of a fragment.

    Args:
        x: (rows, 8, n) float32 in registers. Tokens that do not exist hold zeros or copies of others.
        row_lanes: distances of the lanes that hold other tokens.
        blocks: what to make.
    """
    rows, n = cute.size(x, mode=[0]), cute.size(x, mode=[2])
    magnitude = [[[_magnitude(x[i, e, b]) for e in range(VECTOR)] for b in range(n)] for i in range(rows)]
    if blocks.last and blocks.token:
        largest = [_largest([m for i in range(rows) for m in magnitude[i][b]]) for b in range(n)]
        codes = _over_lanes([_scale_code(m, blocks) for m in largest], (*COLUMN_LANES, *row_lanes))
        scales = Scales([codes] * rows, [codes] * VECTOR)
    elif blocks.last:
        flat = [_scale_code(_largest(magnitude[i][b]), blocks) for i in range(rows) for b in range(n)]
        flat = _over_lanes(flat, COLUMN_LANES)
        scales = Scales([flat[i * n : (i + 1) * n] for i in range(rows)], None)
    else:
        flat = [
            _scale_code(_largest([magnitude[i][b][e] for i in range(rows)]), blocks)
            for e in range(VECTOR)
            for b in range(n)
        ]
        flat = _over_lanes(flat, row_lanes)
        scales = Scales(None, [flat[e * n : (e + 1) * n] for e in range(VECTOR)])
    return _encode(x, scales, blocks), scales


def _encode(x: cute.Tensor, scales: Scales, blocks: Blocks) -> cute.Tensor:
    """Element codes: times 2^(127 - scale), exact, then one rounding to nearest that saturates."""
    rows, n = cute.size(x, mode=[0]), cute.size(x, mode=[2])
    order = cute.make_ordered_layout((rows, VECTOR, n), order=(1, 0, 2))
    codes = cute.make_rmem_tensor(order, blocks.element_type)
    scaled = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
    for b in range(n):
        columns = None if scales.of_row is not None else [reciprocal(scales.of_column[e][b]) for e in range(VECTOR)]
        for i in range(rows):
            factors = columns or [reciprocal(scales.of_row[i][b])] * VECTOR
            for e in range(VECTOR):
                scaled[e] = x[i, e, b] * factors[e]
            codes[i, None, b].store(scaled.load().to(blocks.element_type))
    return codes


def _magnitude(value: cutlass.Float32) -> cutlass.Int32:
    """|value| as an integer: ordered like the magnitudes, NaN above infinity, so that a maximum propagates it."""
    return value.bitcast(cutlass.Int32) & int(FLOAT32_ABS_MASK)


def _largest(values: list[cutlass.Int32]) -> cutlass.Int32:
    largest = values[0]
    for value in values[1:]:
        largest = cutlass.max(largest, value)
    return largest


def _scale_code(bits: cutlass.Int32, blocks: Blocks) -> cutlass.Int32:
    """Scale code of a block from the bits of its largest magnitude (`numerics.scale_rules`)."""
    code = ((bits + blocks.carry) >> FLOAT32_MANTISSA_BITS) - blocks.max_exponent
    return select(bits < int(FLOAT32_INF_BITS), cutlass.max(code, 0), cutlass.Int32(SCALE_NAN))


def reciprocal(scale: cutlass.Int32) -> cutlass.Float32:
    """2^(127 - scale) by its exponent field; NaN for the NaN scale, so that all codes of such a block are NaN."""
    bits = (2 * FLOAT32_BIAS - scale) << FLOAT32_MANTISSA_BITS
    return select(scale != SCALE_NAN, bits, cutlass.Int32(NAN_BITS)).bitcast(cutlass.Float32)


def select(condition: cutlass.Boolean, yes: cutlass.Numeric, no: cutlass.Numeric) -> cutlass.Numeric:
    """One of two numbers of a type, without a branch."""
    return type(yes)(cutlass.select_(condition, yes, no))


def _over_lanes(codes: list[cutlass.Int32], lanes: tuple[int, ...]) -> list[cutlass.Int32]:
    """The largest of each code over lanes at the given distances, two codes at a time."""
    found = []
    for i in range(0, len(codes), 2):
        pair = codes[i] | (codes[i + 1] << 16) if i + 1 < len(codes) else codes[i]
        for distance in lanes:
            pair = _max_u16x2(pair, cute.arch.shuffle_sync_bfly(pair, offset=distance))
        found += [pair & 0xFFFF, (pair >> 16) & 0xFFFF] if i + 1 < len(codes) else [pair]
    return found


def _max_u16x2(a: cutlass.Int32, b: cutlass.Int32) -> cutlass.Int32:
    """The larger halves of two words."""
    return cute.arch.inline_ptx(
        "max.u16x2 {$w0}, {$r0}, {$r1};", write_only_types=[cutlass.Int32], read_only_args=[a, b]
    )


def zero_rows_from(x: cute.Tensor, first: Any, tokens: Any) -> None:
    """Zeros in the rows of a fragment whose token, `first[i]`, is not among the `tokens` that exist."""
    for i in range(cute.size(x, mode=[0])):
        for b in range(cute.size(x, mode=[2])):
            for e in range(VECTOR):
                x[i, e, b] = select(first[i] < tokens, x[i, e, b], cutlass.Float32(0))

"""Quantizing what a warp holds in registers: the part that all producers share.

A warp holds 32 tokens by 32 n columns of float32, so that every block, 1x32 in either direction or square, is inside it.
Each thread has 8 of the 32 columns of a block, in several rows (tokens) and n blocks of columns.
Lane bits 0 and 1 tell the four threads that share a row of a block apart, the others (`row_lanes`) those with other
tokens. Two ways to come by that, one for rows loaded 16 bytes at a time, one for accumulators of a tensor core:

                   rows  row_lanes   token of row i         columns of a block
    from memory    8     8, 16       4 i + lane // 8        8 (lane % 4) + 0..7, and lane bit 2 chooses the block
    accumulator    4     4, 8, 16    8 i + lane // 4        8 (lane % 4) + 0..7

A maximum over lanes costs shuffles. Scale codes grow with the maximum, so the maximum of codes is the code of the
maximum: two 16-bit codes share a shuffle and an instruction (max.u16x2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from mxfp8fa.numerics.formats import FLOAT32_ABS_MASK, FLOAT32_BIAS, FLOAT32_INF_BITS, FLOAT32_MANTISSA_BITS
from mxfp8fa.numerics.mx_tensor import element_format
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
        of_row: list by row, then by block of columns, where blocks run along the last axis; else None.
        of_column: likewise by column, where they run along the tokens; else None.
    """

    of_row: Any
    of_column: Any


Row = Callable[[int, int], Any]  # (row, block of columns) -> the thread's 8 values of it, a float32 vector


def fragment_scales(row: Row, rows: int, n: int, row_lanes: tuple[int, ...], blocks: Blocks) -> Scales:
    """Scales of a fragment, in every thread that holds a part of the block.

    Args:
        row: the values; tokens that do not exist are zeros or copies of others.
        rows: of the thread.
        n: blocks of columns.
        row_lanes: distances of the lanes that hold other tokens.
        blocks: what to make.
    """
    if blocks.last and blocks.token:
        largest = [_largest([v for i in range(rows) for v in elements(row(i, b))]) for b in range(n)]
        codes = _over_lanes([_scale_code(m, blocks) for m in largest], (*COLUMN_LANES, *row_lanes))
        return Scales([codes] * rows, [codes] * VECTOR)
    if blocks.last:
        flat = [_scale_code(_largest(elements(row(i, b))), blocks) for i in range(rows) for b in range(n)]
        flat = _over_lanes(flat, COLUMN_LANES)
        return Scales([flat[i * n : (i + 1) * n] for i in range(rows)], None)
    columns = [[_largest([row(i, b)[e] for i in range(rows)]) for e in range(VECTOR)] for b in range(n)]
    flat = _over_lanes([_scale_code(columns[b][e], blocks) for e in range(VECTOR) for b in range(n)], row_lanes)
    return Scales(None, [flat[e * n : (e + 1) * n] for e in range(VECTOR)])


def encode_row(values: Any, scales: Scales, i: int, b: int, blocks: Blocks) -> cute.Tensor:
    """Codes of the thread's 8 values in row i and block b: times 2^(127 - scale), exact, then one rounding, saturating."""
    scaled = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
    for e in range(VECTOR):
        scale = scales.of_row[i][b] if scales.of_row is not None else scales.of_column[e][b]
        scaled[e] = values[e] * reciprocal(scale)
    codes = cute.make_rmem_tensor(VECTOR, blocks.element_type)
    codes.store(scaled.load().to(blocks.element_type))
    return codes


def _largest(values: list[cutlass.Float32]) -> cutlass.Float32:
    """The largest magnitude; NaN if one is, as `numerics.quantize` has it."""
    largest = _abs(values[0])
    for value in values[1:]:
        largest = _max_nan(largest, _abs(value))
    return largest


def _abs(value: cutlass.Float32) -> cutlass.Float32:
    return (value.bitcast(cutlass.Int32) & int(FLOAT32_ABS_MASK)).bitcast(cutlass.Float32)


def _max_nan(a: cutlass.Float32, b: cutlass.Float32) -> cutlass.Float32:
    return cute.arch.inline_ptx(
        "max.NaN.f32 {$w0}, {$r0}, {$r1};", write_only_types=[cutlass.Float32], read_only_args=[a, b]
    )


def elements(values: Any) -> list[cutlass.Float32]:
    """The 8 elements of a vector."""
    return [values[e] for e in range(VECTOR)]


def _scale_code(amax: cutlass.Float32, blocks: Blocks) -> cutlass.Int32:
    """Scale code of a block from the bits of its largest magnitude (`numerics.scale_rules`)."""
    bits = amax.bitcast(cutlass.Int32)
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

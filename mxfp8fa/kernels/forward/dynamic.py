"""A scale of its own for every 32 keys of a row of P, from the scores: the largest of them has the largest exponential.

What it is: five operations for each block of 32 scores, whose maxima the row maximum needs anyway, and a word of four E8M0
codes a row. The word goes to shared memory, where the atom of the Q tile wants it, and from there by tcgen05.cp to the
columns that a constant scale is stored to, as scales of V go beside it.
What it is not: no barrier more. `p_full` says that the words are there; S of the next step, which comes after PV of this
one, that they were read. And nothing is asked of other threads: a row is a thread's own.
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK
from mxfp8fa.kernels.steps.step4_quantizer import max3
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.softmax import DYNAMIC_TOP, E8M0_BIAS

FLOAT32_MANTISSA_BITS = 23
ROUND = 1.5 * 2.0**23  # added to a small float32 number, it leaves an integer in the low bits of the sum
CODE_OF_ONE = E8M0_BIAS - DYNAMIC_TOP  # the scale of a block whose largest P is 1
ATOM_WORDS, ATOM_LINE_WORDS = ATOM_BYTES // 4, 4
LOW_BYTES, LOW_HALVES = 0x0040, 0x5410  # of two words, for prmt


def block_maxima(row: cute.Tensor) -> cute.Tensor:
    """The maximum of every 32 scores, NaN if one of them is; side by side, so that no maximum waits for the one before."""
    blocks = range(0, cute.size(row), BLOCK)
    chains = [max3(row[b], row[b + 1], row[b + 1]) for b in blocks]
    for i in range(2, BLOCK, 2):
        chains = [max3(chain, row[b + i], row[b + i + 1]) for chain, b in zip(chains, blocks, strict=True)]
    maxima = cute.make_rmem_tensor(len(chains), cutlass.Float32)
    for block, chain in enumerate(chains):
        maxima[block] = chain
    return maxima


def largest_of(maxima: cute.Tensor) -> cutlass.Float32:
    """The row's."""
    return max3(max3(maxima[0], maxima[1], maxima[2]), maxima[3], maxima[3])


def block_scales(
    maxima: cute.Tensor, m: cutlass.Float32, scale_log2: cutlass.Float32
) -> tuple[list[cutlass.Int32], list[cutlass.Float32]]:
    """The scales that put the largest P of each block into [2^7, 2^8).

    The logarithm of the largest P, rounded down, comes to lie in the low bits of a float32 number by one addition, with
    the bias of E8M0 if the number added has it. Where it is a NaN, these bits are 0xFF, the scale that is NaN (PTX ISA:
    the NaN of float32 operations is 0x7FFFFFFF).

    Args:
        maxima: of the scores of each block.
        m: what scores are measured from.
        scale_log2: softmax_scale * log2(e).

    Returns:
        words whose low byte is the E8M0 code, and log2 of the factor on P, minus the exponent of the scale.
    """
    product = cute.math.fma(-m, scale_log2, cutlass.Float32(0))
    words, offsets = [], []
    for block in range(cute.size(maxima)):
        top = cute.math.fma(maxima[block], scale_log2, product)
        top = cute.arch.fmax(top, -float(CODE_OF_ONE), nan=True)  # code 0 at least; at most 64 + 120 by the threshold
        biased = cute.math.add(top, cutlass.Float32(ROUND + CODE_OF_ONE), rounding=cute.math.RoundingMode.DOWN)
        words.append(biased.bitcast(cutlass.Int32))
        offsets.append(cutlass.Float32(ROUND + E8M0_BIAS) - biased)
    return words, offsets


def scale_values(words: list[cutlass.Int32]) -> list[cutlass.Float32]:
    """The scales as numbers. Code 0 gives 0 instead of 2^-127: beside the P = 1 of its row, the sum does not know."""
    return [(word << FLOAT32_MANTISSA_BITS).bitcast(cutlass.Float32) for word in words]


def store_scale_word(words: list[cutlass.Int32], atoms: cute.Pointer, i: cutlass.Int32, thread: cutlass.Int32) -> None:
    """The four codes of the thread's row as a word of the atom of Q tile i in shared memory."""
    low, high = (cutlass.Int32(cute.arch.prmt(words[b], words[b + 1], LOW_BYTES)) for b in (0, 2))
    lines = cute.make_layout((32, ATOM_LINE_WORDS), stride=(ATOM_LINE_WORDS, 1))
    sWords = cute.make_tensor(cute.recast_ptr(atoms, dtype=cutlass.Int32) + i * ATOM_WORDS, lines)
    sWords[thread % 32, thread // 32] = cutlass.Int32(cute.arch.prmt(low, high, LOW_HALVES))
    cute.arch.fence_view_async_shared()  # tcgen05.cp will read it

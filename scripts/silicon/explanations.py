"""Why results differ, by form or program. Only consulted for those that do differ.

Each entry: a regular expression for the names, and what was found out about the GPU.
"""

from __future__ import annotations

import re

FORMS = ((r"^fns", "count 0x80000000: the GPU returns 0"),)

PROGRAMS = (
    (r"^atomics\.own\.global\.f64", "NaN: global atom.add.f64 does not quiet a signaling NaN"),
    (r"^control\.special_registers", "%nwarpid is the number of warp slots of an SM (64), not that of the CTA's warps"),
    (r"^addresses\.cluster", "isspacep.shared and .shared::cta are false for the shared memory of another CTA"),
    (
        r"^(bulk|tma)\.reduce.*add.*f32$",
        "bulk reductions of f32 keep subnormals; only the tensor type with ftz flushes",
    ),
    (r"^tma\.edge\..*\.nan", "what lies outside is filled with 0x7FF7 in every 16 bits, whatever the type"),
    (r"^tma\.edge\.(ragged|both)\.store", "stores write whole 16-byte chunks, past the end of a row of another size"),
    (r"^tma\.convert\.f32 with ftz", "loads of the ftz types do not flush"),
    (r"^tma\.convert\.tf32", "loads of tf32 deliver the canonical NaN 0x7FFFE000, and the ftz type does not flush"),
    (r"^control\.reductions$", "barrier.red without .aligned has no definition in the emulator"),
    (r"^fault\.too_many_arrivals", "the ISA leaves this open; the emulator reports it"),
    (r"^tma\.illegal", "the emulator does not check these coordinates"),
)

# What the ISA leaves open or does not say, as these comparisons showed it.
NOTES = (
    "NaN operands of f64 add, sub, mul, fma: the GPU returns that of b, quieted, else that of c, else that of a.",
    ".ftz: a result is flushed if, rounded with unbounded exponent, it is below the smallest normal number "
    "(tininess after rounding).",
    "cvt.ftz.f16.f32 does not flush subnormal inputs; cvt from f64 keeps the upper payload bits of a NaN; "
    "cvt.rna.tf32 rounds NaNs like numbers.",
    "Division and remainder of integers by zero give all ones.",
    "Fields of 64-bit bfe and bfi beyond 255 are not reduced modulo 256, those of the 32-bit forms are.",
    "The arrivals of a warp on an mbarrier count at once: their tokens all show the pending count before the first, and "
    "more arrivals of a warp than are pending end in a launch failure.",
    "Tensor copies: outside elements are 0x7FF7 in every 16 bits when the map asks for NaN; an innermost coordinate that "
    "is not a multiple of 16 bytes, or a negative coordinate of a store, ends in an illegal-instruction fault.",
)


def explain(name: str, table: tuple[tuple[str, str], ...]) -> str:
    """What is known about a difference; "" if nothing."""
    return next((text for pattern, text in table if re.search(pattern, name)), "")

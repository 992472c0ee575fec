"""The 32-bit instruction descriptor of tcgen05.mma and what each kind allows, PTX ISA 9.7.16.4 (tables 42 to 44) and 9.7.16.2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mxfp8fa.emulator.errors import IllegalOperation
from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor
from mxfp8fa.layouts.swizzle import SW128_ATOM32

Refuse = Callable[[str, object, object], IllegalOperation]
_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}


@dataclass(frozen=True)
class Kind:
    """What a kind allows.

    Attributes:
        formats: code in the descriptor -> format of A or B.
        k_bytes, k: extent along K of one instruction, in shared-memory bytes and in elements.
        element_bytes: of an element in shared memory (packed fp4: of a pair).
        d_formats: code -> format of D.
        block_scaled: whether scale factors belong to it.
    """

    formats: dict[int, str]
    k_bytes: int
    k: int
    element_bytes: int
    d_formats: dict[int, str]
    block_scaled: bool = False


KINDS = {
    "f16": Kind({0: "f16", 1: "bf16"}, 32, 16, 2, {0: "f16", 1: "f32"}),
    "tf32": Kind({2: "tf32"}, 32, 8, 4, {1: "f32"}),
    "f8f6f4": Kind(_F8F6F4, 32, 32, 1, {0: "f16", 1: "f32"}),
    "i8": Kind({0: "u8", 1: "s8"}, 32, 32, 1, {2: "s32"}),
    "mxf8f6f4": Kind(_F8F6F4, 32, 32, 1, {}, True),
    "mxf4": Kind({1: "e2m1"}, 32, 64, 1, {}, True),
    "mxf4nvf4": Kind({1: "e2m1"}, 32, 64, 1, {}, True),
}
# Scale factors per row and instruction, by the vector-size qualifier (PTX ISA 9.7.16.10.7); None: the qualifier may be absent.
SCALE_VECTORS: dict[str, dict[str | None, int]] = {
    "mxf8f6f4": {None: 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {None: 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}
_SCALE_IDS = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}


@dataclass(frozen=True, eq=False)
class MMAShape:
    """A decoded and checked instruction descriptor; `decode` gives the same object again, so identity is equality."""

    kind: str
    cta_group: int
    m: int
    n: int
    k: int
    k_bytes: int
    element_bytes: int
    a_format: str
    b_format: str
    d_format: str
    a_mn_major: bool
    b_mn_major: bool
    negate_a: bool
    negate_b: bool
    saturate: bool = False
    scales: int = 0
    scale_format: str = "ue8m0"
    sfa_id: int = 0
    sfb_id: int = 0
    descriptor: int = 0
    vector: str | None = None

    @property
    def packed_fp4(self) -> bool:
        """Whether two 4-bit elements share a byte (kinds mxf4, mxf4nvf4)."""
        return self.kind in ("mxf4", "mxf4nvf4")

    @property
    def lane_bases(self) -> tuple[int, ...]:
        """Lanes where the accumulator may start."""
        return (0, 16) if self.m == 64 else (0,)


@lru_cache(maxsize=1024)
def decode(word: int, kind: str, cta_group: int, vector: str | None) -> MMAShape:
    """The instruction that a descriptor describes.

    Raises:
        IllegalOperation: names the field, what it holds and what is allowed.
    """
    rules = KINDS[kind]

    def refuse(field: str, given: object, allowed: object) -> IllegalOperation:
        return IllegalOperation(
            f"tcgen05.mma kind::{kind}, instruction descriptor {word:#010x}: {field} is {given}; allowed: {allowed}"
        )

    if word >> 2 & 1:
        raise IllegalOperation("tcgen05.mma: the descriptor's sparsity bit is set; sparse MMA is not supported")
    a_code, b_code = word >> 7 & 7, word >> 10 & 7
    for name, code in (("the format of A (bits 7:9)", a_code), ("the format of B (bits 10:12)", b_code)):
        if code not in rules.formats:
            raise refuse(name, code, ", ".join(f"{c} ({f})" for c, f in rules.formats.items()))
    m, n = (word >> 24 & 0x1F) << 4, (word >> 17 & 0x3F) << 3
    _check_shape(m, n, kind, cta_group, bool(word >> 16 & 1), rules, refuse)
    majors = word >> 15 & 3
    formats = rules.formats[a_code], rules.formats[b_code]
    if majors and (kind in ("mxf4", "mxf4nvf4") or any(f in ("e2m3", "e3m2", "e2m1") for f in formats)):
        raise refuse("the major of A or B (bits 15, 16)", "MN", "K for 4- and 6-bit formats")
    common: dict[str, Any] = {
        "kind": kind, "cta_group": cta_group, "m": m, "n": n, "k": rules.k, "k_bytes": rules.k_bytes, "element_bytes": rules.element_bytes,
        "a_format": formats[0], "b_format": formats[1], "a_mn_major": bool(majors & 1), "b_mn_major": bool(majors & 2),
        "negate_a": bool(word >> 13 & 1), "negate_b": bool(word >> 14 & 1), "descriptor": word, "vector": vector,
    }  # fmt: skip
    if rules.block_scaled:
        return _block_scaled(word, kind, vector, common, refuse)
    d_code = word >> 4 & 3
    if d_code not in rules.d_formats:
        raise refuse("the format of D (bits 4:5)", d_code, ", ".join(f"{c} ({f})" for c, f in rules.d_formats.items()))
    if kind == "i8" and word >> 13 & 3:
        raise refuse("the negation of A or B (bits 13, 14)", word >> 13 & 3, "0 for integers")
    if kind != "i8" and word >> 3 & 1:
        raise refuse("the saturation bit (bit 3)", 1, "0 for floating-point kinds")
    if word >> 30:
        raise refuse("the maximum shift (bits 30:31)", word >> 30, "0 without .ws")
    _reserved(word, (6, 23, 29), refuse)
    if kind == "f16" and formats[0] != formats[1]:
        raise refuse("the pair of formats", formats, "equal ones (mixing f16 and bf16 is not documented)")
    if rules.d_formats[d_code] == "f16" and "bf16" in formats:
        raise refuse("the format of D (bits 4:5)", "f16", "f32 for bf16 operands")
    return MMAShape(**common, d_format=rules.d_formats[d_code], saturate=bool(word >> 3 & 1))


def _reserved(word: int, bits: tuple[int, ...], refuse: Refuse) -> None:
    """Bits that the tables mark as reserved."""
    for bit in bits:
        if word >> bit & 1:
            raise refuse(f"reserved bit {bit}", 1, 0)


def _check_shape(m: int, n: int, kind: str, cta_group: int, b_mn_major: bool, rules: Kind, refuse: Refuse) -> None:
    """M and N, PTX ISA table "Various combinations of .kind and shapes"."""
    if rules.block_scaled:
        allowed_m = (128,) if cta_group == 1 else (128, 256)
    else:
        allowed_m = (64, 128) if cta_group == 1 else (128, 256)
    if m not in allowed_m:
        raise refuse("M (bits 24:28)", m, f"{allowed_m} for cta_group::{cta_group}")
    step = 8 * cta_group
    if kind == "i8":
        step = 32 if cta_group == 2 else (16 if n > 32 else 8)
    if b_mn_major and rules.element_bytes == 1:
        step = max(step, 16 * cta_group)
    if n % step or not step <= n <= 256:
        reason = " (N-major, 8-bit)" if b_mn_major and rules.element_bytes == 1 else ""
        also = " (and 8, 24)" if kind == "i8" and cta_group == 1 and step == 16 and not reason else ""
        raise refuse("N (bits 17:22)", n, f"multiples of {step} up to 256{also}{reason}")


def _block_scaled(word: int, kind: str, vector: str | None, common: dict[str, Any], refuse: Refuse) -> MMAShape:
    vectors = SCALE_VECTORS[kind]
    if vector not in vectors:
        raise IllegalOperation(
            f"tcgen05.mma kind::{kind} with .{vector}: allowed are {', '.join(str(v) for v in vectors)}"
        )
    _reserved(word, (3, 6), refuse)
    scales, sfa, sfb, ue8m0 = vectors[vector], word >> 29 & 3, word >> 4 & 3, word >> 23 & 1
    if not ue8m0 and (kind != "mxf4nvf4" or scales != 4):
        raise refuse("the scale format (bit 23)", "0 (ue4m3)", "1 (ue8m0)")
    for name, value in (("the scale id of A (bits 29:30)", sfa), ("the scale id of B (bits 4:5)", sfb)):
        if value not in _SCALE_IDS[scales]:
            raise refuse(name, value, _SCALE_IDS[scales])
    if word >> 31:
        raise refuse("K select (bit 31)", 1, "0 on sm_100a")
    return MMAShape(
        **common, d_format="f32", scales=scales, scale_format="ue8m0" if ue8m0 else "ue4m3", sfa_id=sfa, sfb_id=sfb,
    )  # fmt: skip


def check_layout(d: MatrixDescriptor, shape: MMAShape, mn_major: bool, what: str) -> None:
    """Swizzle modes by major and element size, PTX ISA 9.7.16.10.5 (tables of supported swizzling modes).

    Raises:
        IllegalOperation: names the mode and what is allowed.
    """
    atoms = d.swizzle is SW128_ATOM32
    if atoms != (mn_major and shape.element_bytes == 4):
        allowed = "128B with 32-byte atoms (mode 1)" if not atoms else "modes 0, 2, 4, 6"
        kind = f"{'MN' if mn_major else 'K'}-major, {8 * shape.element_bytes}-bit"
        raise IllegalOperation(f"tcgen05.mma operand {what} ({kind}): swizzle {d.swizzle.name}; allowed: {allowed}")

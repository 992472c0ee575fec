"""tcgen05.mma, PTX ISA section 9.7.16.10. Shapes and descriptors: `tcgen05_descriptor`; arithmetic: `machine.tensor_core`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation
from mxfp8fa.emulator.isa.registry import machine, refuse
from mxfp8fa.emulator.isa.tcgen05_descriptor import MMAShape, check_layout, decode
from mxfp8fa.emulator.isa.tcgen05_memory import GROUPS, same_group
from mxfp8fa.emulator.machine.asynchronous import AsyncOp
from mxfp8fa.emulator.machine.tensor_core import Product, descriptor, multiply, tensor_pipe, the_pair
from mxfp8fa.emulator.machine.warp import Warp, indices_of

PLAIN = ("kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8")
SCALED = ("kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4")
COLLECTOR = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))
SECTION = "9.7.16.10 tcgen05.mma"
refuse(r"tcgen05\.mma\.ws", "weight-stationary MMA (.ws) is not supported by the emulator")
refuse(r"tcgen05\.mma\.sp", "sparse MMA (.sp) is not supported by the emulator")
refuse(r"tcgen05\.mma\..*\.ashift", "shifting the rows of A (.ashift) is not supported by the emulator")
NOT = "sparse and .ws forms, .ashift; collectors are only hints"


def _issue(warp: Warp, bits: int, group: str, shape_of: Any, product_of: Any) -> None:
    """Queue one product per active lane (in practice one: kernels elect a thread)."""
    cta_group = same_group(warp, group)
    site = warp.site(warp.group.pc)
    for lane in indices_of(bits):
        shape: MMAShape = shape_of(int(lane), cta_group)
        product: Product = product_of(int(lane), shape)
        _check_operand(product.b, shape, shape.b_mn_major, "B")
        if not product.a_in_tensor_memory:
            _check_operand(product.a, shape, shape.a_mn_major, "A")
        elif shape.a_mn_major:
            raise IllegalOperation("tcgen05.mma with A in tensor memory: A must be K-major (descriptor bit 15)")
        ctas, mode = the_pair(warp.cta, group), warp.machine.options.accumulate

        def run(ctas: Any = ctas, product: Product = product, mode: str = mode) -> None:
            multiply(ctas, product, mode)

        warp.machine.asynchronous.issue(AsyncOp(tensor_pipe(warp, group), run, site, "tcgen05.mma"))


@lru_cache(maxsize=4096)
def _check_operand(word: int, shape: MMAShape, mn_major: bool, what: str) -> None:
    """Check an operand's matrix descriptor; a kernel uses the same ones again and again."""
    check_layout(descriptor(word, f"tcgen05.mma operand {what}"), shape, mn_major, what)


def _plain(
    warp: Warp,
    bits: int,
    d: Any,
    a: Any,
    b: Any,
    i: Any,
    c: Any,
    group: str,
    kind: str,
    tensor_a: bool,
    mask: Any = None,
    scale: Any = None,
) -> None:
    def shape_of(lane: int, cta_group: int) -> MMAShape:
        return decode(int(i[lane]), kind[6:], cta_group, None)

    def product_of(lane: int, shape: MMAShape) -> Product:
        scale_d = 0 if scale is None else int(scale[lane])
        if scale is not None and (kind not in ("kind::f16", "kind::tf32") or not 0 <= scale_d <= 15):
            raise IllegalOperation(
                f"scale-input-d {scale_d} with {kind}: allowed are 0 to 15 with kind::f16 and kind::tf32"
            )
        disabled = () if mask is None else _disabled(mask, lane, shape.cta_group)
        return Product(
            shape, int(d[lane]), int(a[lane]), int(b[lane]), tensor_a, bool(c[lane]), scale_d, disabled=disabled
        )

    _issue(warp, bits, group, shape_of, product_of)


def _disabled(mask: list[np.ndarray], lane: int, cta_group: int) -> tuple[np.ndarray, ...]:
    """Lanes that are not written, per CTA: four words each (that the first four are the even CTA's is inferred)."""
    if len(mask) != 4 * cta_group:
        raise IllegalOperation(
            f"disable-output-lane of {len(mask)} words: {4 * cta_group} are needed for cta_group::{cta_group}"
        )
    words = np.array([int(m[lane]) for m in mask], np.uint32).reshape(cta_group, 4)
    return tuple(np.unpackbits(w.view(np.uint8), bitorder="little").astype(bool) for w in words)


_MODS: dict[str, Any] = {
    "group": GROUPS,
    "kind_": PLAIN,
    "collector": COLLECTOR,
    "section": SECTION,
    "not_modelled": NOT,
}


def _declare(operands: str, *, tensor_a: bool, mask: bool, scale: bool) -> None:
    """One form of the plain kinds: A from shared (a register) or tensor memory (an address), with or without extras."""
    a_text = "[a]" if tensor_a else "a:b64"
    text = f"tcgen05.mma.group.kind_{{.collector}} [d], {a_text}, b:b64, i:u32, {operands}"

    @machine(text, **_MODS)
    def plain(
        warp: Warp, bits: int, d: Any, a: Any, b: Any, i: Any, *rest: Any, group: str, kind_: str, **_: Any
    ) -> None:
        """D = A B, or A B + D where the predicate holds, asynchronously."""
        items = list(rest)
        lanes = items.pop(0) if mask else None
        enable = items.pop(0)
        _plain(warp, bits, d, a, b, i, enable, group, kind_, tensor_a, lanes, items.pop(0) if scale else None)


for _tensor_a in (False, True):
    _declare("c:pred", tensor_a=_tensor_a, mask=False, scale=False)
    _declare("{m}:u32, c:pred", tensor_a=_tensor_a, mask=True, scale=False)
    _declare("c:pred, s:u32", tensor_a=_tensor_a, mask=False, scale=True)
    _declare("{m}:u32, c:pred, s:u32", tensor_a=_tensor_a, mask=True, scale=True)


def _declare_scaled(*, tensor_a: bool) -> None:
    """The block-scaled kinds, with A from shared or tensor memory."""
    a_text = "[a]" if tensor_a else "a:b64"

    @machine(
        f"tcgen05.mma.group.kind_.block_scale{{.vector}}{{.collector}} [d], {a_text}, b:b64, i:u32, [e], [f], c:pred",
        group=GROUPS, kind_=SCALED, vector=("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32"),
        collector=COLLECTOR, section=SECTION, not_modelled=NOT,
    )  # fmt: skip
    def block_scaled(
        warp: Warp,
        bits: int,
        d: Any,
        a: Any,
        b: Any,
        i: Any,
        e: Any,
        f: Any,
        c: Any,
        *,
        group: str,
        kind_: str,
        vector: str | None = None,
        **_: Any,
    ) -> None:
        """D = (A SFA) (B SFB), or that + D where the predicate holds, asynchronously; [e] and [f] hold the scale factors."""

        def shape_of(lane: int, cta_group: int) -> MMAShape:
            return decode(int(i[lane]), kind_[6:], cta_group, vector)

        def product_of(lane: int, shape: MMAShape) -> Product:
            return Product(
                shape,
                int(d[lane]),
                int(a[lane]),
                int(b[lane]),
                tensor_a,
                bool(c[lane]),
                sfa=int(e[lane]),
                sfb=int(f[lane]),
            )

        _issue(warp, bits, group, shape_of, product_of)


_declare_scaled(tensor_a=False)
_declare_scaled(tensor_a=True)

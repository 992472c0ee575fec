"""What tcgen05.mma refuses, and that the message names the field and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import operands, products
from tests.emulator.tensor.kernels import SM, copy_in, run, wait
from tests.emulator.tensor.products import Case, check, random_data

F16 = Case()
F8 = Case("f8f6f4", a="e4m3", b="e4m3")
I8 = Case("i8", a="s8", b="s8", d="s32")
TF32 = Case("tf32", a="tf32", b="tf32")
MX8 = Case("mxf8f6f4", a="e4m3", b="e4m3", scales=1)
MX4 = Case("mxf4", a="e2m1", b="e2m1", scales=2)
NV4 = Case("mxf4nvf4", a="e2m1", b="e2m1", scales=4, vector=".block16", scale_format="ue4m3")
BASE = {"f16": F16, "f8f6f4": F8, "i8": I8, "tf32": TF32, "mxf8f6f4": MX8, "mxf4": MX4, "mxf4nvf4": NV4}
DESCRIPTOR = operands.descriptor(SM, 0, 1024, "128B")


def issue(
    c: Case, word: int, *, a: str = str(DESCRIPTOR), b: str = str(DESCRIPTOR), d_lane: int = 0, extra: str = ""
) -> None:
    """One instruction with a given instruction descriptor, in a kernel of its own."""
    scales = ", [%r5], [%r5]" if c.scales else ""
    kind = f"tcgen05.mma.cta_group::{c.group}.kind::{c.kind}{'.block_scale' if c.scales else ''}{c.vector}"
    body = f" add.u32 %b0, %r5, {d_lane << 16}; setp.ne.u32 %p1, %r1, %r1;\n"
    body += f" @%leader {kind} [%b0], {a}, {b}, {word}{scales}{extra}, %p1;"
    run(body, np.zeros(4, np.uint32), block=32, columns=512, group=c.group, ctas=c.group)


def field(first: int, width: int, value: int, word: int) -> int:
    return word & ~(((1 << width) - 1) << first) | value << first


FIELDS = [
    ("f16", (7, 3, 2), r"the format of A \(bits 7:9\) is 2; allowed: 0 \(f16\), 1 \(bf16\)"),
    ("f16", (10, 3, 5), r"the format of B \(bits 10:12\) is 5; allowed: 0 \(f16\), 1 \(bf16\)"),
    ("f16", (7, 3, 0), r"the pair of formats is \('f16', 'bf16'\); allowed: equal ones"),
    ("f16", (4, 2, 0), r"the format of D \(bits 4:5\) is f16; allowed: f32 for bf16 operands"),
    ("f16", (4, 2, 2), r"the format of D \(bits 4:5\) is 2; allowed: 0 \(f16\), 1 \(f32\)"),
    ("tf32", (4, 2, 0), r"the format of D \(bits 4:5\) is 0; allowed: 1 \(f32\)"),
    ("tf32", (7, 3, 1), r"the format of A \(bits 7:9\) is 1; allowed: 2 \(tf32\)"),
    ("f8f6f4", (7, 3, 2), r"allowed: 0 \(e4m3\), 1 \(e5m2\), 3 \(e2m3\), 4 \(e3m2\), 5 \(e2m1\)"),
    ("i8", (4, 2, 1), r"the format of D \(bits 4:5\) is 1; allowed: 2 \(s32\)"),
    ("i8", (7, 3, 2), r"allowed: 0 \(u8\), 1 \(s8\)"),
    ("i8", (13, 2, 1), r"the negation of A or B \(bits 13, 14\) is 1; allowed: 0 for integers"),
    ("f16", (3, 1, 1), r"the saturation bit \(bit 3\) is 1; allowed: 0 for floating-point kinds"),
    ("f16", (2, 1, 1), "the descriptor's sparsity bit is set; sparse MMA is not supported"),
    ("f16", (6, 1, 1), "reserved bit 6 is 1; allowed: 0"),
    ("f16", (23, 1, 1), "reserved bit 23 is 1"),
    ("f8f6f4", (30, 2, 2), r"the maximum shift \(bits 30:31\) is 2; allowed: 0 without .ws"),
    ("mxf8f6f4", (3, 1, 1), "reserved bit 3 is 1"),
    ("mxf8f6f4", (23, 1, 0), r"the scale format \(bit 23\) is 0 \(ue4m3\); allowed: 1 \(ue8m0\)"),
    ("mxf4", (23, 1, 0), r"the scale format \(bit 23\) is 0 \(ue4m3\); allowed: 1 \(ue8m0\)"),
    ("mxf4", (29, 2, 1), r"the scale id of A \(bits 29:30\) is 1; allowed: \(0, 2\)"),
    ("mxf4", (4, 2, 3), r"the scale id of B \(bits 4:5\) is 3; allowed: \(0, 2\)"),
    ("mxf4nvf4", (29, 2, 2), r"the scale id of A \(bits 29:30\) is 2; allowed: \(0,\)"),
    ("mxf4", (31, 1, 1), r"K select \(bit 31\) is 1; allowed: 0 on sm_100a"),
    ("mxf4", (7, 3, 0), r"the format of A \(bits 7:9\) is 0; allowed: 1 \(e2m1\)"),
    ("mxf4", (15, 1, 1), r"the major of A or B \(bits 15, 16\) is MN; allowed: K for 4- and 6-bit formats"),
]


@pytest.mark.parametrize(("name", "change", "text"), FIELDS)
def test_fields_of_the_instruction_descriptor(name, change, text):
    c = BASE[name]
    with pytest.raises(em.IllegalOperation, match=rf"(?s)tcgen05.mma.*{text}"):
        issue(c, field(*change, products.descriptor(c)))


def test_the_message_shows_kind_and_word():
    word = field(7, 3, 2, products.descriptor(F16))
    with pytest.raises(em.IllegalOperation, match=rf"kind::f16, instruction descriptor {word:#010x}: the format of A"):
        issue(F16, word)


SHAPES = [
    ("f16", 1, 32, 32, r"M \(bits 24:28\) is 32; allowed: \(64, 128\) for cta_group::1"),
    ("f16", 1, 256, 32, r"M \(bits 24:28\) is 256; allowed: \(64, 128\) for cta_group::1"),
    ("f16", 2, 64, 32, r"M \(bits 24:28\) is 64; allowed: \(128, 256\) for cta_group::2"),
    ("mxf8f6f4", 1, 64, 32, r"M \(bits 24:28\) is 64; allowed: \(128,\) for cta_group::1"),
    ("mxf4", 2, 64, 32, r"allowed: \(128, 256\) for cta_group::2"),
    ("f16", 1, 128, 0, r"N \(bits 17:22\) is 0; allowed: multiples of 8 up to 256"),
    ("f16", 1, 128, 264, r"N \(bits 17:22\) is 264; allowed: multiples of 8 up to 256"),
    ("f16", 2, 256, 24, r"N \(bits 17:22\) is 24; allowed: multiples of 16 up to 256"),
    ("f8f6f4", 2, 128, 8, r"N \(bits 17:22\) is 8; allowed: multiples of 16 up to 256"),
    ("i8", 1, 128, 40, r"N \(bits 17:22\) is 40; allowed: multiples of 16 up to 256 \(and 8, 24\)"),
    ("i8", 2, 256, 48, r"N \(bits 17:22\) is 48; allowed: multiples of 32 up to 256"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "group", "m", "n", "text"), SHAPES)
def test_shapes_that_a_kind_does_not_have(name, group, m, n, text):
    c = BASE[name].change(m=m, n=n, group=group)
    with pytest.raises(em.IllegalOperation, match=text):
        issue(c, products.descriptor(c))


@pytest.mark.parametrize(("name", "group", "n"), [("f8f6f4", 1, 24), ("mxf8f6f4", 2, 48), ("i8", 1, 8)])
def test_n_major_8_bit_operands_need_coarser_n(name, group, n):
    c = BASE[name].change(b_major="MN", group=group, n=n)
    step = 16 * group if name != "i8" else 16
    with pytest.raises(
        em.IllegalOperation,
        match=rf"N \(bits 17:22\) is {n}; allowed: multiples of {step} up to 256 \(N-major, 8-bit\)",
    ):
        issue(c, products.descriptor(c))


@pytest.mark.parametrize("fmt", ["e2m1", "e2m3", "e3m2"])
def test_small_formats_are_k_major(fmt):
    c = F8.change(a=fmt, a_major="MN", n=32)
    with pytest.raises(em.IllegalOperation, match=r"is MN; allowed: K for 4- and 6-bit formats"):
        issue(c, products.descriptor(c))


ATOMS = "128B, 32-byte atoms"


@pytest.mark.parametrize(
    ("c", "text"),
    [
        (F16.change(a_swizzle=ATOMS), rf"operand A \(K-major, 16-bit\): swizzle {ATOMS}; allowed: modes 0, 2, 4, 6"),
        (
            F16.change(b_major="MN", b_swizzle=ATOMS, n=64),
            r"operand B \(MN-major, 16-bit\): .*; allowed: modes 0, 2, 4, 6",
        ),
        (TF32.change(b_major="MN", n=64), r"operand B \(MN-major, 32-bit\): swizzle 128B; allowed: .* \(mode 1\)"),
        (TF32.change(a_major="MN", a_swizzle="none"), r"operand A \(MN-major, 32-bit\): swizzle none"),
        (TF32.change(a_swizzle=ATOMS), rf"operand A \(K-major, 32-bit\): swizzle {ATOMS}"),
    ],
)
def test_swizzles_that_a_major_does_not_have(c, text):
    words = {s: str(operands.descriptor(SM, 0, 1024, s)) for s in (c.a_swizzle, c.b_swizzle)}
    with pytest.raises(em.IllegalOperation, match=text):
        issue(c, products.descriptor(c), a=words[c.a_swizzle], b=words[c.b_swizzle])


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize(
    ("word", "text"),
    [
        (DESCRIPTOR & ~(7 << 46), "the constant in bits 46:48 is 0; it must be 1"),
        (DESCRIPTOR | 3 << 61, r"swizzle mode \(bits 61:63\) is 3; allowed: 0, 1, 2, 4, 6"),
        (DESCRIPTOR | 1 << 49, "matrix base offset"),
        (DESCRIPTOR | 1 << 52, "LBO mode"),
    ],
)
def test_matrix_descriptors(operand, word, text):
    """Found when the instruction is issued, not when it runs."""
    with pytest.raises(em.IllegalOperation, match=rf"tcgen05.mma operand {operand.upper()}: descriptor .*{text}"):
        issue(F16, products.descriptor(F16), **{operand: str(word)})


def test_operands_outside_shared_memory():
    far = str(operands.descriptor(0x3F000, 0, 1024, "128B"))
    with pytest.raises(em.OutOfBounds, match=r"tcgen05.mma operand B .*this CTA has 0x400"):
        issue(F16, products.descriptor(F16), b=far)


@pytest.mark.parametrize("vector", [".scale_vec::2X", ".scale_vec::4X", ".block16"])
def test_vector_sizes_that_a_kind_does_not_have(vector):
    c = MX8.change(vector=vector)
    with pytest.raises(
        em.IllegalOperation, match=rf"kind::mxf8f6f4 with {vector}: allowed are None, scale_vec::1X, block32"
    ):
        issue(c, products.descriptor(c))


def test_mxf4nvf4_needs_a_vector_size():
    c = NV4.change(vector="")
    with pytest.raises(
        em.IllegalOperation,
        match=r"kind::mxf4nvf4 with .None: allowed are scale_vec::2X, block32, scale_vec::4X, block16",
    ):
        issue(c, products.descriptor(c))


def test_ue4m3_scales_come_in_blocks_of_16():
    c = NV4.change(vector=".block32", scales=2)
    with pytest.raises(em.IllegalOperation, match=r"the scale format \(bit 23\) is 0 \(ue4m3\); allowed: 1 \(ue8m0\)"):
        issue(c, products.descriptor(c))


def run_with_operands(c: Case, was: str, becomes: str, columns: int = 512) -> None:
    """The case's instructions with one text in them replaced, over operands that exist in shared memory."""
    shared, a, b = products.images(c, random_data(c))
    text = products.instructions(c, a, b)
    assert was in text
    body = copy_in(shared.shape[1]) + text.replace(was, becomes, 1) + products.commit(1) + wait()
    run(body, np.zeros(4, np.uint32), shared, columns=columns, shared_bytes=shared.shape[1])


@pytest.mark.parametrize(
    ("m", "lane", "allowed"), [(128, 16, r"\(0,\)"), (64, 32, r"\(0, 16\)"), (64, 8, r"\(0, 16\)")]
)
def test_lanes_of_the_accumulator(m, lane, allowed):
    with pytest.raises(em.IllegalOperation, match=rf"accumulator at lane {lane}; allowed for M = {m}: {allowed}"):
        run_with_operands(F16.change(m=m), "%r5, 0;", f"%r5, {lane << 16};")


@pytest.mark.parametrize(("m", "lane"), [(128, 16), (64, 40)])
def test_lanes_of_a_in_tensor_memory(m, lane):
    column = products.A_COLUMN
    with pytest.raises(em.IllegalOperation, match=rf"A at lane {lane}; allowed for M = {m}"):
        run_with_operands(F16.change(m=m, tensor_a=True), f"%r5, {column};", f"%r5, {column + (lane << 16)};")


def test_a_in_tensor_memory_is_k_major():
    c = F16.change(a_major="MN", n=32)
    with pytest.raises(em.IllegalOperation, match=r"with A in tensor memory: A must be K-major \(descriptor bit 15\)"):
        issue(c, products.descriptor(c), a="[%r5]")


def test_copies_of_a_that_differ(monkeypatch):
    """M = 128 of a pair reads A in lanes 0-63 and again in 64-127."""
    original = products.tensor_image

    def spoiled(c: Case, data: products.Data, seed: int = 9) -> np.ndarray:
        cells = original(c, data, seed)
        cells[1, 70, products.A_COLUMN] ^= 1
        return cells

    monkeypatch.setattr(products, "tensor_image", spoiled)
    with pytest.raises(
        em.IllegalOperation, match=r"M = 128 of a pair: the copies of A in lanes 0-63 and 64-127 differ"
    ):
        check(F16.change(group=2, tensor_a=True))


@pytest.mark.parametrize(("column", "reached"), [(0, 64), (480, 512)])
def test_columns_of_the_accumulator(column, reached):
    """N = 128 with 64 columns allocated, and past the last column."""
    message = f"accumulator reaches column {reached}, which is not allocated"
    if column:
        message = "column 607: tensor memory has 128 x 512"
    with pytest.raises(em.OutOfBounds, match=message):
        run_with_operands(F16.change(n=128), "%r5, 0;", f"%r5, {column};", 512 if column else 64)


@pytest.mark.parametrize(("words", "group"), [("{0, 0}", 1), ("{0, 0, 0, 0, 0, 0, 0, 0}", 1), ("{0, 0, 0, 0}", 2)])
def test_disable_output_lane_has_four_words_for_each_cta(words, group):
    c = F16.change(group=group, m=128 * group)
    count = words.count("0")
    with pytest.raises(
        em.IllegalOperation,
        match=f"disable-output-lane of {count} words: {4 * group} are needed for cta_group::{group}",
    ):
        issue(c, products.descriptor(c), extra=f", {words}")


@pytest.mark.parametrize(("kind", "value"), [("f8f6f4", 1), ("f16", 16)])
def test_scale_input_d_out_of_range(kind, value):
    c = BASE[kind]
    body = f" setp.eq.u32 %p1, %r1, %r1;\n @%leader tcgen05.mma.cta_group::1.kind::{kind} [%r5], {DESCRIPTOR}, {DESCRIPTOR}, "
    with pytest.raises(
        em.IllegalOperation, match=f"scale-input-d {value} with kind::{kind}: allowed are 0 to 15 with kind::f16 and"
    ):
        run(body + f"{products.descriptor(c)}, %p1, {value};", np.zeros(4, np.uint32), block=32, columns=512)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "tcgen05.mma.ws.cta_group::1.kind::f16 [%r5], %x0, %x1, %a0, %p1",
            r"weight-stationary MMA \(.ws\) is not supported",
        ),
        ("tcgen05.mma.ws.sp.cta_group::1.kind::i8 [%r5], %x0, %x1, [%r5], %a0, %p1", r"weight-stationary MMA \(.ws\)"),
        (
            "tcgen05.mma.sp.cta_group::1.kind::f16 [%r5], %x0, %x1, [%r5], %a0, %p1",
            r"sparse MMA \(.sp\) is not supported",
        ),
        (
            "tcgen05.mma.sp.cta_group::2.kind::mxf4.block_scale [%r5], %x0, %x1, [%r5], %a0, [%r5], [%r5], %p1",
            r"sparse MMA",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::f16.ashift [%r5], [%a1], %x1, %a0, %p1",
            r"shifting the rows of A \(.ashift\)",
        ),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%a0, %a1}, %a2, [%r5]", "do not exist on sm_100a"),
        (
            "tcgen05.mma.cta_group::1.kind::f4 [%r5], %x0, %x1, %a0, %p1",
            "unknown instruction, modifier or operand; known forms: tcgen05",
        ),
    ],
)
def test_forms_that_are_left_out_say_so_before_anything_runs(text, reason):
    with pytest.raises(em.UnsupportedInstruction, match=reason):
        run(f" {text};", np.zeros(4, np.uint32), block=32, columns=32)


def test_mixed_groups():
    c = F16.change(group=2, m=256)
    body = (
        f" setp.eq.u32 %p1, %r1, %r1;\n @%leader tcgen05.mma.cta_group::1.kind::f16 [%r5], {DESCRIPTOR}, {DESCRIPTOR}, "
    )
    with pytest.raises(em.IllegalOperation, match=r"cta_group::1 in a kernel that has used .cta_group::2"):
        run(body + f"{products.descriptor(c)}, %p1;", np.zeros(4, np.uint32), block=32, columns=512, group=2, ctas=2)

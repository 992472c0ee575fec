"""Variables, parameters and registers: sizes, alignments, places in memory, initial values."""

import struct

import pytest
from ptx_snippets import HEADER, STORE, kernel, parse_kernel

from mxfp8fa.emulator.ptx import Pointer, PTXSyntaxError, Relocation, parse


def variable(text, name="a"):
    return parse(HEADER + text).variables[name]


@pytest.mark.parametrize(
    ("text", "element_type", "alignment", "size", "shape"),
    [
        (".global .b8 a;", "b8", 1, 1, ()),
        (".global .f64 a;", "f64", 8, 8, ()),
        (".global .b128 a;", "b128", 16, 16, ()),
        (".global .f16x2 a;", "f16x2", 4, 4, ()),
        (".global .u32 a[5];", "u32", 4, 20, (5,)),
        (".global .align 64 .b8 a[128];", "b8", 64, 128, (128,)),
        (".global .b16 a[2][3][4];", "b16", 2, 48, (2, 3, 4)),
        (".global .u32 a[2*3+1];", "u32", 4, 28, (7,)),
        (".global .v4 .f32 a[2];", "f32", 16, 32, (2,)),
        (".global .align 4 .v2 .u16 a;", "u16", 4, 4, ()),
        (".const .u32 a[0x10];", "u32", 4, 64, (16,)),
        (".global .texref a;", "texref", 8, 8, ()),
        (".extern .shared .align 1024 .b8 a[];", "b8", 1024, 0, (0,)),
        (".global .u32 a[] = {1, 2, 3};", "u32", 4, 12, (3,)),
        (".global .u32 a[][2] = {{1}, {2}};", "u32", 4, 16, (2, 2)),
    ],
)
def test_sizes_and_alignments(text, element_type, alignment, size, shape):
    found = variable(text)
    assert (found.type, found.alignment_bytes, found.size_bytes, found.shape) == (element_type, alignment, size, shape)
    assert found.offset_bytes is None
    assert found.space == text.split(".")[1 + (".extern" in text)].strip()


def test_several_variables_share_a_declaration():
    module = parse(HEADER + ".visible .global .attribute(.managed) .align 8 .b16 a[2] = {1, 2}, b, c[3];")
    assert list(module.variables) == ["a", "b", "c"]
    assert {v.linkage for v in module.variables.values()} == {"visible"}
    assert {v.attributes for v in module.variables.values()} == {(".managed",)}
    assert [v.initial for v in module.variables.values()] == [b"\1\0\2\0", None, None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".global .b8 a[5] = {-1, 300, 0x7f};", bytes([255, 44, 127])),
        (".global .u32 a = 1+2*3;", struct.pack("<I", 7)),
        (".global .s64 a = -2;", struct.pack("<q", -2)),
        (".global .b16 a[3] = {0x3c00, 1};", struct.pack("<2H", 0x3C00, 1)),
        (".global .f32 a[2] = {1.5, 0f7FC00001};", struct.pack("<2I", 0x3FC00000, 0x7FC00001)),
        (".global .f32 a = 0d3FF8000000000000;", struct.pack("<f", 1.5)),
        (".global .f64 a[2] = {0f3FC00000, -0.25};", struct.pack("<2d", 1.5, -0.25)),
        (".global .b32 a = 0f3F800000;", struct.pack("<f", 1.0)),
        (".global .u16 a[2][3] = {{1, 2}, {3}};", struct.pack("<4H", 1, 2, 0, 3)),
        (".global .u8 a[2][2][2] = {{{1}}, {{2, 3}, {4}}};", bytes([1, 0, 0, 0, 2, 3, 4])),
        (".global .u32 a[4] = {};", b""),
        (".global .u32 a[4] = {1,};", struct.pack("<I", 1)),
    ],
)
def test_initial_values(text, expected):
    # Only the bytes that were given; the rest of the variable is zero.
    assert variable(text).initial == expected


def test_initial_values_that_are_addresses():
    found = variable(".global .u32 b; .func f; .global .u64 a[5] = {b, 7, generic(b)+8, f, b-4};")
    assert found.initial == struct.pack("<5Q", 0, 7, 0, 0, 0)
    assert found.relocations == (
        Relocation(0, 8, "b"),
        Relocation(16, 8, "b", 8, generic=True),
        Relocation(24, 8, "f"),
        Relocation(32, 8, "b", -4),
    )


def test_initial_values_that_are_bytes_of_addresses():
    found = variable(".global .u32 b; .global .u8 a[3] = {0xFF(b), 0xFF0000(b)+1, 9};")
    assert found.relocations == (Relocation(0, 1, "b"), Relocation(1, 1, "b", 1, shift_bits=16))
    assert found.initial == bytes([0, 0, 9])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".global .u8 a[2] = {b};", "cannot hold an address"),
        (".global .f32 a = b;", "cannot hold an address"),
        (".global .u8 a[2] = {0xF0(b)};", "must select one byte"),
        (".global .b32 a = 1.5;", "the f64 constant .* cannot be a 32-bit pattern in a .b32 variable"),
        (".global .b32 a[];", "needs a size or an initial value"),
        (".global .pred a;", "a predicate cannot be a variable"),
        (".global .b32 a[2", "expected ']' after an array size"),
        (".global .b32 .b64 a;", "unknown type or directive .b64"),
        (".global .align 4 a;", "expected a type such as .b32"),
        (".global .b32 7;", "expected the name of a variable"),
        (".global .b32 a b;", "expected ';' after the declaration of variables"),
        (".global .b32 a[-1];", "an array size must be an integer from 0"),
        (".global .b32 a; .shared .b32 a;", "duplicate name: 'a'"),
        (".visible fancy;", "expected .entry, .func or a state space after .visible"),
        (".alias f, g;", "undefined function 'f' in .alias"),
    ],
)
def test_bad_declarations(text, message):
    with pytest.raises(PTXSyntaxError, match=message):
        parse(HEADER + ".global .u32 b;\n" + text)


def test_an_extern_declaration_may_be_completed():
    module = parse(HEADER + ".extern .global .u32 a; .global .u32 a = 5; .extern .global .u32 a;")
    assert module.variables["a"].initial == b"\5\0\0\0"


def test_parameters_follow_the_abi():
    # Each parameter at the next multiple of its alignment (PTX ABI); a tensor map is a 64-byte aligned array.
    found = parse_kernel(
        STORE,
        params=".param .u64 out, .param .b8 flag, .param .u16 h, .param .align 64 .b8 map[128], .param .u32 n,"
        " .param .f64 x, .param .align 4 .b8 pair[8], .param .align 1 .b8 one[1], .param .b64 last",
    )
    layout = [(p.name, p.offset_bytes, p.size_bytes, p.alignment_bytes) for p in found.params]
    assert layout == [
        ("out", 0, 8, 8), ("flag", 8, 1, 1), ("h", 10, 2, 2), ("map", 64, 128, 64), ("n", 192, 4, 4), ("x", 200, 8, 8),
        ("pair", 208, 8, 4), ("one", 216, 1, 1), ("last", 224, 8, 8),
    ]  # fmt: skip
    assert found.param_bytes == 232
    assert all(p.space == "param" for p in found.params)


@pytest.mark.parametrize(
    ("text", "pointer", "alignment"),
    [
        (".param .u64 .ptr .global .align 16 out", Pointer("global", 16), 8),
        (".param .u64 .ptr .align 1 out", Pointer("", 1), 8),
        (".param .u64 .ptr .shared out", Pointer("shared", 4), 8),
        (".param .u64 .ptr out", Pointer("", 4), 8),
        (".param .align 16 .u64 .ptr .const out", Pointer("const", 4), 16),
        (".param .u64 out", None, 8),
    ],
)
def test_pointer_parameters(text, pointer, alignment):
    (param,) = parse_kernel(STORE, params=text).params
    assert (param.pointer, param.alignment_bytes) == (pointer, alignment)


def test_shared_memory_of_a_kernel_holds_what_it_names():
    text = (
        HEADER
        + """
        .shared .align 16 .b8 unused[1000];
        .shared .b8 odd[3];
        .shared .u64 wide;
        .extern .shared .align 128 .b8 dynamic[];
        .extern .shared .b32 words[];
        .entry one() { .reg .b32 r<4>; .shared .b16 own; mov.u32 r1, odd; mov.u32 r1, wide; mov.u32 r2, own;
            mov.u32 r3, dynamic; mov.u32 r3, words; }
        .entry two() { .reg .b32 r; mov.u32 r, wide; }
    """
    )
    module = parse(text)
    one, two = module.kernels["one"], module.kernels["two"]
    assert [(v.name, v.offset_bytes) for v in one.variables] == [
        ("own", 0), ("odd", 2), ("wide", 8), ("dynamic", None), ("words", None),
    ]  # fmt: skip
    assert (one.static_shared_bytes, one.dynamic_shared_offset_bytes, one.shared_alignment_bytes) == (16, 128, 128)
    assert one.instructions[0].operands[1].variable is one.variables[1]
    assert (two.static_shared_bytes, two.dynamic_shared_offset_bytes) == (8, 8)
    assert module.variables["wide"].offset_bytes is None


def test_local_and_call_memory_are_counted_apart():
    found = parse_kernel(
        ".local .align 16 .b8 depot[40]; { .local .b32 x; .param .b32 p0; .param .align 16 .b8 p1[8]; }"
        " { .param .b64 p0; }"
    )
    assert [(v.name, v.space, v.offset_bytes) for v in found.variables] == [
        ("depot", "local", 0), ("x", "local", 40),
        ("p0", "callparam", 0), ("p1", "callparam", 16), ("p0", "callparam", 24),
    ]  # fmt: skip
    assert (found.local_bytes, found.static_shared_bytes, found.shared_alignment_bytes) == (44, 0, 1)


def test_a_kernel_without_memory():
    found = parse(HEADER + ".entry k() { ret; }").kernels["k"]
    assert (found.param_bytes, found.local_bytes, found.dynamic_shared_offset_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".reg .b32;", "expected the name of a register"),
        (".reg b32 q;", "expected a register type"),
        (".reg .b32 q<;", "expected the number of registers"),
        (".reg .b32 q<0f00000000>;", "expected a number of registers"),
        (".reg .b32 q<010>;", "expected a number of registers"),
        (".reg .b32 q r9;", "expected ';' after the declaration of registers"),
        (".shared .b32 s[];", "needs a size"),
    ],
)
def test_bad_declarations_in_a_body(text, message):
    with pytest.raises(PTXSyntaxError, match=message):
        parse(kernel(text))

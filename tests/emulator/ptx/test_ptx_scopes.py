"""Names in nested scopes: hiding, ranges, labels that come later, labels used across scopes."""

import pytest
from ptx_snippets import HEADER, instructions, parse_kernel

from mxfp8fa.emulator.ptx import Label, PTXSyntaxError, parse

WAIT = """
// begin inline asm
{
.reg .pred P1;
LAB_WAIT:
mbarrier.try_wait.parity.shared.b64 P1, [r1], r2, 10000000;
@P1 bra.uni DONE;
bra.uni LAB_WAIT;
DONE:
}
// end inline asm
"""


def test_repeated_inline_assembly_keeps_its_names_apart():
    kernel = parse_kernel(WAIT + "mov.u32 r3, 1;" + WAIT)
    body = kernel.instructions[1:-1]
    assert [b.operands[0] for b in body if b.opcode == "bra"] == [
        Label("DONE", 4), Label("LAB_WAIT", 1), Label("DONE", 8), Label("LAB_WAIT", 5),
    ]  # fmt: skip
    predicates = [r for r in kernel.registers if r.name == "P1"]
    assert len(predicates) == 2
    assert (body[0].operands[0], body[1].guard.register) == (predicates[0], predicates[0])
    assert (body[4].operands[0], body[5].guard.register) == (predicates[1], predicates[1])
    assert [(lb.name, lb.index) for lb in kernel.labels] == [("LAB_WAIT", 1), ("DONE", 4), ("LAB_WAIT", 5), ("DONE", 8)]


def test_an_inner_register_hides_the_outer_until_the_scope_ends():
    kernel = parse_kernel(
        "mov.u32 r1, 1; { mov.u32 r1, 2; .reg .b64 r1; mov.u64 r1, 3; { mov.u64 r1, 4; } } mov.u32 r1, 5;"
    )
    outer, inner = [r for r in kernel.registers if r.name == "r1"]
    assert [i.operands[0] for i in kernel.instructions[1:-1]] == [outer, outer, inner, inner, outer]
    assert (outer.type, inner.type) == ("b32", "b64")


def test_an_inner_range_hides_the_outer():
    kernel = parse_kernel(
        "mov.u32 r1, 1; { mov.u32 r8, r1; .reg .b64 r<2>; mov.u64 r1, r0; mov.u32 r2, r8; } mov.u32 r1, r2;"
    )
    moves = [i.operands[0].type for i in kernel.instructions[1:-1]]
    assert moves == ["b32", "b32", "b64", "b32", "b32"]
    assert len([r for r in kernel.registers if r.name == "r2"]) == 1


def test_registers_declared_without_braces_stay():
    # An inline-assembly block without braces declares in the scope of the function, and later blocks use it.
    kernel = parse_kernel(
        "// begin inline asm\n.reg .b32 lo;\n.reg .b64 desc_<8>;\nmov.b64 desc_0, {r1, 0x4000};\n// end inline asm\n"
        "{ mov.b64 desc_1, desc_0; }"
    )
    assert kernel.instructions[2].operands[1] is kernel.instructions[1].operands[0]


def test_a_branch_takes_the_label_of_its_own_scope_even_when_it_comes_later():
    (_, inner, _, outer) = instructions("A: mov.u32 r1, 1; { bra A; mov.u32 r1, 2; A: } bra A;")
    assert inner.operands == (Label("A", 4),) and outer.operands == (Label("A", 1),)


def test_a_branch_leaves_scopes():
    (first, second, _) = instructions("{ { bra OUT; } bra OUT; } mov.u32 r1, 1; OUT:")
    assert first.operands == second.operands == (Label("OUT", 4),)


def test_a_label_may_end_the_body():
    kernel = parse(HEADER + ".entry k() { bra END; ret; END: }").kernels["k"]
    assert (kernel.instructions[0].operands, len(kernel.instructions)) == ((Label("END", 2),), 2)
    with pytest.raises(PTXSyntaxError, match="undefined label 'END'"):
        parse_kernel("bra END; { END: }")


def test_labels_before_one_instruction():
    kernel = parse_kernel("A: B: { C: mov.u32 r1, 1; } bra B;")
    assert [(lb.name, lb.index) for lb in kernel.labels] == [("A", 1), ("B", 1), ("C", 1)]


@pytest.mark.parametrize(
    ("declaration", "good", "bad"),
    [
        ("q<3>", ["q0", "q2"], ["q3", "q", "q01", "q-1", "Q1"]),
        ("q<0>", [], ["q0"]),
        ("q1<3>", ["q10", "q12"], ["q1", "q13", "q2"]),
        ("q<0x10>", ["q15"], ["q16"]),
        ("%a_<11>", ["%a_10"], ["%a_11", "%a_"]),
        ("q<2>, q1<3>", ["q1", "q11"], ["q2", "q13"]),
    ],
)
def test_ranges(declaration, good, bad):
    for name in good:
        (move,) = instructions(f".reg .b32 {declaration}; mov.u32 {name}, 1;")
        assert move.operands[0].name == name
    for name in bad:
        with pytest.raises(PTXSyntaxError, match=r"undefined|expected"):
            instructions(f".reg .b32 {declaration}; mov.u32 {name}, 1;")


def test_scopes_reuse_variable_names():
    kernel = parse_kernel("{ .shared .b32 s; mov.u32 r1, s; } { .shared .b64 s; mov.u32 r1, s; }")
    assert [i.operands[1].variable.offset_bytes for i in kernel.instructions[1:-1]] == [0, 8]


def test_a_local_name_hides_a_module_name():
    kernel = parse_kernel("mov.u32 r1, a; .reg .b32 a; mov.u32 r1, a;", module=".shared .u32 a;")
    assert [type(i.operands[1]).__name__ for i in kernel.instructions[1:-1]] == ["Symbol", "Register"]

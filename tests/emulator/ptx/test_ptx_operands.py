"""One test per form of operand, and what an instruction keeps of its text."""

import pytest
from ptx_snippets import instructions, operands, parse_kernel

from mxfp8fa.emulator.ptx import (
    SINK,
    Address,
    Arguments,
    BranchTargets,
    Guard,
    Immediate,
    Label,
    Negated,
    Pair,
    Part,
    PTXSyntaxError,
    Register,
    SpecialRegister,
    Symbol,
    TensorAddress,
    Vector,
)
from mxfp8fa.emulator.ptx.types import SPECIAL_REGISTERS


def integer(number):
    return Immediate(number, "int", number % 2**64)


def test_mnemonic_and_line():
    (first, second) = instructions(
        "\n mbarrier.try_wait.parity.acquire.cta.shared::cta.b64\n p1, [rd1], r1, 10000000;\nmov .u32 r1, 2;"
    )
    assert (first.opcode, first.ptx_line, first.index) == ("mbarrier", 9, 1)
    assert first.qualifiers == ("try_wait", "parity", "acquire", "cta", "shared::cta", "b64")
    assert first.mnemonic == "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
    assert (second.mnemonic, second.qualifiers, second.ptx_line, second.index) == ("mov.u32", ("u32",), 11, 2)


def test_no_operands_and_no_qualifiers():
    (fence, leave) = instructions("tcgen05.wait::ld.sync.aligned; exit;")
    assert (fence.opcode, fence.qualifiers, fence.operands) == ("tcgen05", ("wait::ld", "sync", "aligned"), ())
    assert (leave.opcode, leave.qualifiers, leave.operands) == ("exit", (), ())


def test_registers_keep_their_declared_type():
    kernel = parse_kernel(
        ".reg .b128 q; .reg .f16x2 x; mov.b128 q, {rd1, rd2}; add.f32 r1, f1, r1; fma.rn.f16x2 x, x, x, x;"
    )
    (quad, add, fused) = kernel.instructions[1:-1]
    assert (quad.operands[0].name, quad.operands[0].type, quad.operands[0].bits) == ("q", "b128", 128)
    assert [o.type for o in add.operands] == ["b32", "f32", "b32"]
    assert add.operands[0] is add.operands[2]
    assert (fused.operands[0].type, fused.operands[0].bits) == ("f16x2", 32)
    assert kernel.registers[0].name == "rd0"


def test_register_ids_count_first_uses_without_gaps():
    kernel = parse_kernel(
        ".reg .b32 q<100>; mov.u32 q50, 1; { .reg .pred q50; setp.eq.s32 q50, q3, 1; } mov.u32 q3, q50;"
    )
    assert [(r.id, r.name, r.type) for r in kernel.registers] == [
        (0, "rd0", "b64"), (1, "q50", "b32"), (2, "q50", "pred"), (3, "q3", "b32"),
    ]  # fmt: skip
    assert kernel.instructions[-2].operands == (kernel.registers[3], kernel.registers[1])
    assert kernel.registers[2].bits == 1


def test_immediates():
    assert operands("add.s32 r1, r1, -5;")[2] == integer(-5)
    assert operands("prmt.b32 r1, r1, r1, 0x7771U;")[3] == integer(0x7771)
    assert operands("mov.f32 f1, 0fFF800000;")[1].bits == 0xFF800000
    assert operands("createpolicy.fractional.L2::evict_last.b64 rd1, 1.0;")[1].kind == "f64"


def test_sinks():
    (first, second) = instructions("mov.b64 {_, r1}, rd1; mbarrier.arrive.shared.b64 _, [rd1], r1;")
    assert first.operands[0].elements[0] is SINK and first.operands[0].elements[1].name == "r1"
    assert second.operands[0] is SINK


def test_pairs():
    assert operands("elect.sync _|p1, -1;")[0] == Pair(SINK, Register("p1", "pred", 1))
    (pair, mask) = operands("elect.sync r1|p1, -1;")
    assert (pair.first.name, pair.second.name, mask) == ("r1", "p1", integer(-1))
    assert operands("setp.eq.s32 p1 | p2, r1, r2;")[0].second.name == "p2"
    assert operands("shfl.sync.bfly.b32 r1|_, r1, 1, 31, -1;")[0].second is SINK


def test_negated_predicates():
    (_, first, second) = operands("and.pred p2, !p1, p1;")
    assert first == Negated(second)


@pytest.mark.parametrize(("text", "negated"), [("@p1", False), ("@!p1", True), ("@ ! p1", True)])
def test_guards(text, negated):
    kernel = parse_kernel(f"{text} mov.u32 r1, 1;")
    guarded = kernel.instructions[1]
    assert guarded.guard == Guard(Register("p1", "pred", 1), negated)
    assert kernel.instructions[0].guard is None


def test_vectors():
    vector = operands("ld.global.v4.b32 {r1, r2, _, r4}, [rd1];")[0]
    assert [str(e) for e in vector.elements] == ["r1", "r2", "_", "r4"]
    (_, mixed) = operands("mov.b64 rd1, {r1, 0x40004040};")
    assert mixed.elements[1] == integer(0x40004040)
    (_, special) = operands("mov.b64 rd1, {%laneid, %tid.x};")
    assert special.elements == (SpecialRegister("laneid"), SpecialRegister("tid", "x"))
    assert (
        operands("tcgen05.mma.cta_group::1.kind::f16 [r1], rd1, rd2, r2, {r3, r3, r3, r3}, p1;")[4].elements[3].name
        == "r3"
    )


def test_vector_registers():
    kernel = parse_kernel(
        ".reg .v4 .f32 v; .reg .v2 .b64 w; mov.v4.f32 v, {f1, f2, f3, f4}; add.f32 f1, v.x, v.a; mov.v2.b64 w, w;"
    )
    (moved, added, wide) = kernel.instructions[1:-1]
    assert [e.name for e in moved.operands[0].elements] == ["v.x", "v.y", "v.z", "v.w"]
    assert added.operands[1:] == (moved.operands[0].elements[0], moved.operands[0].elements[3])
    assert len(wide.operands[0].elements) == 2 and wide.operands[0] == wide.operands[1]
    with pytest.raises(PTXSyntaxError, match=r"undefined name 'w\.z'"):
        operands(".reg .v2 .b64 w; mov.b64 rd1, w.z;")


def test_parts_of_registers():
    (_, low, high) = operands("vadd.s32.s32.s32 r1, r2.b0, r3.h1;")
    assert isinstance(low, Part) and (low.register.name, low.selector, str(high)) == ("r2", "b0", "r3.h1")
    with pytest.raises(PTXSyntaxError, match="undefined name"):
        operands("mov.b32 r1, r2.x;")


@pytest.mark.parametrize(
    ("text", "offset"),
    [("[r1]", 0), ("[r1+16]", 16), ("[r1 + 0x10]", 16), ("[r1+-4]", -4), ("[r1-4]", -4), ("[r1+(4*2+1)*4]", 36),
     ("[r1+4*8]", 32), ("[r1+010]", 8), ("[r1+WARP_SZ]", 32), ("[r1+0]", 0)],
)  # fmt: skip
def test_addresses_in_registers(text, offset):
    address = operands(f"ld.shared.b32 r2, {text};")[1]
    assert isinstance(address, Address) and address.base.name == "r1" and address.offset == offset


def test_addresses_of_symbols():
    kernel = parse_kernel(
        "ld.param.b32 r1, [out+4]; ld.global.b32 r1, [a+-8]; mov.u64 rd1, a+12; mov.u64 rd1, a;",
        module=".global .u32 a[4];",
    )
    (param, loaded, added, plain) = [i.operands[1] for i in kernel.instructions[1:-1]]
    assert (param.base.name, param.base.space, param.offset) == ("out", "param", 4)
    assert param.base.variable is kernel.params[0]
    assert (loaded.base.space, loaded.offset) == ("global", -8)
    assert (added.name, added.addend, plain.addend) == ("a", 12, 0) and isinstance(plain, Symbol)
    assert plain.variable.size_bytes == 16


def test_absolute_addresses_and_array_elements():
    assert operands("ld.shared.b32 r1, [0x400];")[1] == Address(None, 0x400)
    assert operands("ld.shared.b32 r1, [4*4];")[1] == Address(None, 16)
    element = operands("ld.global.u64 rd1, a[3];", module=".global .u64 a[4];")[1]
    assert (element.base.name, element.offset) == ("a", 24)
    row = operands("ld.global.v4.f32 {f1, f2, f3, f4}, a[2];", module=".global .v4 .f32 a[4];")[1]
    assert row.offset == 32
    with pytest.raises(PTXSyntaxError, match="index in a register is not supported"):
        operands("ld.global.u64 rd1, a[r1];", module=".global .u64 a[4];")


def test_tensor_map_addresses():
    (shared, tensor, barrier, policy) = operands(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [r1+512], [rd1, {r2, 64}], [r3], rd2;"
    )
    assert shared.offset == 512 and barrier.base.name == "r3" and policy.name == "rd2"
    assert isinstance(tensor, TensorAddress)
    assert tensor.address == Address(tensor.address.base, 0) and tensor.address.base.name == "rd1"
    assert [str(c) for c in tensor.coordinates] == ["r2", "64"]


def test_im2col_offsets_are_a_vector_of_their_own():
    found = operands(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [r1], [rd1+64, {r1, r2, r3, r4}], [r3], {h1, h2};"
    )
    assert found[1].address.offset == 64 and len(found[1].coordinates) == 4
    assert isinstance(found[3], Vector) and len(found[3].elements) == 2


def test_texture_addresses():
    (_, scalar) = operands("tex.1d.v4.f32.s32 {f1, f2, f3, f4}, [rd1, r1];")
    assert [str(c) for c in scalar.coordinates] == ["r1"]
    (_, sampled) = operands("tex.2d.v4.f32.f32 {f1, f2, f3, f4}, [rd1, rd2, {f1, f2}];")
    assert str(sampled.items[0]) == "rd2" and len(sampled.coordinates) == 2


def test_tensor_memory_operands():
    found = operands("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [r1], [r2 + 0x10], rd1, r3, [r4], [r5], 1;")
    assert [type(o).__name__ for o in found] == [
        "Address",
        "Address",
        "Register",
        "Register",
        "Address",
        "Address",
        "Immediate",
    ]
    assert found[1].offset == 16


@pytest.mark.parametrize("name", SPECIAL_REGISTERS)
def test_special_registers(name):
    assert operands(f"mov.u32 r1, %{name};")[1] == SpecialRegister(name)
    if SPECIAL_REGISTERS[name]:
        assert operands(f"mov.u32 r1, %{name}.y;")[1] == SpecialRegister(name, "y")
    else:
        with pytest.raises(PTXSyntaxError, match="no component 'y'"):
            operands(f"mov.u32 r1, %{name}.y;")


def test_special_register_names_from_the_isa():
    named = {"tid", "ntid", "laneid", "warpid", "nwarpid", "ctaid", "nctaid", "smid", "nsmid", "gridid", "clusterid"}
    named |= {"nclusterid", "cluster_ctaid", "cluster_nctaid", "cluster_ctarank", "cluster_nctarank", "clock64"}
    named |= {
        "lanemask_lt",
        "globaltimer",
        "globaltimer_hi",
        "envreg31",
        "dynamic_smem_size",
        "pm7_64",
        "is_explicit_cluster",
    }
    assert named <= set(SPECIAL_REGISTERS)


def test_branches():
    (jump, _, back) = instructions("bra.uni B; A: mov.u32 r1, 1; B: bra A;")
    assert jump.operands == (Label("B", 3),) and back.operands == (Label("A", 2),)
    assert (jump.opcode, jump.qualifiers) == ("bra", ("uni",))


def test_branch_tables():
    (branch, _, _) = instructions("ts: .branchtargets B, A, B; brx.idx.uni r1, ts; A: mov.u32 r1, 1; B: mov.u32 r1, 2;")
    assert branch.operands[0].name == "r1"
    assert branch.operands[1] == BranchTargets("ts", (Label("B", 3), Label("A", 2), Label("B", 3)))
    (early, _) = instructions("brx.idx r1, ts; A: mov.u32 r1, 1; ts: .branchtargets A;")
    assert early.operands[1].labels == (Label("A", 2),)


def test_calls():
    module = ".func (.param .b32 v) f(.param .b32 a, .param .b64 b) { ret; } .func g { ret; }"
    (full, plain, bare) = instructions(
        "{ .param .b32 v; .param .b32 a; .param .b64 b; call.uni (v), f, (a, b); } call g; call g, ();", module=module
    )
    (results, function, arguments) = full.operands
    assert isinstance(results, Arguments) and [str(a) for a in arguments.items] == ["a", "b"]
    assert function == Symbol("f", "function")
    assert [a.space for a in arguments.items] == ["callparam"] * 2
    assert [a.variable.offset_bytes for a in (*results.items, *arguments.items)] == [0, 4, 8]
    assert plain.operands == (Symbol("g", "function"),) and bare.operands[1] == Arguments(())


def test_calls_through_prototypes():
    (call, listed) = instructions(
        "proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[16]) .noreturn;"
        "fs: .calltargets f; { .param .b32 v; call (v), rd1, (v), proto; call rd1, fs; }",
        module=".func f { ret; }",
    )
    assert call.operands[1].name == "rd1" and call.operands[3] == Symbol("proto", "prototype")
    assert listed.operands[1] == Symbol("fs", "calltargets")


def test_functions_as_values():
    assert operands("mov.u64 rd1, f;", module=".extern .func f;")[1] == Symbol("f", "function")


def test_instructions_print_as_written():
    text = "@!p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [rd1, {r1, _, -4}], [r2+-8], 0f3F800000;"
    text = text.replace("_, ", "")
    assert str(instructions(text)[0]) == text
    assert str(instructions("setp.eq.s32 p1|p2, r1, 0x1F;")[0]) == "setp.eq.s32 p1|p2, r1, 0x1F;"
    assert str(instructions("exit;")[0]) == "exit;"

"""Reading SASS: instructions, control bits, blocks and loops, on a text written by hand and on PTX assembled here."""

import itertools

import pytest

from mxfp8fa.timing.binary import ToolError, assemble, disassemble, resource_usage, tool
from mxfp8fa.timing.flow import Graph
from mxfp8fa.timing.sass import Control, parse_sass
from mxfp8fa.timing.units import Unit, unit_of

try:
    tool("ptxas"), tool("nvdisasm"), tool("cuobjdump")
    HAS_TOOLS = True
except ToolError:
    HAS_TOOLS = False

needs_tools = pytest.mark.skipif(not HAS_TOOLS, reason="needs the extra `timing`")

TEXT = """
	.section	.text.twice,"ax",@progbits
twice:
.text.twice:
	//## File ".nv_debug_ptx_txt", line 7
        /*0000*/                   MUFU.EX2 R4, R4 ;          /* 0x0000000400047308 */
                                                              /* 0x000e220000000800 */
.L_x_1:
	//## File ".nv_debug_ptx_txt", line 9
        /*0010*/              @!P0 BRA `(.L_x_1) ;            /* 0x0000000400047308 */
                                                              /* 0x001fe20000000800 */
        /*0020*/                   BRA.U UP4, `(.L_x_2) ;     /* 0x0000000400047308 */
                                                              /* 0x000fe20000000800 */
        /*0030*/                   BRX R2 -0x790 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*); /* 0x0000000400047308 */
                                                              /* 0x000fe20000000800 */
.L_x_2:
        /*0040*/                   EXIT ;                     /* 0x0000000400047308 */
                                                              /* 0x000fe20000000800 */
"""


def test_text():
    function = parse_sass(TEXT)["twice"]
    exp, again, uniform, table, end = function.instructions
    assert (exp.opcode, exp.operands, exp.ptx_line, exp.guard) == ("MUFU.EX2", "R4, R4", 7, "")
    assert exp.control == Control(stall=1, write_barrier=0, read_barrier=7, wait=0)
    assert again.control.wait == 1 and again.guard == "!P0" and again.targets == (0x10,) and again.ptx_line == 9
    assert [i.falls_through for i in function.instructions] == [True, True, True, False, False]
    assert uniform.targets == (0x40,) and table.targets == (0x10, 0x40) and end.targets == ()


def test_blocks_and_loops():
    graph = Graph.of(parse_sass(TEXT)["twice"])
    assert [b.successors for b in graph.blocks] == [[1], [1, 2], [4, 3], [1, 4], []]
    (loop,) = graph.loops
    assert loop.header == 1 and loop.blocks == {1, 2, 3}
    assert graph.dominators[4] == {0, 1, 2, 4}


def test_a_turn_without_detours():
    """From block 1 and back: by itself; and around a block that a branch skips, once block 1 does not branch to itself."""
    graph = Graph.of(parse_sass(TEXT)["twice"])
    assert graph.shortest_turn(graph.loops[0]) == graph.blocks[1].instructions
    graph = Graph.of(parse_sass(TEXT)["twice"])
    for number, successors in enumerate([[1], [2, 3], [3], [1, 4], []]):
        graph.blocks[number].successors = successors
        graph.blocks[number].predecessors = [n for n, after in enumerate([[1], [2, 3], [3], [1, 4]]) if number in after]
    (loop,) = graph.loops
    assert loop.blocks == {1, 2, 3}
    assert graph.shortest_turn(loop) == graph.blocks[1].instructions + graph.blocks[3].instructions


def test_an_unknown_opcode_is_named():
    function = parse_sass(TEXT.replace("MUFU.EX2", "XYZZY.EX2"))["twice"]
    with pytest.raises(ValueError, match=r"XYZZY.EX2 at 0x0"):
        unit_of(function.instructions[0])


CHAIN = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry chain(.param .u64 x)
{{
  .reg .f32 %f<9>; .reg .b64 %x; .reg .b32 %r<4>;
  ld.param.u64 %x, [x];
  ld.global.f32 %f0, [%x];
{body}
  st.global.f32 [%x], %f0;
  ret;
}}
"""


def chain(line, count=12):
    function = disassemble(assemble(CHAIN.format(body=line * count)))["chain"]
    assert function.has_ptx_lines
    return function.instructions


@needs_tools
@pytest.mark.parametrize(
    ("line", "opcode", "unit", "stall"),
    [
        # ptxas waits for a result of fixed latency by a stall count: 4 cycles on FMA and ALU, as microbenchmarks find.
        ("  fma.rn.f32 %f0, %f0, %f0, %f0;\n", "FFMA", Unit.FMA, 4),
        ("  add.rn.f32 %f0, %f0, 0f3F000001;\n", "FADD", Unit.FMA, 4),
        ("  max.f32 %f0, %f0, 0f3F000001;\n  neg.f32 %f0, %f0;\n", "FMNMX", Unit.ALU, 4),
    ],
)
def test_stall_counts_are_the_known_latencies(line, opcode, unit, stall):
    found = [i for i in chain(line) if i.mnemonic == opcode]
    assert len(found) == 12 and all(unit_of(i) is unit for i in found)
    assert {i.control.stall for i in found[:-1]} == {stall}


@needs_tools
def test_results_of_variable_latency_are_awaited_by_scoreboard():
    code = chain("  ex2.approx.ftz.f32 %f0, %f0;\n")
    exponentials = [i for i in code if i.opcode == "MUFU.EX2"]
    assert len(exponentials) == 12
    for this, following in itertools.pairwise(exponentials):
        assert following.control.wait >> this.control.write_barrier & 1


@needs_tools
def test_lines_and_resources():
    cubin = assemble(CHAIN.format(body="  ex2.approx.ftz.f32 %f0, %f0;\n"))
    code = disassemble(cubin)["chain"].instructions
    assert next(i for i in code if i.opcode == "MUFU.EX2").ptx_line == 10
    usage = resource_usage(cubin)["chain"]
    assert usage.stack_bytes == 0 and 0 < usage.registers < 32


def test_a_missing_tool_says_what_to_install(monkeypatch):
    monkeypatch.setattr("mxfp8fa.timing.binary.sysconfig.get_path", lambda name: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    tool.cache_clear()
    with pytest.raises(ToolError, match=r"nvdisasm is not installed.*timing"):
        tool("nvdisasm")
    tool.cache_clear()

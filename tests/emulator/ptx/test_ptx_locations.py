"""`.loc`: which instruction gets which place in the source."""

import pytest
from ptx_snippets import kernel

from mxfp8fa.emulator.ptx import PTXSyntaxError, SourceLocation, parse

FILES = '.file 1 "a.py"\n.file 2 "b.py"\n'


def sources(body):
    return [i.source for i in parse(kernel(body) + FILES).kernels["k"].instructions[1:-1]]


def lines(body):
    return [s and s.line for s in sources(body)]


def test_a_location_holds_until_the_next():
    body = ".loc 1 10 3\nmov.u32 r1, 1;\nmov.u32 r1, 2;\n.loc 2 20 0\nmov.u32 r1, 3;"
    assert sources(body) == [
        SourceLocation("a.py", 10, 3),
        SourceLocation("a.py", 10, 3),
        SourceLocation("b.py", 20, 0),
    ]
    assert str(sources(body)[0]) == "a.py:10"


def test_without_locations():
    assert sources("mov.u32 r1, 1;") == [None]


def test_an_unknown_file_has_no_name():
    (source,) = sources(".loc 7 10 3\nmov.u32 r1, 1;")
    assert (source.file, str(source)) == ("", "?:10")


def test_inline_assembly_has_the_place_of_its_call():
    # The compiler numbers the lines of the assembly text from the call's line on; those numbers mean nothing.
    body = """
        .loc 1 100 24
        // begin inline asm
        {
        .reg .pred P;
        .loc 1 102 24
        W: mbarrier.try_wait.parity.shared.b64 P, [r1], r2;
        .loc 1 103 24
        @!P bra W;
        }
        // end inline asm
        .loc 1 200 4
        mov.u32 r1, 1;
    """
    assert lines(body) == [100, 100, 200]


def test_after_inline_assembly_the_last_location_counts():
    # A `.loc` equal to the last one inside the block is left out by the compiler, so that one is current afterwards.
    body = """
        .loc 1 100 24
        // begin inline asm
        mov.u32 r1, 1;
        .loc 1 103 24
        // end inline asm
        mov.u32 r1, 2;
        // begin inline asm
        mov.u32 r1, 3;
        // end inline asm
        mov.u32 r1, 4;
    """
    assert lines(body) == [100, 103, 103, 103]


def test_blocks_that_follow_each_other():
    block = "// begin inline asm\n.loc 1 {0} 1\nmov.u32 r1, 1;\n// end inline asm\n"
    body = ".loc 1 10 1\n" + block.format(13) + ".loc 1 20 1\n" + block.format(23) + block.format(33) + "mov.u32 r1, 2;"
    assert lines(body) == [10, 20, 23, 33]


def test_inlined_functions():
    (source,) = sources(".loc 2 5 2, function_name $L__str0, inlined_at 1 30 7\nmov.u32 r1, 1;")
    assert source == SourceLocation("b.py", 5, 2, "$L__str0", SourceLocation("a.py", 30, 7))
    (other,) = sources(".loc 2 5 2, function_name .debug_str+16, inlined_at 1 30 7\nmov.u32 r1, 1;")
    assert other.function == ".debug_str+16"


@pytest.mark.parametrize(
    "text", [".loc 1 2", ".loc 1 2 x", ".loc -1 2 3", ".loc 1 2 3, fancy 4", ".loc 1 2 3, function_name 5",
             ".loc 1 2 3, inlined_at 1 2", ".loc 1 2 3,"],
)  # fmt: skip
def test_bad_locations(text):
    with pytest.raises(PTXSyntaxError, match=r"in \.loc|after function_name"):
        sources(text + "\nmov.u32 r1, 1;")

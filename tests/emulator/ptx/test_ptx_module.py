"""The module level: header, files, sections, kernels and functions with their directives."""

import pytest
from ptx_snippets import HEADER, STORE, kernel

from mxfp8fa.emulator.ptx import Kernel, PTXSyntaxError, parse


def test_header():
    module = parse(".version 8.7\n.target sm_100a, texmode_independent, debug\n.address_size 64\n")
    assert (module.version, module.address_size) == ((8, 7), 64)
    assert module.target == ("sm_100a", "texmode_independent", "debug")
    assert parse(".version 9.10 .target sm_90a").version == (9, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".version 9 .target sm_100a", "expected a version such as 9.0"),
        (".version 9.x .target sm_100a", "not a number|expected a version"),
        (".version 9.0 .target 5", "expected a target such as sm_100a"),
        (".version 9.0 .target sm_100a,", "expected a target option"),
        (".version 9.0 .target sm_100a .address_size 48", "must be 32 or 64"),
    ],
)
def test_bad_headers(text, message):
    with pytest.raises(PTXSyntaxError, match=message):
        parse(text)


def test_text_may_end_with_nul_characters():
    assert list(parse(kernel(STORE) + "\0\0").kernels) == ["k"]


def test_file_table():
    module = parse(
        HEADER + '.file 1 "/a/b c.py"\n' + kernel(STORE)[len(HEADER) :] + '.file 2 "q\\"\\\\\\x41\\101.py", 5, 6\n'
    )
    assert dict(module.files) == {1: "/a/b c.py", 2: 'q"\\AA.py'}


def test_sections_are_skipped():
    module = parse(
        kernel(STORE)
        + ".section .debug_info\n{\n.b32 2, 0xffff\nL: .b8 1\n.b64 .debug_abbrev+4, L\n}\n.section .x { { } }"
    )
    assert list(module.kernels) == ["k"]


def test_kernel_directives():
    text = """.visible .entry k(.param .u64 a)
        .reqntid 128, 1, 1
        .minnctapersm 2
        .maxnreg 200
        .reqnctapercluster 2, 1
        .explicitcluster
        .pragma "one", "two";
        { ret; }"""
    found = parse(HEADER + text).kernels["k"]
    assert isinstance(found, Kernel)
    assert dict(found.directives) == {
        "reqntid": (128, 1, 1), "minnctapersm": (2,), "maxnreg": (200,),
        "reqnctapercluster": (2, 1), "explicitcluster": (),
    }  # fmt: skip
    assert (found.linkage, found.line, found.has_body) == ("visible", 4, True)
    assert (found.required_block, found.required_cluster, found.max_threads) == ((128, 1, 1), (2, 1, 1), 128)
    assert found.pragmas == ((-1, "one"), (-1, "two"))


def test_kernel_limits():
    found = parse(HEADER + ".entry k() .maxntid 16, 8 .maxclusterrank 4 .blocksareclusters { ret; }").kernels["k"]
    assert (found.required_block, found.required_cluster, found.max_threads) == (None, None, 128)
    free = parse(HEADER + ".entry k() { ret; }").kernels["k"]
    assert (free.required_block, free.required_cluster, free.max_threads) == (None, None, None)


@pytest.mark.parametrize("text", [".reqntid", ".reqntid 1,", ".reqntid 1,2,3,4", ".maxnreg 1, 2", ".maxnreg -1"])
def test_bad_directives(text):
    with pytest.raises(PTXSyntaxError):
        parse(HEADER + f".entry k() {text} {{ ret; }}")


def test_pragmas_keep_their_place():
    found = parse(kernel('mov.u32 r1, 1; L: .pragma "nounroll"; ' + STORE)).kernels["k"]
    assert found.pragmas == ((2, "nounroll"),)


def test_functions():
    text = """
        .func (.param .b32 v) f(.param .b32 a, .param .align 8 .b8 s[16]) ;
        .weak .func (.param .b32 v) f(.param .b32 a, .param .align 8 .b8 s[16])
        { .reg .b32 r; ld.param.b32 r, [a]; st.param.b32 [v], r; ret; }
        .extern .func (.param .b32 v) vprintf(.param .b64 x, .param .b64 y) .noreturn;
        .func (.reg .u32 rv) old(.reg .u32 n, .reg .pred p) { @p add.u32 rv, n, 1; ret; }
        .func aka; .alias aka, f;
    """
    module = parse(HEADER + text)
    f, vprintf, old = (module.functions[name] for name in ("f", "vprintf", "old"))
    assert (f.linkage, f.has_body, len(f.instructions)) == ("weak", True, 3)
    assert [(v.name, v.size_bytes) for v in f.results] == [("v", 4)]
    assert [(v.name, v.offset_bytes) for v in f.params] == [("a", 0), ("s", 8)]
    assert f.instructions[0].operands[1].base.variable is f.params[0]
    assert (vprintf.has_body, dict(vprintf.directives), vprintf.instructions) == (False, {"noreturn": ()}, ())
    assert [(r.name, r.type) for r in old.register_params] == [("rv", "u32"), ("n", "u32"), ("p", "pred")]
    assert old.instructions[0].operands[0] is old.register_params[0]
    assert dict(module.aliases) == {"aka": "f"}


def test_a_function_may_call_itself_but_not_have_two_bodies():
    text = HEADER + ".func f { call f; ret; }"
    assert len(parse(text).functions["f"].instructions) == 2
    with pytest.raises(PTXSyntaxError, match="already has a body"):
        parse(text + ".func f { ret; }")


def test_several_kernels():
    module = parse(HEADER + ".entry a(.param .u32 x) { ret; } .entry b(.param .u32 x) { exit; }")
    assert list(module.kernels) == ["a", "b"]
    assert module.kernels["b"].instructions[0].opcode == "exit"


def test_the_result_cannot_be_changed():
    module = parse(kernel(STORE))
    with pytest.raises(TypeError):
        module.kernels["x"] = None
    with pytest.raises(AttributeError):
        module.kernels["k"].instructions[0].opcode = "nop"

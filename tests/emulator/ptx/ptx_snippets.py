"""PTX texts that several test files use: a frame for one kernel, and tables of good and bad PTX."""

from mxfp8fa.emulator.ptx import parse

HEADER = ".version 9.0\n.target sm_100a\n.address_size 64\n"
REGISTERS = ".reg .pred p<4>; .reg .b16 h<4>; .reg .b32 r<9>; .reg .f32 f<9>; .reg .b64 rd<9>;"
STORE = "st.global.u32 [rd0], r1;"


def kernel(body, *, module="", params=".param .u64 out"):
    """A module with one kernel; the body starts in line 8 of the text."""
    return (
        f"{HEADER}{module}\n.visible .entry k({params})\n{{\n{REGISTERS} ld.param.u64 rd0, [out];\n{body}\nret;\n}}\n"
    )


def parse_kernel(body, **frame):
    return parse(kernel(body, **frame)).kernels["k"]


def instructions(body, **frame):
    """What stands in the body, without the frame's first load and final return."""
    return parse_kernel(body, **frame).instructions[1:-1]


def operands(statement, **frame):
    (instruction,) = instructions(statement, **frame)
    return instruction.operands


# ptxas (13.0 and 13.5 were tried) accepts each of these, which test_ptx_real.py checks where it is installed.
ACCEPTED = {
    "spaces in a mnemonic": kernel("mov .u32 r1, 5; st .global .u32 [rd0], r1;"),
    "type glued to .reg": kernel(".reg.b32 zz; mov.u32 zz, 5;"),
    "several statements on a line": kernel("mov.u32 r1, 1; mov.u32 r2, 2; add.u32 r1, r1, r2;" + STORE),
    "a statement over lines": kernel("add.u32\n r1\n, r2,\n\n 3\n;" + STORE),
    "inner register hides outer": kernel("{ .reg .b64 r1; mov.u64 r1, 5; } " + STORE),
    "inner label hides outer": kernel("A: mov.u32 r1, 1; { A: mov.u32 r2, 1; bra A; } bra A;"),
    "label after its branch": kernel("bra A; mov.u32 r1, 3; A: " + STORE),
    "branch out of a scope": kernel("{ bra A; } mov.u32 r1, 3; A: " + STORE),
    "label at the end of the body": f"{HEADER}.entry k() {{ .reg .pred p; @p bra A; ret; A: }}",
    "body without instructions": f"{HEADER}.entry k() {{ }}",
    "no parameter list": f"{HEADER}.visible .entry k\n{{ ret; }}",
    "no .address_size": ".version 9.0\n.target sm_100a\n.entry k() { ret; }",
    "header only": HEADER,
    "constant index": kernel("ld.global.u32 r1, a[1]; " + STORE, module=".global .u32 a[4];"),
    "address of an element": kernel("mov.u64 rd1, a[1]; st.global.u64 [rd0], rd1;", module=".global .u32 a[4];"),
    "symbol plus constant": kernel("mov.u64 rd1, a+4; st.global.u64 [rd0], rd1;", module=".global .u32 a[4];"),
    "address expression": kernel("st.global.u32 [rd0+(4*2+1)*4], r1;"),
    "negative offset": kernel("st.global.u32 [rd0+-4], r1;"),
    "float constants": kernel("mov.f32 f1, .5; mov.f32 f1, 5.; mov.f32 f1, 5e3; mov.f32 f1, (1.5+1.0)*2.0;"),
    "hexadecimal floats": kernel("mov.f32 f1, 0f3F800000; mov.f32 f1, 0d3FF8000000000000; mov.b32 r1, 0F3F800000;"),
    "integer constants": kernel(
        "mov.u32 r1, 0X1fU; mov.u32 r1, 017; mov.u32 r1, 0b101; mov.u32 r1, 5U; mov.u32 r1, +4;"
    ),
    "expressions": kernel("mov.u32 r1, (3<4)&&(2!=1) ? ~0&WARP_SZ : -(.u64)1>>2;"),
    "guards": kernel("setp.eq.s32 p1|p2, r1, r2; @p1 mov.u32 r1, 4; @ ! p1 mov.u32 r1, 4; and.pred p2, !p1, p1;"),
    "vector register": kernel(
        ".reg .v4 .f32 v; ld.global.v4.f32 v, [rd0]; add.f32 f5, v.x, v.a; st.global.f32 [rd0], f5;"
    ),
    "vector of constants": kernel("mov.b64 rd1, {r1, 5+3}; mov.b64 rd1, {r1, %tid.x}; mov.b64 {_, r1}, rd1;"),
    "special register as a whole": kernel("mov.v4.u32 {r1, r2, r3, r4}, %tid;"),
    "texture": kernel(
        "tex.1d.v4.f32.s32 {f1, f2, f3, f4}, [rd0, {r1}]; tex.1d.v4.f32.s32 {f1, f2, f3, f4}, [rd0, r1];"
    ),
    "video parts": kernel("vadd.s32.s32.s32 r1, r2.b0, r3.h1;" + STORE),
    "branch table": kernel("ts: .branchtargets A, B; brx.idx r1, ts; A: mov.u32 r1, 1; B: " + STORE),
    "branch table in a scope": kernel("{ ts: .branchtargets A, B; brx.idx r1, ts; } A: mov.u32 r1, 1; B: " + STORE),
    "register types": kernel(".reg .f16x2 x; .reg .b8 b; .reg .s8 c; .reg .b128 q; .reg .f16 y; .reg .s64 z;"),
    "register lists": kernel(".reg .b32 a1, b<4>, c1; .reg .b32 z<0x4>, y<0>; mov.u32 z3, b3;"),
    "shared in the body": kernel(".shared .align 8 .b8 s[16]; mov.u32 r1, s; add.u32 r1, r1, s+4;" + STORE),
    "pragma": kernel('.pragma "nounroll";' + STORE),
    "two dynamic arrays": kernel(
        "mov.u32 r1, s; mov.u32 r2, t; add.u32 r1, r1, r2;" + STORE,
        module=".extern .shared .align 8 .b8 s[]; .extern .shared .align 16 .b8 t[]; .shared .b8 z[5];",
    ),
    "initial values": kernel(
        STORE,
        module=".global .u32 b; .global .u64 a[3] = {b, b+4, generic(b)}; .global .u8 m[2] = {0xFF(b), 0xFF00(b)};"
        " .global .u32 i[2][3] = {{1, 2}, {3}}; .global .u32 x = 1, y = 5; .global .u32 u[] = {1, 2};"
        " .global .u32 w[][2] = {{1, 2}, {3, 4}}; .global .b8 n[5] = {-1, 300}; .global .b16 s[2] = {0x3c00, 1};"
        " .global .f32 g[2] = {0d3FF8000000000000, 1.0};",
    ),
    "attributes and linkage": kernel(
        STORE, module=".global .attribute(.managed) .b8 z[5]; .common .global .b8 c[5]; .weak .shared .b8 w[5];"
    ),
    "constant memory": kernel("ld.const.u32 r1, [c]; " + STORE, module=".const .u32 c[2] = {1, 2};"),
    "pointer parameters": kernel(STORE, params=".param .u64 .ptr .global .align 16 out, .param .align 8 .u64 .ptr q"),
    "directives": f'{HEADER}.entry k() .maxntid 16, 16, 4 .minnctapersm 2 .maxnreg 64 .pragma "abc"; {{ ret; }}'
    " .entry l() .reqntid 32 .reqnctapercluster 2, 1, 1 .blocksareclusters { ret; }"
    " .entry m() .maxclusterrank 8 { ret; }",
    "register parameters": f"{HEADER}.func (.reg .u32 rv) foo(.reg .u32 a) {{ add.u32 rv, a, 1; ret; }}",
    "calls": kernel(
        "call foo; { .param .u32 x; st.param.u32 [x], r1; call.uni bar, (x); } call (r1), baz, (r2); call bar, (5);",
        module=".func foo { ret; } .func bar(.param .u32 a) { ret; }"
        " .func (.reg .u32 v) baz(.reg .u32 a) { mov.u32 v, a; ret; }",
    ),
    "call through a prototype": kernel(
        ".reg .b64 fp; pr: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[16]); mov.u64 fp, 0;"
        "{.param .b32 a; .param .b32 v; .param .align 8 .b8 c[16]; call (v), fp, (a, c), pr;}"
    ),
    "alias": kernel("call bar;" + STORE, module=".func foo { ret; } .func bar; .alias bar, foo;"),
    "location without a file": kernel(".loc 3 1 1\n" + STORE),
    "file after the kernel": kernel(".loc 1 1 1\n" + STORE) + '.file 1 "x.cu", 123, 456\n',
    "inlined location": kernel(".loc 1 1 1\n.loc 1 5 2, function_name $L__str0, inlined_at 1 1 1\n" + STORE)
    + '.file 1 "x.cu"\n.section .debug_str\n{\n$L__str0:\n.b8 102,0\n}\n',
}

# Text, the line of the error, and a piece of its message. ptxas refuses each of these too.
REFUSED = {
    "empty text": ("", 1, "expected '.version'"),
    "target first": (".target sm_100a\n.version 9.0\n", 1, "expected '.version'"),
    "no target": (".version 9.0\n.entry k() { ret; }", 2, "expected '.target'"),
    "unknown directive": (HEADER + ".fancy 3;", 4, "unknown directive .fancy at module level"),
    "unknown header directive": (HEADER + ".entry k()\n.fancy 3 { ret; }", 5, "unknown directive .fancy in the header"),
    "unknown body directive": (kernel(".fancy 3;"), 8, "unknown directive .fancy in a function body"),
    "unknown type": (kernel(".reg .bf16 q;"), 8, "expected a register type such as .b32 or .pred, found '.bf16'"),
    "unknown type in memory": (kernel(STORE, module=".global .u33 q;"), 4, "unknown type or directive .u33"),
    "duplicate register": (kernel(".reg .b32 q;\n.reg .b64 q;"), 9, "duplicate register: 'q'"),
    "duplicate range": (kernel(".reg .b32 q<3>;\n.reg .b32 q<5>;"), 9, "duplicate register: 'q<3>'"),
    "range over a register": (kernel(".reg .b32 q1;\n.reg .b32 q<3>;"), 9, "duplicate register: 'q1'"),
    "register in a range": (kernel(".reg .b32 q<3>;\n.reg .b32 q1;"), 9, "duplicate register: 'q1'"),
    "duplicate label": (kernel("A: mov.u32 r1, 1;\nA: " + STORE), 9, "duplicate label: 'A'"),
    "label like a register": (kernel(".reg .b32 q;\nq: " + STORE), 9, "duplicate register: 'q'"),
    "register like a parameter": (kernel(".reg .b32 out;"), 8, "duplicate name: 'out'"),
    "duplicate parameter": (HEADER + ".entry k(.param .u32 a,\n.param .u64 a) { ret; }", 5, "duplicate name: 'a'"),
    "duplicate kernel": (kernel(STORE) + ".entry k() { ret; }", 11, "duplicate name: 'k'"),
    "undefined register": (kernel("mov.u32 r1,\n%r77;"), 9, "undefined register '%r77'"),
    "register beyond its range": (kernel("mov.u32 r1, r9;"), 8, "undefined name 'r9'"),
    "undefined guard": (kernel("@q bra A; A: ret;"), 8, "undefined register 'q'"),
    "undefined label": (kernel("mov.u32 r1, 1;\nbra NOWHERE;"), 9, "undefined label 'NOWHERE'"),
    "label inside a scope": (kernel("bra A; { A: mov.u32 r1, 1; }"), 8, "undefined label 'A'"),
    "register of a closed scope": (kernel("{ .reg .b32 q; }\nmov.u32 q, 1;"), 9, "undefined name 'q'"),
    "register before its declaration": (kernel("mov.u32 q, 1;\n.reg .b32 q;"), 8, "undefined name 'q'"),
    "undefined special register": (kernel("mov.u32 r1, %foo;"), 8, "undefined register '%foo'"),
    "undefined target list": (kernel("brx.idx r1, ts;"), 8, "undefined label 'ts'"),
    "label as a target list": (kernel("brx.idx r1, A; A: ret;"), 8, "expected the name of a .branchtargets list"),
    "undefined symbol in a value": (HEADER + ".global .u64 a =\nlater;", 5, "undefined name 'later'"),
    "missing semicolon": (kernel("mov.u32 r1, 1\nret;"), 9, "expected ',' or ';' after mov.u32, found 'ret'"),
    "empty statement": (kernel(";" + STORE), 8, "expected an instruction, a directive, a label or '}', found ';'"),
    "guard before a label": (kernel("@p1 A: mov.u32 r1, 4;"), 8, "expected an operand, found ':'"),
    "guard before a scope": (kernel("@p1 { mov.u32 r1, 1; }"), 8, "expected an instruction after @p1, found '{'"),
    "nested vector": (kernel("mov.b64 rd1, {r1, {r2}};"), 8, "expected an element of a vector, found '{'"),
    "register added to a symbol": (
        kernel("ld.global.u32 r1, [a+rd1];", module=".global .u32 a;"), 8, "expected a constant after + in an address",
    ),
    "not a number": (kernel("mov.u32 r1, 019;"), 8, "'019' is not a number of PTX"),
    "lower-case suffix": (kernel("mov.u32 r1, 5u;"), 8, "'5u' is not a number of PTX"),
    "short float": (kernel("mov.f32 f1, 0f3F8000;"), 8, "'0f3F8000' is not a number of PTX"),
    "character": (kernel("mov.u32 r1, 'a';"), 8, "unexpected character"),
    "open comment": (kernel("/* no end"), 8, "this comment has no end"),
    "open string": (kernel('.pragma "no end;'), 8, "this string has no end"),
    "division by zero": (kernel("mov.u32 r1, 1/0;"), 8, "division by zero"),
    "mixed constants": (kernel("mov.f32 f1, 1.5+1;"), 8, "mixes an integer and a floating-point constant"),
    "negative range": (kernel(".reg .b32 z<-1>;"), 8, "expected the number of registers"),
    "expression as a range": (kernel(".reg .b32 z<2+2>;"), 8, "expected '>'"),
    "open scope": (kernel("{ mov.u32 r1, 1;")[:-3], 9, "expected '}' to close the scope opened in line 8"),
    "open section": (HEADER + ".section .debug_str {\n.b8 1,2\n", 4, "expected '}' at the end of this section"),
    "alignment": (HEADER + ".global .align 3 .b8 a[2];", 4, "an alignment must be a power of two, found 3"),
    "too many values": (HEADER + ".global .u32 a[1] = {1, 2};", 4, "too many initial values: this dimension has 1"),
    "flat values for rows": (HEADER + ".global .u32 a[2][3] = {1, 2, 3, 4};", 4, "expected '{'"),
    "list for a scalar": (HEADER + ".global .u32 a = {1};", 4, "expected an initial value, found '{'"),
    "string as a value": (HEADER + '.global .b8 a[5] = "abc";', 4, "expected '{'"),
    "integer for a float": (HEADER + ".global .f32 a[2] = {1, 2};", 4, "cannot be a 32-bit float"),
    "value of a vector": (HEADER + ".global .v4 .f32 a = {1.0, 2.0};", 4, "takes no initial value"),
    "half value": (HEADER + ".global .f16 a[2] = {0f3F800000, 1.0};", 4, "takes no initial value"),
    "vector parameter": (HEADER + ".entry k(.param .v4 .f32 q) { ret; }", 4, "a parameter is a scalar or a one-dim"),
    "two-dimensional parameter": (HEADER + ".entry k(.param .b32 q[2][2]) { ret; }", 4, "a parameter is a scalar"),
    "extern in a body": (kernel(".extern .shared .b8 s[];"), 8, "unknown directive .extern in a function body"),
    "stray text": (HEADER + "hello", 4, "expected a directive at module level, found 'hello'"),
}  # fmt: skip

"""Bad PTX is refused with a place and a reason, good PTX is not, and nothing else can happen."""

import random

import pytest
from ptx_snippets import ACCEPTED, HEADER, REFUSED, STORE, kernel

from mxfp8fa.emulator.ptx import Module, PTXSyntaxError, parse
from mxfp8fa.emulator.ptx.scanner import scan


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_good_ptx_parses(text):
    assert isinstance(parse(text), Module)


@pytest.mark.parametrize(("text", "line", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_ptx_is_refused_with_line_and_reason(text, line, message):
    with pytest.raises(PTXSyntaxError) as caught:
        parse(text)
    error = caught.value
    assert message in error.message
    assert error.line == line
    assert error.text == [*text.split("\n"), ""][line - 1]
    assert f"PTX line {line}, column {error.column}: " in str(error) and error.text.strip() in str(error)


def test_the_column_points_at_the_token():
    with pytest.raises(PTXSyntaxError) as caught:
        parse(kernel("\tmov.u32 r1, %nope;"))
    assert caught.value.column == len("\tmov.u32 r1, ") + 1


# Texts that could exhaust a stack or memory, or run for long, if a limit were missing.
HOSTILE = {
    "parentheses": kernel("mov.u32 r1, " + "(" * 20_000 + "1" + ")" * 20_000 + ";"),
    "conditionals": kernel("mov.u32 r1, " + "1?" * 20_000 + "1;"),
    "scopes": kernel("{" * 20_000),
    "vectors": kernel("mov.b64 rd1, " + "{" * 20_000),
    "addresses": kernel("mov.b64 rd1, " + "[rd1," * 20_000),
    "dimensions": HEADER + ".global .b32 a" + "[1]" * 5_000 + " = " + "{" * 5_000,
    "digits": kernel("mov.u32 r1, " + "9" * 100_000 + ";"),
    "range": kernel(".reg .b32 z<99999999999>;"),
    "range in hexadecimal": kernel(".reg .b32 z<0xffffffffffffffff>;"),
    "array": HEADER + ".global .b8 a[4611686018427387905];",
    "arrays multiplied": HEADER + ".global .b8 a" + "[4294967295]" * 31 + ";",
    "sparse value": HEADER + ".global .b8 a[2][4611686018427387] = {{1}, {1}};",
    "comments": kernel("/*" * 50_000),
    "blanks without an end": kernel(" " * 200_000 + "\x01"),
    "slashes": kernel("/ " * 20_000),
    "names with digits": kernel(".reg .b32 a<5>; mov.u32 r1, a" + "1" * 50_000 + ";"),
    "sections": HEADER + ".section .s {" * 20_000,
    "shift": kernel("mov.u32 r1, 1<<9223372036854775807;"),
    "surrogate": kernel("\ud800"),
    "nul inside": kernel("mov.u32 r1, \0 1;"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused(text):
    with pytest.raises(PTXSyntaxError):
        parse(text)


def test_a_huge_range_costs_nothing():
    found = parse(kernel(".reg .b32 z<2147483648>; mov.u32 z2147483647, 1;")).kernels["k"]
    assert [r.name for r in found.registers] == ["rd0", "z2147483647"]


INSERTED = [
    *"{}[]();,:@!|<>=+-*/%&^~?_.\"'\\", "/*", "//", "%r1", "0x", "1e", "0f3F8", "1.5", "WARP_SZ", ".reg", ".b32",
    ".loc", ".align", ".param", ".func", ".entry", ".visible", ".section", ".branchtargets", ".v4", "call",
    "bra", "brx.idx", "= {", "function_name", "inlined_at", "generic(", "-1", "<4>", "\0", "\u00e9",
]  # fmt: skip


def damaged(text, rng):
    """The text cut off, or with a few tokens removed, doubled, replaced or inserted."""
    kind = rng.randrange(6)
    if kind == 0:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 1:
        return text[rng.randrange(len(text) + 1) :]
    tokens = scan(text)
    pieces = []
    last = 0
    chosen = {rng.randrange(len(tokens.starts)) for _ in range(rng.choice([1, 1, 2, 8]))}
    for index in sorted(chosen):
        start = tokens.starts[index]
        end = start + len(tokens.values[index])
        replacement = {
            2: "",
            3: rng.choice(INSERTED),
            4: tokens.values[index] + " " + rng.choice(INSERTED) + " ",
            5: rng.choice(tokens.values),
        }[kind]
        pieces += [text[last:start], replacement]
        last = end
    return "".join([*pieces, text[last:]])


@pytest.mark.parametrize("name", ACCEPTED)
def test_damaged_text_parses_or_is_refused(name):
    # The seed is the name itself, so that a failure can be run again. Anything but PTXSyntaxError fails the test.
    rng = random.Random(name)
    outcomes = [0, 0]
    for _ in range(60):
        text = damaged(ACCEPTED[name], rng)
        try:
            parse(text)
            outcomes[0] += 1
        except PTXSyntaxError as error:
            assert 1 <= error.line <= text.count("\n") + 1 and error.column >= 1 and str(error)
            outcomes[1] += 1
    assert outcomes[1] > 0


def test_every_prefix_of_a_kernel_parses_or_is_refused():
    text = kernel("{ .reg .pred q; L: @!q bra.uni L; } ts: .branchtargets A; brx.idx r1, ts; A: " + STORE)
    refused = 0
    for length in range(len(text)):
        try:
            parse(text[:length])
        except PTXSyntaxError:
            refused += 1
    assert refused > len(text) * 0.8  # only whole statements of the header alone are modules

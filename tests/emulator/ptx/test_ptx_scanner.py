"""Tokens: what one is, where it starts, what is skipped, and where inline assembly begins and ends."""

import pytest

from mxfp8fa.emulator.ptx import PTXSyntaxError
from mxfp8fa.emulator.ptx.scanner import scan


def words(text):
    return scan(text).values[:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mbarrier.try_wait.parity.shared::cta.b64 P1", ["mbarrier.try_wait.parity.shared::cta.b64", "P1"]),
        ("%tid.x %r1 $L__BB0_1 _x a$b", ["%tid.x", "%r1", "$L__BB0_1", "_x", "a$b"]),
        ("elect.sync _|p,-1;", ["elect.sync", "_", "|", "p", ",", "-", "1", ";"]),
        ("@!%p1 bra", ["@", "!", "%p1", "bra"]),
        ("%r<8>;", ["%r", "<", "8", ">", ";"]),
        ("L:mov.u32", ["L", ":", "mov.u32"]),
        (".reg.b32 .shared::cta", [".reg", ".b32", ".shared::cta"]),
        ("0x7771U 0XaF 017 0 0b10 5U", ["0x7771U", "0XaF", "017", "0", "0b10", "5U"]),
        ("0f3F800000 0D3ff0000000000000", ["0f3F800000", "0D3ff0000000000000"]),
        ("1.5 .5 5. 5e-3 1.5E+7", ["1.5", ".5", "5.", "5e-3", "1.5E+7"]),
        ("9.4\n.target", ["9.4", ".target"]),
        ("[a+0x10]", ["[", "a", "+", "0x10", "]"]),
        ("1<<2>>3<=4>=5", ["1", "<<", "2", ">>", "3", "<=", "4", ">=", "5"]),
        ("5==6!=7&&8||9", ["5", "==", "6", "!=", "7", "&&", "8", "||", "9"]),
        ('"a\\"b;" "//c"', ['"a\\"b;"', '"//c"']),
        ("a // b\nc /* d\n e */f", ["a", "c", "f"]),
        ("a/**/b/***/c", ["a", "b", "c"]),
        ("a // \u00e9\u4e2d\nb /* \u00df */", ["a", "b"]),
        ("a @@DWARF .b8 1\nb", ["a", "b"]),
        ("", []),
        ("  \n\t // only a comment", []),
    ],
)  # fmt: skip
def test_tokens(text, expected):
    assert words(text) == expected


def test_every_token_starts_where_it_says():
    text = 'a.b  %r1,\t/* x */ 0x1f\r\n// c\n{ "s" }'
    tokens = scan(text)
    assert all(text[s : s + len(v)] == v for v, s in zip(tokens.values, tokens.starts, strict=True))
    assert tokens.values[-1] == "" and len(tokens.values) == len(tokens.starts)


def test_lines_count_from_one_with_either_line_end():
    tokens = scan("a\n\nb\r\nc d")
    assert [tokens.line(i) for i in range(4)] == [1, 3, 4, 4]


def test_edges_of_inline_assembly():
    tokens = scan("a\n// begin inline asm\nb c\n// end inline asm\nd // begin inline asmx\n//begin inline asm\ne")
    assert tokens.values == ["a", "b", "c", "d", "e", ""]
    # The third comment also starts with the words; the fourth opens a block that nothing closes.
    assert [tokens.asm_end(i) for i in range(4)] == [None, 3, 3, None]
    assert tokens.asm_end(4) == len(tokens.values)


@pytest.mark.parametrize("text", ["0x", "0xg", "1x", "08", "0b2", "#", "`", "'", "\\", "\u00e9", '"\n"', "/*", "."])
def test_no_token(text):
    with pytest.raises(PTXSyntaxError):
        scan("a " + text)

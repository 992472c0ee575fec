"""PTX text to tokens: one regular expression, one pass.

A token is a plain string whose first character says what it is: a letter, `_`, `$` or `%` starts a word (a whole
mnemonic such as `mbarrier.try_wait.parity.shared::cta.b64` is one word, and so is `%tid.x`), `.` a directive or type, a
digit (or `.` and a digit) a number, `"` a string; everything else is punctuation. The empty string ends the list.
Comments are dropped, except that the places of `// begin inline asm` and `// end inline asm` are kept: the compiler
writes them around the text of an inline-assembly statement, and source locations inside follow another rule.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from mxfp8fa.emulator.ptx.errors import PTXSyntaxError

# Lexical rules: PTX ISA, chapter "Syntax" (comments, identifiers, constants). Possessive repetition (`*+`, `(?>`) keeps
# the scan linear on any input.
_TOKEN = re.compile(
    r"""
    (?> \s+
      | //(?![ \t]*(?:begin|end)[ ]inline[ ]asm)[^\n]*
      | /\*(?s:.*?)\*/
      | @@[dD][wW][aA][rR][fF][^\n]*                          # the old form of debug data, a line each
    )*+
    (?: //[ \t]*(begin|end)[ ]inline[ ]asm[^\n]*               # group 1: the edge of an inline-assembly block
      | (                                                      # group 2: a token
          (?: [A-Za-z] | [_$%](?=[\w$]) ) [\w$]*+ (?: (?:\.|::) [\w$]++ )*+     # word
        | _                                                                     # sink
        | \.[A-Za-z_][\w$]*+ (?: :: \w++ )*+                                    # directive, type
        | (?: 0[xX][0-9A-Fa-f]++U?
            | 0[fF][0-9A-Fa-f]{8}
            | 0[dD][0-9A-Fa-f]{16}
            | 0[bB][01]++U?
            | \d++\.\d*+(?:[eE][+-]?\d++)?
            | \.\d++(?:[eE][+-]?\d++)?
            | \d++[eE][+-]?\d++
            | 0[0-7]*+U?
            | [1-9]\d*+U?
          )(?![\w$])
        | "(?:[^"\\\n]|\\.)*+"
        | (?!/\*) (?: << | >> | <= | >= | == | != | && | \|\| | [-+*/%&|^~!<>?:()\[\]{},;@=] )
        )
      | (.)                                                    # group 3: nothing PTX knows
      | \Z
    )
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(slots=True)
class Tokens:
    """The tokens of one PTX text and where each of them starts.

    Attributes:
        text: the PTX text.
        values: the tokens; the last one is empty and stands for the end of the text.
        starts: offset of each token in the text.
        asm_begins: index of the first token of every inline-assembly block.
        asm_ends: index of the first token after each of those blocks (a block cut off by the end has none).
    """

    text: str
    values: list[str]
    starts: list[int]
    asm_begins: list[int]
    asm_ends: list[int]
    _line_starts: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def line(self, index: int) -> int:
        """Line number, from 1, of token `index`."""
        return bisect_right(self._line_starts, self.starts[index])

    def asm_end(self, index: int) -> int | None:
        """First token after the inline-assembly block in which token `index` lies; None if it lies in none."""
        ended = bisect_right(self.asm_ends, index)
        if bisect_right(self.asm_begins, index) <= ended:
            return None
        return self.asm_ends[ended] if ended < len(self.asm_ends) else len(self.values)

    def error(self, index: int, message: str) -> PTXSyntaxError:
        """A `PTXSyntaxError` at token `index`, to be raised by the caller."""
        return _error_at(self.text, self.starts[index], message)


def scan(text: str) -> Tokens:
    """Splits PTX text into tokens.

    Raises:
        PTXSyntaxError: for a character, number or string that PTX does not have, or a comment without its end.
    """
    values: list[str] = []
    starts: list[int] = []
    asm_begins: list[int] = []
    asm_ends: list[int] = []
    for found in _TOKEN.finditer(text):
        group = found.lastindex
        if group == 2:
            values.append(found[2])
            starts.append(found.start(2))
        elif group == 1:
            (asm_begins if found[1] == "begin" else asm_ends).append(len(values))
        elif group == 3:
            raise _error_at(text, found.start(3), _complaint(text, found.start(3)))
    values.append("")
    starts.append(len(text.rstrip()))
    return Tokens(text, values, starts, asm_begins, asm_ends)


def _complaint(text: str, at: int) -> str:
    """Says what is wrong with the text at offset `at`, where no token starts."""
    if text.startswith("/*", at):
        return "this comment has no end: expected */"
    if text[at] == '"':
        return 'this string has no end: expected "'
    if text[at].isdigit() or text[at] == ".":
        return f"{re.split(r'[^A-Za-z0-9_.$]', text[at : at + 40])[0]!r} is not a number of PTX"
    return f"unexpected character {text[at]!r}"


def _error_at(text: str, offset: int, message: str) -> PTXSyntaxError:
    """A `PTXSyntaxError` at character `offset` of the text."""
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line_text = text[start:] if end < 0 else text[start:end]
    return PTXSyntaxError(message, text.count("\n", 0, offset) + 1, offset - start + 1, line_text)

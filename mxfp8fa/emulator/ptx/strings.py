"""String literals of `.file`, `.pragma` and the like."""

from __future__ import annotations

import re

from mxfp8fa.emulator.ptx.cursor import Cursor, describe

_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_string(cursor: Cursor, what: str) -> str:
    """Reads one string token with C's escapes; `what` names it in an error.

    Raises:
        PTXSyntaxError: the next token is not a string.
    """
    token = cursor.peek()
    if not token.startswith('"'):
        raise cursor.error(f"expected {what}, found {describe(token)}")
    cursor.next()
    return _ESCAPE.sub(_unescape, token[1:-1])


def _unescape(found: re.Match[str]) -> str:
    """The character that one escape sequence stands for; any other escaped character stands for itself."""
    octal, hexadecimal, other = found.groups()
    if octal or hexadecimal:
        return chr(int(octal, 8) if octal else int(hexadecimal, 16))
    return _LETTERS.get(other, other)

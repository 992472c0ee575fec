"""A place in the token list, and the few moves every part of the parser makes."""

from __future__ import annotations

from mxfp8fa.emulator.ptx.errors import PTXSyntaxError
from mxfp8fa.emulator.ptx.scanner import Tokens


def describe(token: str) -> str:
    """A token as error messages name it."""
    return repr(token) if token else "the end of the text"


def is_word(token: str) -> bool:
    """Whether the token is an identifier or a mnemonic (the sink `_` is one too)."""
    return bool(token) and (token[0].isalpha() or token[0] in "_$" or (token[0] == "%" and len(token) > 1))


def is_name(token: str) -> bool:
    """Whether the token is a plain identifier: a word without dots, and not the sink."""
    return is_word(token) and token != "_" and "." not in token and ":" not in token


class Cursor:
    """Reads the tokens of one PTX text from left to right.

    Attributes:
        tokens: the scanned text.
        values: its tokens (the same list as `tokens.values`).
        position: index of the next token.
    """

    __slots__ = ("position", "tokens", "values")

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.values = tokens.values
        self.position = 0

    def peek(self, ahead: int = 0) -> str:
        """The next token, or one further on; empty at and after the end."""
        index = self.position + ahead
        return self.values[index] if index < len(self.values) else ""

    def next(self) -> str:
        """The next token, and moves past it (never past the end)."""
        token = self.values[self.position]
        if token:
            self.position += 1
        return token

    def accept(self, token: str) -> bool:
        """Moves past the next token if it is `token`, and says whether it was."""
        if self.values[self.position] == token:
            self.position += 1
            return True
        return False

    def expect(self, token: str, where: str) -> None:
        """Moves past `token`.

        Raises:
            PTXSyntaxError: if the next token is another one.
        """
        if not self.accept(token):
            raise self.error(f"expected {token!r} {where}, found {describe(self.peek())}")

    def name(self, what: str) -> str:
        """Reads a plain identifier; `what` says in an error what it would have named."""
        token = self.peek()
        if not is_name(token):
            raise self.error(f"expected {what}, found {describe(token)}")
        self.position += 1
        return token

    def line(self) -> int:
        """Line number of the next token."""
        return self.tokens.line(self.position)

    def error(self, message: str, at: int | None = None) -> PTXSyntaxError:
        """An error at token `at` (default: the next one), to be raised by the caller."""
        return self.tokens.error(self.position if at is None else at, message)

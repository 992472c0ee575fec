"""The one error that reading PTX text can raise."""

from __future__ import annotations


class PTXSyntaxError(ValueError):
    """PTX text that is not well formed: where it is, what the line says, what was expected.

    Attributes:
        message: what is wrong and what was expected, without the place.
        line: line number in the PTX text, from 1.
        column: column in that line, from 1.
        text: the line itself, without its line end.
    """

    def __init__(self, message: str, line: int, column: int, text: str) -> None:
        super().__init__(f"PTX line {line}, column {column}: {message}\n    {text.strip()}")
        self.message = message
        self.line = line
        self.column = column
        self.text = text

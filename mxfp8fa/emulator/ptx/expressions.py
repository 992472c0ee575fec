"""Constant expressions: `(1+2)*4`, `WARP_SZ-1`, `-0x10`, `1.5*2.0` (PTX ISA, "Constant Expressions").

Integers have 64 bits and are signed, or unsigned if too large for that, with a U suffix or after `(.u64)`. Whether a
result is signed follows ptxas 13.5: `~0>>1` and `-7%2` are computed unsigned, `(-1&-1)>>1` and `-7/2` signed.
"""

from __future__ import annotations

from collections.abc import Callable

from mxfp8fa.emulator.ptx.cursor import Cursor, describe
from mxfp8fa.emulator.ptx.syntax import Immediate, float_encoding, float_value

WARP_SIZE = 32  # PTX ISA, "Predefined Constants": WARP_SZ

_DEEPEST = 64  # nesting of parentheses and ?: that is still read; Python's own stack must not be the limit
_LONGEST_NUMBER = 400  # digits; any sensible constant is far shorter

# Binding strength of binary operators, as in C.
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip

_FLOAT: dict[str, Callable[[float, float], float | bool]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}

_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: a % b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!=", "&&", "||"})


def literal(token: str) -> Immediate | None:
    """The constant that a number token stands for; None for an integer that needs more than 64 bits."""
    head = token[:2]
    if head in ("0f", "0F"):
        bits = int(token[2:], 16)
        return Immediate(float_value(bits, 32), "f32", bits, token)
    if head in ("0d", "0D"):
        bits = int(token[2:], 16)
        return Immediate(float_value(bits, 64), "f64", bits, token)
    if head not in ("0x", "0X") and ("." in token or "e" in token or "E" in token):
        value = float(token)
        return Immediate(value, "f64", float_encoding(value, 64), token)
    if len(token) > _LONGEST_NUMBER:
        return None
    number = _integer(token.rstrip("U"))
    return Immediate(number, "int", number, token) if number < 1 << 64 else None


def _integer(digits: str) -> int:
    """An integer literal without suffix; a leading zero means octal (PTX ISA, "Integer Constants")."""
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return int(digits, 8)
    return int(digits, 0)


def is_number(token: str) -> bool:
    """Whether the token is a number."""
    return token[:1].isdigit() or (token[:1] == "." and token[1:2].isdigit())


def starts_constant(token: str) -> bool:
    """Whether a constant expression can start with this token (names of variables and `!p` aside)."""
    return is_number(token) or token in ("-", "+", "~", "(", "WARP_SZ")


def constant(cursor: Cursor) -> Immediate:
    """Reads a constant expression as far as it goes.

    Raises:
        PTXSyntaxError: something that is no constant, mixed integers and floats, division by zero, nesting too deep.
    """
    start = cursor.position
    value = _Evaluator(cursor).conditional(0)
    if cursor.position == start + 1 and is_number(cursor.values[start]):
        found = literal(cursor.values[start])
        if found is not None:
            return found
    if isinstance(value, float):
        return Immediate(value, "f64", float_encoding(value, 64))
    number = value[0]
    return Immediate(number, "int", number % (1 << 64))


def integer(cursor: Cursor, what: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Reads a constant expression that must be an integer from `least` to `most`; `what` names it in an error."""
    start = cursor.position
    found = constant(cursor)
    if found.kind != "int" or not least <= found.value <= most:
        raise cursor.error(f"{what} must be an integer from {least} to {most}, found {found}", start)
    return int(found.value)


_Value = float | tuple[int, bool]  # a float, or an integer and whether it is unsigned


class _Evaluator:
    """Recursive descent over binding strengths."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    def conditional(self, depth: int) -> _Value:
        """`a ? b : c`, or anything that binds more tightly."""
        if depth > _DEEPEST:
            raise self.cursor.error(f"this expression is nested more than {_DEEPEST} deep")
        condition = self.binary(1, depth)
        if not self.cursor.accept("?"):
            return condition
        chosen = self.conditional(depth + 1)
        self.cursor.expect(":", "between the two results of a conditional expression")
        other = self.conditional(depth + 1)
        return chosen if _truth(condition) else other

    def binary(self, least: int, depth: int) -> _Value:
        """A chain of binary operators that bind at least as tightly as `least`."""
        value = self.unary(depth)
        while (strength := _PRECEDENCE.get(self.cursor.peek(), 0)) >= least:
            at = self.cursor.position
            operator = self.cursor.next()
            value = self.apply(operator, value, self.binary(strength + 1, depth + 1), at)
        return value

    def unary(self, depth: int) -> _Value:
        """Signs, `~`, `!` and casts, then a number or a parenthesised expression."""
        prefixes = []
        while True:
            at, token = self.cursor.position, self.cursor.peek()
            if token in ("+", "-", "~", "!"):
                self.cursor.next()
            elif token == "(" and self.cursor.peek(1) in (".s64", ".u64") and self.cursor.peek(2) == ")":
                token = self.cursor.peek(1)
                self.cursor.position += 3
            else:
                break
            prefixes.append((token, at))
        value = self.primary(depth)
        for token, at in reversed(prefixes):
            value = self.apply_prefix(token, value, at)
        return value

    def primary(self, depth: int) -> _Value:
        """A number, WARP_SZ, or an expression in parentheses."""
        token = self.cursor.peek()
        if token == "(":
            self.cursor.next()
            value = self.conditional(depth + 1)
            self.cursor.expect(")", "after this expression")
            return value
        if token == "WARP_SZ":
            self.cursor.next()
            return (WARP_SIZE, False)
        if not is_number(token):
            raise self.cursor.error(f"expected a constant, found {describe(token)}")
        found = literal(token)
        if found is None:
            raise self.cursor.error(f"the constant {token[:80]} needs more than 64 bits")
        self.cursor.next()
        if found.kind != "int":
            return float(found.value)
        return (found.bits, token.endswith("U") or found.bits >= 1 << 63)

    def apply_prefix(self, token: str, value: _Value, at: int) -> _Value:
        """One prefix operator or cast."""
        if isinstance(value, float):
            if token in ("+", "-"):
                return -value if token == "-" else value
            raise self.cursor.error(f"{token} is for integers", at)
        number, unsigned = value
        if token == "!":
            return (int(not number), False)
        if token == "~":
            return _wrap(~number, True)
        if token in (".s64", ".u64"):
            return _wrap(number, token == ".u64")
        return _wrap(-number if token == "-" else number, unsigned)

    def apply(self, operator: str, left: _Value, right: _Value, at: int) -> _Value:
        """One binary operator."""
        if operator in ("&&", "||"):
            both = _truth(left) and _truth(right)
            return (int(both if operator == "&&" else _truth(left) or _truth(right)), False)
        if isinstance(left, float) and isinstance(right, float):
            return self.apply_to_floats(operator, left, right, at)
        if isinstance(left, float) or isinstance(right, float):
            raise self.cursor.error(f"{operator} mixes an integer and a floating-point constant", at)
        if operator in ("<<", ">>"):
            return self.shift(operator, left, right[0], at)
        unsigned = left[1] or right[1] or operator == "%"
        a, b = _wrap(left[0], unsigned)[0], _wrap(right[0], unsigned)[0]
        if operator in ("/", "%") and b == 0:
            raise self.cursor.error("division by zero in a constant expression", at)
        result = _INTEGER[operator](a, b)
        return (result, False) if operator in _COMPARISONS else _wrap(result, unsigned)

    def apply_to_floats(self, operator: str, left: float, right: float, at: int) -> _Value:
        """One binary operator on two floating-point constants, in double precision."""
        if operator == "/":
            if right == 0:
                raise self.cursor.error("division by zero in a constant expression", at)
            return left / right
        if operator not in _FLOAT:
            raise self.cursor.error(f"{operator} is for integers", at)
        result = _FLOAT[operator](left, right)
        return (int(result), False) if isinstance(result, bool) else result

    def shift(self, operator: str, left: tuple[int, bool], count: int, at: int) -> _Value:
        """A shift; the result has the sign of what is shifted."""
        if not 0 <= count < 64:
            raise self.cursor.error(f"a shift by {count} in a 64-bit constant expression; 0 to 63 are allowed", at)
        return _wrap(left[0] << count if operator == "<<" else left[0] >> count, left[1])


def _truth(value: _Value) -> bool:
    """C's truth: anything but zero."""
    return bool(value) if isinstance(value, float) else bool(value[0])


def _wrap(number: int, unsigned: bool) -> tuple[int, bool]:
    """The number modulo 2**64, signed or unsigned."""
    number %= 1 << 64
    return (number if unsigned or number < 1 << 63 else number - (1 << 64), unsigned)

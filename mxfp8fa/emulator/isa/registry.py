"""How an instruction is declared: its PTX spelling, its operands, what it computes, and how sure we are.

A definition is declared with the ISA's own notation::

    @pure("add{.rnd}{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDING, section="9.7.3 add")
    def add_f32(a, b, *, rnd="rn", ftz=False, sat=False):
        \"\"\"d = a + b.\"\"\"

- ``.name``: a required qualifier; if `name` is a keyword of the decorator, one of those alternatives.
- ``{.name}``: optional; absent alternatives are not passed (the function's default holds), plain ones are True/False.
- operands: names starting with d, p or q are written, all others read. ``a:u32`` gives a type, which may also be the
  name of an alternative; without it an operand has the type of alternative `type`, or of the last plain qualifier.
  ``d|p`` is a pair, ``[a]`` an address, ``{d}`` a vector of any length, ``{, c}`` may be left out.

`pure` definitions work on `values.Value` and are compiled (`lanes.py`); `machine` definitions are Python functions of
the warp and see memory, barriers and other warps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mxfp8fa.emulator.values import BITS, value_type

CONFIDENCE = ("documented", "inferred", "unknown")
_KNOWN_TYPES = (
    *BITS, "b8", "b16", "b32", "b64", "b128", "bf16", "f16x2", "bf16x2", "f32x2", "u16x2", "s16x2", "u8x4", "s8x4"
)  # fmt: skip


_IS_TYPE = re.compile(r"(pred|b\d+|[us]\d+|t?f\d+|bf16|e\dm\d|ue8m0)(x\d+)?").fullmatch


@dataclass(frozen=True)
class OperandSpec:
    """One operand of a pattern: kind is value, address or vector; pair names the second output of ``d|p``."""

    name: str
    type: str
    kind: str = "value"
    pair: str = ""
    pair_type: str = "pred"
    optional: bool = False

    @property
    def output(self) -> bool:
        """Whether the instruction writes this operand (addresses are always read)."""
        return self.kind != "address" and self.name[0] in "dpq"


@dataclass(frozen=True)
class Definition:
    """An instruction form: how it is written, what it does, and what supports it."""

    pattern: str
    opcode: str
    regex: re.Pattern[str]
    elements: tuple[tuple[tuple[str, ...], bool], ...]
    flags: dict[str, str]
    operands: tuple[OperandSpec, ...]
    function: Callable[..., Any]
    kind: str
    choices: dict[str, tuple[str, ...]]
    section: str
    confidence: str
    moves: tuple[str, ...] = ()
    not_modelled: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """First line of the definition's docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def modifiers(self, qualifiers: str) -> dict[str, Any] | None:
        """The function's keyword arguments for a dotted qualifier string, or None if it is not this form."""
        match = self.regex.fullmatch(qualifiers)
        if match is None:
            return None
        return self._found(match)

    def modifiers_in_any_order(self, qualifiers: Sequence[str]) -> dict[str, Any] | None:
        """As `modifiers`, for qualifiers in another order than the ISA's syntax, which ptxas accepts too."""
        left = list(qualifiers)
        ordered = []
        for names, optional in self.elements:
            chosen = next((q for q in left if q in names), None)
            if chosen is not None:
                left.remove(chosen)
                ordered.append(chosen)
            elif not optional:
                return None
        if left or [q for q in ordered if _IS_TYPE(q)] != [q for q in qualifiers if _IS_TYPE(q)]:
            return None  # something is over, or the types (result, then source) changed places
        match = self.regex.fullmatch("".join(f".{q}" for q in ordered))
        return None if match is None else self._found(match)

    def _found(self, match: re.Match[str]) -> dict[str, Any]:
        """Keyword arguments from the groups of a match."""
        found: dict[str, Any] = {}
        for group, text in match.groupdict().items():
            if group in self.choices:
                if text is not None:
                    found[group] = text
            else:
                found[self.flags[group]] = text is not None
        return found

    def operand_type(self, spec_type: str, modifiers: dict[str, Any]) -> str:
        """The value type of an operand whose declared type may be the name of an alternative."""
        return value_type(modifiers.get(spec_type, spec_type))


REGISTRY: dict[str, list[Definition]] = {}


# Forms that exist on the hardware and are left out on purpose: start of the mnemonic (a regular expression), and why.
REFUSED: list[tuple[re.Pattern[str], str]] = []


def refuse(mnemonic: str, reason: str) -> None:
    """Say why instructions whose mnemonic begins with a regular expression are not supported."""
    REFUSED.append((re.compile(mnemonic), reason))


def why_refused(mnemonic: str) -> str:
    """The reason for a form that is left out on purpose, or ""."""
    return next((reason for pattern, reason in REFUSED if pattern.match(mnemonic)), "")


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text)


def _elements(text: str, choices: dict[str, tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """The alternatives of each qualifier of a pattern, and whether it may be absent."""
    found = re.findall(r"\{\.([^}]+)\}|\.([\w:]+)", text)
    return tuple((choices.get(optional or plain, (optional or plain,)), bool(optional)) for optional, plain in found)


def _compile_qualifiers(text: str, choices: dict[str, tuple[str, ...]]) -> tuple[re.Pattern[str], dict[str, str], str]:
    """Regular expression for the qualifiers, the optional flags by group, and the last plain qualifier."""
    parts, flags, last = [], {}, ""
    for optional, plain in re.findall(r"\{\.([^}]+)\}|\.([\w:]+)", text):
        name = optional or plain
        group = _identifier(name)
        if name in choices:
            body = rf"(?P<{group}>{'|'.join(re.escape(c) for c in sorted(choices[name], key=len, reverse=True))})"
            parts.append(rf"(?:\.{body})?" if optional else rf"\.{body}")
        elif optional:
            flags[group] = group
            parts.append(rf"(?P<{group}>\.{re.escape(name)})?")
        else:
            parts.append(rf"\.{re.escape(name)}")
            last = name
    return re.compile("".join(parts)), flags, last


def _split_operands(text: str) -> list[tuple[str, bool]]:
    """Operand texts with whether each is optional."""
    pieces: list[tuple[str, bool]] = []
    for optional, plain in re.findall(r"\{\s*,([^}]*)\}|((?:\[[^\]]*\]|\{[^,}][^}]*\}|[^,\[\]{}])+)", text):
        for piece in (optional or plain).split(",") if optional else [plain]:
            if piece.strip():
                pieces.append((piece.strip(), bool(optional)))
    return pieces


def _operand(text: str, optional: bool, default: str) -> OperandSpec:
    match = re.fullmatch(
        r"(?P<open>[\[{]?)\s*(?P<name>\w+)[\]}]?(?::(?P<type>\w+))?(?:\|(?P<pair>\w+)(?::(?P<pt>\w+))?)?", text
    )
    if match is None:
        raise ValueError(f"operand {text!r} of a pattern is not understood")
    kind = {"[": "address", "{": "vector", "": "value"}[match["open"]]
    return OperandSpec(
        match["name"], match["type"] or default, kind, match["pair"] or "", match["pt"] or "pred", optional
    )


def define(kind: str, pattern: str, **keywords: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that adds a definition to the registry; `pure` and `machine` are what modules use."""
    section = keywords.pop("section")
    confidence = keywords.pop("confidence", "documented")
    moves = tuple(keywords.pop("moves", ()))
    not_modelled = keywords.pop("not_modelled", "")
    extra = keywords.pop("extra", {})
    choices = {k: tuple(v) for k, v in keywords.items()}
    if confidence not in CONFIDENCE:
        raise ValueError(f"confidence {confidence!r}: allowed are {CONFIDENCE}")
    mnemonic, _, operand_text = pattern.partition(" ")
    opcode = re.match(r"\w+", mnemonic)
    if opcode is None:
        raise ValueError(f"pattern {pattern!r} has no opcode")
    regex, flags, last = _compile_qualifiers(mnemonic[opcode.end() :], choices)
    default = "type" if "type" in choices else (last if last in _KNOWN_TYPES else "u32")
    operands = tuple(_operand(text, optional, default) for text, optional in _split_operands(operand_text))

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        REGISTRY.setdefault(opcode[0], []).append(
            Definition(
                pattern,
                opcode[0],
                regex,
                _elements(mnemonic[opcode.end() :], choices),
                flags,
                operands,
                function,
                kind,
                choices,
                section,
                confidence,
                moves,
                not_modelled,
                extra,
            )
        )
        return function

    return add


def pure(pattern: str, **keywords: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a register-to-register instruction over `Value`s.

    Args:
        pattern: PTX spelling, see the module docstring.
        **keywords: section (PTX ISA), confidence, not_modelled, moves (names of operands whose bits are only moved, so
            that poison follows bit by bit), and the alternatives of each named qualifier.
    """
    return define("pure", pattern, **keywords)


def machine(pattern: str, **keywords: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an instruction that needs the warp: f(warp, mask, *inputs, **modifiers); see `machine.binding`."""
    return define("machine", pattern, **keywords)


def find(opcode: str, qualifiers: Iterable[str], operand_count: int) -> tuple[Definition, dict[str, Any]] | None:
    """The definition of an instruction form and its modifiers, or None."""
    text = "".join(f".{q}" for q in qualifiers)
    for definition in REGISTRY.get(opcode, ()):
        required = sum(not o.optional for o in definition.operands)
        if required <= operand_count <= len(definition.operands):
            modifiers = definition.modifiers(text)
            if modifiers is not None:
                return definition, modifiers
    return None

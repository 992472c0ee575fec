"""Names of one function: nested `{ }` scopes, registers made on first use, labels that may be used before they appear.

A scope holds everything declared between its braces; the outermost one also holds the parameters, and the module lies
around it. An inner declaration hides an outer one of the same name. Registers and variables are known from their
declaration on, labels in the whole scope and in the scopes inside it. ptxas behaves like this, and every repeated
inline-assembly block relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mxfp8fa.emulator.ptx.cursor import Cursor
from mxfp8fa.emulator.ptx.module import align_up
from mxfp8fa.emulator.ptx.syntax import Label, Part, Register, Symbol, Variable, Vector
from mxfp8fa.emulator.ptx.types import PART_SELECTORS, VECTOR_COMPONENTS

_MOST_DIGITS = 10  # of the number in the name of a register from a range `name<N>`


@dataclass(frozen=True, slots=True)
class RegisterDeclaration:
    """`.reg .v4 .b32 name` or one range `.reg .b32 name<8>` (then `count` is 8)."""

    type: str
    vector: int = 1
    count: int | None = None


@dataclass(slots=True)
class TargetList:
    """A `.branchtargets` list while its labels are still being found."""

    name: str
    labels: list[Label | None]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A label that was used: its name, the token that used it, and what to do with it once it is known."""

    name: str
    token: int
    accept: Callable[[Label | TargetList], None]


@dataclass(slots=True)
class _Scope:
    """What one pair of braces declares."""

    opened_at: int
    registers: dict[str, RegisterDeclaration] = field(default_factory=dict)
    ranges: dict[str, RegisterDeclaration] = field(default_factory=dict)
    others: dict[str, Symbol | Label | TargetList] = field(default_factory=dict)
    found: dict[str, Register | Symbol | Vector | Part] = field(default_factory=dict)
    wanted: list[_Wanted] = field(default_factory=list)


class Names:
    """Declares and finds names while the body of one function is read.

    Attributes:
        registers: every register used so far; the index is its id.
        variables: every variable placed so far.
        found: operands already looked up in the innermost scope, by name (look here first).
    """

    def __init__(self, cursor: Cursor, module_names: Mapping[str, Symbol]) -> None:
        self.cursor = cursor
        self.registers: list[Register] = []
        self.variables: list[Variable] = []
        self.labels: list[Label] = []
        self._module_names = module_names
        self._sizes = {"shared": 0, "local": 0, "callparam": 0}
        self._scopes = [_Scope(cursor.position)]
        self.found = self._scopes[0].found

    @property
    def depth(self) -> int:
        """How many scopes are open."""
        return len(self._scopes)

    @property
    def opened_at(self) -> int:
        """Token that opened the innermost scope."""
        return self._scopes[-1].opened_at

    def push(self) -> None:
        """Opens a scope at the current token."""
        self._scopes.append(_Scope(self.cursor.position))
        self.found = self._scopes[-1].found

    def pop(self) -> None:
        """Closes the innermost scope: its labels go to whoever wanted them, other wishes pass to the scope around.

        Raises:
            PTXSyntaxError: the outermost scope closes and a label was never defined.
        """
        scope = self._scopes.pop()
        for wish in scope.wanted:
            label = scope.others.get(wish.name)
            if isinstance(label, Label | TargetList):
                wish.accept(label)
            elif self._scopes:
                self._scopes[-1].wanted.append(wish)
            else:
                raise self.cursor.error(f"undefined label {wish.name!r}", wish.token)
        if self._scopes:
            self.found = self._scopes[-1].found

    # Declarations.

    def declare_register(self, name: str, declaration: RegisterDeclaration, token: int) -> None:
        """Declares a register, a vector register or a range; `token` is where the name stands."""
        if declaration.count is None:
            self._claim(name, token)
            self._scopes[-1].registers[name] = declaration
        else:
            self._claim_range(name, declaration.count, token)
            self._scopes[-1].ranges[name] = declaration

    def declare_variable(self, variable: Variable, token: int) -> Variable:
        """Declares a variable or parameter and gives it its place in memory; returns it with that place."""
        self._claim(variable.name, token)
        placed = self._place(variable)
        self._scopes[-1].others[variable.name] = Symbol(variable.name, variable.space, placed)
        return placed

    def declare_label(self, name: str, index: int, token: int) -> None:
        """Declares a label before instruction `index`."""
        self._claim(name, token)
        label = Label(name, index)
        self._scopes[-1].others[name] = label
        self.labels.append(label)

    def declare_targets(self, name: str, names: list[tuple[str, int]], token: int) -> None:
        """Declares a `.branchtargets` list of (label name, token)."""
        self._claim(name, token)
        targets = TargetList(name, [None] * len(names))
        self._scopes[-1].others[name] = targets
        for place, (label, at) in enumerate(names):
            self.want_label(label, at, partial(_fill, targets, place))

    def declare_symbol(self, symbol: Symbol, token: int) -> None:
        """Declares a call prototype or a list of call targets."""
        self._claim(symbol.name, token)
        self._scopes[-1].others[symbol.name] = symbol

    def want_label(self, name: str, token: int, accept: Callable[[Label | TargetList], None]) -> None:
        """Asks for a label, which may come later; `accept` gets it when the scope that defines it closes."""
        self._scopes[-1].wanted.append(_Wanted(name, token, accept))

    # Look-up.

    def find(self, name: str) -> Register | Symbol | Vector | Part | None:
        """The register, variable, function or part of a register that a word means here; None if nothing does."""
        result = self.found.get(name)
        if result is None:
            result = self._search(name)
            if result is not None:
                self.found[name] = result
        return result

    def _search(self, name: str) -> Register | Symbol | Vector | Part | None:
        """`find` without the memory of earlier look-ups in the innermost scope."""
        stem, _, suffix = name.partition(".")
        for scope in reversed(self._scopes):
            if (known := scope.found.get(name)) is not None:
                return known
            other = scope.others.get(name)
            if other is not None:
                return other if isinstance(other, Symbol) else None
            declaration = scope.registers.get(stem) or self._range_of(scope, stem)
            if declaration is not None:
                return self._register(scope, stem, suffix, declaration)
        symbol = self._module_names.get(name)
        return self._use_module_variable(symbol) if symbol is not None else None

    def _register(
        self, scope: _Scope, stem: str, suffix: str, declaration: RegisterDeclaration
    ) -> Register | Vector | Part | None:
        """The register `stem`, made now if this is its first use, or the part of it that `suffix` names."""
        if declaration.vector > 1:
            letters = "xyzw"[: declaration.vector]
            if not suffix:
                return Vector(tuple(self._make(scope, f"{stem}.{c}", declaration.type) for c in letters))
            place = VECTOR_COMPONENTS.get(suffix, 4)
            return self._make(scope, f"{stem}.{letters[place]}", declaration.type) if place < len(letters) else None
        register = self._make(scope, stem, declaration.type)
        if not suffix:
            return register
        return Part(register, suffix) if suffix in PART_SELECTORS else None

    def _make(self, scope: _Scope, name: str, register_type: str) -> Register:
        """The register of that name in the scope that declares it."""
        known = scope.found.get(name)
        if isinstance(known, Register):
            return known
        register = Register(name, register_type, len(self.registers))
        self.registers.append(register)
        scope.found[name] = register
        return register

    @staticmethod
    def _range_of(scope: _Scope, name: str) -> RegisterDeclaration | None:
        """The range of the scope that has a register of this name: `a12` is in `a<13>`, and in `a1<3>`."""
        if scope.ranges:
            for digits in range(1, min(len(name), _MOST_DIGITS + 1)):
                if not name[-digits].isdecimal():
                    break
                declaration = scope.ranges.get(name[:-digits])
                if declaration is not None and _is_in_range(name, name[:-digits], declaration.count or 0):
                    return declaration
        return None

    # Memory.

    def _place(self, variable: Variable) -> Variable:
        """Gives a shared, local or call-parameter variable the next free offset; others stay as they are."""
        if variable.space not in self._sizes:
            return variable
        if variable.space == "shared" and variable.linkage == "extern":
            self.variables.append(variable)
            return variable
        offset = align_up(self._sizes[variable.space], variable.alignment_bytes)
        self._sizes[variable.space] = offset + variable.size_bytes
        placed = replace(variable, offset_bytes=offset)
        self.variables.append(placed)
        return placed

    def _use_module_variable(self, symbol: Symbol) -> Symbol:
        """A module-level name; a shared variable gets its place in this kernel's shared memory on first use."""
        outermost = self._scopes[0]
        if symbol.space == "shared" and symbol.variable is not None:
            symbol = replace(symbol, variable=self._place(symbol.variable))
        outermost.found[symbol.name] = symbol
        return symbol

    # Duplicates.

    def _claim(self, name: str, token: int) -> None:
        """Makes a name free for a declaration in the innermost scope.

        Raises:
            PTXSyntaxError: the scope has declared it already.
        """
        scope = self._scopes[-1]
        if name in scope.others:
            kind = "name" if isinstance(scope.others[name], Symbol) else "label"
            raise self.cursor.error(f"duplicate {kind}: {name!r} is already declared in this scope", token)
        if name in scope.registers or self._range_of(scope, name) is not None:
            raise self.cursor.error(f"duplicate register: {name!r} is already declared in this scope", token)
        scope.found.pop(name, None)

    def _claim_range(self, prefix: str, count: int, token: int) -> None:
        """The same for prefix0 .. prefix(count - 1)."""
        scope = self._scopes[-1]
        taken = [name for name in (*scope.registers, *scope.others) if _is_in_range(name, prefix, count)]
        if prefix in scope.ranges or taken:
            name = taken[0] if taken else f"{prefix}<{scope.ranges[prefix].count}>"
            raise self.cursor.error(f"duplicate register: {name!r} is already declared in this scope", token)
        for known in [name for name in scope.found if _is_in_range(name, prefix, count)]:
            del scope.found[known]


def _is_in_range(name: str, prefix: str, count: int) -> bool:
    """Whether `name` is one of prefix0 .. prefix(count - 1)."""
    number = name[len(prefix) :] if name.startswith(prefix) else ""
    if not number.isdecimal() or len(number) > _MOST_DIGITS or (number[0] == "0" and number != "0"):
        return False
    return int(number) < count


def _fill(targets: TargetList, place: int, found: Label | TargetList) -> None:
    """Puts a label into a target list (a list inside a list means nothing and leaves the place empty)."""
    if isinstance(found, Label):
        targets.labels[place] = found

"""Bodies of functions: statements to a flat list of instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from mxfp8fa.emulator.ptx.cursor import Cursor, describe, is_name, is_word
from mxfp8fa.emulator.ptx.declarations import read_parameters, read_registers, read_variables
from mxfp8fa.emulator.ptx.operands import Operands
from mxfp8fa.emulator.ptx.scopes import Names, TargetList
from mxfp8fa.emulator.ptx.strings import read_string
from mxfp8fa.emulator.ptx.syntax import (
    BranchTargets,
    Guard,
    Instruction,
    Label,
    Operand,
    SourceLocation,
    Symbol,
)

_BODY_SPACES = {".shared": "shared", ".local": "local", ".param": "callparam"}
_NEVER = 1 << 62
_HERE_LATER = Label("", -1)  # stands in for a label that is not known yet


class Body:
    """Reads the statements between the outermost braces of one function.

    Attributes:
        instructions: what has been read, in order.
        pragmas: strings of `.pragma` statements and the instruction each stands before.
    """

    def __init__(self, cursor: Cursor, names: Names, files: Mapping[int, str]) -> None:
        self.cursor = cursor
        self.names = names
        self.operands = Operands(cursor, names)
        self.instructions: list[Instruction] = []
        self.pragmas: list[tuple[int, str]] = []
        self._files = files
        self._mnemonics: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._target_lists: list[tuple[int, int, TargetList]] = []
        self._latest: SourceLocation | None = None  # of the last .loc
        self._location: SourceLocation | None = None  # what instructions get
        self._resume_at = _NEVER  # the token from which on they get the latest one again

    def read(self) -> None:
        """Reads from `{` to the matching `}`.

        Raises:
            PTXSyntaxError: a statement that is not PTX, a name used wrongly, or a missing brace.
        """
        cursor, values, names = self.cursor, self.cursor.values, self.names
        depth = names.depth
        cursor.expect("{", "before the body of a function")
        while True:
            token = values[cursor.position]
            if token == "@":
                self._instruction(self._guard())
            elif token[:1] == ".":
                self._directive(token)
            elif token == "{":
                names.push()
                cursor.position += 1
            elif token == "}":
                names.pop()
                cursor.position += 1
                if names.depth < depth:
                    break
            elif is_word(token):
                if values[cursor.position + 1] == ":":
                    self._label(token)
                else:
                    self._instruction(None)
            else:
                raise self._no_statement(token)
        self._finish_target_lists()

    def _no_statement(self, token: str) -> Exception:
        """The error for a token that starts no statement."""
        if token:
            return self.cursor.error(f"expected an instruction, a directive, a label or '}}', found {describe(token)}")
        line = self.cursor.tokens.line(self.names.opened_at)
        return self.cursor.error(f"expected '}}' to close the scope opened in line {line}, found the end of the text")

    # Instructions.

    def _guard(self) -> Guard:
        """`@p` or `@!p`."""
        self.cursor.position += 1
        negated = self.cursor.accept("!")
        guard = Guard(self.operands.register("a predicate register after @"), negated)
        if not is_word(self.cursor.peek()):
            raise self.cursor.error(f"expected an instruction after {guard}, found {describe(self.cursor.peek())}")
        return guard

    def _instruction(self, guard: Guard | None) -> None:
        """One instruction up to its semicolon."""
        cursor, values = self.cursor, self.cursor.values
        start = cursor.position
        mnemonic = values[start]
        cursor.position = start + 1
        if values[start + 1][:1] == "." and not values[start + 1][1:2].isdigit():
            mnemonic = self._spaced_mnemonic()
        opcode, qualifiers = self._mnemonics.get(mnemonic) or self._split(mnemonic, start)
        operands: list[Operand] = []
        if opcode in ("bra", "brx", "call"):
            operands = self._control(opcode)
        elif values[cursor.position] != ";":
            read = self.operands.operand
            operands.append(read())
            while values[cursor.position] == ",":
                cursor.position += 1
                operands.append(read())
        if values[cursor.position] != ";":
            raise cursor.error(f"expected ',' or ';' after {mnemonic}, found {describe(values[cursor.position])}")
        cursor.position += 1
        if start >= self._resume_at:
            self._location, self._resume_at = self._latest, _NEVER
        index, line = len(self.instructions), cursor.tokens.line(start)
        self.instructions.append(
            Instruction(index, opcode, qualifiers, mnemonic, tuple(operands), guard, line, self._location)
        )

    def _spaced_mnemonic(self) -> str:
        """`ld .global .b32`: the parts of a mnemonic may be separated by spaces."""
        cursor = self.cursor
        parts = [cursor.values[cursor.position - 1]]
        while cursor.peek()[:1] == "." and not cursor.peek()[1:2].isdigit():
            parts.append(cursor.next())
        return "".join(parts)

    def _split(self, mnemonic: str, token: int) -> tuple[str, tuple[str, ...]]:
        """Opcode and qualifiers of a mnemonic seen for the first time."""
        opcode, *qualifiers = mnemonic.split(".")
        if not opcode.isidentifier() or not opcode[0].isalpha() or "::" in opcode:
            raise self.cursor.error(f"expected an instruction, found {mnemonic!r}", token)
        self._mnemonics[mnemonic] = opcode, tuple(qualifiers)
        return self._mnemonics[mnemonic]

    def _control(self, opcode: str) -> list[Operand]:
        """Operands of `bra target`, `brx.idx index, targets` and calls."""
        if opcode == "call":
            return self._call()
        operands: list[Operand] = []
        if opcode == "brx":
            operands.append(self.operands.register("the register that holds the index"))
            self.cursor.expect(",", "before the list of branch targets")
        token = self.cursor.position
        name = self.cursor.name("a label")
        accept = partial(self._fix_target, opcode, token, len(self.instructions), len(operands))
        self.names.want_label(name, token, accept)
        operands.append(_HERE_LATER)
        return operands

    def _fix_target(self, opcode: str, token: int, index: int, slot: int, found: Label | TargetList) -> None:
        """Puts a label, now known, into the instruction that branches to it."""
        if opcode == "brx":
            if not isinstance(found, TargetList):
                raise self.cursor.error("expected the name of a .branchtargets list", token)
            self._target_lists.append((index, slot, found))
        elif isinstance(found, TargetList):
            raise self.cursor.error(f"expected a label, found the .branchtargets list {found.name!r}", token)
        else:
            self._replace_operand(index, slot, found)

    def _replace_operand(self, index: int, slot: int, operand: Operand) -> None:
        """Replaces one operand of an instruction already in the list."""
        operands = list(self.instructions[index].operands)
        operands[slot] = operand
        self.instructions[index] = replace(self.instructions[index], operands=tuple(operands))

    def _finish_target_lists(self) -> None:
        """Gives every `brx.idx` its labels, all of which are known by now."""
        for index, slot, targets in self._target_lists:
            labels = tuple(label for label in targets.labels if label is not None)
            if len(labels) != len(targets.labels):
                raise self.cursor.error(f"the .branchtargets list {targets.name!r} names something that is no label")
            self._replace_operand(index, slot, BranchTargets(targets.name, labels))

    def _call(self) -> list[Operand]:
        """`(results), function, (arguments), prototype`: all but the function may be missing."""
        cursor = self.cursor
        operands: list[Operand] = []
        if cursor.peek() == "(":
            operands.append(self.operands.arguments())
            cursor.expect(",", "after the results of a call")
        if not is_name(cursor.peek()):
            raise cursor.error(f"expected the function to call, found {describe(cursor.peek())}")
        operands.append(self.operands.operand())
        while cursor.accept(","):
            operands.append(self.operands.arguments() if cursor.peek() == "(" else self.operands.operand())
        return operands

    # Labels and directives.

    def _label(self, name: str) -> None:
        """`name:`, which may also name a list of branch targets or a call prototype."""
        cursor = self.cursor
        token = cursor.position
        if not is_name(name):
            raise cursor.error(f"expected a label, found {name!r}")
        cursor.position += 2
        following = cursor.peek()
        if following == ".branchtargets":
            self.names.declare_targets(name, self._name_list("a label"), token)
        elif following == ".calltargets":
            self._name_list("a function")
            self.names.declare_symbol(Symbol(name, "calltargets"), token)
        elif following == ".callprototype":
            self._prototype()
            self.names.declare_symbol(Symbol(name, "prototype"), token)
        else:
            self.names.declare_label(name, len(self.instructions), token)

    def _name_list(self, what: str) -> list[tuple[str, int]]:
        """`.branchtargets a, b;`: names and their tokens."""
        cursor = self.cursor
        cursor.next()
        found = []
        while True:
            found.append((cursor.peek(), cursor.position))
            cursor.name(what)
            if not cursor.accept(","):
                break
        cursor.expect(";", "after this list")
        return found

    def _prototype(self) -> None:
        """`.callprototype (.param .b32 _) _ (.param .b64 _) .noreturn;`."""
        cursor = self.cursor
        cursor.next()
        if cursor.peek() == "(":
            list(read_parameters(cursor))
        if not cursor.accept("_"):
            cursor.name("the name of a call prototype")
        if cursor.peek() == "(":
            list(read_parameters(cursor))
        while cursor.peek()[1:] in ("noreturn", "abi_preserve", "abi_preserve_control"):
            cursor.next()
            if cursor.peek().isdecimal():
                cursor.next()
        cursor.expect(";", "after a call prototype")

    def _directive(self, word: str) -> None:
        """A statement that starts with a directive."""
        cursor = self.cursor
        cursor.position += 1
        if word == ".loc":
            self._loc()
        elif word == ".reg":
            for name, declaration, token in read_registers(cursor):
                self.names.declare_register(name, declaration, token)
        elif word in _BODY_SPACES:
            for variable, token in read_variables(cursor, _BODY_SPACES[word], ""):
                self.names.declare_variable(variable, token)
        elif word == ".pragma":
            self.pragmas.extend((len(self.instructions), text) for text in read_pragma(cursor))
        else:
            raise cursor.error(f"unknown directive {word} in a function body", cursor.position - 1)

    def _loc(self) -> None:
        """`.loc file line column, function_name name, inlined_at file line column`, with the cursor after `.loc`.

        Inside an inline-assembly block the compiler counts lines of the assembly text, which say nothing: instructions
        there keep the location that was current at the start of the block. What follows the block goes on from the
        last `.loc`, wherever it stood, since the compiler leaves out a `.loc` that repeats the one before.
        """
        cursor = self.cursor
        start = cursor.position
        if start >= self._resume_at:
            self._location, self._resume_at = self._latest, _NEVER
        location = self._place()
        while cursor.accept(","):
            word = cursor.peek()
            if word not in ("function_name", "inlined_at"):
                raise cursor.error(f"expected function_name or inlined_at in .loc, found {describe(word)}")
            cursor.next()
            if word == "inlined_at":
                location = replace(location, inlined_at=self._place())
            else:
                location = replace(location, function=self._function_name())
        self._latest = location
        end = cursor.tokens.asm_end(start)
        if end is None:
            self._location, self._resume_at = location, _NEVER
        else:
            self._resume_at = end

    def _place(self) -> SourceLocation:
        """File index, line and column."""
        numbers = []
        for what in ("a file index", "a line number", "a column"):
            token = self.cursor.peek()
            if not token.isdecimal() or len(token) > 18:
                raise self.cursor.error(f"expected {what} in .loc, found {describe(token)}")
            numbers.append(int(self.cursor.next()))
        return SourceLocation(self._files.get(numbers[0], ""), numbers[1], numbers[2])

    def _function_name(self) -> str:
        """A label of the debug string section, perhaps with an offset: `$L__info_string0`, `.debug_str+16`."""
        cursor = self.cursor
        name = cursor.peek()
        if not (is_name(name) or name.startswith(".")):
            raise cursor.error(f"expected a name after function_name, found {describe(name)}")
        cursor.next()
        if cursor.accept("+"):
            name += f"+{cursor.next()}"
        return name


def read_pragma(cursor: Cursor) -> list[str]:
    """`"one", "two";` with the cursor after `.pragma`."""
    found = [read_string(cursor, "a string after .pragma")]
    while cursor.accept(","):
        found.append(read_string(cursor, "a string after .pragma"))
    cursor.expect(";", "after .pragma")
    return found

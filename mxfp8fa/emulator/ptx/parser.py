"""PTX text to a `Module`: the directives of the module level, and the headers of kernels and functions."""

from __future__ import annotations

from types import MappingProxyType

from mxfp8fa.emulator.ptx.body import Body, read_pragma
from mxfp8fa.emulator.ptx.cursor import Cursor, describe, is_word
from mxfp8fa.emulator.ptx.declarations import read_parameters, read_variables
from mxfp8fa.emulator.ptx.expressions import integer
from mxfp8fa.emulator.ptx.module import Function, Kernel, Module
from mxfp8fa.emulator.ptx.scanner import scan
from mxfp8fa.emulator.ptx.scopes import Names
from mxfp8fa.emulator.ptx.strings import read_string
from mxfp8fa.emulator.ptx.syntax import Register, Symbol, Variable
from mxfp8fa.emulator.ptx.types import FUNCTION_DIRECTIVES, LINKAGES, VARIABLE_SPACES


def parse(text: str) -> Module:
    """Reads a PTX module: all of its kernels and functions, names resolved, bodies flat.

    Args:
        text: PTX, version 7 or later (trailing NUL characters, as CUDA's own strings have them, are ignored).

    Raises:
        PTXSyntaxError: the text is not PTX, or a name is undefined or declared twice. Instructions are not judged:
            which mnemonics and operand types exist is the business of the instruction definitions.
    """
    return _ModuleReader(text.rstrip("\0")).read()


class _ModuleReader:
    """Reads the module level and hands bodies to `Body`."""

    def __init__(self, text: str) -> None:
        self.cursor = Cursor(scan(text))
        self.version = (0, 0)
        self.target: tuple[str, ...] = ()
        self.address_size = 64
        self.files: dict[int, str] = {}
        self.names: dict[str, Symbol] = {}
        self.variables: dict[str, Variable] = {}
        self.kernels: dict[str, Kernel] = {}
        self.functions: dict[str, Function] = {}
        self.aliases: dict[str, str] = {}

    def read(self) -> Module:
        """Reads everything."""
        self._header()
        self._file_table()
        while self.cursor.peek():
            self._statement()
        self._check_references()
        return Module(
            self.version,
            self.target,
            self.address_size,
            *map(MappingProxyType, (self.files, self.variables, self.kernels, self.functions, self.aliases)),  # type: ignore[arg-type]
        )

    def _header(self) -> None:
        """`.version 9.0`, `.target sm_100a, ...`, `.address_size 64` (PTX ISA, "PTX Module Directives")."""
        cursor = self.cursor
        cursor.expect(".version", "at the start of a module")
        major, dot, minor = cursor.peek().partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal() and len(major + minor) < 8):
            raise cursor.error(f"expected a version such as 9.0, found {describe(cursor.peek())}")
        self.version = (int(major), int(minor))
        cursor.next()
        cursor.expect(".target", "after .version")
        self.target = self._targets()
        if cursor.accept(".address_size"):
            start = cursor.position
            self.address_size = integer(cursor, ".address_size", most=64)
            if self.address_size not in (32, 64):
                raise cursor.error(f".address_size must be 32 or 64, found {self.address_size}", start)

    def _targets(self) -> tuple[str, ...]:
        """`sm_100a, texmode_independent`."""
        found = [self.cursor.name("a target such as sm_100a")]
        while self.cursor.accept(","):
            found.append(self.cursor.name("a target option"))
        return tuple(found)

    def _file_table(self) -> None:
        """Reads every `.file` beforehand: the DSL's compiler writes them after the kernels that refer to them."""
        cursor = self.cursor
        start = cursor.position
        for _ in range(cursor.values.count(".file")):
            cursor.position = cursor.values.index(".file", cursor.position)
            self._file()
        cursor.position = start

    def _file(self) -> None:
        """`.file 1 "path", time, size`, the last two optional; the cursor is at `.file`."""
        cursor = self.cursor
        cursor.next()
        index = integer(cursor, "the index of .file")
        self.files.setdefault(index, read_string(cursor, "the path in .file"))
        for _ in range(2):
            if cursor.accept(","):
                integer(cursor, "time stamp or size in .file")

    def _statement(self) -> None:
        """One module-level directive."""
        cursor = self.cursor
        word = cursor.peek()
        if word == ".file":
            self._file()
        elif word == ".section":
            self._section()
        elif word == ".pragma":
            cursor.next()
            read_pragma(cursor)
        elif word == ".alias":
            self._alias()
        elif word[:1] == "." and (word[1:] in LINKAGES | VARIABLE_SPACES or word in (".entry", ".func")):
            self._declaration()
        elif word[:1] == ".":
            raise cursor.error(f"unknown directive {word} at module level")
        else:
            raise cursor.error(f"expected a directive at module level, found {describe(word)}")

    def _section(self) -> None:
        """`.section .debug_str { ... }`: debug data, skipped."""
        cursor = self.cursor
        start = cursor.position
        cursor.next()
        if not (cursor.peek()[:1] == "." or is_word(cursor.peek())):
            raise cursor.error(f"expected the name of a section, found {describe(cursor.peek())}")
        cursor.next()
        cursor.expect("{", "before the contents of a section")
        depth = 1
        while depth:
            token = cursor.next()
            if not token:
                raise cursor.error("expected '}' at the end of this section", start)
            depth += (token == "{") - (token == "}")

    def _alias(self) -> None:
        """`.alias name, function;`: both must have been declared."""
        cursor = self.cursor
        cursor.next()
        found: list[str] = []
        for what in ("the name of an alias", "the function an alias stands for"):
            if found:
                cursor.expect(",", "between the two names of .alias")
            name = cursor.name(what)
            if name not in self.functions:
                raise cursor.error(f"undefined function {name!r} in .alias", cursor.position - 1)
            found.append(name)
        self.aliases[found[0]] = found[1]
        cursor.expect(";", "after .alias")

    def _declaration(self) -> None:
        """`.visible .entry`, `.extern .func`, `.global ...`: linkage, then what is declared."""
        cursor = self.cursor
        linkage = cursor.next()[1:] if cursor.peek()[1:] in LINKAGES else ""
        word = cursor.peek()[1:] if cursor.peek()[:1] == "." else ""
        if word in VARIABLE_SPACES:
            cursor.next()
            for variable, token in read_variables(cursor, word, linkage):
                self._declare_variable(variable, token)
        elif word in ("entry", "func"):
            self._function(word == "entry", linkage)
        else:
            raise cursor.error(
                f"expected .entry, .func or a state space after .{linkage}, found {describe(cursor.peek())}"
            )

    def _declare_variable(self, variable: Variable, token: int) -> None:
        """Adds a module-level variable; a definition may follow an `.extern` declaration of the same name."""
        known = self.names.get(variable.name)
        if known is not None and not (known.variable and "extern" in (known.variable.linkage, variable.linkage)):
            raise self.cursor.error(f"duplicate name: {variable.name!r} is already declared in this module", token)
        if known is not None and variable.linkage == "extern":
            return
        self.variables[variable.name] = variable
        self.names[variable.name] = Symbol(variable.name, variable.space, variable)

    # Kernels and functions.

    def _function(self, is_kernel: bool, linkage: str) -> None:
        """The header and body of an `.entry` or `.func`, the cursor being at that word."""
        cursor = self.cursor
        line = cursor.line()
        cursor.next()
        names = Names(cursor, self.names)
        results: list[Variable] = []
        registers: list[Register] = []
        if not is_kernel and cursor.peek() == "(":
            results = self._parameters(names, registers)
        token = cursor.position
        name = cursor.name("the name of a kernel" if is_kernel else "the name of a function")
        params = self._parameters(names, registers) if cursor.peek() == "(" else []
        directives, pragmas = self._function_directives()
        self._claim_function(name, is_kernel, token)
        has_body = cursor.peek() == "{"
        body = Body(cursor, names, self.files)
        if has_body:
            body.read()
        else:
            cursor.expect(";", "or a body after the header of a function")
        make = Kernel if is_kernel else Function
        function = make(
            name, linkage, line, tuple(params), tuple(results), tuple(registers), MappingProxyType(directives),
            (*pragmas, *body.pragmas), tuple(names.variables), tuple(names.registers), tuple(body.instructions),
            tuple(names.labels), has_body,
        )  # fmt: skip
        self._keep(function, token)

    def _parameters(self, names: Names, registers: list[Register]) -> list[Variable]:
        """A parameter list, declared in the outermost scope of the function; register parameters go to `registers`."""
        found = []
        for parameter, token in read_parameters(self.cursor):
            if isinstance(parameter, Variable):
                if parameter.name != "_":
                    names.declare_variable(parameter, token)
                found.append(parameter)
            elif parameter[0] != "_":
                names.declare_register(parameter[0], parameter[1], token)
                register = names.find(parameter[0])
                assert isinstance(register, Register)
                registers.append(register)
        return found

    def _function_directives(self) -> tuple[dict[str, tuple[int, ...]], list[tuple[int, str]]]:
        """Directives between the parameters and the body: `.reqntid 128, 1, 1`."""
        cursor = self.cursor
        directives: dict[str, tuple[int, ...]] = {}
        pragmas: list[tuple[int, str]] = []
        while cursor.peek()[:1] == ".":
            word = cursor.next()[1:]
            if word == "pragma":
                pragmas.extend((-1, text) for text in read_pragma(cursor))
                continue
            if word not in FUNCTION_DIRECTIVES:
                raise cursor.error(f"unknown directive .{word} in the header of a function", cursor.position - 1)
            least, most = FUNCTION_DIRECTIVES[word]
            numbers: list[int] = []
            while len(numbers) < most and (len(numbers) < least or cursor.peek() == "," or not numbers):
                if numbers:
                    cursor.expect(",", f"between the numbers of .{word}")
                numbers.append(integer(cursor, f"a number of .{word}", most=(1 << 32) - 1))
            directives[word] = tuple(numbers)
        return directives, pragmas

    def _claim_function(self, name: str, is_kernel: bool, token: int) -> None:
        """Makes the name known before the body, which may call itself; a declaration may be repeated."""
        known = self.names.get(name)
        if known is not None and (known.space != "function" or is_kernel or name in self.kernels):
            raise self.cursor.error(f"duplicate name: {name!r} is already declared in this module", token)
        self.names[name] = Symbol(name, "function")

    def _keep(self, function: Function, token: int) -> None:
        """Adds a finished kernel or function; a body replaces a declaration."""
        if isinstance(function, Kernel):
            self.kernels[function.name] = function
            return
        known = self.functions.get(function.name)
        if known is not None and known.has_body and function.has_body:
            raise self.cursor.error(f"duplicate function: {function.name!r} already has a body", token)
        if known is None or function.has_body:
            self.functions[function.name] = function

    def _check_references(self) -> None:
        """Initial values may name only what the module declares."""
        for variable in self.variables.values():
            for relocation in variable.relocations:
                if relocation.symbol not in self.names:
                    at = self.cursor.values.index(relocation.symbol)
                    raise self.cursor.error(f"undefined name {relocation.symbol!r} in an initial value", at)

"""A printed module parses to the same module: names apart, nothing is lost on the way."""

from dataclasses import replace

import pytest
from ptx_snippets import ACCEPTED, HEADER, kernel

from mxfp8fa.emulator.ptx import Register, parse
from mxfp8fa.emulator.ptx.printer import print_module

NOT_PRINTED = {"register parameters", "calls", "call through a prototype"}


def shape(operand):
    """An operand without its names and PTX lines: classes, numbers, register ids, offsets."""
    if isinstance(operand, Register):
        return (operand.id, operand.type)
    fields = {
        name: getattr(operand, name) for name in operand.__slots__ if name not in ("name", "text", "value", "variable")
    }
    inner = [getattr(operand, "variable", None)]
    found = [type(operand).__name__, *(f and (f.space, f.offset_bytes, f.size_bytes) for f in inner)]
    for value in fields.values():
        parts = value if isinstance(value, tuple) else (value,)
        found += [shape(part) if hasattr(part, "__slots__") else part for part in parts]
    return tuple(found)


def shapes(function):
    return [
        (i.mnemonic, i.guard and (i.guard.register.id, i.guard.negated), *map(shape, i.operands))
        for i in function.instructions
    ]


@pytest.mark.parametrize("name", sorted(ACCEPTED.keys() - NOT_PRINTED))
def test_printed_text_parses_to_the_same_module(name):
    module = parse(ACCEPTED[name])
    text = print_module(module)
    again = parse(text)
    assert print_module(again) == text
    assert (again.version, again.target, again.address_size) == (module.version, module.target, module.address_size)
    assert again.variables == module.variables and again.aliases == module.aliases
    for old, new in zip(
        (*module.kernels.values(), *module.functions.values()),
        (*again.kernels.values(), *again.functions.values()),
        strict=True,
    ):
        assert shapes(new) == shapes(old)
        assert [lb.index for lb in new.labels] == [lb.index for lb in old.labels]
        assert (new.params, new.results, new.directives, new.pragmas) == (
            old.params,
            old.results,
            old.directives,
            old.pragmas,
        )
        assert [replace(v, name="") for v in new.variables] == [replace(v, name="") for v in old.variables]


def test_names_used_twice_are_told_apart():
    body = "{ .reg .pred q; A: @q bra A; } { .reg .pred q; A: @!q bra A; } .reg .v2 .b32 v; mov.v2.b32 v, v;"
    text = print_module(parse(kernel(body)))
    assert "@q$0 bra A$0;" in text and "@!q$1 bra A$1;" in text and "mov.v2.b32 {v$x$0, v$y$0}, {v$x$0, v$y$0};" in text


@pytest.mark.parametrize("name", sorted(NOT_PRINTED))
def test_what_cannot_be_printed_is_refused(name):
    with pytest.raises(ValueError, match="not printed"):
        print_module(parse(ACCEPTED[name]))


def test_a_function_is_declared_before_its_use():
    text = print_module(parse(HEADER + ".func g; .func f { call g; ret; } .func g { ret; }"))
    assert text.index(".func g();") < text.index("call g;")

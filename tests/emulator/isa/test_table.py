"""docs/instructions.md is what the definitions say now."""

from pathlib import Path

from mxfp8fa.emulator.isa import table
from mxfp8fa.emulator.isa.registry import REGISTRY

COMMITTED = Path(__file__).parents[3] / "docs" / "instructions.md"


def definition(pattern):
    return next(d for definitions in REGISTRY.values() for d in definitions if d.pattern == pattern)


def test_committed_table_is_current():
    assert COMMITTED.read_text() == table.markdown(), f"regenerate it: {table.COMMAND}"


def test_form_spells_alternatives_and_options():
    assert table.form(definition("mul.hi.type d, a, b")) == "mul.hi.{u16,s16,u32,s32,u64,s64} d, a, b"
    assert table.form(definition("min{.relu}.s32 d, a, b")) == "min{.relu}.s32 d, a, b"
    assert table.form(definition("bfi.type d, a, b, c:u32, e:u32")) == "bfi.{b32,b64} d, a, b, c, e"


def test_every_definition_is_in_the_table():
    text = table.markdown()
    for definitions in REGISTRY.values():
        for d in definitions:
            assert f"`{table.form(d)}`".replace("|", "\\|") in text


def test_rows_have_five_cells():
    rows = [line for line in table.markdown().splitlines() if line.startswith("|")]
    assert len(rows) > 80
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}

"""docs/emulator.md says what is so: options, errors, counts, its example and its links are held against the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import mxfp8fa.emulator as emulator
from mxfp8fa.emulator.machine.launch import CHOICES, Options

DOCS = Path(__file__).resolve().parents[1] / "docs"
TEXT = (DOCS / "emulator.md").read_text()


def section(name):
    """The text between <!-- name:begin --> and <!-- name:end -->."""
    return re.search(rf"<!-- {name}:begin -->\n(.*?)\n?<!-- {name}:end -->", TEXT, re.DOTALL).group(1)


def head_bullets(file):
    """The list before the first section of another document."""
    head = (DOCS / file).read_text().split("\n## ")[0]
    return "\n".join(line for line in head.splitlines() if line.startswith("- "))


@pytest.mark.parametrize(("name", "file"), [("confidence", "instructions.md"), ("silicon", "silicon.md")])
def test_counts_are_those_of_the_generated_documents(name, file):
    assert section(name) == head_bullets(file), f"docs/emulator.md, {name}, should be:\n{head_bullets(file)}"


def test_every_option_is_there_with_its_default_and_its_choices():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT.split("## Options")[1].split("##")[0], re.MULTILINE))
    assert set(rows) == {f.name for f in fields(Options)}
    for field in fields(Options):
        default = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
        assert rows[field.name].replace("`", "").startswith(f"{default} | "), field.name
        for choice in CHOICES.get(field.name, ()):
            assert f'`"{choice}"`' in rows[field.name] or choice == "off", (field.name, choice)


def test_every_error_is_there():
    named = set(re.findall(r"`(\w+)`", TEXT.split("## Errors")[1].split("##")[0]))
    public = {name for name in emulator.__all__ if isinstance(getattr(emulator, name), type)}
    errors = {name for name in public if issubclass(getattr(emulator, name), Exception)}
    assert errors - {"EmulationError"} <= named <= errors | {"PTXSyntaxError"}


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", TEXT):
        assert (DOCS / target).exists(), target


def test_the_example_runs(capsys):
    code = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[-1]
    exec(compile(code, "emulator.md", "exec"), {})
    assert f"# {capsys.readouterr().out.strip()}" in code

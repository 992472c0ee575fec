"""README says what is so: its tables, its output and its course map are held against the code."""

import re
from pathlib import Path

import pytest

from mxfp8fa import published
from mxfp8fa.cli.sqnr import sqnr_table, summary_lines
from mxfp8fa.studies.attention import summarize

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def section(name):
    """The text between <!-- name:begin --> and <!-- name:end -->."""
    match = re.search(rf"<!-- {name}:begin -->\n(.*?)\n?<!-- {name}:end -->", README, re.DOTALL)
    assert match, f"README has no section {name}"
    return match.group(1)


def test_state_table_is_that_of_published_py():
    expected = published.state_table()
    assert section("published") == expected, f"README's state table should be:\n{expected}"


def test_sqnr_output_is_what_the_command_prints():
    """Text must be equal; a dB value may differ by 0.05, as another BLAS sums in another order."""
    summary = summarize()
    expected = "\n".join(["```", sqnr_table(summary), "", *summary_lines(summary), "```"])
    number = re.compile(r"-?\d+\.\d+")
    shown = section("sqnr")
    assert number.sub("#", shown) == number.sub("#", expected), f"README's output should be:\n{expected}"
    for ours, now in zip(number.findall(shown), number.findall(expected), strict=True):
        assert float(ours) == pytest.approx(float(now), abs=0.05)


def test_course_map_links_what_is_there_and_marks_what_is_not():
    rows = dict(re.findall(r"^\| (\d\d) \| (.*?) \|", section("course"), re.MULTILINE))
    assert sorted(rows) == [f"{number:02d}" for number in range(16)]
    for number, cell in rows.items():
        found = sorted(path.name for path in (ROOT / "notebooks").glob(f"{number}*.ipynb"))
        assert len(found) <= 1, f"two notebooks with the number {number}: {found}"
        if found:
            assert f"](notebooks/{found[0]})" in cell and "not yet" not in cell, f"link {found[0]} in row {number}"
        else:
            assert "](" not in cell and cell.endswith("(not yet)"), f"row {number} has no notebook: mark it (not yet)"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+?)\)", README):
        assert (ROOT / target).exists(), target


def test_the_python_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert f"# {capsys.readouterr().out.strip()}" in code


def test_readme_names_the_commands_a_reader_needs():
    for needed in ("make demo", "make test", ".venv/bin/jupyter lab notebooks", "Linux only"):
        assert needed in README
    from mxfp8fa.cli import COMMANDS

    for command in COMMANDS:
        assert f"`mxfp8fa {command.replace('_', '-')}`" in README, command

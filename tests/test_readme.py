"""README says what is so: its tables, its output and its course map are held against the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from mxfp8fa import published
from mxfp8fa.cli.sqnr import sqnr_table, summary_lines
from mxfp8fa.studies import speeds
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


def test_the_sentence_on_modelled_speed_has_the_model_s_numbers():
    text = " ".join(README.split())
    errors = [predicted / published - 1 for _, published, predicted in speeds.predictions()]
    assert f"predicts {sum(abs(e) <= 0.1 for e in errors)} of {len(errors)} published times of flash-attn-4 within 10 %" in text
    assert f"gives our forward {speeds.modelled_value('forward_llm_mxfp8')}, about 0.6 of the published 2.85" in text


def test_sqnr_output_is_what_the_command_prints():
    """Text must be equal; a dB value may differ by 0.05, as another BLAS sums in another order."""
    summary = summarize()
    expected = "\n".join(["```", sqnr_table(summary), "", *summary_lines(summary), "```"])
    number = re.compile(r"-?\d+\.\d+")
    shown = section("sqnr")
    assert number.sub("#", shown) == number.sub("#", expected), f"README's output should be:\n{expected}"
    for ours, now in zip(number.findall(shown), number.findall(expected), strict=True):
        assert float(ours) == pytest.approx(float(now), abs=0.05)


def test_kernel_output_is_what_the_demo_prints():
    """Text must be equal, and SQNR as far as it is printed; a changed compiler may change the number of instructions."""
    needs_kernels()
    from mxfp8fa.cli.demo import kernel_report
    from mxfp8fa.studies.forward_runs import real_run

    expected, shown = f"```\n{kernel_report(real_run())}\n```", section("kernel")
    count = re.compile(r"[\d,]+ warp-instructions")
    assert count.sub("#", shown) == count.sub("#", expected), f"README's output should be:\n{expected}"


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


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=["numerics", "attention", "layer", "emulator"])
def test_the_python_examples_run(code, capsys):
    if "torch" in code:
        needs_kernels()
    exec(compile(code, "README.md", "exec"), {})
    assert f"# {capsys.readouterr().out.strip()}" in code


def needs_kernels():
    for package in ("torch", "cutlass.cute", "llvmlite"):
        pytest.importorskip(package)


def broken_step1(tmp_path, old, new):
    """What the emulator says of step 1 with one line changed, and whether the product is right."""
    needs_kernels()
    import torch

    from mxfp8fa import emulator
    from mxfp8fa.kernels import compile_kernel

    source = (ROOT / "mxfp8fa" / "kernels" / "steps" / "step1_one_mma.py").read_text()
    assert source.count(old) == 1
    path = tmp_path / "step1_one_mma.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("broken_step1", path)
    step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step)
    a, b, d = torch.ones(128, 16).bfloat16(), torch.ones(128, 16).bfloat16(), torch.zeros(128, 128)
    arguments = step.arguments(a, b, d)
    try:
        report = emulator.run(compile_kernel(step.one_mma, *arguments), *arguments, check="races")
    except emulator.EmulationError as error:
        return f"{type(error).__name__}: {error}", False
    return "\n".join(map(str, report.races)), bool((d == 16).all())


def assert_shown(name, said):
    """The block is what was said: any number for a number, anything for "...", line breaks anywhere."""
    lines = section(name).strip("`\n").splitlines()
    pattern = " ".join(" ".join(lines).split())
    pattern = re.escape(pattern).replace(re.escape("..."), ".*?")
    pattern = re.sub(r"0x[0-9a-f]+|\d+", lambda m: "0x[0-9a-f]+" if m[0].startswith("0x") else r"\d+", pattern)
    said = " ".join(re.sub(r"\S*/(?=step1_one_mma\.py)", "", said).split())
    assert re.match(pattern, said), f"README's {name} should be like:\n{said}"


def test_the_deadlock_is_what_is_said(tmp_path):
    wait = "storage.loaded.ptr, LOAD_BYTES)"
    said, _ = broken_step1(tmp_path, wait, wait.replace("LOAD_BYTES", "LOAD_BYTES + 16"))
    assert_shown("deadlock", said)


def test_the_race_is_what_is_said_although_the_result_is_right(tmp_path):
    said, right = broken_step1(tmp_path, "cute.arch.mbarrier_wait(storage.loaded.ptr, 0)", "pass")
    assert right
    assert_shown("race", said)


def test_a_block_that_is_not_what_was_said_is_noticed():
    with pytest.raises(AssertionError):
        assert_shown(
            "race", "race: read and write of shared memory are not ordered (shared offset 0x1800 of CTA (0, 0, 0))"
        )


def test_readme_names_the_commands_a_reader_needs():
    for needed in ("make demo", "make test", ".venv/bin/jupyter lab notebooks", "Linux only"):
        assert needed in README
    from mxfp8fa.cli import COMMANDS

    for command in COMMANDS:
        assert f"`mxfp8fa {command.replace('_', '-')}`" in README, command

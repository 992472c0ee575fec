"""What a user meets: help, tables, JSON, errors, and files that are whole or not there."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mxfp8fa import __version__
from mxfp8fa.cli import COMMANDS, build_parser, console, main
from mxfp8fa.cli import sqnr as sqnr_command
from mxfp8fa.numerics.sqnr import SqnrEntry, StrictSummary
from mxfp8fa.published import BY_KEY
from mxfp8fa.studies.attention import CONFIGURATIONS, STANDARD

FAST = "minilm-layer3"


def run_python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, **options)


def help_of(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^ +{command.replace('_', '-')}\s+\w", out, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(command, capsys):
    parser = build_parser()
    (commands,) = (action for action in parser._actions if hasattr(action, "choices") and action.choices)
    for action in commands.choices[command.replace("_", "-")]._actions:
        assert action.help and len(action.help) > 10, action.option_strings
        assert not action.help.startswith("see "), f"{action.option_strings} sends the reader elsewhere"
    assert "usage: mxfp8fa " in help_of(command.replace("_", "-"), capsys)


def test_help_imports_no_command_and_a_command_no_other():
    script = (
        "import sys; from mxfp8fa.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m in ('numpy', 'torch', 'mxfp8fa.emulator', 'mxfp8fa.cli.sqnr')))"
    )
    for arguments, loaded in ((["--help"], []), (["--version"], []), (["sqnr", "--help"], ["mxfp8fa.cli.sqnr", "numpy"])):
        run = run_python("-c", script, *arguments)
        assert run.stdout.splitlines()[-1] == str(loaded), run.stderr


def test_help_names_what_can_be_chosen(capsys):
    assert all(name in help_of("sqnr", capsys) for name in CONFIGURATIONS)
    from mxfp8fa.cli.figure_registry import FIGURES

    assert all(name in help_of("figures", capsys) for name in FIGURES)


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"mxfp8fa {__version__}"


@pytest.mark.parametrize(
    ("arguments", "given", "allowed"),
    [
        (["sqnr", "--config", "gausian"], "gausian", "gaussian-d128"),
        (["figures", "--only", "sqrn"], "sqrn", "sqnr"),
        (["demmo"], "demmo", "demo"),
        (["sqnr", "--jsn"], "--jsn", ""),
        ([], "COMMAND", ""),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(arguments, given, allowed, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and given in captured.err and allowed in captured.err


def test_json_is_one_object_and_nothing_else(capsys):
    assert main(["sqnr", "--json", "--config", FAST, "minilm-layer0"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [c["name"] for c in found["configurations"]] == [FAST, "minilm-layer0"]
    for configuration in found["configurations"]:
        assert list(configuration["tensors"]) == ["O", "dQ", "dK", "dV"]
        for tensor in configuration["tensors"].values():
            assert 10 < tensor["sqnr_db"] < 40 and tensor["verdict"] in ("pass", "borderline", "fail")
            assert tensor["worst_row_db"] < tensor["sqnr_db"]
    summary = found["summary"]
    assert summary["pass"] + summary["borderline"] + summary["fail"] == 8
    assert found["published"] == {"sqnr_db": [18.84, 28.02], "summary": "23 pass, 1 borderline, 0 fail"}
    assert found["kind"] == "emulated"
    assert "[ 1/2]" in captured.err


def test_json_has_no_infinities():
    entry = SqnrEntry("gaussian-d128", "O", math.inf, -math.inf)
    text = json.dumps(sqnr_command.as_json(StrictSummary((entry,))), allow_nan=False)
    assert json.loads(text)["configurations"][0]["tensors"]["O"] == {
        "sqnr_db": None,
        "worst_row_db": None,
        "verdict": "pass",
    }


def test_table_marks_what_is_no_pass():
    entries = [SqnrEntry("c", t, db, 1.0) for t, db in zip(("O", "dQ", "dK", "dV"), (20, 15, 14.99, 30), strict=True)]
    row = sqnr_command.sqnr_table(StrictSummary(tuple(entries))).splitlines()[-1]
    assert row.split() == ["c", "20.00", "15.00~", "14.99!", "30.00", "1.0"]


def test_sqnr_prints_the_published_range_beside_ours(capsys):
    assert main(["sqnr", "--config", FAST, FAST]) == 0  # named twice, run and counted once
    out = capsys.readouterr().out
    assert BY_KEY["sqnr"].text() in out and BY_KEY["strict_summary"].text() in out
    assert re.search(r"emulated here .* dB   4 pass, 0 borderline, 0 fail", out)


def test_the_six_standard_configurations_make_24_tensors():
    assert len(STANDARD) * 4 == sum(BY_KEY["strict_summary"].values)


def test_demo_without_figures(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--no-figures"]) == 0
    captured = capsys.readouterr()
    for heading in ("1. Quantization to MXFP8 (emulated", "2. The kernel", "3. MXFP8 attention in NumPy, forward and backward"):
        assert heading in captured.out
    if importlib.util.find_spec("cutlass"):
        assert "O and lse: bit for bit those of the NumPy model." in captured.out
        assert "Columns of O beyond 32: zero." in captured.out
        (db,) = re.findall(r"SQNR of O against float64: (\d+\.\d\d) dB", captured.out)
        assert float(db) == pytest.approx(31.29, abs=0.05)
    for configuration in STANDARD:
        assert configuration.name in captured.out
    assert BY_KEY["sqnr"].text() in captured.out
    assert re.search(r"\[ (\d)/\1\]", captured.err)
    assert list(tmp_path.iterdir()) == []


BLOCK_EXTRAS = """
import sys
sys.modules["matplotlib"] = sys.modules["cutlass"] = None
from mxfp8fa.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_extras_the_demo_prints_tables_and_says_how_to_get_the_rest(tmp_path):
    run = run_python("-c", BLOCK_EXTRAS, "demo", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert BY_KEY["sqnr"].text() in run.stdout
    assert "No figures: figures need matplotlib: pip install 'mxfp8fa[notebooks]'" in run.stdout
    assert "Skipped: it needs cutlass: pip install 'mxfp8fa[kernels]'" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_figures_says_what_to_install(tmp_path):
    run = run_python("-c", BLOCK_EXTRAS, "figures", cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr == "mxfp8fa figures: error: figures need matplotlib: pip install 'mxfp8fa[notebooks]'\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["figures", "demo"])
def test_an_output_path_that_is_a_file_is_refused_at_once(command, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = tmp_path / "taken"
    file.write_text("mine")
    assert main([command, "--output", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"mxfp8fa {command}: error: {file} is not a folder\n"
    assert captured.out == "" and file.read_text() == "mine"


@pytest.mark.parametrize("command", ["figures", "demo"])
def test_a_folder_that_cannot_be_made_is_refused_at_once(command, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = tmp_path / "file"
    file.write_text("")
    assert main([command, "--output", str(file / "below")]) == 2
    captured = capsys.readouterr()
    assert f"cannot write to the folder {file / 'below'}: Not a directory" in captured.err and captured.out == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused_at_once(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["figures", "--output", str(tmp_path)]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_a_failed_write_leaves_the_old_file_and_no_half_one(tmp_path, monkeypatch):
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")

    def full_disk(self, data):
        with self.open("wb") as file:
            file.write(data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(console.CommandError, match=r"cannot write .*figure\.png: No space left on device"):
        console.write_whole(path, b"new content")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["figure.png"]


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(sqnr_command, "run_configuration", interrupted)
    assert main(["sqnr", "--config", FAST]) == 130
    assert capsys.readouterr().err.endswith("stopped\n\nmxfp8fa sqnr: interrupted\n")


def test_a_reader_that_went_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mxfp8fa", "sqnr", "--config", FAST]
    run = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert run.returncode == 0
    assert "BrokenPipe" not in run.stderr


def test_a_closed_stdout_is_no_error():
    line = f"exec {sys.executable} -m mxfp8fa sqnr --config {FAST} >&-"
    run = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "Traceback" not in run.stderr, run.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_in_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "mxfp8fa", "sqnr", "--config", FAST]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert run.returncode == 2
    assert run.stderr.endswith("\nmxfp8fa sqnr: error: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("given", [None, "3"])
def test_one_blas_thread_unless_the_user_says_otherwise(given):
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    environment |= {"OPENBLAS_NUM_THREADS": given} if given else {}
    script = (
        "import os, sys; from mxfp8fa.cli import main; assert 'numpy' not in sys.modules; "
        "main(['figures', '--output', os.devnull]); print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    run = run_python("-c", script, env=environment)
    assert run.stdout.split() == [given or "1"], run.stderr


def test_table_aligns_columns():
    assert console.table(["a", "bb"], [["long", "1"], ["x", "22222"]]).splitlines() == [
        "a        bb",
        "----  -----",
        "long      1",
        "x     22222",
    ]


def test_bench_without_a_gpu_says_so_and_knows_what_a_gpu_cannot_run(capsys):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cutlass.cute")
    from mxfp8fa.cli.bench import not_run

    assert "tensor memory" in not_run("sm_90a") and "wgmma" in not_run("sm_100a")
    if not torch.cuda.is_available():
        assert main(["bench", "producers"]) != 0
        assert "there is no CUDA GPU here; committed results" in capsys.readouterr().err

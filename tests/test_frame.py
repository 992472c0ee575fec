"""The frame: `make` sets up once and not again, and every package an extra asks for is pinned."""

import os
import re
import shutil
import subprocess
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.lower().replace("_", "-").split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)

# Under `make test` these describe the outer make.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path):
    """Makefile, its inputs, and a .venv that looks finished; files carry ages so that make sees an order."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    now = time.time()
    for age, name in enumerate((".venv/.dev", ".venv/.user", "constraints.txt", "pyproject.toml", ".venv/bin/python")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - 10 * age - 10,) * 2)
    return tmp_path


def make(folder, *arguments):
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


def dry_run(folder, *arguments):
    """What make would do, without doing it."""
    run = make(folder, "-n", *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


@needs_make
@pytest.mark.parametrize("target", ["demo", "figures", "lint", "unit", "notebooks"])
def test_a_second_call_does_not_install(checkout, target):
    assert "pip install" not in dry_run(checkout, target)


@needs_make
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(checkout, changed):
    (checkout / changed).touch()
    out = dry_run(checkout, "unit")
    assert out.count("pip install") == 2 and " -m venv " not in out


@needs_make
def test_an_empty_checkout_makes_its_environment(checkout):
    shutil.rmtree(checkout / ".venv")
    out = dry_run(checkout, "demo")
    assert " -m venv .venv" in out and "-c constraints.txt -e '.[kernels,timing,notebooks]'" in out
    assert out.rstrip().endswith(".venv/bin/mxfp8fa demo")


@needs_make
def test_an_old_python_is_refused_with_a_sentence(checkout):
    shutil.rmtree(checkout / ".venv")
    old = checkout / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo Python 3.9.1; exit 0; }\nexit 1\n')
    old.chmod(0o755)
    run = make(checkout, f"PYTHON={old}", "demo")
    assert run.returncode != 0
    assert f"mxfp8fa needs Python 3.11 or newer; {old} is Python 3.9.1" in run.stderr


def test_every_requirement_is_pinned_to_an_allowed_version():
    requirements = PROJECT["dependencies"] + [r for extra in PROJECT["optional-dependencies"].values() for r in extra]
    for requirement in requirements:
        name, exact = re.match(r"([\w-]+)(?:\[[\w,]+\])?(?:==([\w.]+))?", requirement).groups()
        pin = PINS[name.lower().replace("_", "-")]
        assert exact in (None, pin), f"pyproject wants {requirement}, constraints.txt has {pin}"


def test_pins_hold_on_any_machine():
    """No local version (torch==2.13.0+cpu exists on one index only), no path, no editable line."""
    text = (ROOT / "constraints.txt").read_text()
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line), line
    assert PINS["torch"] == "2.13.0"


def test_the_core_needs_numpy_only():
    assert [re.match(r"\w+", requirement).group() for requirement in PROJECT["dependencies"]] == ["numpy"]


def test_ci_runs_the_readme_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and "make test" in script.read_text()


def test_test_files_have_names_of_their_own():
    """pytest imports them by name, so of two equal names it could run only one."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists())
    assert [name for name, count in names.items() if count > 1] == []

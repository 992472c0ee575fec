"""What the checker says of other people's kernels: runs tests/emulator/peers/test_silence.py and writes its table.

Run as `OMP_NUM_THREADS=1 python bench/silence.py [--write bench/results/silence.md] [PYTEST ARGUMENTS]`. A kernel that is
reported for what is neither allowed nor known to be true of it fails its test, and is named under the table.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_quantize import cpu_name
from emulator_peers import PACKAGES, schedules_text

TEST = Path(__file__).parents[1] / "tests" / "emulator" / "peers" / "test_silence.py"
HEAD = """# The checker on other people's kernels

Emulated, {date}: {cpu}; Python {python}, {packages}.
`OMP_NUM_THREADS=1 python bench/silence.py --write bench/results/silence.md{arguments}`, {minutes:.0f} min
(other work ran beside it).

Every kernel is the package's own, unmodified, compiled for sm_100a, run with `check="races"` and the default assumptions.
"reports": findings of all schedules, the same pair of sites once, but for those of the next two columns. "true of it":
findings that are so and are named in the test (`TRUE_OF`). "allowed": known and benign, with the reason in
`mxfp8fa/emulator/check/allowed.py`. Seconds: CPU time of all schedules together, compilation included.
Warp-instructions: of one run.

| kernel | inputs | schedules | reports | true of it | allowed | warp-instructions | seconds |
|---|---|---|---|---|---|---|---|
"""


class Recorder:
    """Lines of the table, tests that failed, and tests that were skipped or not reached."""

    def __init__(self, write: Callable[[Recorder], None]) -> None:
        self.write = write  # called after every test, so that a run which is stopped keeps its lines
        self.lines: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.not_run: list[str] = []

    def pytest_collection_finish(self, session: Any) -> None:
        self.not_run = [item.name for item in session.items]

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.split("::")[-1]
        if report.failed:
            self.failed.append(f"{name}: {report.longrepr.reprcrash.message.splitlines()[0]}")
        if report.when == "call":
            self.lines += [line for name, line in report.user_properties if name == "silence"]
            if not report.skipped:
                self.not_run.remove(name)
        if report.when == "teardown":
            self.write(self)


def row(line: dict[str, Any]) -> str:
    """One line of the table; a test that reports anything else fails and has no line."""
    cells = (
        line["kernel"], line["shape"], schedules_text(line["schedules"]), 0, line["true_of_it"], line["allowed"],
        f"{line['warp_instructions']:,}", f"{line['seconds']:.0f}",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def text(recorder: Recorder, minutes: float, for_pytest: list[str]) -> str:
    """The whole file."""
    head = HEAD.format(
        date=datetime.date.today(), cpu=cpu_name(), python=platform.python_version(), minutes=minutes,
        packages=", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES),
        arguments="".join(f" {a}" for a in for_pytest),
    )  # fmt: skip
    named = [f"- failed: {name}" for name in recorder.failed] + [f"- not run: {name}" for name in recorder.not_run]
    return head + "\n".join([*map(row, recorder.lines), *(["", *named] if named else [])]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments, for_pytest = parser.parse_known_args()
    start = time.perf_counter()

    def table(recorder: Recorder) -> str:
        return text(recorder, (time.perf_counter() - start) / 60, for_pytest)

    def write(recorder: Recorder) -> None:
        if arguments.write:
            arguments.write.write_text(table(recorder))

    recorder = Recorder(write)
    status = pytest.main(["-q", "-W", "ignore", "--tb=short", "-m", "slow", *for_pytest, str(TEST)], plugins=[recorder])
    print(table(recorder))
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())

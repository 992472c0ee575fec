"""Other people's kernels in the emulator: runs tests/emulator/peers and writes their results as a table.

Run as `OMP_NUM_THREADS=1 python bench/emulator_peers.py [--write bench/results/emulator_peers.md] [PYTEST ARGUMENTS]`;
about half an hour on one core. The tests hold every result against its bound; a run with a failure writes nothing. Tests of
the checker's findings are no rows of it (bench/silence.py), nor are short forms of tests (-few) that run whole (-all).
With --lines FILE every finished test is written down there at once, and those that are there already do not run again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
from bench_quantize import cpu_name

TESTS = Path(__file__).parents[1] / "tests" / "emulator" / "peers"
PACKAGES = ("quack-kernels", "flash-attn-4", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "torch", "numpy")
HEAD = """# Other people's kernels in the emulator

Emulated, {date}: {cpu}; Python {python}, {packages}.
`OMP_NUM_THREADS=1 python bench/emulator_peers.py --write bench/results/emulator_peers.md{arguments}`, {minutes:.0f} min with
load average {load:.1f} (other work ran beside it: take the seconds as upper limits).

Every kernel is the package's own, unmodified, compiled for sm_100a and run on CPU tensors; every row is one call (all
its launches) with random inputs. Errors are against float64 references, largest / rms, over all elements of a result;
"bound used" is the largest error as a share of the worst case derived for that element in the test. "MMAs" are executed
tcgen05.mma. "First" is the emulation of the first schedule without the package's compilation, machine code being made as it
becomes hot (a kernel that an earlier row ran has it already); "again" the same after all schedules. All schedules gave the same
bits, except sums by atomic additions (dQ, and dK, dV with grouped heads), which stayed within the same bounds.

| kernel | inputs | schedules | max error / rms error (bound used) | launches | MMAs | warp-instructions | first s | again s |
|---|---|---|---|---|---|---|---|---|
"""


class Recorder:
    """Collects what the fixture `peer` recorded, and the reasons of what did not run; works under pytest-xdist too."""

    def __init__(self, file: Path | None = None) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.reasons: list[str] = []
        self.failed = 0
        self.minutes = 0.0
        self._done: set[str] = set()
        self._file = file
        for line in file.read_text().splitlines() if file and file.exists() else ():
            self._take(json.loads(line))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        whole = {i.nodeid for i in items}
        items[:] = [i for i in items if i.nodeid not in self._done and in_table(i, whole)]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed += report.failed
        test: dict[str, Any] = {"test": report.nodeid, "minutes": report.duration / 60, "rows": [], "reason": None}
        if report.skipped:
            reason = getattr(report, "wasxfail", None) or str(report.longrepr[-1])
            test["reason"] = reason.removeprefix("Skipped: ").removeprefix("reason: ")
        elif report.when != "call" or not report.passed:
            return
        test["rows"] = [line for name, line in report.user_properties if name == "peer"]
        self._take(test)
        if self._file:
            with self._file.open("a") as file:
                print(json.dumps(test), file=file)

    def _take(self, test: dict[str, Any]) -> None:
        """Add one test's rows; the run with more schedules represents a kernel that two tests ran."""
        self._done.add(test["test"])
        self.minutes += test["minutes"]
        if test["reason"]:
            self.reasons.append(test["reason"])
        for line in test["rows"] if not test["reason"] else ():
            key = line["kernel"], line["shape"]
            if key not in self.rows or len(line["schedules"]) > len(self.rows[key]["schedules"]):
                self.rows[key] = line


def in_table(item: Any, whole: set[str]) -> bool:
    """Whether a test makes a row or a reason: it uses `peer` or says what is refused, and no other test does more."""
    makes = "peer" in item.fixturenames or item.path.stem == "test_refused"
    return makes and not ("-few]" in item.nodeid and item.nodeid.replace("-few]", "-all]") in whole)


def schedules_text(schedules: list[str]) -> str:
    """`eager, lazy, 10 random`."""
    seeds = sum(s.startswith("random") for s in schedules)
    return ", ".join([s for s in schedules if not s.startswith("random")] + ([f"{seeds} random"] if seeds else []))


def row(line: dict[str, Any]) -> str:
    """One line of the table."""
    errors = (
        f"{name} {largest:.1e} / {rms:.1e} ({share:.0%})" if largest else f"{name} exact"
        for name, (largest, rms, share) in line["errors"].items()
    )
    launches = line["launches"]
    cells = (
        line["kernel"], line["shape"], schedules_text(line["schedules"]), "; ".join(errors), len(launches),
        sum(launch["tcgen05.mma"] for launch in launches), f"{line['warp_instructions']:,}", f"{line['seconds']:.2f}",
        f"{line['again']:.2f}",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def text(recorder: Recorder, for_pytest: list[str]) -> str:
    """The whole file."""
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    head = HEAD.format(
        date=datetime.date.today(), cpu=cpu_name(), python=platform.python_version(), packages=packages, minutes=recorder.minutes,
        arguments="".join(f" {a}" for a in for_pytest),
        load=os.getloadavg()[2],
    )  # fmt: skip
    rows = [row(line) for _, line in sorted(recorder.rows.items())]
    reasons = [
        "",
        "Not run, and why (tests/emulator/peers/test_refused.py):",
        "",
        *(f"- {r}" for r in recorder.reasons),
    ]
    return head + "\n".join(rows + reasons) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    parser.add_argument("--lines", type=Path, help="keep finished tests in this file, and take those that are in it")
    arguments, for_pytest = parser.parse_known_args()
    recorder = Recorder(arguments.lines)
    paths = [] if any(Path(a.split("::")[0]).exists() for a in for_pytest) else [str(TESTS)]
    status = pytest.main(["-q", "-W", "ignore", "--tb=short", *for_pytest, *paths], plugins=[recorder])
    table = text(recorder, for_pytest)
    print(table)
    if arguments.write and not recorder.failed and status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        arguments.write.write_text(table)
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())

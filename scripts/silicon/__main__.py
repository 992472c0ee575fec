"""Command line: `python scripts/silicon run --out DIR` on a machine with a CUDA GPU, then `report` anywhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT / "scripts"), str(ROOT)]  # in place of this folder, whose module names are not for everyone


def main() -> int:
    """Parse the arguments and do what they ask for."""
    parser = argparse.ArgumentParser(prog="silicon", description="Compare the emulator with a CUDA GPU, bit by bit.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run everything on the GPU of this machine and compare")
    run.add_argument("--out", type=Path, required=True, help="folder for results.json, sample.npz and complete_*.xz")
    run.add_argument("--only", default="", help="forms and programs whose name contains this")
    worker = commands.add_parser("worker", help="one share of the work (used by run)")
    worker.add_argument("task", choices=("forms", "program"))
    worker.add_argument("names", type=Path)
    worker.add_argument("path", type=Path)
    report = commands.add_parser(
        "report", help="write the results file, the page and the sample from what run has written"
    )
    report.add_argument(
        "folder", type=Path, nargs="?", help="without it: bring file and page up to date with the emulator"
    )
    report.add_argument("--json", type=Path, default=ROOT / "bench/results/silicon_h200.json")
    report.add_argument("--table", type=Path, default=ROOT / "docs/silicon.md")
    report.add_argument("--sample", type=Path, default=ROOT / "tests/emulator/silicon/h200.npz")
    arguments = parser.parse_args()
    if arguments.command == "worker":
        from silicon import worker as silicon_worker

        silicon_worker.run(arguments.task, arguments.names.read_text().split("\n"), arguments.path)
    elif arguments.command == "run":
        from silicon import session

        print(session.summary(session.run(arguments.out, arguments.only)))
    elif arguments.folder is None:
        from silicon import refresh

        print(refresh.write(arguments.json, arguments.table, arguments.sample))
    else:
        from silicon import report as silicon_report

        print(silicon_report.write(arguments.folder, arguments.json, arguments.table, arguments.sample))
    return 0


if __name__ == "__main__":
    sys.exit(main())

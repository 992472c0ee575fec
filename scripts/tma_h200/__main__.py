"""Command line: `python scripts/tma_h200 run --out FILE` on a machine with a GPU, then `report FILE` anywhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT / "scripts"), str(ROOT)]  # in place of this folder, whose module names are not for everyone


def main() -> int:
    """Parse the arguments and do what they ask for."""
    parser = argparse.ArgumentParser(
        prog="tma_h200", description="Compare the emulator's TMA with a CUDA GPU, bit by bit."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run every kernel on the GPU of this machine, each in a process of its own")
    run.add_argument("--out", type=Path, required=True, help="file for the results (.npz)")
    one = commands.add_parser("one", help="run one kernel (used by run)")
    one.add_argument("name")
    one.add_argument("path", type=Path)
    report = commands.add_parser("report", help="compare with the emulator as it is now and write the table")
    report.add_argument("measured", type=Path)
    report.add_argument("--json", type=Path, default=ROOT / "bench/results/tma_h200.json")
    report.add_argument("--table", type=Path, default=ROOT / "docs/silicon_tma.md")
    arguments = parser.parse_args()
    from tma_h200 import session

    if arguments.command == "run":
        print(session.run(arguments.out))
    elif arguments.command == "one":
        session.run_one(arguments.name, arguments.path)
    else:
        from tma_h200 import table

        print(table.write(arguments.measured, arguments.json, arguments.table))
    return 0


if __name__ == "__main__":
    sys.exit(main())

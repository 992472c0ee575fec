"""Times of the producers on a CUDA GPU, with ceilings beside them; raw results as JSON.

Run as `python bench/bench_producers.py [--write bench/results/producers_h200.json]`. Medians of CUDA graph replays over
rotating inputs (`mxfp8fa.studies.producers`). Minutes on an H200, most of them compilations.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mxfp8fa.studies.producers import all_timings, as_record, line, surroundings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="also write the results to this file")
    parser.add_argument("--only", nargs="+", help="operations, of those that the table names")
    arguments = parser.parse_args()
    timings = []
    for timing in all_timings(arguments.only):
        timings.append(timing)
        print(line(timing), flush=True)
        if arguments.write:
            record = {**surroundings(), "timings": as_record(timings)}
            arguments.write.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

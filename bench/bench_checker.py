"""What the race checker costs: CPU time of flash-attn-4's BF16 forward, 256 x 256, d = 128, with and without.

Run as `OMP_NUM_THREADS=1 python bench/bench_checker.py` in a checkout with the extra `peers`.
"""

from __future__ import annotations

import statistics
import time

from targets import flash_attention_4

from mxfp8fa.emulator import run

REPETITIONS = 5


def main() -> None:
    target = flash_attention_4(256, 256, 1)
    seconds: dict[str, list[float]] = {"off": [], "races": []}
    for repetition in range(REPETITIONS + 1):  # the first one binds the kernel and does not count
        for check, times in seconds.items():
            start = time.process_time()
            run(target.compiled, *target.args, check=check, sm_count=1)
            if repetition:
                times.append(time.process_time() - start)
    off, races = (statistics.median(seconds[check]) for check in ("off", "races"))
    print(f"check=off {off:.2f} s, check=races {races:.2f} s: {races / off:.2f} times (median of {REPETITIONS}, CPU time)")


if __name__ == "__main__":
    main()

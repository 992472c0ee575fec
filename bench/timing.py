"""The timing model against published times: python bench/timing.py writes bench/results/timing.md and timing.json

    python bench/timing.py --recordings DIR      keeps the short runs there, and takes those that are there already
    python bench/timing.py --full                also compares with longer runs, and varies every uncertain constant

Recording takes some minutes per kernel on two quiet cores (compilation included); simulating takes seconds. Needs the extras
`kernels`, `peers` and `timing`. Progress goes to stderr. The JSON file holds what notebook 12 shows.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mxfp8fa.cli.programs import load_source
from mxfp8fa.timing.chip import on_chip, petaflops
from mxfp8fa.timing.estimate import LONG, SHORT, Kernel, Library, kernel, main_launch, short_shape, spread
from mxfp8fa.timing.measurements import CLOCKS_GHZ, TABLES, Row, Table
from mxfp8fa.timing.rates import CONSTANTS, Rates
from mxfp8fa.timing.resources import longest_waits, step_resources
from mxfp8fa.timing.shapes import AttentionShape
from mxfp8fa.timing.simulate import simulate

LLM = AttentionShape.parse("b8-h16-s2048-d128")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CHECK_STEPS = 16  # the longer run that extrapolation is compared with
RESULTS = Path(__file__).parent / "results" / "timing"
_SHOWN = 0.0005  # smallest change that is listed
OURS, PUBLISHED_PF = "forward", {"MXFP8 FA4": 2.85, "cuDNN 9.24 MXFP8": 2.82}


@dataclass(frozen=True)
class Variant:
    """A kernel as it is compiled: what the short runs depend on."""

    name: str
    head_dim: int = 128
    causal: bool = False
    two_cta: bool = False

    @classmethod
    def of(cls, row: Row) -> Variant:
        """Of a published row."""
        return cls(row.kernel, row.shape.head_dim, row.shape.causal, row.two_cta)

    def __str__(self) -> str:
        causal = "causal" if self.causal else "dense"
        return f"{self.name} d{self.head_dim} {causal}{' 2 CTAs' if self.two_cta else ''}"


class Recordings:
    """Short runs, made or read from a folder."""

    def __init__(self, folder: Path | None):
        self._folder, self._made, self._increments = folder, {}, {}

    def cycles(self, row: Row) -> float:
        """Modelled cycles of a published row."""
        variant = Variant.of(row)
        made = self.of(variant)
        if variant not in self._increments:
            self._increments[variant] = made.increments()
        return on_chip(row.shape, made.tiling, self._increments[variant], Rates()).cycles

    def of(self, variant: Variant) -> Kernel:
        """The kernel of a variant."""
        if variant not in self._made:
            self._made[variant] = self._kept(f"{variant}".replace(" ", "_"), partial(self._record, variant))
        return self._made[variant]

    def longer(self, variant: Variant) -> float:
        """Cycles of a run of CHECK_STEPS steps, simulated."""
        source = load_source(variant.name, causal=variant.causal, two_cta=variant.two_cta)
        shape = replace(LLM, head_dim=variant.head_dim, causal=variant.causal)
        short = short_shape(shape, source.tiling, steps=CHECK_STEPS, tiles=1)

        def record() -> object:
            library = Library()
            _, launches = library.record(partial(source.load, short), source.tiling.cluster)
            return library.replay(main_launch(launches))

        return simulate(self._kept(f"{variant} {CHECK_STEPS} steps".replace(" ", "_"), record)).cycles

    def _record(self, variant: Variant) -> Kernel:
        source = load_source(variant.name, causal=variant.causal, two_cta=variant.two_cta)
        return kernel(source, replace(LLM, head_dim=variant.head_dim, causal=variant.causal))

    def _kept(self, name: str, make: object) -> object:
        path = None if self._folder is None else self._folder / f"{name}.pickle"
        if path is not None and path.is_file():
            return pickle.loads(path.read_bytes())
        print(f"recording {name}", file=sys.stderr, flush=True)
        made = make()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickle.dumps(made))
        return made


def around_us(row: Row, rates: Rates) -> float:
    """Kernels beside the main one, by bandwidth.

    The backward first computes delta and clears dQ (reads O and dO, 16 bits, writes 32 bits), and in the end converts dQ
    (reads 32 bits, writes 16).
    """
    if "backward" not in row.kernel:
        return 0.0
    elements = row.shape.batch * row.shape.num_heads_q * row.shape.seqlen_q * row.shape.head_dim
    return elements * (2 + 2 + 4 + 4 + 2) / rates["hbm"] / 1e6 + 2 * rates["launch_us"]


def judged(table: Table, recordings: Recordings, rates: Rates) -> tuple[float, list[tuple[Row, float, float]]]:
    """The table's clock, and per row cycles and predicted microseconds."""
    cycles = [recordings.cycles(row) for row in table.rows]
    first = table.rows[0]
    clock = cycles[0] / (first.microseconds - rates["launch_us"] - around_us(first, rates)) / 1000
    return clock, [
        (row, c, c / clock / 1000 + rates["launch_us"] + around_us(row, rates))
        for row, c in zip(table.rows, cycles, strict=True)
    ]


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *rows))


def published_section(recordings: Recordings) -> list[str]:
    """Predicted against published, table by table."""
    lines, rates, errors = [], Rates(), []
    for table in TABLES:
        clock, rows = judged(table, recordings, rates)
        fits = " (within 1.58 to 1.965)" if CLOCKS_GHZ[0] <= clock <= CLOCKS_GHZ[1] else " (outside 1.58 to 1.965: a miss)"
        lines += ["", f"### {table.source}", "", f"{table.note}. Clock from the first row: {clock:.3f} GHz{fits}.", ""]
        cells = []
        for i, (row, cycles, us) in enumerate(rows):
            error = us / row.microseconds - 1
            errors += [error] if i else []
            cells.append(
                (
                    row.label, f"{row.tflops:.0f}", f"{row.microseconds:.0f}", f"{cycles:,.0f}", f"{us:.0f}",
                    "fitted" if i == 0 else f"{100 * error:+.1f} %",
                )
            )  # fmt: skip
        lines.append(markdown(("kernel, shape", "published TFLOP/s", "us", "modelled cycles", "us", "error"), cells))
    mean = sum(map(abs, errors)) / len(errors)
    inside = sum(abs(e) <= 0.1 for e in errors)
    worst = 100 * max(errors, key=abs)
    head = f"{len(errors)} predicted rows: mean error {100 * mean:.1f} %, {inside} within 10 %, worst {worst:+.1f} %."
    return [head, *lines]


def extrapolation_section(recordings: Recordings) -> list[str]:
    """What two short runs say of a longer one."""
    rows = []
    for variant in (Variant(OURS), Variant("flash-attn-4", two_cta=True)):
        predicted = recordings.of(variant).increments().cycles(1, CHECK_STEPS)
        simulated = recordings.longer(variant)
        rows.append((str(variant), f"{simulated:,.0f}", f"{predicted:,.0f}", f"{100 * (predicted / simulated - 1):+.2f} %"))
    return [markdown(("kernel", f"{CHECK_STEPS} steps simulated", f"from {SHORT} and {LONG} steps", "error"), rows)]


def ours_section(recordings: Recordings) -> list[str]:
    """Our forward: speed by length, and what a step is made of."""
    made, rates, rows = recordings.of(Variant(OURS)), Rates(), []
    for length in LENGTHS:
        shape = LLM if length == LLM.seqlen_q else AttentionShape.parse(f"b{max(1, 32768 // length)}-h16-s{length}-d128")
        chip = made.at(shape)
        speeds = [petaflops(shape.flops(), chip.microseconds(ghz, rates)) for ghz in CLOCKS_GHZ]
        rows.append((str(shape), f"{chip.cycles:,.0f}", f"{100 * chip.balance:.0f} %", f"{speeds[0]:.2f} to {speeds[1]:.2f}"))
    published = ", ".join(f"{name} {pf} PF" for name, pf in PUBLISHED_PF.items())
    lines = [
        f"Published for LLM shapes (the one of the published benchmark is {LLM}): {published}.", "",
        markdown(("shape", "modelled cycles", "SMs busy", "PF at 1.58 to 1.965 GHz"), rows), "",
        f"One step (128 keys, two tiles of 128 queries): {made.increments().step:.0f} cycles.", "",
        markdown(("resource", "cycles of a step", "share"),
                 [(r.name, f"{r.cycles:.0f}", f"{100 * r.share:.0f} %") for r in step_resources(made)]), "",
        markdown(("who", "why", "cycles of a step"), [(w.who, w.why, f"{w.cycles:.0f}") for w in longest_waits(made)]), "",
    ]  # fmt: skip
    return lines


def sensitivity_section(recordings: Recordings) -> list[str]:
    """What the uncertain constants do to our forward."""
    changes = recordings.of(Variant(OURS)).sensitivity(LLM)
    low, high = spread(changes)
    ordered = sorted(changes.items(), key=lambda item: -max(map(abs, item[1])))
    moved = f"{100 * low:+.1f} % to {100 * high:+.1f} %"
    lines = [f"Uncertain constants move the cycles of our forward at {LLM} by {moved} together; one by one:"]
    table = [
        (c.what, f"{c.low:g} to {c.high:g} {c.unit}", f"{100 * changes[name][0]:+.1f} %", f"{100 * changes[name][1]:+.1f} %")
        for name, c in ((name, CONSTANTS[name]) for name, pair in ordered if max(map(abs, pair)) > _SHOWN)
    ]
    return [*lines, "", markdown(("constant", "range", "at its low end", "at its high end"), table)]


def as_data(recordings: Recordings) -> dict[str, object]:
    """Rows of the published tables, steps of three kernels, and speeds of our forward, as plain data."""
    rates, tables, steps = Rates(), [], []
    for table in TABLES:
        clock, rows = judged(table, recordings, rates)
        entries = [
            {"label": row.label, "us": round(row.microseconds, 1), "cycles": round(c), "modelled_us": round(us, 1)}
            for row, c, us in rows
        ]
        tables.append({"name": table.name, "source": table.source, "clock_ghz": round(clock, 3), "rows": entries})
    for variant in (Variant("flash-attn-4", two_cta=True), Variant("cudnn", two_cta=True), Variant(OURS)):
        made = recordings.of(variant)
        resources = [{"name": r.name, "cycles": round(r.cycles)} for r in step_resources(made)]
        increments = made.increments()
        steps.append(
            {"kernel": str(variant), "step": round(increments.step), "tile": round(increments.tile), "resources": resources}
        )
    chip = recordings.of(Variant(OURS)).at(LLM)
    speeds = [round(petaflops(LLM.flops(), chip.microseconds(ghz, rates)), 2) for ghz in CLOCKS_GHZ]
    return {"kind": "modelled", "tables": tables, "steps": steps, "forward_llm_pf": speeds, "forward_llm_shape": str(LLM)}


def constants_section() -> list[str]:
    """The table of constants."""
    rows = []
    for name, c in CONSTANTS.items():
        value = f"{c.value:g}" if c.low == c.high else f"{c.value:g} ({c.low:g} to {c.high:g})"
        rows.append((name, c.what, value, c.unit, c.confidence, c.source))
    return [markdown(("constant", "what", "value (range)", "unit", "confidence", "source"), rows)]


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, metavar="DIR", help="folder of the short runs")
    parser.add_argument("--full", action="store_true", help="longer runs and sensitivity too")
    args = parser.parse_args()
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    recordings = Recordings(args.recordings)
    RESULTS.with_suffix(".json").write_text(json.dumps(as_data(recordings), indent=1) + "\n")
    sections = [
        ("The timing model against published times", [
            "Modelled cycles of kernels that ship, beside times that others measured on B200s. Made by `python bench/timing.py`.",
            "Nothing is fitted but one clock per published table (nobody states theirs); constants come from microbenchmarks.",
        ]),
        ("Predicted and published", published_section(recordings)),
        ("Our forward", ours_section(recordings)),
        ("Constants", constants_section()),
    ]  # fmt: skip
    if args.full:
        sections += [
            ("Extrapolation", extrapolation_section(recordings)),
            ("Sensitivity", sensitivity_section(recordings)),
        ]
    texts = [f"{'#' * (1 + bool(i))} {title}\n\n" + "\n".join(lines) for i, (title, lines) in enumerate(sections)]
    RESULTS.with_suffix(".md").write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()

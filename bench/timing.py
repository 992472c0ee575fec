"""The timing model against published times: python bench/timing.py --full writes bench/results/timing.md and the JSON that
figures and notebook 12 show, mxfp8fa/studies/data/timing.json

    python bench/timing.py --recordings DIR      keeps the short runs there, and takes those that are there already
    python bench/timing.py --full                also compares with longer runs, and varies every uncertain constant

Recording takes half a minute per kernel on two quiet cores (compilation included); simulating takes seconds, everything
with --full about twenty minutes. Needs the extras `kernels`, `peers` and `timing`. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import sys
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import mxfp8fa
from mxfp8fa.cli.programs import load_source
from mxfp8fa.published import BY_KEY
from mxfp8fa.timing.activity import BIN_CYCLES, activity
from mxfp8fa.timing.chip import ChipTime, Increments, on_chip, petaflops, product_cycles
from mxfp8fa.timing.estimate import LONG, SHORT, Kernel, Library, kernel, main_launch, short_shape, spread
from mxfp8fa.timing.measurements import CLOCKS_GHZ, FORWARD, MOVES, PRODUCTS, TABLES, Row, Table
from mxfp8fa.timing.programs import Source
from mxfp8fa.timing.rates import CONSTANTS, Rates
from mxfp8fa.timing.resources import longest_waits, step_resources
from mxfp8fa.timing.shapes import AttentionShape
from mxfp8fa.timing.simulate import simulate

LLM = AttentionShape.parse("b8-h16-s2048-d128")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CHECK_STEPS = 16  # the longer run that extrapolation is compared with
RESULTS = Path(__file__).parent / "results" / "timing"
DATA = Path(mxfp8fa.__file__).parent / "studies" / "data" / "timing.json"
_SHOWN = 0.0005  # smallest change that is listed
_SIZES = ((0, 5e8, "under 0.5 GB"), (5e8, 1e12, "0.5 GB and more"))
OURS = "forward"
MISSES = (
    "Rows beyond 10 % are the causal ones of the second table. Their own numbers say why one clock cannot fit it: at head_dim 64",
    "and 8 K or 16 K tokens causal runs are published with *more* TFLOP/s than dense ones (792 against 758, 834 against 762),",
    "though a causal kernel does more work per counted operation (half-empty tiles on the diagonal, and starts of CTAs). The",
    "last column says which clock each row needs: 1.50 to 1.67 GHz causal, 1.37 to 1.45 dense; the first table's is 1.64. So the",
    "dense runs were the throttled ones, or other kernels. Short causal rows add start and end of a CTA per tile, where the",
    "least certain constants are. None of this was fitted.",
    "",
    "cuDNN's open forward would need 2.14 GHz, 9 % above the highest clock of the device: the model makes it too slow.",
)


@dataclass(frozen=True)
class Variant:
    """A kernel as it is compiled: what the short runs depend on."""

    name: str
    head_dim: int = 128
    causal: bool = False
    two_cta: bool = False
    options: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Row) -> Variant:
        """Of a published row."""
        return cls(row.kernel, row.shape.head_dim, row.shape.causal, row.two_cta)

    def __str__(self) -> str:
        causal = "causal" if self.causal else "dense"
        return " ".join([f"{self.name} d{self.head_dim} {causal}{' 2 CTAs' if self.two_cta else ''}", *self.options])

    def source(self) -> Source:
        """Its programs."""
        return load_source(self.name, causal=self.causal, two_cta=self.two_cta, options=self.options)

    def shape(self) -> AttentionShape:
        """The published shape, with its head_dim and mask."""
        return replace(LLM, head_dim=self.head_dim, causal=self.causal)


_DIRECT = ("exp=direct", "row_sum=rounded")
_HALF = ("sum_format=float16", "direct_codes=subnormal")
AT_LLM = (
    Variant(OURS),
    Variant(OURS, options=("exp2=0.25",)),
    Variant(OURS, options=(*_DIRECT, "direct_share=0.5")),
    Variant(OURS, options=(*_DIRECT, "direct_share=1.0")),
    Variant(OURS, options=(*_DIRECT, "direct_share=1.0", *_HALF)),
    Variant("backward"),
    Variant("backward-fp16"),
    Variant("backward", options=_DIRECT),
    Variant("cudnn", two_cta=True),
    Variant("flash-attn-4", two_cta=True),
    Variant("flash-attn-4-backward", two_cta=True),
)


class Judged(NamedTuple):
    """A published row beside the model.

    Attributes:
        row: as published.
        cycles: modelled.
        us: modelled, at the clock of the table.
        needed_ghz: the clock at which the model would be right.
    """

    row: Row
    cycles: float
    us: float
    needed_ghz: float

    @property
    def error(self) -> float:
        """Predicted over published time, less one."""
        return self.us / self.row.microseconds - 1


class Recordings:
    """Short runs, made or read from a folder."""

    def __init__(self, folder: Path | None):
        self._folder, self._made, self._increments = folder, {}, {}

    def chip(self, row: Row) -> ChipTime:
        """A published row, modelled."""
        return self.at(Variant.of(row), row.shape)

    def at(self, variant: Variant, shape: AttentionShape) -> ChipTime:
        """A kernel at a shape."""
        return on_chip(shape, self.of(variant).tiling, self.increments(variant), Rates())

    def increments(self, variant: Variant) -> Increments:
        """Its cycles per tile and step."""
        if variant not in self._increments:
            self._increments[variant] = self.of(variant).increments()
        return self._increments[variant]

    def of(self, variant: Variant) -> Kernel:
        """The kernel of a variant."""
        if variant not in self._made:
            self._made[variant] = self._kept(f"{variant}".replace(" ", "_"), partial(self._record, variant))
        return self._made[variant]

    def sensitivity(self) -> dict[str, tuple[float, float]]:
        """Of our forward at the published shape, to every uncertain constant."""
        made = self._kept("sensitivity", lambda: self.of(Variant(OURS)).sensitivity(LLM))
        return cast(dict[str, tuple[float, float]], made)

    def longer(self, variant: Variant) -> float:
        """Cycles of a run of CHECK_STEPS steps, simulated."""
        source = variant.source()
        short = short_shape(variant.shape(), source.tiling, steps=CHECK_STEPS, tiles=1)

        def record() -> object:
            library = Library()
            _, launches = library.record(partial(source.load, short), source.tiling.cluster)
            return library.replay(main_launch(launches))

        return simulate(self._kept(f"{variant} {CHECK_STEPS} steps".replace(" ", "_"), record)).cycles

    def _record(self, variant: Variant) -> Kernel:
        return kernel(variant.source(), variant.shape())

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


Judgements = list[tuple[Table, float, list[Judged]]]


def judged(table: Table, recordings: Recordings, rates: Rates) -> tuple[float, list[Judged]]:
    """The table's clock, fitted on its first row, and what it says of every row."""
    chips = [recordings.chip(row) for row in table.rows]
    beside = [rates["launch_us"] + chip.around_us for chip in chips]
    needed = [c.cycles / (r.microseconds - b) / 1000 for c, r, b in zip(chips, table.rows, beside, strict=True)]
    clock = needed[0]
    return clock, [
        Judged(row, chip.cycles, chip.microseconds(clock, rates), ghz)
        for row, chip, ghz in zip(table.rows, chips, needed, strict=True)
    ]


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *rows))


def published_section(tables: Judgements) -> list[str]:
    """Predicted against published, table by table."""
    lines, errors = [], []
    for table, clock, rows in tables:
        fits = (
            " (within 1.58 to 1.965)" if CLOCKS_GHZ[0] <= clock <= CLOCKS_GHZ[1] else " (outside 1.58 to 1.965: a miss)"
        )
        lines += ["", f"### {table.source}", "", f"{table.note}. Clock from the first row: {clock:.3f} GHz{fits}.", ""]
        cells = []
        for i, j in enumerate(rows):
            errors += [j.error] if i else []
            cells.append(
                (
                    j.row.label, f"{j.row.tflops:.0f}", f"{j.row.microseconds:.0f}", f"{j.cycles:,.0f}", f"{j.us:.0f}",
                    f"{100 * j.error:+.1f} %" if i else "fitted", f"{j.needed_ghz:.2f}",
                )
            )  # fmt: skip
        header = ("kernel, shape", "published TFLOP/s", "us", "modelled cycles", "us", "error", "clock it needs, GHz")
        lines.append(markdown(header, cells))
    mean = sum(map(abs, errors)) / len(errors)
    inside = sum(abs(e) <= 0.1 for e in errors)
    worst = 100 * max(errors, key=abs)
    head = f"{len(errors)} predicted rows: mean error {100 * mean:.1f} %, {inside} within 10 %, worst {worst:+.1f} %."
    return [head, *lines, "", *MISSES]


def variants_section(tables: Judgements) -> list[str]:
    """Rows of one table that differ in one thing: by how much, published and modelled."""
    cells = []
    for _, _, rows in tables:
        for (a, b), what in pairs(rows):
            published, modelled = a.row.microseconds / b.row.microseconds, a.us / b.us
            cells.append((a, b, what, published, modelled))
    inside = sum(abs(m / p - 1) <= 0.05 for *_, p, m in cells)
    right = sum((m > 1) == (p > 1) for *_, p, m in cells)
    lines = [
        f"Time of the first over time of the second. Goal: within 5 %, order right. {inside} of {len(cells)} ratios are within "
        f"5 %, {right} of {len(cells)} orders are right.", "",
    ]  # fmt: skip
    table = [
        (
            what,
            f"{a.row.label} / {b.row.label}",
            f"{p:.3f}",
            f"{m:.3f}",
            f"{100 * (m / p - 1):+.1f} %",
            "yes" if (m > 1) == (p > 1) else "NO",
        )
        for a, b, what, p, m in cells
    ]
    return [*lines, markdown(("differ in", "rows", "published", "modelled", "error", "order right"), table)]


def pairs(rows: list[Judged]) -> list[tuple[tuple[Judged, Judged], str]]:
    """Rows of one pass over the same tokens that differ in CTA pairs or head_dim alone, or in the mask (and, in the forward,
    in CTA pairs with it: flash-attn-4 has none for causal attention).
    """
    found = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            x, y = a.row, b.row
            if x.kernel != y.kernel or (x.shape.batch, x.shape.seqlen_q) != (y.shape.batch, y.shape.seqlen_q):
                continue
            mask, width = x.shape.causal != y.shape.causal, x.shape.head_dim != y.shape.head_dim
            if mask and not width and (x.kernel == FORWARD or x.two_cta == y.two_cta):
                found.append(((a, b), "mask"))
            elif width and not mask:
                found.append(((a, b), "head_dim"))
            elif not mask and not width:
                found.append(((a, b), "CTA pairs"))
    return found


def products_section() -> list[str]:
    """Dense products by the tensor core's law alone."""
    cells = []
    for p in PRODUCTS:
        cycles = product_cycles(p.m, p.n, p.k, p.element_bytes, Rates())
        us = [cycles / ghz / 1000 + Rates()["launch_us"] for ghz in CLOCKS_GHZ]
        flops = 2 * p.m * p.n * p.k
        needed = cycles / (flops / p.tflops[1] / 1e6 - Rates()["launch_us"]) / 1000
        modelled = " to ".join(f"{flops / u / 1e6:.0f}" for u in us)
        cells.append(
            (p.name, " to ".join(f"{x:g}" for x in dict.fromkeys(p.tflops)), modelled, f"{needed:.2f}", p.source)
        )
    return [
        "Nothing was calibrated on these: the same product is published with speeds 30 % apart, as clocks, power and data go.",
        "They are judged like the rest. The law takes every pair of SMs to be busy with 256 x 256 tiles, wave by wave, and",
        "knows no prologue; where a row needs a clock under 1.58 GHz, the published kernel is slower than the law.", "",
        markdown(("product", "published TFLOP/s", "by the law, 1.58 to 1.965 GHz", "clock of the fastest, GHz", "source"), cells),
    ]  # fmt: skip


def bandwidth_section() -> list[str]:
    """Quantizers and norms by bytes and a launch: on an H200 against our own measurements, on a B200 against published ones."""
    rates, rows = Rates(), producer_rows()
    fitted = h200_bandwidth(rows, rates)
    lines = [
        f"Time = bytes that have to move / bandwidth + {rates['launch_us']:g} us. H200: {fitted:.2f} TB/s from the largest copy",
        "(measured, bench/results/producers_h200.json); everything else is predicted.", "",
    ]  # fmt: skip
    cells = []
    for what, (least, most, size) in itertools.product(("copy", "quantize", "rmsnorm_quantize"), _SIZES):
        errors = [
            (r["moved_bytes"] / fitted / 1e6 + rates["launch_us"]) / r["us"] - 1
            for r in rows if r["what"] == what and least <= r["moved_bytes"] < most
        ]  # fmt: skip
        inside = sum(abs(e) <= 0.1 for e in errors)
        cells.append((f"{what}, {size}", f"{len(errors)}", f"{100 * sum(map(abs, errors)) / len(errors):.1f} %", f"{inside}",
                      f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %"))  # fmt: skip
    lines += [
        markdown(("H200, measured", "rows", "mean error", "within 10 %", "predicted over measured time"), cells),
        "",
    ]
    cells = [
        (m.name, f"{m.us:g}", f"{m.moved_bytes / rates['hbm'] / 1e6 + rates['launch_us']:.1f}",
         f"{100 * ((m.moved_bytes / rates['hbm'] / 1e6 + rates['launch_us']) / m.us - 1):+.0f} %", m.source)
        for m in MOVES
    ]  # fmt: skip
    lines += [markdown(("B200, published", "us", f"at {rates['hbm']:g} TB/s", "error", "source"), cells), ""]
    (low, high), peak = BY_KEY["rmsnorm_fused"].values, rates["hbm"]
    return [
        *lines,
        f"The fused RMSNorm of the source material moves {low:g} to {high:g} TB/s on a B200, {100 * low / peak:.0f} to "
        f"{100 * high / peak:.0f} % of the bandwidth (shapes not stated): bytes alone do not explain them, nor ours below half a",
        "gigabyte: the first load and the last turn of few turns per CTA are not hidden, and clusters leave 12 of 132 SMs empty",
        "(bench/results/producers.md). The table of rates knows neither.",
    ]


def producer_rows() -> list[dict[str, Any]]:
    """Measured times of the producers that ship."""
    found = json.loads((RESULTS.parent / "producers_h200.json").read_text())["timings"]
    return [r for r in found if r["moved_bytes"] and r["how"] in ("driver", "last axis", "tokens", "square")]


def h200_bandwidth(rows: list[dict[str, Any]], rates: Rates) -> float:
    """TB/s, from the largest copy."""
    copy = max((r for r in rows if r["what"] == "copy"), key=lambda r: r["moved_bytes"])
    return float(copy["moved_bytes"] / (copy["us"] - rates["launch_us"]) / 1e6)


def extrapolation_section(recordings: Recordings) -> list[str]:
    """What two short runs say of a longer one."""
    rows = []
    for variant in (Variant(OURS), Variant("flash-attn-4", two_cta=True)):
        predicted = recordings.of(variant).increments().cycles(1, CHECK_STEPS)
        simulated = recordings.longer(variant)
        rows.append(
            (str(variant), f"{simulated:,.0f}", f"{predicted:,.0f}", f"{100 * (predicted / simulated - 1):+.2f} %")
        )
    return [markdown(("kernel", f"{CHECK_STEPS} steps simulated", f"from {SHORT} and {LONG} steps", "error"), rows)]


def ours_section(recordings: Recordings) -> list[str]:
    """Our kernels: speed by length, options, and what a step is made of."""
    cells = []
    for e in option_entries(recordings):
        fullest = e["resources"][0]
        share = f"{fullest['name']} {100 * fullest['cycles'] / e['step']:.0f} %"
        pf = " to ".join(f"{x:.2f}" for x in e["pf"])
        cells.append((e["kernel"], e["options"] or "default", f"{e['step']:,}", f"{e['tile']:,}", pf, share))
    published = ", ".join(
        f"{BY_KEY[k].what} {BY_KEY[k].text()}" for k in ("forward_llm_mxfp8", "forward_llm_cudnn_mxfp8")
    )
    rows = []
    for e in length_entries(recordings):
        rows.append(
            (e["kernel"], e["shape"], f"{e['cycles']:,}", f"{e['balance']} %", " to ".join(f"{x:.2f}" for x in e["pf"]))
        )
    lines = [
        f"Published for LLM shapes (the benchmark's default is {LLM}): {published}.", "",
        markdown(("kernel", "shape", "modelled cycles", "SMs busy", "PF at 1.58 to 1.965 GHz"), rows), "",
        "By option, at the published shape (`mxfp8fa model forward --options ...`):", "",
        markdown(
            ("kernel", "options", "cycles of a step", "of a tile", "PF at 1.58 to 1.965 GHz", "fullest unit"),
            cells,
        ),
    ]  # fmt: skip
    for name in (OURS, "backward"):
        made = recordings.of(Variant(name))
        length = made.increments().step
        what = "128 keys, two tiles of 128 queries" if name == OURS else "128 queries, 128 keys, five products"
        lines += [
            "", f"One step of the {name} ({what}): {length:.0f} cycles.", "",
            markdown(("resource", "cycles of a step", "share"),
                     [(r.name, f"{r.cycles:.0f}", f"{100 * r.share:.0f} %") for r in step_resources(made)]), "",
            markdown(("who", "why", "cycles of a step"), [(w.who, w.why, f"{w.cycles:.0f}") for w in longest_waits(made)]),
        ]  # fmt: skip
    return lines


def next_section(recordings: Recordings) -> list[str]:
    """What a step of our forward takes its time for, and what could shorten it."""
    made = recordings.of(Variant(OURS))
    waits = {(w.who, w.why): w.cycles for w in longest_waits(made, count=100)}
    mine = {why: cycles for (who, why), cycles in waits.items() if who == "softmax0"}
    for_scores = sum(cycles for why, cycles in mine.items() if "s_full" in why)
    resources = step_resources(made)
    fullest, busy = resources[0], 100 * next(r.share for r in resources if r.name == "tensor core")
    return [
        f"The softmax warps of a tile are what a step takes its time for: {for_scores:.0f} cycles of it they wait for their",
        "next scores, which were computed while they worked on the last (P lies over S of the other tile for that). The",
        f"fullest unit, the {fullest.name}, needs {fullest.cycles:.0f} cycles; in a softmax warp {mine['stall count']:.0f} cycles",
        f"are fixed latencies and {mine['scoreboard']:.0f} loads of S, which the work of the other group hides only in part. So",
        "exponentials moved to other units hardly shorten a step (the options above): their instructions take the time. Fewer",
        "instructions do (direct codes with their sum in float16), and scores loaded while the last ones are still being worked",
        "on would, if there are registers for it: that was not tried. P handed over in two parts would gain little: the tensor",
        f"core is busy for {busy:.0f} % of a step.",
        "", *backward_chain(recordings),
    ]


def backward_chain(recordings: Recordings) -> list[str]:
    """What a step of our backward waits for, and what could shorten it."""
    made = recordings.of(Variant("backward"))
    waits = {(w.who, w.why): w.cycles for w in longest_waits(made, count=100)}
    half = {(w.who, w.why): w.cycles for w in longest_waits(recordings.of(Variant("backward-fp16")), count=100)}
    fullest = step_resources(made)[0]
    dq, dp, s = ("mma", "waits: dq_drained"), ("compute", "waits: dp_full"), ("mma", "waits: s_drained")
    return [
        "A step of the backward is a ring: dS is made of dP, dQ computed into dP's columns, taken out of them, dP of the next",
        f"tile computed. The compute warps wait {waits[dp]:.0f} cycles a step for dP; the mma warp waits {waits[dq]:.0f} until",
        f"dQ is out of its columns and {waits[s]:.0f} until S is in registers, over which the scales of dQ go. The fullest unit,",
        f"the {fullest.name}, needs {fullest.cycles:.0f}. With FP16 sums that unit has less to do, but the reduce warps convert",
        f"and count overflows before they have taken the last columns: the mma warp waits {half[dq]:.0f} cycles for them. Taking",
        "all columns out first would shorten that; dP in two halves, each behind half of dQ, would shorten both. Neither is done.",
        "The model charges accesses to shared memory that were over before a copy of scales to the product behind it: it does",
        "not count the time in which the tensor core stood still before the copy. That makes such products too slow, by about 500",
        "cycles in the step that this one replaced.",
    ]


def attribution_section(recordings: Recordings) -> list[str]:
    """How well emulated runs and SASS fit together."""
    rows = []
    for variant in (Variant(OURS), Variant("backward"), Variant("backward-fp16")):
        made = recordings.of(variant)
        rows.append((str(variant), str(made.attribution()), ", ".join(f"{op} {n}" for op, n in made.coverage().items())))
    return [markdown(("kernel", "SASS", "replayed, of what the emulator executed"), rows)]


def speeds(chip: ChipTime, flops: float) -> list[float]:
    """PF at either end of the clock."""
    return [round(petaflops(flops, chip.microseconds(ghz, Rates())), 3) for ghz in CLOCKS_GHZ]


def length_entries(recordings: Recordings) -> list[dict[str, Any]]:
    """Our forward and backward by length: 32 K tokens in all, but for the published shape."""
    entries = []
    dense = (Variant(OURS), Variant("backward"), Variant("backward-fp16"))
    for variant in (*dense, Variant(OURS, causal=True), Variant("backward", causal=True)):
        for length in LENGTHS:
            batch = LLM.batch if length == LLM.seqlen_q else max(1, 32768 // length)
            shape = AttentionShape.parse(f"b{batch}-h16-s{length}-d128", causal=variant.causal)
            chip = recordings.at(variant, shape)
            flops = shape.flops(backward=variant.name != OURS)
            entries.append({"kernel": str(variant), "shape": str(shape), "length": length, "cycles": round(chip.cycles),
                            "balance": round(100 * chip.balance), "pf": speeds(chip, flops)})  # fmt: skip
    return entries


@cache
def option_entries(recordings: Recordings) -> list[dict[str, Any]]:
    """Our kernels and the peers at the published shape."""
    entries = []
    for variant in AT_LLM:
        made, increments = recordings.of(variant), recordings.increments(variant)
        chip = recordings.at(variant, LLM)
        entries.append({
            "kernel": variant.name, "options": " ".join(variant.options), "step": round(increments.step),
            "tile": round(increments.tile), "start": round(increments.start),
            "us": [round(chip.microseconds(ghz, Rates()), 1) for ghz in CLOCKS_GHZ],
            "pf": speeds(chip, LLM.flops(backward="backward" in variant.name)),
            "resources": [{"name": r.name, "cycles": round(r.cycles)} for r in step_resources(made)],
        })  # fmt: skip
    return entries


def sensitivity_section(changes: dict[str, tuple[float, float]]) -> list[str]:
    """What the uncertain constants do to our forward."""
    low, high = spread(changes)
    ordered = sorted(changes.items(), key=lambda item: -max(map(abs, item[1])))
    moved = f"{100 * low:+.1f} % to {100 * high:+.1f} %"
    lines = [
        f"Uncertain constants, each on its own at either end of its range and their effects added in squares, move the cycles of "
        f"our forward at {LLM} by {moved}; one by one:"
    ]
    table = [
        (
            c.what,
            f"{c.low:g} to {c.high:g} {c.unit}",
            f"{100 * changes[name][0]:+.1f} %",
            f"{100 * changes[name][1]:+.1f} %",
        )
        for name, c in ((name, CONSTANTS[name]) for name, pair in ordered if max(map(abs, pair)) > _SHOWN)
    ]
    return [*lines, "", markdown(("constant", "range", "at its low end", "at its high end"), table)]


def as_data(recordings: Recordings, tables: Judgements, changes: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """What figures, README and notebook 12 show."""
    judged_tables = [
        {
            "name": table.name, "source": table.source, "clock_ghz": round(clock, 3),
            "rows": [{"label": j.row.label, "us": round(j.row.microseconds, 1), "cycles": round(j.cycles),
                      "modelled_us": round(j.us, 1), "needed_ghz": round(j.needed_ghz, 3)} for j in rows],
        }
        for table, clock, rows in tables
    ]  # fmt: skip
    run, step = recordings.of(Variant(OURS)).runs[1], recordings.increments(Variant(OURS)).step
    shown = activity(run)
    window = [round(shown.cycles / 2 - 1.5 * step), round(shown.cycles / 2 + 1.5 * step)]
    first, last = window[0] // BIN_CYCLES, window[1] // BIN_CYCLES + 1
    timeline = {
        "bin_cycles": BIN_CYCLES, "window": window, "step": round(step), "steps": run.steps, "first_bin": first,
        "units": {name: [round(float(s), 3) for s in shares[first:last]] for name, shares in shown.units.items()},
        "roles": [
            [s.actor, s.what, round(s.start), round(s.end)]
            for s in shown.roles if s.end > window[0] and s.start < window[1]
        ],
    }  # fmt: skip
    rows = producer_rows()
    bandwidth = h200_bandwidth(rows, Rates())
    producers = [
        {"what": r["what"], "shape": r["shape"], "us": round(r["us"], 2),
         "tb_per_s": round(r["moved_bytes"] / r["us"] / 1e6, 3),
         "modelled_us": round(r["moved_bytes"] / bandwidth / 1e6 + Rates()["launch_us"], 2)}
        for r in rows if r["what"] != "copy"
    ]  # fmt: skip
    return {
        "kind": "modelled", "shape": str(LLM), "tables": judged_tables, "at_llm": option_entries(recordings),
        "lengths": length_entries(recordings), "timeline": timeline, "producers": producers,
        "sensitivity": {name: [round(x, 4) for x in pair] for name, pair in changes.items()},
    }  # fmt: skip


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
    tables = [(table, *judged(table, recordings, Rates())) for table in TABLES]
    changes = recordings.sensitivity() if args.full else {}
    if args.full:
        DATA.write_text(json.dumps(as_data(recordings, tables, changes)) + "\n")
    sections = [
        ("The timing model against published times", [
            "Modelled cycles of kernels that ship, beside times that others measured on B200s: `python bench/timing.py --full`.",
            "Nothing is fitted but one clock per published table (nobody states theirs); constants come from microbenchmarks.",
        ]),
        ("Predicted and published", published_section(tables)),
        ("Variants of one kernel", variants_section(tables)),
        ("Dense products", products_section()),
        ("Norms and quantizers", bandwidth_section()),
        ("Our kernels", ours_section(recordings)),
        ("Where next", next_section(recordings)),
        ("What the replay could not place", attribution_section(recordings)),
        ("Constants", constants_section()),
    ]  # fmt: skip
    if args.full:
        sections[-1:-1] = [
            ("Extrapolation", extrapolation_section(recordings)),
            ("Sensitivity", sensitivity_section(changes)),
        ]
    texts = [f"{'#' * (1 + bool(i))} {title}\n\n" + "\n".join(lines) for i, (title, lines) in enumerate(sections)]
    RESULTS.with_suffix(".md").write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()

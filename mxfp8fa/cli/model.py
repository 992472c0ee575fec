"""How fast a kernel would be on a B200, by the timing model: modelled, never measured.

TARGET is step6, step7, forward, backward, backward-fp16 (dQ added up in FP16), or a name of somebody else's kernel
(flash-attn-4, flash-attn-4-fp8, flash-attn-4-backward, cudnn: in a checkout, with the extra `peers`). Its main kernel is run
twice or thrice in the emulator, on one tile; the SASS that ships is replayed and timed event by event; the shape is
extrapolated from cycles per tile and per step of the main loop. That takes a minute or two, most of it compilation.

Cycles come first: the clock of a B200 under load lies between 1.58 and 1.965 GHz, and nobody states it. The range of a
result is that of the clock, and with --sensitivity also that of every uncertain constant (`mxfp8fa.timing.rates`).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mxfp8fa.cli.console import CommandError, output_folder, table, write_whole

if TYPE_CHECKING:
    from mxfp8fa.timing.estimate import Kernel
    from mxfp8fa.timing.programs import Source
    from mxfp8fa.timing.shapes import AttentionShape

_SHAPE = "b8-h16-s2048-d128"
_SHOWN = 12
_HEAD_DIMS = (64, 128)
_MOST_TILES = 5_000_000
_WINDOW_STEPS = 3
_ROUND_PF = 0.1  # below, two digits that say something; above, two decimals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Target, shape, clock, output."""
    parser.add_argument("target", metavar="TARGET", help="the kernel: a name or FILE.py:FUNCTION, see above")
    parser.add_argument(
        "--shape", nargs="+", default=[_SHAPE], metavar="SHAPE",
        help=f"batch, heads, tokens, head_dim (default: {_SHAPE}); hkv and sk where they differ",
    )  # fmt: skip
    parser.add_argument("--causal", action="store_true", help="causal attention")
    parser.add_argument("--two-cta", action="store_true", help="other people's kernels with CTA pairs")
    parser.add_argument(
        "--options", nargs="+", default=[], metavar="NAME=VALUE",
        help="fields of AttentionOptions with which forward and backward are compiled: exp=direct row_sum=rounded ...",
    )  # fmt: skip
    parser.add_argument("--clock", type=float, metavar="GHZ", help="one clock instead of 1.58 to 1.965 GHz")
    parser.add_argument("--sensitivity", action="store_true", help="also what each uncertain constant does (minutes)")
    parser.add_argument("--out", metavar="DIR", help="write timeline.png and trace.json (Perfetto, in cycles) there")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")


def run(args: argparse.Namespace) -> int:
    """Record, simulate, print."""
    from mxfp8fa.cli.programs import load_source
    from mxfp8fa.timing.binary import ToolError
    from mxfp8fa.timing.estimate import kernel
    from mxfp8fa.timing.shapes import AttentionShape

    if args.clock is not None and not 0.1 <= args.clock <= 3:
        raise CommandError(f"--clock {args.clock}: 0.1 to 3 GHz")
    try:
        shapes = [AttentionShape.parse(text, causal=args.causal) for text in args.shape]
    except ValueError as error:
        raise CommandError(str(error)) from error
    source = load_source(args.target, causal=args.causal, two_cta=args.two_cta, options=args.options)
    check_shapes(shapes, source)
    print(f"{args.target}: recording short runs in the emulator", file=sys.stderr, flush=True)
    try:
        made = kernel(source, shapes[0])
    except (ToolError, ValueError) as error:
        raise CommandError(str(error)) from error
    changes = made.sensitivity(shapes[0]) if args.sensitivity else {}
    if args.out:
        _write(args.out, made)
    found = as_json(made, shapes, args.clock, changes)
    print(json.dumps(found, indent=2) if args.json else report(made, shapes, args.clock, changes))
    return 0


def check_shapes(shapes: list[AttentionShape], source: Source) -> None:
    """Refuse what one set of short runs cannot say, before anything is compiled.

    Raises:
        CommandError: says what was given and what is allowed.
    """
    if source.tiling is None or source.name == "step5":
        raise CommandError(f"{source.name}: it has no loop over the keys to extrapolate; allowed are step6, step7, forward, ...")
    tokens = {f"{s.seqlen_q} x {s.seqlen_k}" for s in shapes if s.causal and s.seqlen_q > s.seqlen_k}
    if tokens:
        raise CommandError(f"--causal with {min(tokens)} tokens: queries before the first key; allowed are s <= sk")
    for shape in shapes:
        if shape.head_dim not in _HEAD_DIMS or shape.head_dim != shapes[0].head_dim:
            raise CommandError(f"{shape}: head_dim has to be {' or '.join(map(str, _HEAD_DIMS))}, the same in all shapes")
        rows = -(-max(shape.seqlen_q, shape.seqlen_k) // source.tiling.rows)
        if rows * shape.batch * shape.num_heads_q > _MOST_TILES:
            raise CommandError(f"{shape}: more than {_MOST_TILES:,} tiles")


def clocks(clock: float | None) -> tuple[float, ...]:
    """The clocks of a result."""
    from mxfp8fa.timing.measurements import CLOCKS_GHZ

    return CLOCKS_GHZ if clock is None else (clock,)


def as_json(
    made: Kernel, shapes: list[AttentionShape], clock: float | None, changes: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    """The result as plain data."""
    from mxfp8fa.timing.chip import petaflops
    from mxfp8fa.timing.rates import Rates

    increments, rates = made.increments(), Rates()
    results = []
    for shape in shapes:
        chip = made.at(shape)
        times = {ghz: chip.microseconds(ghz, rates) for ghz in clocks(clock)}
        flops = shape.flops(backward=made.tiling.backward)
        results.append(
            {
                "shape": str(shape), "cycles": round(chip.cycles), "tiles_per_sm": chip.rounds,
                "steps_per_sm": chip.steps, "balance": round(chip.balance, 3),
                "us": {f"{ghz} GHz": round(us, 1) for ghz, us in times.items()},
                "pflops": {f"{ghz} GHz": _rounded(petaflops(flops, us)) for ghz, us in times.items()},
            }
        )  # fmt: skip
    return {
        "kind": "modelled", "target": made.name, "cycles_per_step": round(increments.step, 1),
        "cycles_per_tile": round(increments.tile, 1), "cycles_once": round(increments.start, 1),
        "sass_replayed": made.coverage(), "attribution": asdict(made.attribution()), "results": results, "sensitivity": changes,
    }  # fmt: skip


def report(
    made: Kernel, shapes: list[AttentionShape], clock: float | None, changes: dict[str, tuple[float, float]]
) -> str:
    """Tables: speeds, what a step is made of, the longest waits, what the uncertain constants do."""
    from mxfp8fa.timing.estimate import spread
    from mxfp8fa.timing.resources import longest_waits, step_resources

    data = as_json(made, shapes, clock, changes)
    rows = [
        (
            r["shape"], f"{r['cycles']:,}", f"{r['tiles_per_sm']}", f"{100 * r['balance']:.0f} %",
            " to ".join(f"{us:.0f}" for us in sorted(r["us"].values(), reverse=True)),
            " to ".join(f"{pf:.2f}" if pf >= _ROUND_PF else f"{pf:.2g}" for pf in sorted(r["pflops"].values())),
        )
        for r in data["results"]
    ]  # fmt: skip
    ghz = " to ".join(f"{c:g}" for c in clocks(clock))
    lines = [
        f"{made.name}: modelled for a B200 at {ghz} GHz, not measured",
        table(("shape", "cycles", "tiles per SM", "balance", "us", "PF"), rows),
        f"one cluster: {data['cycles_once']:,.0f} cycles once, {data['cycles_per_tile']:,.0f} per tile, "
        f"{data['cycles_per_step']:,.0f} per step of {made.tiling.columns} {'queries' if made.tiling.backward else 'keys'}",
        f"SASS: {made.attribution()}",
        f"replayed against what the emulator counted: {', '.join(f'{op} {n}' for op, n in data['sass_replayed'].items())}",
        "",
        table(
            ("resource", "cycles of a step", "share"),
            [(r.name, f"{r.cycles:.0f}", f"{100 * r.share:.0f} %") for r in step_resources(made)],
        ),
        "",
        table(("longest waits", "why", "cycles of a step"), [(w.who, w.why, f"{w.cycles:.0f}") for w in longest_waits(made)]),
    ]
    if changes:
        ordered = sorted(changes.items(), key=lambda item: -max(map(abs, item[1])))
        low, high = spread(changes)
        lines += [
            "",
            f"uncertain constants: together {100 * low:+.1f} % to {100 * high:+.1f} % of the cycles",
            table(
                ("constant", "at its low end", "at its high end"),
                [(name, f"{100 * a:+.1f} %", f"{100 * b:+.1f} %") for name, (a, b) in ordered[:_SHOWN]],
            ),
        ]
    return "\n".join(lines)


def _rounded(pf: float) -> float:
    return round(pf, 3) if pf >= _ROUND_PF else float(f"{pf:.3g}")


def _write(folder: str, made: Kernel) -> None:
    """The picture of three steps in the middle of the longer run, and the trace of all of it."""
    from mxfp8fa.plots.cycles import fig_modelled_timeline
    from mxfp8fa.plots.style import png_bytes
    from mxfp8fa.timing.activity import BIN_CYCLES, activity
    from mxfp8fa.timing.perfetto import to_perfetto

    place, run = output_folder(folder), made.runs[1]
    shown, step = activity(run), made.increments().step
    write_whole(place / "trace.json", to_perfetto(shown).encode())
    middle = shown.cycles / 2
    figure = fig_modelled_timeline(
        {name: shares.tolist() for name, shares in shown.units.items()},
        [(s.actor, s.what, s.start, s.end) for s in shown.roles],
        bin_cycles=BIN_CYCLES, window=(middle - _WINDOW_STEPS / 2 * step, middle + _WINDOW_STEPS / 2 * step),
        finding=f"{made.name}: what is busy when",
        parameters=f"one SM of a B200, {_WINDOW_STEPS} of {run.steps} steps of {step:.0f} cycles",
    )  # fmt: skip
    write_whole(place / "timeline.png", png_bytes(figure))
    print(f"wrote {place / 'timeline.png'} and {place / 'trace.json'}", file=sys.stderr)

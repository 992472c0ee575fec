"""Every file of figures/, with the data it is drawn from. To add one: write a function here and put it into FIGURES.

The functions import matplotlib themselves, so that this list can be read without it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from mxfp8fa.cli.console import CommandError
from mxfp8fa.studies import attention, blocks, choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGIT_STDS = (1, 4)


def formats() -> Figure:
    """The numbers of E4M3 and E5M2 on a line, and the error of rounding to them."""
    from mxfp8fa.plots.blocks import fig_formats

    return fig_formats([blocks.format_grid(name) for name in ("e4m3", "e5m2")])


def block() -> Figure:
    """One real block before and after quantization, and again with outliers."""
    from mxfp8fa.plots.blocks import fig_block

    return fig_block(blocks.outlier_examples())


def scale_map() -> Figure:
    """A matrix with outlier channels and the scales that 1x32 and square blocks give it."""
    from mxfp8fa.plots.blocks import fig_scale_map

    inputs = blocks.example_inputs()[-1]
    return fig_scale_map(blocks.scale_map(inputs.k[0, :128, 0], f"K of {inputs.name}, 128 tokens: {inputs.origin}"))


def scale_rules() -> Figure:
    """The four scale rules: scale, error of the largest element, SQNR."""
    from mxfp8fa.plots.blocks import fig_scale_rules

    return fig_scale_rules(blocks.scale_rules())


def row_spread() -> Figure:
    """1x32 against square blocks when the rows of a tile differ in size."""
    from mxfp8fa.plots.blocks import fig_row_spread

    return fig_row_spread(blocks.row_spread())


def tensors() -> Figure:
    """SQNR of the quantized Q, K, V and dO, real and synthetic."""
    from mxfp8fa.plots.blocks import fig_tensors

    return fig_tensors(blocks.quantized_tensors(blocks.example_inputs()))


def sqnr() -> Figure:
    """SQNR of O, dQ, dK and dV by configuration against the published range."""
    from mxfp8fa.plots.attention import fig_sqnr

    return fig_sqnr(attention.summarize())


def sqnr_by_length() -> Figure:
    """SQNR by number of keys."""
    from mxfp8fa.plots.attention import fig_lengths

    return fig_lengths({f"logit std {std}": choices.sqnr_by_length(logit_std=std) for std in LOGIT_STDS})


def p_scale() -> Figure:
    """SQNR by the scale with which P is stored."""
    from mxfp8fa.plots.attention import fig_p_scale

    return fig_p_scale({f"logit std {std}": choices.scale_of_p(logit_std=std) for std in LOGIT_STDS})


def p_codes() -> Figure:
    """Codes of P by exponential and directly from the score."""
    from mxfp8fa.plots.attention import fig_codes

    return fig_codes(choices.codes_of_p())


def causal_leak() -> Figure:
    """What an outlier in a later token does to earlier rows under a causal mask."""
    from mxfp8fa.plots.attention import fig_leak

    return fig_leak(choices.causal_leak())


def ways_to_p() -> Figure:
    """Accuracy of exact, polynomial and direct ways to P, as it ships (`mxfp8fa exponential accuracy` makes it again)."""
    from mxfp8fa.plots.exponential import fig_ways
    from mxfp8fa.studies.exponential import shipped_groups

    return fig_ways(shipped_groups())


def polynomial_degrees() -> Figure:
    """SQNR lost by polynomials of degree 1 to 4 in place of exp2."""
    from mxfp8fa.plots.exponential import fig_degrees
    from mxfp8fa.studies import exponential

    return fig_degrees(*exponential.polynomial_degrees())


def step_cycles() -> Figure:
    """Cycles of a KV step by resource, from counts of SASS as they ship (`mxfp8fa exponential sass` makes them again)."""
    from mxfp8fa.plots.exponential import fig_step_cycles
    from mxfp8fa.studies.step_costs import shipped_costs

    return fig_step_cycles(shipped_costs())


def training() -> Figure:
    """Validation loss in BF16 and MXFP8, and the differences beside the spread of seeds."""
    from mxfp8fa.plots.training import fig_training
    from mxfp8fa.studies.training import shipped_runs

    return fig_training(shipped_runs())


def training_module() -> Figure:
    """Validation loss of the decoder of MXAttention on bytes, in BF16 and MXFP8."""
    from mxfp8fa.plots.training import fig_training
    from mxfp8fa.studies.training import shipped_runs

    return fig_training(shipped_runs("module"))


def training_jagged() -> Figure:
    """Validation loss of the decoder of MXAttention on packed histories."""
    from mxfp8fa.plots.training import fig_training
    from mxfp8fa.studies.training import shipped_runs

    return fig_training(shipped_runs("jagged"))


def gradient_sqnr() -> Figure:
    """SQNR of gradients by step and layer while the decoder trains on bytes."""
    from mxfp8fa.plots.module import fig_gradient_sqnr
    from mxfp8fa.studies.training import shipped_runs

    return fig_gradient_sqnr([run for run in shipped_runs("module") if run.attention == "exact"])


def gradient_sqnr_jagged() -> Figure:
    """The same while it trains on packed histories."""
    from mxfp8fa.plots.module import fig_gradient_sqnr
    from mxfp8fa.studies.training import shipped_runs

    return fig_gradient_sqnr([run for run in shipped_runs("jagged") if run.attention == "exact"])


def module_speed() -> Figure:
    """Modelled time of the attention module by part, and its gain over the BF16 twin by length."""
    from mxfp8fa.plots.module import fig_module_speed
    from mxfp8fa.studies.module_speed import MODELLED_RATES, PUBLISHED_RATES, Module

    return fig_module_speed((Module(), PUBLISHED_RATES, MODELLED_RATES))


def emulator_speed() -> Figure:
    """Time and memory of an emulated forward by sequence length and grid (`bench/bench_emulator.py` measures them again)."""
    from mxfp8fa.plots.emulator_speed import fig_emulator_speed
    from mxfp8fa.studies.emulator_results import shipped

    record, launches = shipped()
    return fig_emulator_speed(launches, f"{record['machine']}, {record['date']}")


def producers() -> Figure:
    """The fused quantizers beside their ceilings, as measured on an H200 (`bench/bench_producers.py` makes it again)."""
    from mxfp8fa.plots.producers import fig_producers
    from mxfp8fa.studies.producer_results import shipped

    return fig_producers(shipped()[1])


def timeline() -> Figure:
    """What every warp, TMA and the tensor core do during a block-scaled product."""
    from mxfp8fa.plots.pipeline import fig_timeline
    from mxfp8fa.studies.step_runs import block_scaled_run

    run = block_scaled_run(schedule="random", seed=1)
    finding = "One warp feeds TMA, one the tensor core; whoever has to wait sleeps"
    return fig_timeline(run.trace, finding=finding, parameters=run.parameters)


def tensor_memory() -> Figure:
    """When the columns of tensor memory hold data during a block-scaled product."""
    from mxfp8fa.plots.pipeline import fig_tensor_memory
    from mxfp8fa.studies.step_runs import block_scaled_run

    run = block_scaled_run()
    finding = "Scales live from their copy to the last of the four products that need them, the accumulator to the end"
    return fig_tensor_memory(run.trace, finding=finding, parameters=run.parameters, names=run.names)


def forward_timeline() -> Figure:
    """What every warp, TMA and the tensor core do while the forward kernel works on real activations."""
    from mxfp8fa.plots.pipeline import fig_timeline
    from mxfp8fa.studies.forward_runs import recorded_head

    run = recorded_head()
    finding = "While one softmax warpgroup makes P of its tile, the tensor core serves the other"
    return fig_timeline(run.trace, finding=finding, parameters=run.parameters)


def forward_tensor_memory() -> Figure:
    """Tensor memory of the forward kernel over time: P and all scales in columns of S and O that are dead just then."""
    from mxfp8fa.plots.pipeline import fig_tensor_memory
    from mxfp8fa.studies.bargain import tensor_memory_rows
    from mxfp8fa.studies.forward_runs import recorded_head

    run = recorded_head()
    finding = "P and four kinds of scales live in columns of S, between its last read and the next scores"
    return fig_tensor_memory(
        run.trace, finding=finding, parameters=run.parameters, names=run.names, rows=tensor_memory_rows()
    )


def ds_scales() -> Figure:
    """A tile of dS in its sixteen squares, and its scales as dK and as dQ read them."""
    from mxfp8fa.plots.backward import fig_ds_scales
    from mxfp8fa.studies.backward import scale_atoms

    return fig_ds_scales(scale_atoms())


def modelled_timeline() -> Figure:
    """How busy the units of an SM are during three steps of the forward, as modelled (`mxfp8fa model forward --out DIR`)."""
    from mxfp8fa.plots.cycles import fig_modelled_timeline
    from mxfp8fa.studies.speeds import timeline

    return fig_modelled_timeline(
        **timeline(), finding="Scores wait for the softmax warps, not they for scores: the exponentials never pause"
    )


def kv_step() -> Figure:
    """Cycles of a step over the keys by unit: flash-attn-4 in BF16, cuDNN's open MXFP8 forward, ours."""
    from mxfp8fa.plots.cycles import fig_step_roofline
    from mxfp8fa.studies.speeds import steps

    finding = "A step is longer than its fullest unit is busy: what is left is waiting"
    return fig_step_roofline(steps(), finding=finding, parameters="128 keys, two tiles of 128 queries per SM, head_dim 128")


def predicted_times() -> Figure:
    """Predicted over published time of flash-attn-4 on a B200."""
    from mxfp8fa.plots.cycles import fig_predicted
    from mxfp8fa.studies.speeds import predictions

    rows = predictions()
    inside = sum(abs(predicted / published - 1) <= 0.1 for _, published, predicted in rows)
    finding = f"{inside} of {len(rows)} published times are predicted within 10 %"
    parameters = "flash-attn-4 4.0.0b36 on a B200; one clock per table, fitted on a row that is not shown"
    return fig_predicted(rows, finding=finding, parameters=parameters)


def sensitivity() -> Figure:
    """What each uncertain constant of the timing model does to our forward."""
    from mxfp8fa.plots.cycles import fig_sensitivity
    from mxfp8fa.studies.speeds import sensitivities, shipped

    changes = sensitivities()
    return fig_sensitivity(
        changes, finding=f"Of the uncertain constants, {changes[0][0]} matters most",
        parameters=f"our forward at {shipped()['shape']}; constants and their sources: mxfp8fa/timing/rates.py",
    )  # fmt: skip


def speed_by_length() -> Figure:
    """PF of our kernels by length, modelled, beside published speeds."""
    from mxfp8fa.plots.cycles import fig_speed_by_length
    from mxfp8fa.published import BY_KEY
    from mxfp8fa.studies.speeds import by_length

    keys = {"MXFP8 FA4 forward": "forward_llm_mxfp8", "MXFP8 FA4 backward": "backward_llm_fp32_dq"}
    return fig_speed_by_length(
        by_length(), {name: BY_KEY[key].values[0] for name, key in keys.items()},
        finding="By the model our forward reaches about 0.6 of the published speed",
        parameters="16 heads of 128, 32 K tokens in all (16 K at length 2,048); bands: 1.58 to 1.965 GHz; published: B200",
    )  # fmt: skip


def speeds() -> Figure:
    """Published and modelled PF of forward and backward, each bar with its kind."""
    from mxfp8fa.plots.cycles import fig_speeds
    from mxfp8fa.studies.speedups import attention

    finding = "Published speeds beside what the model says of kernels that can be compiled here"
    return fig_speeds(
        attention(), unit="PF", finding=finding,
        parameters="LLM shapes, modelled: b8-h16-s2048-d128, B200, 1.58 to 1.965 GHz; recommendation shapes: see jagged_tail",
    )  # fmt: skip


def jagged_bytes() -> Figure:
    """Bytes that packed sequences move, by split addressing and by a padded gather."""
    from mxfp8fa.plots.jagged import fig_jagged_bytes
    from mxfp8fa.studies import jagged

    return fig_jagged_bytes(jagged.jagged_bytes())


def jagged_tail() -> Figure:
    """When SMs end on packed sequences by order of work, and modelled speeds beside the published ones."""
    from mxfp8fa.plots.jagged import fig_jagged_tail
    from mxfp8fa.studies import jagged

    return fig_jagged_tail(jagged.jagged_tail())


# File name without suffix -> how to draw it.
FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function
    for function in (
        formats,
        block,
        scale_map,
        scale_rules,
        row_spread,
        tensors,
        sqnr,
        sqnr_by_length,
        p_scale,
        p_codes,
        causal_leak,
        ways_to_p,
        polynomial_degrees,
        step_cycles,
        training,
        training_module,
        training_jagged,
        gradient_sqnr,
        gradient_sqnr_jagged,
        module_speed,
        producers,
        emulator_speed,
        timeline,
        tensor_memory,
        forward_timeline,
        forward_tensor_memory,
        ds_scales,
        modelled_timeline,
        kv_step,
        predicted_times,
        sensitivity,
        speed_by_length,
        speeds,
        jagged_bytes,
        jagged_tail,
    )
}
# Drawn from a run of a compiled kernel: these need the extra `kernels`.
FROM_KERNELS = ("timeline", "tensor_memory", "forward_timeline", "forward_tensor_memory")


def why_not(name: str) -> str:
    """What is missing to draw a figure, or "" if nothing is."""
    packages = ("torch", "cutlass", "llvmlite") if name in FROM_KERNELS else ()
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if not missing:
        return ""
    return f"{name} is drawn from a run of a compiled kernel and needs {', '.join(missing)}: pip install 'mxfp8fa[kernels]'"


def render(name: str) -> bytes:
    """The PNG of one figure; the same bytes each time.

    Raises:
        KeyError: no figure has that name.
    """
    from matplotlib import pyplot

    from mxfp8fa.plots.style import png_bytes

    figure = FIGURES[name]()
    try:
        return png_bytes(figure)
    finally:
        pyplot.close(figure)


def require_matplotlib() -> None:
    """Load matplotlib with the backend that needs no display.

    Raises:
        CommandError: it is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise CommandError("figures need matplotlib: pip install 'mxfp8fa[notebooks]'") from None
    matplotlib.use("Agg")

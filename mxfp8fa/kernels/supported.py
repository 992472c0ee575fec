"""What the kernels do of what the numerics define: known without importing the CuTe DSL."""

from __future__ import annotations

from typing import Any

from mxfp8fa.numerics.options import AttentionOptions

HEAD_DIMS = (64, 128)
FORWARD: dict[str, tuple[Any, ...]] = {
    "sum_format": ("float32", "float16"),
    "tile_m": (128,),
    "tile_n": (128,),
    "kv_order": ("descending",),
}


BACKWARD: dict[str, tuple[Any, ...]] = {
    "tile_m": (128,),
    "tile_n": (128,),
    "do_blocks": ("square",),
    "delta": ("dequantized_dO", "unquantized_dO"),
}


def check_forward_options(options: AttentionOptions) -> None:
    """Refuse what the forward kernel does not do.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    _check(options, FORWARD, "the kernel", "attention_mxfp8")


def check_backward_options(options: AttentionOptions) -> None:
    """Refuse what the backward kernels do not do.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    _check(options, BACKWARD, "the backward kernel", "attention_mxfp8_backward")


def _check(options: AttentionOptions, supported: dict[str, tuple[Any, ...]], where: str, model: str) -> None:
    for name, allowed in supported.items():
        value = getattr(options, name)
        if value not in allowed:
            listed = ", ".join(map(repr, allowed)) if len(allowed) < 9 else f"{allowed[0]} to {allowed[-1]}"
            raise ValueError(
                f"options.{name} = {value!r} is not in {where}; allowed: {listed} "
                f"(mxfp8fa.numerics.{model} has it, in NumPy)"
            )

"""What the kernels do of what the numerics define: known without importing the CuTe DSL."""

from __future__ import annotations

from typing import Any

from mxfp8fa.numerics.options import AttentionOptions

HEAD_DIMS = (64, 128)
FORWARD: dict[str, tuple[Any, ...]] = {
    "p_scale": ("constant",),
    "exp": ("exact",),
    "sum_format": ("float32",),
    "tile_m": (128,),
    "tile_n": (128,),
    "kv_order": ("descending",),
}


def check_forward_options(options: AttentionOptions) -> None:
    """Refuse what the forward kernel does not do.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    for name, allowed in FORWARD.items():
        value = getattr(options, name)
        if value not in allowed:
            raise ValueError(
                f"options.{name} = {value!r} is not in the kernel; allowed: {', '.join(map(repr, allowed))} "
                "(mxfp8fa.numerics.attention_mxfp8 has it, in NumPy)"
            )

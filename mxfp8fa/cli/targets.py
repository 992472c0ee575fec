"""What `mutate` and `trace` take as TARGET: a kernel with the arguments to run it on.

A name from TARGETS, or FILE.py:FUNCTION. The function takes nothing and returns (compiled, args), where `compiled` comes
from cute.compile, or (compiled, args, names) with an `emulator.names.Names`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from mxfp8fa.cli.console import CommandError
from mxfp8fa.emulator.names import Names

if TYPE_CHECKING:
    from mxfp8fa.emulator.mutate import Recorded

# Peers are not part of the package: their targets live in a checkout.
CHECKOUT = Path(__file__).resolve().parents[2]
PEER_TARGETS = {"flash-attn-4": "bench/targets.py:flash_attention_4"}


@dataclass(frozen=True)
class Target:
    """A compiled function, its arguments, and what its kernel declares.

    Attributes:
        options: further emulator options (`Options`) that the kernel is meant to be run with.
        more: further arguments; `mutate` runs every mutant on these too.
    """

    compiled: Any
    args: tuple[Any, ...]
    names: Names = field(default_factory=Names)
    options: dict[str, Any] = field(default_factory=dict)
    more: tuple[tuple[Any, ...], ...] = ()

    def record(self, sm_count: int) -> list[Recorded]:
        """The launches of all calls, not run."""
        from mxfp8fa.emulator.mutate import record

        return [launch for args in (self.args, *self.more) for launch in record(self.compiled, *args, sm_count=sm_count)]


def k_loop() -> Target:
    """Step 2, BF16: two tiles of D, and seven tiles of K, so that the ring of three comes around twice."""
    import torch

    from mxfp8fa.kernels import compile_kernel
    from mxfp8fa.kernels.names import SharedTile, names_of
    from mxfp8fa.kernels.steps import step2_k_loop as step
    from mxfp8fa.layouts.swizzle import SW128

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(m, 7 * step.TILE_K, generator=generator).to(torch.bfloat16) for m in (256, 128))
    args = step.arguments(a, b, torch.zeros(256, 128))
    tiles = (SharedTile(name, 2 * step.TILE_K, 128, step.STAGES, SW128) for name in ("sA", "sB"))
    return Target(compile_kernel(step.k_loop, *args), args, names_of(step, *tiles), {"wait_ld": "required"})


def block_scaled() -> Target:
    """Step 3, MXFP8: one tile of D, seven tiles of K."""
    import numpy as np
    import torch

    from mxfp8fa.kernels import MXOperand, compile_kernel
    from mxfp8fa.kernels.names import SharedTile, names_of
    from mxfp8fa.kernels.steps import step3_block_scaled as step
    from mxfp8fa.layouts import ATOM_BYTES
    from mxfp8fa.layouts.swizzle import SW128
    from mxfp8fa.numerics import quantize

    rng = np.random.default_rng(0)
    a, b = (
        MXOperand.from_mx_tensor(quantize(rng.standard_normal((128, 7 * step.TILE_K)).astype(np.float32), axes=1))
        for _ in range(2)
    )
    args = step.arguments(a, b, torch.zeros(128, 128))
    tiles = [SharedTile(name, step.TILE_K, 128, step.STAGES, SW128) for name in ("sA", "sB")]
    scales = [SharedTile(name, ATOM_BYTES, 1, step.STAGES, alignment_bytes=128) for name in ("sSFA", "sSFB")]
    names = names_of(step, *tiles, *scales)
    return Target(compile_kernel(step.block_scaled, *args), args, names, {"wait_ld": "required"})


def kv_loop() -> Target:
    """Step 6: 128 queries, 600 keys of dimension 64: five tiles, the last of them short."""
    from mxfp8fa.kernels.steps import step6_kv_loop as step

    return _attention_step(step, step.kv_loop, stages=1)


def warp_specialised() -> Target:
    """Step 7 on the same: the rings of two come around more than twice."""
    from mxfp8fa.kernels.steps import step7_warp_specialised as step

    return _attention_step(step, step.warp_specialised, stages=step.STAGES)


def _attention_step(
    step: ModuleType, function: Any, *, stages: int, queries: int = 128, keys: int = 600, head_dim: int = 64
) -> Target:
    import numpy as np
    import torch

    from mxfp8fa.kernels import MXOperand, compile_kernel
    from mxfp8fa.kernels.names import SharedTile, names_of
    from mxfp8fa.layouts import ATOM_BYTES
    from mxfp8fa.layouts.swizzle import SW64
    from mxfp8fa.numerics import quantize

    rng = np.random.default_rng(0)
    q, k, v = (
        MXOperand.from_mx_tensor(quantize(rng.standard_normal((n, head_dim)).astype(np.float32), axes=axis, tail="partial"))
        for n, axis in ((queries, 1), (keys, 1), (keys, 0))
    )
    args = step.arguments(q, k, v, torch.zeros(queries, head_dim), torch.zeros(queries), head_dim**-0.5)
    ring = (("Q", 1), ("K", stages), ("V", stages))
    tiles = [SharedTile(f"s{name}", head_dim, 128, n, SW64) for name, n in ring]
    scales = [SharedTile(f"sSF{name}", ATOM_BYTES, 1, n, alignment_bytes=128) for name, n in ring]
    names = names_of(step, *tiles, *scales)
    return Target(compile_kernel(function, *args), args, names, {"wait_ld": "required"})


def forward() -> Target:
    """The forward kernel: one CTA works on four heads, two Q tiles each, and two tiles of keys, the last of them short.

    And again on one head with one short tile of keys, which then is the last of all: a path of its own.
    """
    from mxfp8fa.kernels.forward.names import names

    (compiled, args), (_, short) = _forward_call(4, 200), _forward_call(1, 40)
    return Target(compiled, args, names(64), {"wait_ld": "required"}, more=(short,))


def _forward_call(num_heads: int, keys: int) -> tuple[Any, tuple[Any, ...]]:
    import numpy as np

    from mxfp8fa.kernels import MXOperand
    from mxfp8fa.kernels.forward import forward_arguments
    from mxfp8fa.numerics import quantize

    rng = np.random.default_rng(0)
    head_dim = 64
    q, k, v = (
        MXOperand.from_mx_tensor(
            quantize(rng.standard_normal((1, n, heads, head_dim)).astype(np.float32), axes=axis, tail="partial")
        )
        for n, heads, axis in ((130, num_heads, 3), (keys, 1, 3), (keys, 1, 1))
    )
    compiled, args, _ = forward_arguments(q, k, v, softmax_scale=head_dim**-0.5, ctas=1)
    return compiled, args


def jagged() -> Target:
    """The forward kernel on packed sequences, one CTA: two tiles of keys, no keys, no queries, one tile of each.

    Three heads make nine tiles of keys, so that every stage of the rings of four is waited for; scores of the second tile are
    much larger, so that O is rescaled. And again on one short sequence, as for `forward`.
    """
    from mxfp8fa.kernels.forward.names import names

    (compiled, args), (_, short) = _jagged_call(3, (130, 20, 0, 40), (200, 0, 30, 70)), _jagged_call(1, (0, 130), (0, 40))
    return Target(compiled, args, names(64), {"wait_ld": "required"}, more=(short,))


def _jagged_call(num_heads: int, queries: tuple[int, ...], keys: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
    import numpy as np
    import torch

    from mxfp8fa.kernels import MXOperand
    from mxfp8fa.kernels.forward import forward_arguments
    from mxfp8fa.kernels.jagged import Jagged
    from mxfp8fa.numerics import quantize

    rng = np.random.default_rng(0)
    cu = [np.cumsum((0, *lengths), dtype=np.int32) for lengths in (queries, keys)]
    arrays = [rng.standard_normal((c[-1], num_heads, 64)).astype(np.float32) for c in (cu[0], cu[1], cu[1])]
    arrays[1][:128] *= 8
    q, k, v = (
        MXOperand.from_mx_tensor(quantize(x, axes=axis, tail="partial", cu_seqlens=c))
        for x, c, axis in zip(arrays, (cu[0], cu[1], cu[1]), (2, 2, 0), strict=True)
    )
    cu_q, cu_k = map(torch.from_numpy, cu)
    sequences = Jagged(cu_q, cu_k, int(cu_q[-1]), int(cu_k[-1]), exact=True)
    compiled, args, _ = forward_arguments(q, k, v, softmax_scale=0.125, sequences=sequences, ctas=1)
    return compiled, args


def backward(dq_accumulate: Literal["float32", "float16"] = "float32") -> Target:
    """The backward's main kernel: four tiles of queries, the last of them short, and one of keys, of dimension 64."""
    from mxfp8fa.studies.backward_runs import SQUARE, main_launch, random_call

    launch = main_launch(random_call((1, 500, 100, 1, 1, 64), options=replace(SQUARE, dq_accumulate=dq_accumulate)))
    return Target(launch.compiled, launch.arguments, launch.names, {"wait_ld": "required"})


def jagged_backward() -> Target:
    """The same on packed sequences: two tiles of keys that meet four and two tiles of queries, and keys without queries."""
    from mxfp8fa.studies.backward_runs import main_launch, random_packed_call

    launch = main_launch(random_packed_call((400, 0, 20, 130), (70, 5, 0, 30)))
    return Target(launch.compiled, launch.arguments, launch.names, {"wait_ld": "required"})


TARGETS: dict[str, Callable[[], Target]] = {
    "step2": k_loop, "step3": block_scaled, "step6": kv_loop, "step7": warp_specialised, "forward": forward,
    "jagged": jagged, "backward": backward, "backward-fp16": partial(backward, "float16"), "jagged-backward": jagged_backward,
}  # fmt: skip


def require_kernels() -> None:
    """Kernels can be compiled, for sm_100a unless the user says otherwise.

    Raises:
        CommandError: a package is missing.
    """
    missing = [name for name in ("cutlass", "llvmlite", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"{' and '.join(missing)} cannot be imported. Compiling kernels needs the extra `kernels`, which is "
            "published for Linux only: pip install 'mxfp8fa[kernels]'"
        )
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")


def load_target(text: str) -> Target:
    """Compile the target.

    Raises:
        CommandError: no such name, file or function, or the function returned something else.
    """
    require_kernels()
    if text in TARGETS:
        return TARGETS[text]()
    if text in PEER_TARGETS:
        place = CHECKOUT / PEER_TARGETS[text]
        if not Path(str(place).partition(":")[0]).is_file():
            raise CommandError(f"{text} is somebody else's kernel; its target is {PEER_TARGETS[text]} of a checkout")
        text = str(place)
    path, colon, function = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        known = ", ".join([*TARGETS, *PEER_TARGETS])
        raise CommandError(f"{text}: there is no such target; allowed are {known}, and FILE.py:FUNCTION")
    return _from_file(Path(path), function)


def _from_file(path: Path, function: str) -> Target:
    if not path.is_file():
        raise CommandError(f"{path}: there is no such file")
    import mxfp8fa.emulator  # noqa: F401  (from here on compiled functions keep their PTX)

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if not callable(make):
        raise CommandError(f"{path} has no function {function}")
    made = make()
    if isinstance(made, Target):
        return made
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple | list):
        raise CommandError(f"{path}:{function} must return (compiled, args) or (compiled, args, names)")
    return Target(made[0], tuple(made[1]), *made[2:])

"""Run a kernel where its tensors are: CPU tensors in the emulator, CUDA tensors on a Blackwell GPU; compile once.

    execute(function, *args, device=q.device)          compiled on the first call of its kind, then taken from a cache
    with emulation(check="races") as report: ...       how kernels on CPU tensors run, and what they did

Importing this touches neither CUDA nor the CuTe DSL.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from mxfp8fa.emulator import Report
    from mxfp8fa.emulator.api import Progress
    from mxfp8fa.emulator.machine.watch import Watch
    from mxfp8fa.emulator.names import Names

# Code for an "a" target runs on exactly that compute capability (CUDA C++ Programming Guide, "Architecture-Specific
# Features"). The tensor-core instructions used here exist on both.
TARGETS = {(10, 0): "sm_100a", (10, 3): "sm_103a"}
EMULATED_TARGET = "sm_100a"
B200_SMS = 148

TYPICAL_RATE = 50_000.0  # warp-instructions a second on one core of a cloud machine
TIMED_INSTRUCTIONS = 20_000  # shorter runs say little about the speed of long ones

_compiled: dict[Any, Any] = {}
_rates: list[float] = []


@dataclass
class _Settings:
    """How kernels on CPU tensors run."""

    report: Report | None = None
    progress: Progress = None
    trace: Watch | None = None
    options: dict[str, Any] = field(default_factory=dict)


_settings: ContextVar[_Settings] = ContextVar("emulation", default=_Settings())  # noqa: B039 (never modified)


@contextlib.contextmanager
def emulation(*, progress: Progress = None, trace: Watch | None = None, **options: Any) -> Iterator[Report]:
    """While open, kernels on CPU tensors run like this in the emulator. CUDA tensors are not concerned.

    Args:
        progress: True (lines on stderr), or a function that takes a line.
        trace: an observer of the runs, usually an `emulator.Trace`.
        **options: fields of the emulator's `Options`: check, schedule, seed, accumulate, ...

    Yields:
        A Report that grows with every launch.

    Raises:
        ValueError: an option that does not exist, or a value that is not allowed.
    """
    from dataclasses import fields

    from mxfp8fa.emulator import Report
    from mxfp8fa.emulator.machine.launch import Options

    known = [f.name for f in fields(Options)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; allowed: {', '.join(known)}")
    Options(**options)  # refuses values
    report = Report()
    token = _settings.set(_Settings(report, progress, trace, options))
    try:
        yield report
    finally:
        _settings.reset(token)


@contextlib.contextmanager
def progress_lines(show: Callable[[str], None]) -> Iterator[Callable[[str], None] | None]:
    """While open, emulated kernels tell `show` how far they are, unless an open `emulation` has its own progress.

    Yields:
        `show`, or None if it is not used.
    """
    settings = _settings.get()
    if settings.progress is not None:
        yield None
        return
    token = _settings.set(replace(settings, progress=show))
    try:
        yield show
    finally:
        _settings.reset(token)


def emulated_rate() -> float:
    """Warp-instructions a second: of the last emulated kernel of some length in this process, else a typical figure."""
    return _rates[-1] if _rates else TYPICAL_RATE


def target_of(device: torch.device) -> str:
    """What kernels are compiled for when their tensors are on `device`.

    Raises:
        ValueError: no kernel runs there; says what to do.
    """
    if device.type == "cpu":
        return EMULATED_TARGET
    instead = "CPU tensors run in the emulator, without a GPU: move them with .cpu()"
    if device.type != "cuda":
        raise ValueError(f"tensors are on {device}; allowed: CUDA devices of compute capability 10.0 or 10.3. {instead}")
    capability = torch.cuda.get_device_capability(device)
    if capability not in TARGETS:
        major, minor = capability
        raise ValueError(
            f"tensors are on {device}, {torch.cuda.get_device_name(device)} of compute capability {major}.{minor}; "
            f"block-scaled tensor-core instructions with tensor memory need 10.0 (B200, GB200) or 10.3 (B300, GB300). "
            f"{instead}"
        )
    return TARGETS[capability]


def sm_count(device: torch.device) -> int:
    """How many CTAs of a persistent kernel run at the same time on `device`: one for each SM, emulated ones too."""
    if device.type == "cpu":
        return _settings.get().options.get("sm_count", B200_SMS)
    return torch.cuda.get_device_properties(device).multi_processor_count


def require_toolchain() -> None:
    """Refuse to go on where kernels cannot be compiled.

    Raises:
        ModuleNotFoundError: the extra `kernels` is not installed.
    """
    missing = [name for name in ("cutlass", "llvmlite") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"{' and '.join(missing)} cannot be imported; compiling and emulating kernels needs the extra `kernels`, "
            "which is published for Linux only: pip install 'mxfp8fa[kernels]'"
        )


def execute(
    function: Callable[..., None],
    *args: Any,
    device: torch.device,
    constants: tuple[Any, ...] = (),
    names: Names | None = None,
    **emulator_options: Any,
) -> None:
    """Compile a @cute.jit function for `device`, once for all arguments of one kind, and run it.

    Args:
        function: launches the kernel.
        *args: what it takes at run time; tensors come from `launch.gmem`.
        device: where the tensors are.
        constants: what it takes after that, compiled in.
        names: of roles, barriers and buffers, for the checker's reports.
        **emulator_options: for CPU tensors; those of an open `emulation` take precedence.

    Raises:
        ValueError: no kernel runs on `device`.
        EmulationError: the kernel did something wrong in the emulator.
    """
    compiled = compile_once(function, *args, constants=constants, target=target_of(device))
    if device.type != "cpu":
        with _default_stream(device):
            compiled(*args)
        return
    from mxfp8fa.emulator import run

    settings = _settings.get()
    options = {**emulator_options, **settings.options}
    report = run(compiled, *args, progress=settings.progress, trace=settings.trace, names=names, **options)
    if report.warp_instructions > TIMED_INSTRUCTIONS:
        _rates[:] = [report.warp_instructions / report.seconds]
    if settings.report is not None:
        settings.report.launches += report.launches


@contextlib.contextmanager
def _default_stream(device: torch.device) -> Iterator[None]:
    """Work on the default stream, where compiled functions launch, in its place among the work of the current stream."""
    with torch.cuda.device(device):
        current, default = torch.cuda.current_stream(), torch.cuda.default_stream()
        default.wait_stream(current)
        yield
        current.wait_stream(default)


def compile_once(
    function: Callable[..., None], *args: Any, constants: tuple[Any, ...] = (), target: str = EMULATED_TARGET
) -> Any:
    """The compiled function for arguments of this kind: tensors that differ only in sizes left open share one."""
    key = (function, target, tuple(map(_kind, args)), constants)
    if key not in _compiled:
        from mxfp8fa.kernels.launch import compile_kernel

        _compiled[key] = compile_kernel(function, *args, *constants, target=target)
    return _compiled[key]


def _kind(arg: Any) -> Any:
    """What of a run-time argument is compiled in: a tensor's type and fixed sizes, a number's type."""
    if isinstance(arg, tuple | list):
        return tuple(map(_kind, arg))
    return getattr(arg, "__cache_key__", type(arg))

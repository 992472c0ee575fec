"""The emulator's front door: run a compiled CuTe DSL function, a whole program, or a PTX text on the CPU.

report = run(compiled, a, b, c)                  # c holds the result
with active() as report: program()               # every compiled function called in here runs in the emulator
report = run_ptx(ptx, "kernel", grid=..., block=..., params=[...])
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

from mxfp8fa.emulator.check import Checker
from mxfp8fa.emulator.errors import EmulationError
from mxfp8fa.emulator.launch import run_machine
from mxfp8fa.emulator.machine.launch import LaunchSpec, Options
from mxfp8fa.emulator.machine.machine import Machine
from mxfp8fa.emulator.machine.memory import GlobalMemory, Range
from mxfp8fa.emulator.machine.program import Program, load_program
from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.emulator.names import Names
from mxfp8fa.emulator.report import LaunchReport, Report
from mxfp8fa.emulator.trace import Watches

if TYPE_CHECKING:
    from mxfp8fa.emulator.host import HostCall, Launch, MemoryRange

OPTION_NAMES = tuple(field.name for field in fields(Options))
Progress = Callable[[str], None] | bool | None
Dim = int | Sequence[int]
_PROGRESS_EVERY_SECONDS = 2.0


def run(
    compiled: Any,
    *args: Any,
    allow: Sequence[Any] = (),
    progress: Progress = None,
    trace: Watch | None = None,
    names: Names | None = None,
    **keywords: Any,
) -> Report:
    """Run a compiled CuTe DSL function in the emulator, host code and all its kernels.

    Args:
        compiled: what `cute.compile` returned for CUTE_DSL_ARCH=sm_100a.
        *args: as for calling it: CPU tensors, pointers, numbers.
        allow: further valid global memory: tensors, arrays or (address, size_bytes) pairs.
        progress: True (lines on stderr), or a function that takes a line; None is silent.
        trace: an observer of the run, usually a `Trace`, to be looked at afterwards.
        names: names of roles, barriers and buffers for the checker's reports (`kernels.names.names_of`).
        **keywords: fields of `Options` (schedule, seed, uninitialised, accumulate, wait_ld, check, sm_count, ...);
            everything else goes to the compiled function.

    Returns:
        A Report: launches, warp-instructions by opcode, bytes by memory, wall time, findings of the checker.

    Raises:
        EmulationError: the kernel did something wrong; it says what and where.
        HostError: the host code needs what a CPU cannot give.
    """
    from mxfp8fa.emulator.host import HostCall

    options = Options(**{k: keywords.pop(k) for k in list(keywords) if k in OPTION_NAMES})
    report = Report()
    _run_call(HostCall(compiled, args, keywords), options, allow, _printer(progress), trace, report, names)
    return report


@contextlib.contextmanager
def active(
    *,
    allow: Sequence[Any] = (),
    progress: Progress = None,
    trace: Watch | None = None,
    shims: bool = True,
    **options: Any,
) -> Iterator[Report]:
    """While open, every compiled CuTe DSL function that is called runs in the emulator.

    Args:
        allow: as for `run`.
        progress: as for `run`.
        trace: as for `run`.
        shims: also answer what programs ask of torch.cuda, cuda.bindings and HardwareInfo (see `host.cuda_shims`).
        **options: fields of `Options`.

    Yields:
        The Report, which grows with every launch.
    """
    from mxfp8fa.emulator import host

    chosen = _options(options)
    report, show = Report(), _printer(progress)
    with contextlib.ExitStack() as stack:
        if shims:
            stack.enter_context(host.cuda_shims(sm_count=chosen.sm_count))
        stack.enter_context(host.active(lambda call: _run_call(call, chosen, allow, show, trace, report)))
        yield report


def run_ptx(
    ptx: str, kernel: str, *, grid: Dim, block: Dim, cluster: Dim = 1, smem_bytes: int = 0, params: Sequence[Any] | bytes = (),
    allow: Sequence[Any] = (), progress: Progress = None, trace: Watch | None = None, names: Names | None = None, **options: Any,
) -> Report:  # fmt: skip
    """Run one kernel of a PTX text.

    Args:
        ptx: PTX from anywhere.
        kernel: name of an entry point in it.
        grid: CTAs, an int or up to three.
        block: threads of a CTA, likewise.
        cluster: CTAs of a cluster, likewise.
        smem_bytes: dynamic shared memory of a CTA.
        params: one value per parameter (arrays and tensors give their address and become valid memory), or the whole
            parameter block as bytes.
        allow: as for `run`.
        progress: as for `run`.
        trace: as for `run`.
        names: as for `run`.
        **options: fields of `Options`.

    Returns:
        A Report with one launch.

    Raises:
        PTXSyntaxError: the text is not PTX.
        EmulationError: the kernel did something wrong; it says what and where.
        ValueError: parameters or options that do not fit.
    """
    from mxfp8fa.emulator.host.memory import allowed_range
    from mxfp8fa.emulator.parameters import pack_parameters

    chosen = _options(options)
    program = load_program(ptx, kernel)
    ranges = [r for item in allow for r in allowed_range(item)]
    if isinstance(params, bytes | bytearray):
        block_bytes = bytes(params)
    else:
        block_bytes, own = pack_parameters(program.kernel, params)
        ranges += own
    spec = LaunchSpec(_dim3(grid, "grid"), _dim3(block, "block"), _dim3(cluster, "cluster"), smem_bytes, block_bytes)
    report = Report()
    _launch(program, spec, ranges, chosen, _printer(progress), trace, report, names)
    return report


def _options(given: dict[str, Any]) -> Options:
    unknown = [name for name in given if name not in OPTION_NAMES]
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}: allowed are {', '.join(OPTION_NAMES)}")
    return Options(**given)


def _run_call(
    call: HostCall,
    options: Options,
    allow: Sequence[Any],
    show: Callable[[str], None] | None,
    trace: Watch | None,
    report: Report,
    names: Names | None = None,
) -> None:
    from mxfp8fa.emulator.host import Device

    ranges = call.memory_ranges(allow)
    history: list[Checker] = []

    def on_launch(launch: Launch) -> None:
        program = load_program(launch.ptx, launch.kernel)
        _launch(program, launch_spec(program, launch), ranges, options, show, trace, report, names, history)

    call.execute(on_launch, device=Device(sm_count=options.sm_count), allow=allow)


def launch_spec(program: Program, launch: Launch) -> LaunchSpec:
    """A launch of the host code, as the machine takes it."""
    overlaps = launch.programmatic_stream_serialization
    params = _join(program, launch.params)
    return LaunchSpec(launch.grid, launch.block, launch.cluster, launch.smem_bytes, params, overlaps)


def _join(program: Program, params: Sequence[bytes]) -> bytes:
    """The parameter block from the bytes of each parameter."""
    block = bytearray(program.kernel.param_bytes)
    for variable, data in zip(program.kernel.params, params, strict=True):
        start = variable.offset_bytes or 0
        block[start : start + len(data)] = data
    return bytes(block)


def _launch(
    program: Program, spec: LaunchSpec, ranges: Sequence[MemoryRange], options: Options,
    show: Callable[[str], None] | None, trace: Watch | None, report: Report, names: Names | None = None,
    history: list[Checker] | None = None,
) -> None:  # fmt: skip
    start = time.perf_counter()
    memory = GlobalMemory(program.ranges() + [Range(r.address, r.size_bytes, r.name, r.writable, r) for r in ranges])
    report.load(program.variables)
    program.begin(spec.params)
    watches = [] if trace is None else [trace]
    checker = _checker(spec, options, names, history or []) if options.check == "races" else None
    if checker is not None:
        watches.append(checker)
    watch = Watches(watches) if len(watches) > 1 else watches[0] if watches else None
    tick = None if show is None else _ticker(program, spec, show)
    try:
        machine = run_machine(program, spec, memory, options, tick, watch)
    except EmulationError as error:
        error.findings = checker.findings() if checker is not None else []
        raise
    report.launches.append(
        LaunchReport(
            program.kernel.name,
            spec.grid,
            spec.block,
            spec.cluster,
            spec.smem_bytes,
            program.opcode_counts(),
            dict(machine.bytes_moved),
            time.perf_counter() - start,
            options.schedule,
            options.seed,
            machine.watch.findings(),
            checker.allowed() if checker is not None else [],
        )
    )
    if checker is not None and history is not None:
        history[:] = [checker]


def _checker(spec: LaunchSpec, options: Options, names: Names | None, history: list[Checker]) -> Checker:
    """The checker of a launch; one that may overlap the launch before is checked against it."""
    return Checker(
        assume_mma_cp_order=options.assume_mma_cp_order,
        assume_tcgen05_order=options.assume_tcgen05_order,
        assume_read_order=options.assume_read_order,
        names=names,
        predecessor=history[-1] if history and spec.overlaps else None,
    )


def _printer(progress: Progress) -> Callable[[str], None] | None:
    if progress is True:
        return lambda line: print(line, file=sys.stderr, flush=True)
    return progress or None


def _ticker(program: Program, spec: LaunchSpec, show: Callable[[str], None]) -> Callable[[Machine], None]:
    """Says now and then how far a launch is."""
    total = spec.grid[0] * spec.grid[1] * spec.grid[2]
    size = spec.cluster[0] * spec.cluster[1] * spec.cluster[2]
    started = last = time.perf_counter()

    def tick(machine: Machine) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= _PROGRESS_EVERY_SECONDS:
            last = now
            done = machine.finished_clusters * size
            show(
                f"{program.kernel.name}: {done} of {total} CTAs, {machine.instructions:,} warp-instructions, {now - started:.0f} s"
            )

    return tick


def _dim3(shape: Dim, what: str) -> tuple[int, int, int]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(s, Integral) and s >= 1 for s in sizes):
        raise ValueError(f"{what} {shape!r}: one to three integers of at least 1 are needed")
    x, y, z = (int(s) for s in (*sizes, 1, 1)[:3])
    return x, y, z

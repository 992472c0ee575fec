"""One call of a compiled function: its arguments, its memory, and running its host code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import driver
from .arguments import argument_addresses, argument_names, call_tvm_ffi, runtime_arguments, tvm_ffi_arguments
from .device import SM_COUNT, SMEM_BYTES_MAX, Device
from .dsl import ptx_of
from .errors import HostError
from .launch import Launch
from .memory import MemoryRange, allowed_range, memory_ranges
from .program import HostProgram, load_program

OnLaunch = Callable[[Launch], None]


@dataclass
class HostCall:
    """A compiled function and the arguments of one call.

    Attributes:
        compiled: what `cute.compile` returned.
        args: positional arguments, as the user gave them.
        kwargs: keyword arguments, as the user gave them.
        execution_args: the arguments as the DSL already converted them (a direct call of a `@cute.jit` function), or
            None to convert `args` and `kwargs`.
        names: names of `args`; None for the names of the compiled function's runtime arguments.
    """

    compiled: Any
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    execution_args: Sequence[Any] | None = None
    names: Sequence[str] | None = None

    def memory_ranges(self, allow: Sequence[Any] = ()) -> list[MemoryRange]:
        """Valid global memory of this call: storages of the tensors passed, and `allow`."""
        names = argument_names(self.compiled) if self.names is None else self.names
        extra = [memory for item in allow for memory in allowed_range(item)]
        return sorted([*memory_ranges(self.args, self.kwargs, names), *extra], key=lambda r: r[:4])

    def execute(self, on_launch: OnLaunch, *, device: Device | None = None, allow: Sequence[Any] = ()) -> int:
        """Run the host code; see `run_host`."""
        if not self.compiled.has_gpu_module:
            raise HostError(f"{self.compiled.function_name} launches no kernel; call it directly")
        program = load_program(self.compiled, ptx_of(self.compiled))
        run = driver.HostRun(
            ptx=program.ptx,
            entries=program.entries,
            kernels=program.kernels,
            device=device or Device(),
            on_launch=on_launch,
            memory=self.memory_ranges(allow),
        )
        if program.is_tvm_ffi:
            self._call_tvm_ffi(program, run)
            return driver.SUCCESS
        return self._call_packed(program, run)

    def _call_packed(self, program: HostProgram, run: driver.HostRun) -> int:
        execution_args, keep_alive = self.execution_args, None
        if execution_args is None:
            args, kwargs = runtime_arguments(self.compiled, self.args, self.kwargs)
            execution_args, keep_alive = self.compiled.execution_args.generate_execution_args(args, kwargs)
        code = program.call(argument_addresses(execution_args), run)
        del keep_alive
        if code != driver.SUCCESS:
            raise HostError(f"the host code of {self.compiled.function_name} returned CUDA error {code}")
        return code

    def _call_tvm_ffi(self, program: HostProgram, run: driver.HostRun) -> None:
        """Call the TVM-FFI entry point the way the compiled function itself does."""
        entry_point = program.tvm_ffi_function()

        def target(*args: Any) -> Any:
            return entry_point(*tvm_ffi_arguments(args))

        args, kwargs = self.args, self.kwargs
        if self.execution_args is not None:
            args, kwargs = self.execution_args, {}
        with run.entered():
            try:
                call_tvm_ffi(self.compiled, target, *runtime_arguments(self.compiled, args, kwargs))
            except Exception:
                if run.error is None:  # otherwise it only reports that a callback failed
                    raise


def run_host(
    compiled: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None,
    on_launch: OnLaunch,
    *,
    sm_count: int = SM_COUNT,
    smem_bytes_max: int = SMEM_BYTES_MAX,
    allow: Sequence[Any] = (),
) -> int:
    """Run a compiled function's own host code on the CPU and catch its kernel launches.

    Args:
        compiled: what `cute.compile` returned, with its PTX (see `dsl.ptx_of`).
        args: positional arguments, exactly as for `compiled(*args)`.
        kwargs: keyword arguments.
        on_launch: called once per launch, in order, while the host code waits.
        sm_count: number of SMs that the device reports.
        smem_bytes_max: largest dynamic shared memory of one block that the device reports.
        allow: further device memory that host-side copies may touch, as in `memory_ranges`.

    Returns:
        0, the host code's cudaError_t.

    Raises:
        HostError: the host code needs what a CPU cannot give, or returned an error.
        LaunchError: a launch that the device would refuse.
        Exception: whatever `on_launch` raised; the remaining launches of the call are skipped.
    """
    device = Device(sm_count=sm_count, smem_bytes_max=smem_bytes_max)
    return HostCall(compiled, tuple(args), dict(kwargs or {})).execute(on_launch, device=device, allow=allow)

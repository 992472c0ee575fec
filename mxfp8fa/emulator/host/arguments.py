"""Arguments of a compiled function, as its host code takes them.

`compiled(...)` takes the runtime arguments only: `Constexpr` ones are baked in. Calls with all the arguments that were
given to `cute.compile` are accepted too, and the `Constexpr` ones left out.
"""

from __future__ import annotations

import ctypes
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

from .cuda_view import CudaArray, plain, unwrap

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def runtime_arguments(compiled: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """Leave out the arguments that are baked into the compiled function.

    Raises:
        ValueError: there are more positional arguments than the function has.
    """
    execution = compiled.execution_args
    constexpr = [c["argument_name"] for c in execution.get_constexpr_args() if c["argument_name"] != "self"]
    runtime = list(execution.signature.parameters)
    kwargs = {name: value for name, value in kwargs.items() if name not in constexpr}
    if len(args) <= len(runtime) + getattr(compiled, "total_added_arguments", 0):
        return tuple(args), kwargs
    every = [name for name in execution.original_signature.parameters if name != "self"]
    if len(args) > len(every):
        raise ValueError(
            f"{compiled.function_name} takes {len(runtime)} runtime arguments ({', '.join(runtime)}), got {len(args)}"
            + (f"; {', '.join(constexpr)} are Constexpr and left out" if constexpr else "")
        )
    return tuple(a for name, a in zip(every, args, strict=False) if name not in constexpr), kwargs


def argument_names(compiled: Any) -> list[str]:
    """Names of the runtime arguments, in order."""
    return list(compiled.execution_args.signature.parameters)


def argument_addresses(execution_args: Sequence[Any]) -> list[int]:
    """What `generate_execution_args` returns, as addresses: it mixes integers and ctypes pointers."""
    pointers = (a if isinstance(a, ctypes.c_void_p) else ctypes.c_void_p(a) for a in execution_args)
    return [pointer.value or 0 for pointer in pointers]


def call_tvm_ffi(compiled: Any, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call `target` with positional arguments made from `args` and `kwargs` as the compiled function makes them.

    A function whose signature has names or defaults carries a generated wrapper that sorts keywords, fills in defaults
    and unpacks dataclasses before it calls its own entry point; a copy of that wrapper calls `target` instead.
    """
    if compiled.execution_args.has_pointer_address_arg_specs:
        args, kwargs = compiled.execution_args.convert_python_pointer_args_for_tvm_ffi(tuple(args), kwargs)
    wrapper = getattr(compiled, "_kwargs_wrapper", None)
    if wrapper is not None:
        own = compiled._tvm_ffi_function
        scope = {name: target if value is own else value for name, value in wrapper.__globals__.items()}
        copy = types.FunctionType(wrapper.__code__, scope, wrapper.__name__, wrapper.__defaults__)
        copy.__kwdefaults__ = wrapper.__kwdefaults__
        return copy(*args, **kwargs)
    if kwargs:
        raise ValueError(f"{compiled.function_name} takes positional arguments only, got {', '.join(kwargs)} by name")
    return target(*args)


def tvm_ffi_arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    """Present every tensor as a CUDA tensor of TVM-FFI: functions compiled with `--enable-tvm-ffi` insist on it."""
    return tuple(_map_tensors(a, _tvm_ffi_tensor) for a in args)


def _tvm_ffi_tensor(tensor: Any) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(CudaArray(plain(tensor).detach() if hasattr(tensor, "untyped_storage") else tensor))


def _map_tensors(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply `convert` to the torch and NumPy tensors inside tuples, lists and dataclasses."""
    value = unwrap(value) if isinstance(value, CudaArray) else value
    if hasattr(value, "untyped_storage") or hasattr(value, "__array_interface__"):
        return convert(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(v, convert) for v in value))
    if isinstance(value, tuple | list):
        return type(value)(_map_tensors(v, convert) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: _map_tensors(getattr(value, f.name), convert) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changes)
    return value

"""What reductions of bulk and tensor copies compute, PTX ISA sections 9.7.9.25 and 9.7.9.27: operations by element type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation
from mxfp8fa.emulator.isa.trace import lane_function
from mxfp8fa.emulator.machine.tensor_map import TensorMap

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]  # old, new -> result, as raw words
# Element types of the operations of tensor reductions; an H200 faults on the others.
_TENSOR_REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"), "inc": ("u32",), "dec": ("u32",),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"), "and": ("u32", "s32", "u64", "s64"),
}  # fmt: skip
_TENSOR_REDUCTIONS |= {
    "max": _TENSOR_REDUCTIONS["min"],
    "or": _TENSOR_REDUCTIONS["and"],
    "xor": _TENSOR_REDUCTIONS["and"],
}


def of_tensor(op: str, tensor: TensorMap) -> Combine:
    """The operation on a tensor map's type; IllegalOperation if the type does not have it."""
    allowed = _TENSOR_REDUCTIONS[op]
    if tensor.type not in allowed:
        raise IllegalOperation(f"tensor reduction {op} on {tensor.type}; allowed: {', '.join(allowed)}")
    return _combine(op, tensor.type, tensor.element_bytes, flush=tensor.flush)


def _combine(op: str, type: str, size: int, *, flush: bool = False) -> Combine:
    """old op new on raw words.

    f32 addition keeps subnormals unless the tensor map's type flushes them: measured on an H200. (The PTX ISA says of
    cp.reduce.async.bulk that the present implementation flushes.)
    """
    if type in ("f32", "f64", "f16", "bf16"):
        name = f"{op}{'.ftz' if flush and op == 'add' else ''}.{type}"
    elif op in ("and", "or", "xor"):
        name = f"{op}.b{8 * size}"
    else:
        name = f"{op}.{type}"
    try:
        function = lane_function(name)
    except ValueError:
        raise IllegalOperation(f"reduction {op} on {type} does not exist") from None
    return lambda old, new: function(np.ones(old.size, bool), old, new)[0]


def of_type(op: str, type: str) -> tuple[int, Combine]:
    """Element size and combination of a typed reduction."""
    size = {"f16": 2, "bf16": 2}.get(type) or int(type[1:]) // 8
    plain = f"u{type[1:]}" if type[0] == "b" and type != "bf16" and op not in ("and", "or", "xor") else type
    return size, _combine(op, plain, size)

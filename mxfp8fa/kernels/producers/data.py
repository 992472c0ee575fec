"""What producers take and give, in the form that their kernels want it: checks, strides, tiles, memory for the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import make_ptr

from mxfp8fa.kernels.execution import compile_once, execute, target_of
from mxfp8fa.kernels.jagged import checked_offsets, tile_table
from mxfp8fa.kernels.operands import MXOperand, packed_shapes
from mxfp8fa.kernels.producers.fragment import Blocks
from mxfp8fa.layouts import TILE_TOKENS
from mxfp8fa.numerics.mx_tensor import BLOCK, element_format, normalize_axes
from mxfp8fa.numerics.quantize import TAILS, check_whole_blocks
from mxfp8fa.numerics.scale_rules import check_rule

ELEMENT_TYPES = {
    torch.float32: cutlass.Float32,
    torch.float16: cutlass.Float16,
    torch.bfloat16: cutlass.BFloat16,
    torch.uint8: cutlass.Uint8,
    torch.int32: cutlass.Int32,
}
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
ALIGNMENT_BYTES = 16  # of every row: accesses of 16 bytes
HOPPER = (9, 0)
EMULATED_MULTIPROCESSORS = 1
_TOKEN_AXIS = {2: 0, 3: 0, 4: 1}
_EMPTY_KERNEL = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\0"


def check_floats(name: str, x: torch.Tensor, *ranks: int) -> None:
    """Refuse what is not a tensor of floating-point numbers of these ranks, the last axis in whole blocks.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in FLOATS or x.ndim not in ranks:
        given = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        allowed = f"{', '.join(map(str, FLOATS))} of rank {' or '.join(map(str, ranks))}"
        raise ValueError(f"{name} is {given}; allowed: a tensor of {allowed}")
    if x.shape[-1] < BLOCK or x.shape[-1] % BLOCK:
        raise ValueError(f"{name} has {x.shape[-1]} columns; allowed: positive multiples of {BLOCK}")


def with_aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` if its last axis is contiguous and every row starts at a multiple of 16 bytes, else a contiguous copy."""
    unit = ALIGNMENT_BYTES // x.element_size()
    rows = all(stride % unit == 0 for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1)
    if x.stride(-1) == 1 and rows and x.data_ptr() % ALIGNMENT_BYTES == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Tokens:
    """How the tokens of some data fall into tiles of 128.

    Attributes:
        batches: 1 for packed sequences.
        seqlen: tokens of a batch.
        tiles: of a batch; of packed sequences on a GPU as many as there may be.
        table: (tiles, 2) int32, first token and number of tokens of every tile, for packed sequences (`jagged.tile_table`).
        cu_seqlens: int32, where these begin, on the device of the data.
    """

    batches: int
    seqlen: int
    tiles: int
    table: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None


def tokens_of(
    shape: tuple[int, ...], cu_seqlens: torch.Tensor | None, device: torch.device, *, validate: bool = False
) -> Tokens:
    """The tiles of data of shape (S, D), (B, S, H, D), or (T, H, D) with cu_seqlens.

    Raises:
        ValueError: a rank that does not fit, or `cu_seqlens` that is no cumulative lengths of axis 0 (values on a GPU are
            only looked at with `validate`, which waits for it).
    """
    if (len(shape) == 3) != (cu_seqlens is not None):
        raise ValueError(f"shape {shape}: rank 3 is packed sequences and needs cu_seqlens; ranks 2 and 4 have none")
    if cu_seqlens is None:
        seqlen = shape[_TOKEN_AXIS[len(shape)]]
        return Tokens(shape[0] if len(shape) == 4 else 1, seqlen, -(-seqlen // TILE_TOKENS))
    offsets = checked_offsets(cu_seqlens, shape[0], device, validate=validate)
    table = tile_table(offsets, shape[0])
    return Tokens(1, shape[0], len(table), table, offsets)


def make_blocks(
    shape: tuple[int, ...], axes: int | Sequence[int], fmt: str, rule: str, tail: str, tokens: Tokens
) -> Blocks:
    """What a kernel is to make of data of this shape.

    To refuse short blocks of tokens of packed sequences, tail="error" reads their lengths, which waits for a GPU.

    Raises:
        ValueError: axes, a format, rule or tail that is not allowed.
    """
    positive = normalize_axes(axes, len(shape))
    check_rule(rule)
    if tail not in TAILS:
        raise ValueError(f"tail = {tail!r}; allowed: {', '.join(TAILS)}")
    token, last = _TOKEN_AXIS[len(shape)], len(shape) - 1
    if not set(positive) <= {token, last}:
        raise ValueError(f"axes = {axes}; allowed for shape {shape}: {token}, {last} or both")
    if tail == "error":
        packed = tokens.cu_seqlens if token in positive else None
        check_whole_blocks(shape, positive, None if packed is None else packed.cpu().numpy())
    return Blocks(last in positive, token in positive, element_format(fmt).name, rule)


def empty_operand(shape: tuple[int, ...], blocks: Blocks, tokens: Tokens, device: torch.device) -> MXOperand:
    """An operand for a kernel to fill."""
    axes = tuple(axis for axis, on in ((_TOKEN_AXIS[len(shape)], blocks.token), (len(shape) - 1, blocks.last)) if on)
    shapes = packed_shapes(shape, axes, None if tokens.table is None else tokens.tiles)
    scales = {rows: torch.empty(packed, dtype=torch.uint8, device=device) for rows, packed in shapes.items()}
    return MXOperand(torch.empty(shape, dtype=torch.uint8, device=device), scales, axes, blocks.fmt, tokens.cu_seqlens)


def sizes_and_strides(x: torch.Tensor, tokens: Tokens) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Of (S, D), (B, S, H, D) or (T, H, D), as kernels take them.

    Returns:
        (batches, seqlen, heads, head dimension, tiles) and the strides of batch, token and head, in elements.
    """
    heads = 1 if x.ndim == 2 else x.shape[-2]
    batch, token, head = {2: (0, x.stride(0), 0), 3: (0, *x.stride()[:2])}.get(x.ndim) or tuple(x.stride()[:3])
    sizes = tokens.batches, tokens.seqlen, heads, x.shape[-1], tokens.tiles
    return tuple(map(cutlass.Int32, sizes)), tuple(map(cutlass.Int64, (batch, token, head)))


def pointer(tensor: torch.Tensor | None, element_type: type[cutlass.Numeric] | None = None) -> Any:
    """The first element of a tensor in global memory; None stays None."""
    if tensor is None:
        return None
    found = element_type or ELEMENT_TYPES[tensor.dtype]
    return make_ptr(found, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=ALIGNMENT_BYTES)


def multiprocessors(device: torch.device) -> int:
    """SMs that a persistent kernel may count on; few in the emulator, so that every CTA has several turns."""
    if device.type == "cpu":
        return EMULATED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def resident_clusters(device: torch.device, size: int) -> int:
    """Clusters of so many CTAs that run at the same time, if each CTA has an SM for itself.

    Fewer than SMs over `size`: a cluster stays inside a GPC, whose SMs need not be a multiple of it. As for a kernel that
    takes nearly all shared memory of an SM.
    """
    return multiprocessors(device) if size == 1 or device.type == "cpu" else _resident_clusters(device, size)


@functools.cache
def _resident_clusters(device: torch.device, size: int) -> int:
    from cuda.bindings import driver

    def checked(result: tuple[Any, ...]) -> Any:
        if result[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {result[0].name}")
        return result[1] if len(result) == 2 else None

    with torch.cuda.device(device):
        torch.cuda.current_stream().query()  # there is a context from here on, and nobody waited
        module = checked(driver.cuModuleLoadData(_EMPTY_KERNEL))
        function = checked(driver.cuModuleGetFunction(module, b"nothing"))
        smem_bytes = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(function, attribute, smem_bytes))
        config, cluster = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
        cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = size, 1, 1
        config.gridDimX, config.gridDimY, config.gridDimZ = size, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 128, 1, 1
        config.sharedMemBytes, config.attrs, config.numAttrs = smem_bytes, [cluster], 1
        return checked(driver.cuOccupancyMaxActiveClusters(function, config))


def target_for(device: torch.device) -> str:
    """What a producer that needs no tensor memory is compiled for: Hopper has all that it uses as well.

    Raises:
        ValueError: no producer runs there.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER:
        return "sm_90a"
    return target_of(device)


def launch(
    function: Callable[..., None], *args: Any, device: torch.device, constants: tuple[Any, ...], memory: Sequence[Any]
) -> None:
    """Run a kernel where its tensors are: on a GPU, on the current stream, or in the emulator.

    Args:
        function: launches the kernel; takes args, the stream and constants.
        *args: at run time.
        device: where the tensors are.
        constants: compiled in.
        memory: the tensors that pointers among `args` lead to; None is left out.
    """
    from cuda.bindings.driver import CUstream

    if device.type == "cpu":
        allow = [tensor for tensor in memory if tensor is not None]
        execute(function, *args, CUstream(0), device=device, constants=constants, allow=allow)
        return
    target = target_for(device)
    stream = CUstream(torch.cuda.current_stream(device).cuda_stream)
    compiled = compile_once(function, *args, stream, constants=constants, target=target)
    with torch.cuda.device(device):
        compiled(*args, stream)

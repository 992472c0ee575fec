"""Small CuTe DSL programs that the host tests compile."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

THREADS = 128


@cute.kernel
def scale_add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, scale: cutlass.Float32, times: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    c[i] = a[i] + b[i] * scale * times


@cute.jit
def scale_add(a: cute.Tensor, times: cutlass.Constexpr, b: cute.Tensor, c: cute.Tensor, scale: cutlass.Float32):
    blocks = cute.ceil_div(cute.size(a), THREADS)
    scale_add_kernel(a, b, c, scale, times).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def fill_kernel(out: cute.Tensor, value: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    out[thread] = value


@cute.jit
def three_launches(a: cute.Tensor, b: cute.Tensor, smem_bytes: cutlass.Int32, stream):
    """Two kernels, three launches, every launch attribute the DSL can set."""
    fill_kernel(a, 1.0).launch(grid=(1, 2, 3), block=(32, 2, 1), smem=smem_bytes, stream=stream)
    scale_add_kernel(a, b, b, 2.0, 1).launch(
        grid=(4, 1, 1), block=(THREADS, 1, 1), cluster=(2, 1, 1), use_pdl=True, stream=stream
    )
    fill_kernel(b, 3.0).launch(grid=(4, 4, 1), block=(64, 1, 1), cooperative=True, stream=stream)


@cute.jit
def preferred_cluster(a: cute.Tensor):
    fill_kernel(a, 1.0).launch(
        grid=(8, 4, 1), block=(32, 1, 1), fallback_cluster=(2, 1, 1), cluster=(2, 4, 1)
    )


@cute.kernel
def scalars_kernel(
    out: cute.Tensor,
    i8: cutlass.Int8,
    u8: cutlass.Uint8,
    i16: cutlass.Int16,
    u32: cutlass.Uint32,
    i64: cutlass.Int64,
    flag: cutlass.Boolean,
    f16: cutlass.Float16,
    f32: cutlass.Float32,
    f64: cutlass.Float64,
):
    total = i8 + u8 + i16 + u32 + i64
    if flag:
        out[0] = f32 + f16.to(cutlass.Float32) + f64.to(cutlass.Float32)
    else:
        out[0] = total.to(cutlass.Float32)


@cute.jit
def scalars(
    out: cute.Tensor,
    i8: cutlass.Int8,
    u8: cutlass.Uint8,
    i16: cutlass.Int16,
    u32: cutlass.Uint32,
    i64: cutlass.Int64,
    flag: cutlass.Boolean,
    f16: cutlass.Float16,
    f32: cutlass.Float32,
    f64: cutlass.Float64,
):
    scalars_kernel(out, i8, u8, i16, u32, i64, flag, f16, f32, f64).launch(grid=(1, 1, 1), block=(1, 1, 1))


@dataclass
class Settings:
    out: cute.Tensor
    value: cutlass.Float32


@cute.kernel
def nested_kernel(settings: Settings, pair: tuple, start: cute.Pointer, nothing):
    first, second = pair
    memory = cute.make_tensor(start, cute.make_layout(4))
    settings.out[0] = settings.value + first[0] + memory[second]


@cute.jit
def nested(settings: Settings, pair: tuple, start: cute.Pointer, nothing):
    nested_kernel(settings, pair, start, nothing).launch(grid=(1, 1, 1), block=(1, 1, 1))


@cute.jit
def no_kernel(x: cutlass.Int32):
    cute.printf("host only {}", x)


@cute.kernel
def tma_kernel(atom: cute.CopyAtom, tensor: cute.Tensor):
    cpasync.prefetch_descriptor(atom)


@cute.jit
def tma(a: cute.Tensor, rows: cutlass.Constexpr, columns: cutlass.Constexpr, swizzle_bits: cutlass.Constexpr):
    """A tensor map for boxes of rows x columns, encoded by the host code itself."""
    box = cute.make_layout((rows, columns), stride=(columns, 1))
    layout = cute.make_composed_layout(cute.make_swizzle(swizzle_bits, 4, 3), 0, box)
    atom, tensor = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), a, layout, (rows, columns))
    tma_kernel(atom, tensor).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.jit
def host_arithmetic(a: cute.Tensor, x: cutlass.Int32, f: cutlass.Float32):
    """Host code with a branch, functions of the C library and output."""
    cute.printf("x = {}", x)
    blocks = x
    if x > 3:
        blocks = x + 1
    fill_kernel(a, cute.math.exp(f) + cute.math.tanh(f)).launch(grid=(blocks, 1, 1), block=(32, 1, 1))


@cute.jit
def host_assertion(a: cute.Tensor, x: cutlass.Int32):
    cute.testing.assert_(x > 3, "x must be larger")
    fill_kernel(a, 1.0).launch(grid=(1, 1, 1), block=(32, 1, 1))

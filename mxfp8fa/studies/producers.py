"""How fast the producers run on a GPU, beside a copy of as many bytes, and beside the same in several passes.

Effective bandwidth is bytes that have to move over time: every input read once, every output written once, whatever a
program moves besides. Medians of replays of a CUDA graph, which launches without the host; inputs and outputs rotate
through at least 256 MiB, several times an L2.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SHAPES = (
    (16384, 1024), (16384, 4096), (32768, 2048), (65536, 1024), (65536, 4096), (131072, 2048), (131072, 8192), (262144, 4096),
)  # fmt: skip
GEMM_SHAPES = (
    (8192, 2048, 1024), (8192, 4096, 2048), (8192, 4096, 4096), (65536, 2048, 1024), (65536, 4096, 2048), (65536, 4096, 4096),
)  # fmt: skip  (tokens, N, K)
BLOCK_KINDS = {"last axis": (1,), "tokens": (0,), "square": (0, 1)}
ROTATE_BYTES = 256 * 2**20
CODE_BYTES = 1 + 1 / 32  # per element: a code, and its share of a scale


@dataclass(frozen=True)
class Timing:
    """One measured time.

    Attributes:
        what: the operation.
        how: whose, or how made.
        shape: of the operation.
        us: median, microseconds.
        spread: (third quartile - first) / median.
        moved_bytes: that have to move; 0 for products.
        flops: floating-point operations of a product, else 0.
    """

    what: str
    how: str
    shape: tuple[int, ...]
    us: float
    spread: float
    moved_bytes: int = 0
    flops: int = 0

    @property
    def tb_per_s(self) -> float:
        """Effective bandwidth, 10^12 bytes a second."""
        return self.moved_bytes / self.us / 1e6

    @property
    def tflops(self) -> float:
        """10^12 floating-point operations a second."""
        return self.flops / self.us / 1e6


def measure(launches: Sequence[Callable[[], Any]], *, graph: bool = True, repeats: int = 11) -> tuple[float, float]:
    """Median microseconds of one launch, and its relative spread; what the launches return is kept while they are timed.

    Args:
        launches: the same work on different memory.
        graph: replay a graph of all launches; False launches from the host, for what is not worth capturing.
        repeats: how often.
    """
    import torch

    kept = [launch() for launch in launches]  # compiles, and fills caches
    torch.cuda.synchronize()

    def together() -> None:
        kept.clear()
        kept.extend(launch() for launch in launches)

    run: Callable[[], None] = together
    if graph:
        captured = torch.cuda.CUDAGraph()
        kept.clear()
        with torch.cuda.graph(captured):
            together()
        run = captured.replay
    times = []
    for i in range(repeats + 2):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(stop) * 1e3 / len(launches))
    quartiles = statistics.quantiles(times, n=4)
    return quartiles[1], (quartiles[2] - quartiles[0]) / quartiles[1]


def copies(moved_bytes: int) -> int:
    """How many inputs to rotate through."""
    return max(2, -(-ROTATE_BYTES // moved_bytes))


def time_copy(moved_bytes: int) -> Timing:
    """A device-to-device copy that reads half of the bytes and writes the other half, by the faster of two ways.

    torch's copy of equal types is the driver's; the other way is a kernel over the elements.
    """
    import torch

    half = moved_bytes // 2 // 16 * 16
    count = half // 4
    pairs = [[torch.randn(count, device="cuda") for _ in range(2)] for _ in range(copies(2 * half))]
    ways = {
        "driver": [lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs],
        "kernel": [lambda pair=pair: torch.neg(pair[0], out=pair[1]) for pair in pairs],
    }
    times = {way: measure(launches) for way, launches in ways.items()}
    way = min(times, key=lambda name: times[name][0])
    return Timing("copy", way, (2 * half,), *times[way], 2 * half)


def quantize_bytes(shape: tuple[int, int], kind: str, read_bytes: int = 2) -> int:
    """Bytes that have to move: BF16 in, codes out, and one scale in 32 codes for every orientation."""
    elements = shape[0] * shape[1]
    return int(elements * (read_bytes + 1 + (2 if kind == "square" else 1) / 32))


def time_quantize(shape: tuple[int, int], kind: str) -> Timing:
    """The fused quantizer."""
    from mxfp8fa.kernels.producers import quantize

    moved = quantize_bytes(shape, kind)
    us, spread = measure([lambda x=x: quantize(x, axes=BLOCK_KINDS[kind]) for x in inputs(shape, copies(moved))])  # type: ignore[misc]
    return Timing("quantize", kind, shape, us, spread, moved)


def time_rmsnorm(shape: tuple[int, int], kind: str) -> Timing:
    """RMSNorm fused with the quantizer, without y."""
    import torch

    from mxfp8fa.kernels.producers import rmsnorm_quantize

    moved = quantize_bytes(shape, kind) + 4 * shape[0]
    weight = torch.randn(shape[1], device="cuda").to(torch.bfloat16)
    launches = [lambda x=x: rmsnorm_quantize(x, weight, axes=BLOCK_KINDS[kind]) for x in inputs(shape, copies(moved))]
    us, spread = measure(launches)
    return Timing("rmsnorm_quantize", kind, shape, us, spread, moved)


def time_gemm(shape: tuple[int, int, int], how: str) -> Timing:
    """A projection of (tokens, N, K).

    Args:
        shape: tokens, N, K.
        how: "cuBLAS" (torch, BF16 out), "own, BF16 out", a kind of blocks for `gemm_quantize`, or "eager" and
            "torch.compile" for cuBLAS followed by the quantizer of torch, last axis.
    """
    import torch

    from mxfp8fa.kernels.producers import gemm, gemm_quantize

    tokens, n, k = shape
    weight = torch.randn((n, k), device="cuda", dtype=torch.bfloat16)
    if how == "torch.compile":
        torch._dynamo.reset()
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "cuBLAS": lambda x: x @ weight.T,
        "own, BF16 out": lambda x: gemm(x, weight),
        "eager": lambda x: plain_quantize(x @ weight.T),
        "torch.compile": torch.compile(lambda x: plain_quantize(x @ weight.T), dynamic=False),
        **{kind: lambda x, axes=axes: gemm_quantize(x, weight, axes=axes) for kind, axes in BLOCK_KINDS.items()},  # type: ignore[misc]
    }
    xs = inputs((tokens, k), max(2, -(-ROTATE_BYTES // (2 * tokens * (k + n)))))
    us, spread = measure([lambda x=x: functions[how](x) for x in xs], graph=how not in ("eager", "torch.compile"))  # type: ignore[misc]
    return Timing("gemm", how, shape, us, spread, flops=2 * tokens * n * k)


def inputs(shape: tuple[int, int], count: int) -> list[torch.Tensor]:
    """Random BF16 matrices: every run of them the same numbers."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, device="cuda", generator=generator, dtype=torch.bfloat16) for _ in range(count)]


def plain_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantization along the last axis as torch operations, for `torch.compile` and eager torch: codes and packed scales.

    The same numbers as the kernel's for rows in multiples of 128 and columns in multiples of 128.
    """
    import torch

    rows, columns = x.shape
    blocks = x.float().view(rows, columns // 32, 32)
    bits = blocks.abs().amax(-1).view(torch.int32)
    scale = torch.where(bits < 0x7F800000, (((bits + 0x1FFFFF) >> 23) - 8).clamp(min=0), 255)
    reciprocal = torch.where(scale < 255, (254 - scale) << 23, 0x7FFFFFFF).view(torch.float32)
    scaled = (blocks * reciprocal[..., None]).clamp(-448, 448)
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8).view(rows, columns)
    atoms = scale.to(torch.uint8).view(rows // 128, 4, 32, columns // 128, 4).permute(0, 3, 2, 1, 4)
    return codes, atoms.reshape(rows // 128, columns // 128, 512)


def plain_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMSNorm as torch operations, to BF16 as an unfused program stores it."""
    import torch

    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def plain_rmsnorm_quantize(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in one function, for `torch.compile` to fuse as it can."""
    import torch

    wide = x.float()
    return plain_quantize(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float())


def time_plain(what: str, how: str, shape: tuple[int, int]) -> Timing:
    """The last-axis variants in torch: how = "eager" or "torch.compile"."""
    import torch

    weight = torch.randn(shape[1], device="cuda").to(torch.bfloat16)
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "quantize": plain_quantize,
        "rmsnorm_quantize": lambda x: plain_rmsnorm_quantize(x, weight),
    }
    function = functions[what]
    if how == "torch.compile":
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)
    moved = quantize_bytes(shape, "last axis") + (4 * shape[0] if what == "rmsnorm_quantize" else 0)
    us, spread = measure([lambda x=x: function(x) for x in inputs(shape, 2)], graph=False, repeats=5)  # type: ignore[misc]
    return Timing(what, how, shape, us, spread, moved)


def surroundings() -> dict[str, Any]:
    """What the numbers were measured on and with."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "kind": "measured",
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvidia-cutlass-dsl": importlib.metadata.version("nvidia-cutlass-dsl"),
        "date": str(datetime.date.today()),
    }


def as_record(timings: Iterator[Timing] | Sequence[Timing]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(timing) for timing in timings]


def all_timings(only: Sequence[str] | None = None) -> Iterator[Timing]:
    """The whole table: bandwidths with a copy of as many bytes before each shape, then products, then torch's ways.

    Args:
        only: some operations: "copy", "quantize", "rmsnorm_quantize", "gemm", "plain" (torch's ways).
    """

    def wanted(what: str) -> bool:
        return only is None or what in only

    for shape in SHAPES:
        if wanted("copy"):
            yield time_copy(quantize_bytes(shape, "last axis"))
        if wanted("quantize"):
            yield from (time_quantize(shape, kind) for kind in BLOCK_KINDS)
        if wanted("rmsnorm_quantize"):
            yield from (time_rmsnorm(shape, kind) for kind in BLOCK_KINDS)
    if wanted("gemm"):
        for product in GEMM_SHAPES:
            yield from (time_gemm(product, how) for how in ("cuBLAS", "own, BF16 out", *BLOCK_KINDS))
    if wanted("plain"):
        for how in ("eager", "torch.compile"):
            yield from (time_plain(what, how, (65536, 4096)) for what in ("quantize", "rmsnorm_quantize"))
            yield from (time_gemm(product, how) for product in GEMM_SHAPES)


def line(timing: Timing) -> str:
    """One timing as text."""
    rate = f"{timing.tflops:7.1f} TFLOP/s" if timing.flops else f"{timing.tb_per_s:7.3f} TB/s"
    return f"{timing.what:18} {timing.how:14} {timing.shape!s:20} {timing.us:9.1f} us {rate}  spread {timing.spread:.3f}"

"""Published times of attention kernels on NVIDIA B200 that anybody can compile, for judging the model.

Other people's clocks differ by 25 % (1.58 to 1.965 GHz) and are stated by nobody, so each table gets one clock, fitted on
one named row; the other rows are predictions. Published FLOP/s count 4 (forward) or 10 (backward) per pair and element of
D, half of that when causal.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxfp8fa.timing.shapes import AttentionShape

CLOCKS_GHZ = (1.58, 1.965)  # sustained under a kilowatt, and the maximum (FlashInfer PR #2899; device query)
CUDNN = "cudnn"
FORWARD, BACKWARD = "flash-attn-4", "flash-attn-4-backward"


@dataclass(frozen=True)
class Row:
    """One published time.

    Attributes:
        kernel: name of the target.
        shape: of the problem.
        tflops: as published.
        two_cta: CTA pairs.
    """

    kernel: str
    shape: AttentionShape
    tflops: float
    two_cta: bool = False

    @property
    def label(self) -> str:
        """As in tables."""
        return f"{self.kernel}{' 2 CTAs' if self.two_cta else ''}, {self.shape}"

    @property
    def microseconds(self) -> float:
        """The published time."""
        return self.shape.flops(backward=self.kernel == BACKWARD) / self.tflops / 1e6


@dataclass(frozen=True)
class Table:
    """Times that were taken together.

    Attributes:
        name: short.
        source: who published them.
        note: what we had to assume.
        rows: the first one fixes the clock, where there are several.
    """

    name: str
    source: str
    note: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Product:
    """A published dense product.

    Attributes:
        name: as in tables.
        m, n, k: sizes.
        element_bytes: of the operands.
        tflops: slowest and fastest that were published.
        source: who published it.
    """

    name: str
    m: int
    n: int
    k: int
    element_bytes: float
    tflops: tuple[float, float]
    source: str


@dataclass(frozen=True)
class Move:
    """A published time of something that global memory bounds.

    Attributes:
        name: as in tables.
        moved_bytes: that have to move.
        us: as published.
        source: who published it.
    """

    name: str
    moved_bytes: int
    us: float
    source: str


def _at(text: str, *, causal: bool = False) -> AttentionShape:
    return AttentionShape.parse(text, causal=causal)


def _by_length(
    head_dim: int, values: dict[int, float], *, causal: bool = False, two_cta: bool = False
) -> tuple[Row, ...]:
    """32 K tokens in all, and 2,048 elements of hidden size: the convention of that benchmark."""
    heads = 2048 // head_dim
    return tuple(
        Row(FORWARD, _at(f"b{32768 // s}-h{heads}-s{s}-d{head_dim}", causal=causal), tflops, two_cta)
        for s, tflops in values.items()
    )


_B4 = "b4-h16-s8192-d128"
TABLES: tuple[Table, ...] = (
    Table(
        "FA4 #2280", "flash-attention PR #2280 (27 Feb 2026)", "d128, 4 x 8192 tokens, 16 heads",
        (
            Row(FORWARD, _at(_B4), 1534.8, two_cta=True),
            Row(FORWARD, _at(_B4, causal=True), 1418.1),
            Row(BACKWARD, _at(_B4), 1247.5),
            Row(BACKWARD, _at(_B4), 1359.8, two_cta=True),
            Row(BACKWARD, _at(_B4, causal=True), 1117.9),
            Row(BACKWARD, _at(_B4, causal=True), 1208.6, two_cta=True),
        ),
    ),
    Table(
        "FA4 #2605", "flash-attention PR #2605, the tables whose MFU implies a B200",
        "32 K tokens in all; heads assumed to be 2048 / head_dim",
        (
            *_by_length(128, {8192: 1358, 1024: 1205, 2048: 1279, 4096: 1328, 16384: 1362}, two_cta=True),
            *_by_length(128, {1024: 697, 2048: 927, 4096: 1090}, causal=True),
            *_by_length(64, {1024: 702, 2048: 733, 4096: 749, 8192: 758, 16384: 762}),
            *_by_length(64, {1024: 423, 2048: 579, 4096: 713, 8192: 792, 16384: 834}, causal=True),
        ),
    ),
    Table(
        "cuDNN MXFP8", "nvidia-cudnn-frontend, its own benchmark of the open MXFP8 forward (2.056 ms)",
        "one row: the model is judged by the clock that it needs, which has to lie in 1.58 to 1.965 GHz",
        (Row(CUDNN, _at("b1-h24-hkv8-s16384-d128"), 1604.3, two_cta=True),),
    ),
)  # fmt: skip

_BOXES = "torchao, Modal, pyptx, Modular, on several B200s"
PRODUCTS: tuple[Product, ...] = (
    Product("BF16, 2048^3", 2048, 2048, 2048, 2, (1006, 1130), _BOXES),
    Product("BF16, 4096^3", 4096, 4096, 4096, 2, (1359, 1772.9), _BOXES),
    Product("BF16, 8192^3", 8192, 8192, 8192, 2, (1414, 1610), _BOXES),
    Product("FP8, 1024 x 4096 x 4096", 1024, 4096, 4096, 1, (2077, 2354), "vLLM PR #19566 (CUTLASS)"),
    Product("FP8, 16384 x 4096 x 4096", 16384, 4096, 4096, 1, (2450, 2545), "vLLM PR #19566 (CUTLASS)"),
)  # fmt: skip
_NORM_BYTES = 2 * 4  # read and written in FP32; the source does not state the type
MOVES: tuple[Move, ...] = tuple(
    Move(f"RMSNorm, 2048 x {columns}, {who}", 2048 * columns * _NORM_BYTES, us, "quack, tritonbench #1130; FP32 assumed")
    for columns, who, us in (
        (8192, "quack", 23.8), (8192, "torch.compile", 22.6), (32768, "quack", 104.6), (32768, "torch.compile", 97.9),
    )
)  # fmt: skip

"""What block scaling does to values: error of the formats, the four scale rules, 1x32 against square blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics import E8M0, SCALE_RULES, decode, get_format, quantize
from mxfp8fa.numerics.inputs import AttentionInputs, load_real, synthetic_llm
from mxfp8fa.numerics.sqnr import row_sqnr_db, sqnr_db

# Blocked axes of a (B, S, H, D) array: 1x32 along d, and squares over tokens and d.
BLOCK_AXES = {"1x32": (-1,), "square": (1, 3)}


@dataclass(frozen=True)
class FormatGrid:
    """The positive numbers of a format, and what rounding to them costs.

    Attributes:
        name: of the format.
        values: (N,) positive finite values, ascending.
        magnitudes: (M,) inputs.
        relative_error: (M,) |rounded - input| / input.
    """

    name: str
    values: NDArray[np.float64]
    magnitudes: NDArray[np.float64]
    relative_error: NDArray[np.float64]


def format_grid(fmt: str, *, low_log2: float = -18.0, high_log2: float = 17.0, points: int = 8192) -> FormatGrid:
    """Every positive value of a signed byte format, and its rounding error on `points` magnitudes spread over a range.

    Args:
        fmt: "e4m3" or "e5m2".
        low_log2: log2 of the smallest magnitude.
        high_log2: log2 of the largest magnitude; beyond the largest value the error is that of saturation.
        points: how many magnitudes.
    """
    codes = np.arange(1, get_format(fmt).max_code + 1, dtype=np.uint8)
    values = decode(codes, fmt).astype(np.float64)
    magnitudes = np.exp2(np.linspace(low_log2, high_log2, points))
    ties = (values[1:] + values[:-1]) / 2
    # Away from ties, which no magnitude of the grid hits, the nearest value is where searchsorted between ties puts it.
    rounded = np.concatenate(([0.0], values))[np.searchsorted(np.concatenate(([values[0] / 2], ties)), magnitudes)]
    return FormatGrid(fmt, values, magnitudes, np.abs(rounded - magnitudes) / magnitudes)


@dataclass(frozen=True)
class BlockExample:
    """One block before and after quantization.

    Attributes:
        label: what the block is.
        values: (32,) float32 inputs.
        dequantized: (32,) float32 results.
        codes: (32,) element codes.
        scale_e8m0: the block's scale code.
    """

    label: str
    values: NDArray[np.float32]
    dequantized: NDArray[np.float32]
    codes: NDArray[np.uint8]
    scale_e8m0: int

    @property
    def scale(self) -> float:
        """The block's scale, a power of two."""
        return float(decode(np.uint8(self.scale_e8m0), E8M0))


def block_example(values: ArrayLike, label: str, *, rule: str = "rceil") -> BlockExample:
    """Quantize one block of 32 values to E4M3 with the given scale rule.

    Raises:
        ValueError: another number of values.
    """
    block = np.asarray(values, np.float32)
    if block.shape != (32,):
        raise ValueError(f"values have shape {block.shape}; a block is (32,)")
    quantized = quantize(block, rule=rule)
    return BlockExample(label, block, quantized.dequantize(), quantized.codes, int(quantized.scale_e8m0[0]))


def outlier_examples() -> list[BlockExample]:
    """A real row of K (MiniLM layer 0, head 0, token 100), and twice the same with one element made an outlier."""
    row = load_real()["minilm-layer0"].k[0, 100, 0]
    examples = [block_example(row, "a row of K, MiniLM layer 0")]
    for log2_gain in (8, 19):
        outlier = row.copy()
        outlier[7] *= np.float32(2.0**log2_gain)
        examples.append(block_example(outlier, f"element 7 times $2^{{{log2_gain}}}$"))
    return examples


@dataclass(frozen=True)
class ScaleRules:
    """The four scale rules on the same blocks.

    Attributes:
        amax: (N,) largest magnitudes of a block, within two binades.
        scale: rule -> (N,) scale value chosen for each amax.
        amax_error: rule -> (N,) relative error of the largest element itself, negative when it shrinks.
        gaussian_db: rule -> SQNR in dB of standard normal data in 1x32 blocks.
        parameters: in words, for captions.
    """

    amax: NDArray[np.float32]
    scale: Mapping[str, NDArray[np.float64]]
    amax_error: Mapping[str, NDArray[np.float64]]
    gaussian_db: Mapping[str, float]
    parameters: str


def scale_rules(*, points: int = 1025, rows: int = 512, seed: int = 0) -> ScaleRules:
    """Scale and error of the largest element for amax from 1 to 4, and SQNR on `rows` x 1024 Gaussian numbers."""
    amax = np.exp2(np.linspace(0.0, 2.0, points)).astype(np.float32)
    blocks = np.zeros((points, 32), np.float32)
    blocks[:, 0] = amax
    gaussian = np.random.default_rng(seed).standard_normal((rows, 1024)).astype(np.float32)
    scale, error, db = {}, {}, {}
    for rule in SCALE_RULES:
        quantized = quantize(blocks, rule=rule)
        scale[rule] = decode(quantized.scale_e8m0[:, 0], E8M0).astype(np.float64)
        error[rule] = quantized.dequantize(np.float64)[:, 0] / amax - 1.0
        db[rule] = sqnr_db(quantize(gaussian, rule=rule).dequantize(), gaussian)
    parameters = f"E4M3, 1x32 blocks; one element per block from 1 to 4; SQNR of {rows} x 1024 standard normals"
    return ScaleRules(amax, scale, error, db, parameters)


@dataclass(frozen=True)
class ScaleMap:
    """One matrix and the scale of every element, for both kinds of blocks.

    Attributes:
        values: (tokens, D) the matrix.
        scale_log2: block kind -> (tokens, D) log2 of the scale that an element shares.
        scales: block kind -> how many scales there are.
        parameters: in words, for captions.
    """

    values: NDArray[np.float32]
    scale_log2: Mapping[str, NDArray[np.int64]]
    scales: Mapping[str, int]
    parameters: str


def scale_map(values: ArrayLike, label: str) -> ScaleMap:
    """Quantize a matrix in 1x32 and in square blocks and spread the scales over its elements.

    Args:
        values: (tokens, D), both multiples of 32.
        label: what the matrix is, for captions.
    """
    matrix = np.asarray(values, np.float32)
    log2, count = {}, {}
    for kind, axes in {"1x32": (-1,), "square": (0, 1)}.items():
        codes = quantize(matrix, axes=axes).scale_e8m0.astype(np.int64)
        repeats = [32 if axis in (axes if len(axes) == 2 else (1,)) else 1 for axis in (0, 1)]
        log2[kind] = codes.repeat(repeats[0], axis=0).repeat(repeats[1], axis=1) - E8M0.bias
        count[kind] = codes.size
    return ScaleMap(matrix, log2, count, f"{label}; E4M3, rule rceil")


@dataclass(frozen=True)
class RowSpread:
    """1x32 against square blocks when rows have magnitudes 2^U(-r, r).

    Attributes:
        spread_log2: (N,) the r of each step.
        mean_db: block kind -> (N,) mean SQNR over rows.
        worst_db: block kind -> (N,) SQNR of the worst row.
        parameters: in words, for captions.
    """

    spread_log2: NDArray[np.float64]
    mean_db: Mapping[str, NDArray[np.float64]]
    worst_db: Mapping[str, NDArray[np.float64]]
    parameters: str


def row_spread(*, spreads: Sequence[float] = (0, 2, 4, 5, 6, 7, 8, 9, 10), size: int = 512, seed: int = 0) -> RowSpread:
    """Per-row SQNR of `size` x `size` Gaussian matrices whose rows are scaled by 2^U(-r, r), rule rceil."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((size, size))
    exponent = rng.uniform(-1.0, 1.0, (size, 1))
    rows: dict[str, list[NDArray[np.float64]]] = {"1x32": [], "square": []}
    for spread in spreads:
        x = (base * np.exp2(spread * exponent)).astype(np.float32)
        for kind, axes in {"1x32": (-1,), "square": (0, 1)}.items():
            rows[kind].append(row_sqnr_db(quantize(x, axes=axes).dequantize(), x))
    mean = {kind: np.array([db.mean() for db in steps]) for kind, steps in rows.items()}
    worst = {kind: np.array([db.min() for db in steps]) for kind, steps in rows.items()}
    parameters = f"{size} x {size} standard normals, rows times 2^U(-r, r), E4M3, rule rceil"
    return RowSpread(np.asarray(spreads, np.float64), mean, worst, parameters)


@dataclass(frozen=True)
class QuantizedTensor:
    """How one tensor of one input fares, rule rceil.

    Attributes:
        inputs: name of the input.
        tensor: Q, K, V or dO.
        amax: largest magnitude.
        db: block kind -> SQNR in dB.
        worst_row_db: block kind -> SQNR of the worst row (one token of one head), dB.
        subnormal_share: block kind -> share of the elements stored as E4M3 subnormals or zero, though not 0 themselves.
    """

    inputs: str
    tensor: str
    amax: float
    db: Mapping[str, float]
    worst_row_db: Mapping[str, float]
    subnormal_share: Mapping[str, float]


def example_inputs() -> list[AttentionInputs]:
    """The real tensors, and synthetic ones with outlier channels and channel means for head_dim 64 and 128."""
    habits = {"logit_std": 4.0, "outlier_channels": 4, "outlier_gain": 4.0, "k_mean": 1.0, "v_mean": 0.5}
    synthetic = [synthetic_llm(head_dim=head_dim, seed=4, **habits) for head_dim in (64, 128)]  # type: ignore[arg-type]
    return [*load_real().values(), *synthetic]


def quantized_tensors(many: Iterable[AttentionInputs]) -> list[QuantizedTensor]:
    """Quantize Q, K, V and dO of each input in 1x32 blocks along d and in square blocks."""
    return [_quantized_tensor(inputs.name, name, x) for inputs in many for name, x in inputs.tensors().items()]


def _quantized_tensor(inputs: str, name: str, x: NDArray[np.float32]) -> QuantizedTensor:
    db, worst, subnormal = {}, {}, {}
    for kind, axes in BLOCK_AXES.items():
        quantized = quantize(x, axes=axes, tail="partial")
        values = quantized.dequantize()
        db[kind] = sqnr_db(values, x)
        worst[kind] = float(row_sqnr_db(values, x).min())
        # E4M3 codes with exponent field 0 are zero and the subnormals.
        subnormal[kind] = float(np.mean(((quantized.codes & 0x78) == 0) & (x != 0)))
    return QuantizedTensor(inputs, name, float(np.abs(x).max()), db, worst, subnormal)

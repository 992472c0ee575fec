"""quack-kernels' GEMM for sm_100 through quack.gemm_interface.gemm: dense and block-scaled in every format it has.

Bound: the tensor core adds K products in float32, (K + 8) 2^-24 |A||B|, and the result is rounded once. Block-scaled
operands are random codes (all of the format's but NaN and infinity) with another random scale in every block, one block
of zeros, and in one row a block whose scale is NaN.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from peer_blocks import pack_scales
from peer_check import F32, ROUNDOFF, Expected, cases

torch = pytest.importorskip("torch")


def product(a, b, dtype):
    """a (M, K) times b (N, K), and the bound of a result stored as `dtype`."""
    with np.errstate(invalid="ignore"):
        exact, magnitude = a @ b.T, np.abs(a) @ np.abs(b).T
    bound = (a.shape[1] + 8) * F32 * magnitude + ROUNDOFF[dtype] * np.abs(exact)
    noise = ROUNDOFF[dtype] ** 2 / 3 * exact**2 + (a.shape[1] * F32 * magnitude) ** 2
    bad = np.isnan(exact)
    return Expected(exact, np.where(bad, 0.0, bound), float(np.sqrt(np.mean(np.where(bad, 0.0, noise)))))


@dataclass(frozen=True)
class Dense:
    """A (M, K) times B (K, N); `a_rows` and `b_rows`: whether memory holds them K-contiguous."""

    name: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    a_rows: bool = True
    b_rows: bool = False
    options: dict = field(default_factory=dict)
    sm_count: int = 2

    @property
    def label(self):
        return self.name


DENSE = [
    Dense("bf16", 256, 256, 256),
    Dense("bf16-a-columns", 384, 200, 136, a_rows=False, b_rows=True),
    Dense("bf16-many-tiles", 512, 512, 128, b_rows=True),
    Dense("fp16-odd", 300, 264, 72, "float16", b_rows=True),
    Dense("tf32", 256, 256, 128, "float32", b_rows=True),
    Dense("fp8", 256, 256, 256, "float8_e4m3fn", b_rows=True, options={"out_dtype": torch.bfloat16}),
    Dense("split-k", 256, 256, 512, b_rows=True, options={"split_k": 2}, sm_count=4),
]


def to_tf32(x):
    """float32 values with 10 explicit mantissa bits, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits += 0xFFF + (bits >> 13 & 1)
    return (bits & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize(("case", "schedules"), cases(DENSE, small=[0]))
def test_dense_gemm(quack, peer, case, schedules):
    from quack.gemm_interface import gemm

    g = torch.Generator().manual_seed(0)
    dtype = getattr(torch, case.dtype)
    a = torch.randn((case.m, case.k) if case.a_rows else (case.k, case.m), generator=g).to(dtype)
    b = torch.randn((case.n, case.k) if case.b_rows else (case.k, case.n), generator=g).to(dtype)
    rows = (a if case.a_rows else a.mT).double().numpy(), (b if case.b_rows else b.mT).double().numpy()
    if case.dtype == "float32":  # TMA's tensor map has type tf32: loads round to nearest even, as measured on an H200
        rows = tuple(to_tf32(x) for x in rows)
    stored = "bfloat16" if case.dtype.startswith("float8") else case.dtype

    def run():
        left, right = a.cuda(), b.cuda()
        left, right = left if case.a_rows else left.mT, right.mT if case.b_rows else right
        return {"C": gemm(left, right, tuned=False, **case.options)}

    shape = f"{case.m}x{case.n}x{case.k} {case.dtype}"
    expected = {"C": product(*rows, stored)}
    peer(f"quack GEMM, {case.name}", shape, run, expected, schedules=schedules, sm_count=case.sm_count)


# exponent bits, mantissa bits, bias, codes that are no numbers
MINIFLOATS = {
    "e4m3": (4, 3, 7, {0x7F, 0xFF}),
    "e5m2": (5, 2, 15, {s | e for s in (0, 0x80) for e in range(0x7C, 0x80)}),
    "e2m3": (2, 3, 1, set()),
    "e3m2": (3, 2, 3, set()),
    "e2m1": (2, 1, 1, set()),
}
ELEMENTS = {
    "mxfp8_e4m3": "e4m3",
    "mxfp8_e5m2": "e5m2",
    "mxfp6_e2m3_packed": "e2m3",
    "mxfp6_e3m2_packed": "e3m2",
    "mxfp4": "e2m1",
    "nvfp4": "e2m1",
}


def minifloat_values(name):
    """The value of every code, from the definition; NaN where a code is no number."""
    exponent_bits, mantissa_bits, bias, holes = MINIFLOATS[name]
    codes = np.arange(2 ** (1 + exponent_bits + mantissa_bits))
    mantissa = codes % 2**mantissa_bits
    exponent = codes >> mantissa_bits & (2**exponent_bits - 1)
    magnitude = np.where(exponent == 0, mantissa, mantissa + 2**mantissa_bits) * 2.0 ** (
        np.maximum(exponent, 1) - bias - mantissa_bits
    )
    values = np.where(codes >= len(codes) // 2, -magnitude, magnitude)
    values[sorted(holes)] = np.nan
    return values


def pack_codes(codes, bits):
    """Codes (rows, K), little-endian bits: the storage of packed formats."""
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits].reshape(len(codes), -1)
    return np.packbits(stream, axis=-1, bitorder="little")


def block_scaled(name, rows, k, seed, *, with_nan):
    """Random codes with random scales: the operand's parts as quack wants them, and its values in float64."""
    g = np.random.default_rng(seed)
    table = minifloat_values(ELEMENTS[name])
    block = 16 if name == "nvfp4" else 32
    codes = g.choice(np.nonzero(~np.isnan(table))[0], (rows, k)).astype(np.uint8)
    codes[1, block : 2 * block] = 0
    if name == "nvfp4":
        scale = g.integers(0x20, 0x50, (rows, k // block)).astype(np.uint8)
        factor = minifloat_values("e4m3")[scale]
    else:
        scale = g.integers(124, 131, (rows, k // block)).astype(np.uint8)
        factor = 2.0 ** (scale - 127.0)
    if with_nan:
        scale[2, 1], factor[2, 1] = (0x7F if name == "nvfp4" else 0xFF), np.nan
    bits = 1 + sum(MINIFLOATS[ELEMENTS[name]][:2])
    storage = codes if bits == 8 else pack_codes(codes, bits)
    return (
        storage,
        pack_scales(scale).reshape(-(-rows // 128), -1, 32, 4, 4),
        table[codes] * np.repeat(factor, block, axis=1),
    )


BLOCK_SCALED = [
    ("mxfp8_e4m3", "mxfp8_e4m3", 256, 256, 384),
    ("mxfp8_e4m3", "mxfp8_e5m2", 300, 200, 256),
    ("mxfp4", "mxfp4", 256, 256, 512),
    ("nvfp4", "nvfp4", 256, 128, 512),
    ("mxfp8_e4m3", "mxfp4", 256, 256, 256),
    ("mxfp6_e2m3_packed", "mxfp6_e3m2_packed", 256, 256, 256),
    ("mxfp8_e5m2", "mxfp6_e2m3_packed", 256, 256, 256),
]


@pytest.mark.parametrize(("case", "schedules"), cases(BLOCK_SCALED, small=[0]))
def test_block_scaled_gemm(quack, peer, case, schedules):
    from quack.blockscaled.operand import BlockScaledFormat, BlockScaledOperand
    from quack.gemm_interface import gemm

    *names, m, n, k = case
    parts = [block_scaled(names[0], m, k, 0, with_nan=True), block_scaled(names[1], n, k, 1, with_nan=False)]

    def run():
        operands = []
        for name, (storage, scale, _) in zip(names, parts, strict=True):
            fmt = BlockScaledFormat.from_name(name)
            data = torch.from_numpy(storage).view(fmt.qdata_dtype).cuda()
            operands.append(
                BlockScaledOperand.from_parts(data, torch.from_numpy(scale).view(fmt.scale_dtype).cuda(), fmt)
            )
        return {"C": gemm(operands[0], operands[1].mT, tuned=False)}

    expected = {"C": product(parts[0][2], parts[1][2], "bfloat16")}
    peer(
        f"quack block-scaled GEMM, {names[0]} x {names[1]}",
        f"{m}x{n}x{k}",
        run,
        expected,
        schedules=schedules,
        sm_count=2,
    )

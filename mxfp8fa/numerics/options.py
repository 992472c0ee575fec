"""Every choice of the MXFP8 attention in one frozen object: forward, backward and kernels take the same one."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

# log2 of 448, the largest E4M3 value: P is stored as 2^p_offset * P, and a row maximum that lags by the rescale
# threshold multiplies it by up to 2^rescale_threshold more.
P_HEADROOM_LOG2 = math.log2(448.0)
# Below -1/16 the code of the row maximum itself rounds down (8 * c < -1/2).
DIRECT_BIAS_MIN = -1.0 / 16.0
# Columns are direct or exact in fours, so that each 32-bit word of four codes is of one kind.
DIRECT_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# More by polynomial than half would load the pipes for multiplication more than that for exponentials.
POLYNOMIAL_SHARES = (0.125, 0.25, 0.5)
# A float16 accumulator holds 65504 and its smallest normal is 2^-14; scales beyond 2^24 either way serve no gradient.
DQ_SCALE_LOG2_RANGE = (-24, 24)
# With dynamic scales a row that lags has P up to 2^threshold, which E8M0 takes up, but the row sum and O are float32:
# half of its exponents are left to the number of keys and to the size of V.
DYNAMIC_THRESHOLD_MAX = 64.0
MAX_TILE = 256
BLOCK = 32

_CHOICES: dict[str, tuple[str, ...]] = {
    "qk_blocks": ("auto", "1x32", "square"),
    "v_blocks": ("1x32", "square"),
    "rule": ("rceil", "floor", "ceil", "even"),
    "p_scale": ("constant", "dynamic"),
    "exp": ("exact", "direct"),
    "row_sum": ("unrounded", "rounded"),
    "sum_format": ("float32", "float16"),
    "direct_codes": ("integer", "subnormal"),
    "kv_order": ("descending", "ascending"),
    "accumulate": ("float32", "blackwell", "exact"),
    "do_blocks": ("square", "1x32"),
    "grad_qk_blocks": ("square", "1x32"),
    "grad_v_blocks": ("auto", "1x32", "square"),
    "delta": ("dequantized_dO", "unquantized_dO", "sum_P_dP"),
    "dq_accumulate": ("float32", "float16"),
    "dq_order": ("ascending", "descending"),
    "gradients": ("float32", "1x32", "square"),
    "out_dtype": ("auto", "bfloat16", "float16", "float32"),
}


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """How MXFP8 attention rounds; the defaults are the shipped kernel's.

    Forward and backward of one attention must be given equal options: the backward recomputes P from the forward's
    payload and lse, and `exp`, `row_sum`, `p_offset` and `k_mean` say what that lse means.

    Attributes:
        qk_blocks: blocks of Q and K for S = Q K^T. "1x32" runs along d; "square" is 32 tokens x 32 of d and lets one
            payload serve every GEMM, but can leak later tokens under a causal mask; "auto" is "1x32" when causal, else
            "square".
        v_blocks: blocks of V for O = P V: "1x32" runs along the keys.
        rule: how a block's scale follows from its largest magnitude (see `quantize`).
        p_scale: "constant" stores 2^p_offset * P under the block scale 2^-p_offset; "dynamic" gives each row one scale
            per 32 keys, from the block maxima of S before the exponential. Dynamic scales are the forward's only; the
            backward always uses the constant one.
        exp: "exact" is exp2, rounded to E4M3; "direct" computes the E4M3 code from the score by one fma and a rounding.
        exp2: how the forward takes exponentials: "mufu", all by ex2.approx, or the share of the columns, 0.125, 0.25 or 0.5,
            that a polynomial takes instead: the first ones of every 16. Backward and direct columns do not use it.
        direct_share: with exp="direct", the share of the columns that use direct codes (0, 0.25, 0.5, 0.75 or 1): the
            last ones of every 16.
        direct_bias: c of the direct code round(8 * (log2 P + 7 + c)), -1/16 < c <= 0.
        direct_codes: by which conversion a direct code comes about; the codes are equal but for NaN, which is 0 by
            "integer" and an E4M3 NaN by "subnormal" (see `mxfp8fa.numerics.softmax`).
        row_sum: what the row is divided by: the sum of P before its rounding to E4M3, or after. lse uses the same sum.
        sum_format: how the forward adds up rounded P within a key tile: in float32, or in packed float16 (11 bits), which
            takes half the instructions; tiles are added up in float32 either way.
        p_offset: log2 of the factor on stored P, an integer from 0 to 8.
        rescale_threshold: growth of the row maximum, in log2 units, up to which O is not rescaled. With constant P
            scales p_offset + rescale_threshold <= log2 448 = 8.807, or P would saturate; with dynamic ones at most 64,
            or float32 sums could overflow.
        tile_m: query rows of a tile, a multiple of 32 up to 256.
        tile_n: keys of a tile, likewise.
        kv_order: order in which a query tile visits the key tiles.
        accumulate: arithmetic of `mma`.
        do_blocks: "square": one payload of dO for dP and dV; "1x32": one along d for dP, one along queries for dV.
        grad_qk_blocks: the second payload of Q (for dK) and K (for dQ), used when qk_blocks is "1x32": "square", or
            "1x32" along the tokens.
        grad_v_blocks: payload of V for dP = dO V^T: "1x32" along d from the unquantized V, "square", or "auto":
            "square", that is the forward's payload, when v_blocks is "square", else "1x32".
        delta: what delta = rowsum(dO * O) is taken from: dO as the GEMMs see it, dO before quantization, or
            sum_j P_ij dP_ij (no O needed, one more pass over the keys).
        dq_accumulate: format in which the dQ tiles are added up. What is summed is dQ / softmax_scale.
        dq_scale_log2: with "float16", log2 of the factor on the sum; "auto" takes the largest one that cannot overflow
            by the bound |dQ| / softmax_scale <= 2 max||dO|| max||V|| max|K|.
        dq_order: order of the key tiles in which dQ tiles are added.
        gradients: "float32" arrays, or MXFP8 payloads of dQ, dK and dV with "1x32" blocks along d or "square" ones.
        k_mean: subtract the mean over the tokens from each sequence and head of K before quantizing. The softmax does
            not see it, and lse is returned for the K that was given. The mean runs over later tokens too, so rounding
            can leak them under a causal mask.
        out_dtype: what O is rounded to, once, from float32. "auto": not at all in NumPy; in torch the dtype of a
            floating q, bfloat16 for a quantized one.

    Raises:
        ValueError: a value that is not allowed; the message says what was given and what is.
    """

    qk_blocks: Literal["auto", "1x32", "square"] = "auto"
    v_blocks: Literal["1x32", "square"] = "1x32"
    rule: Literal["rceil", "floor", "ceil", "even"] = "rceil"
    p_scale: Literal["constant", "dynamic"] = "constant"
    exp: Literal["exact", "direct"] = "exact"
    exp2: Literal["mufu"] | float = "mufu"
    direct_share: float = 1.0
    direct_bias: float = -0.05
    direct_codes: Literal["integer", "subnormal"] = "integer"
    row_sum: Literal["unrounded", "rounded"] = "unrounded"
    sum_format: Literal["float32", "float16"] = "float32"
    p_offset: int = 8
    rescale_threshold: float = 0.8
    tile_m: int = 128
    tile_n: int = 128
    kv_order: Literal["descending", "ascending"] = "descending"
    accumulate: Literal["float32", "blackwell", "exact"] = "float32"
    do_blocks: Literal["square", "1x32"] = "square"
    grad_qk_blocks: Literal["square", "1x32"] = "square"
    grad_v_blocks: Literal["auto", "1x32", "square"] = "auto"
    delta: Literal["dequantized_dO", "unquantized_dO", "sum_P_dP"] = "dequantized_dO"
    dq_accumulate: Literal["float32", "float16"] = "float32"
    dq_scale_log2: int | Literal["auto"] = 12
    dq_order: Literal["ascending", "descending"] = "ascending"
    gradients: Literal["float32", "1x32", "square"] = "float32"
    k_mean: bool = False
    out_dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} = {value!r} is not allowed; choose one of {', '.join(map(repr, allowed))}")
        if not isinstance(self.k_mean, bool):
            raise ValueError(f"k_mean = {self.k_mean!r} must be True or False")
        for name in ("tile_m", "tile_n"):
            _require_integer(name, getattr(self, name), BLOCK, MAX_TILE, multiple_of=BLOCK)
        if self.dq_scale_log2 != "auto":
            _require_integer("dq_scale_log2", self.dq_scale_log2, *DQ_SCALE_LOG2_RANGE, alternative="'auto'")
        self._check_headroom()
        self._check_direct()
        if self.exp2 != "mufu" and _require_real("exp2", self.exp2) not in POLYNOMIAL_SHARES:
            raise ValueError(f"exp2 = {self.exp2!r} is not allowed; choose 'mufu' or one of {POLYNOMIAL_SHARES}")
        pairs = ((f.name, _plain(getattr(self, f.name))) for f in fields(self))
        object.__setattr__(self, "_text", ";".join(f"{name}={value!r}" for name, value in pairs))

    @property
    def text(self) -> str:
        """All choices as text, which graph compilers and operators can take; `from_text` reads it."""
        return self._text  # type: ignore[attr-defined]

    @staticmethod
    def from_text(text: str) -> AttentionOptions:
        """The options whose `text` this is."""
        pairs = (item.split("=", 1) for item in text.split(";"))
        return AttentionOptions(**{name: ast.literal_eval(value) for name, value in pairs})

    def _check_headroom(self) -> None:
        """p_offset and rescale_threshold as one pair."""
        _require_integer("p_offset", self.p_offset, 0, 8)
        threshold = _require_real("rescale_threshold", self.rescale_threshold)
        if threshold < 0:
            raise ValueError(f"rescale_threshold = {threshold} must be at least 0")
        if self.p_scale == "dynamic" and threshold > DYNAMIC_THRESHOLD_MAX:
            raise ValueError(
                f"rescale_threshold = {threshold} must be at most {DYNAMIC_THRESHOLD_MAX:g} with p_scale = 'dynamic': "
                "sums of P in float32 would overflow"
            )
        if self.p_scale == "constant" and self.p_offset + threshold > P_HEADROOM_LOG2:
            raise ValueError(
                f"p_offset + rescale_threshold = {self.p_offset} + {threshold} is above log2 448 = "
                f"{P_HEADROOM_LOG2:.4f}: P would saturate in E4M3; lower one of them"
            )

    def _check_direct(self) -> None:
        """What direct codes need."""
        share = _require_real("direct_share", self.direct_share)
        if share not in DIRECT_SHARES:
            raise ValueError(f"direct_share = {share} is not allowed; choose one of {DIRECT_SHARES}")
        bias = _require_real("direct_bias", self.direct_bias)
        if not DIRECT_BIAS_MIN < bias <= 0:
            raise ValueError(f"direct_bias = {bias} must be above -1/16 and at most 0")
        if self.exp == "direct" and self.row_sum != "rounded":
            raise ValueError(
                f"row_sum = {self.row_sum!r} with exp = 'direct': direct codes have no unrounded P; "
                "allowed is row_sum='rounded'"
            )
        if self.sum_format == "float16" and (self.row_sum, self.p_scale) != ("rounded", "constant"):
            raise ValueError(
                f"sum_format = 'float16' with row_sum = {self.row_sum!r} and p_scale = {self.p_scale!r}: it adds up E4M3 "
                "values of one scale; allowed are row_sum='rounded' and p_scale='constant'"
            )

    def resolved_qk_blocks(self, causal: bool) -> Literal["1x32", "square"]:
        """qk_blocks with "auto" decided."""
        if self.qk_blocks == "auto":
            return "1x32" if causal else "square"
        return self.qk_blocks

    @property
    def resolved_grad_v_blocks(self) -> Literal["1x32", "square"]:
        """grad_v_blocks with "auto" decided."""
        if self.grad_v_blocks == "auto":
            return "square" if self.v_blocks == "square" else "1x32"
        return self.grad_v_blocks

    @property
    def direct_columns(self) -> int:
        """How many columns of every 16, the last ones, use direct codes."""
        return int(16 * self.direct_share) if self.exp == "direct" else 0

    @property
    def polynomial_columns(self) -> int:
        """How many columns of every 16, the first ones, take exp2 by polynomial in the forward."""
        return 0 if self.exp2 == "mufu" else int(16 * self.exp2)


def _plain(value: Any) -> Any:
    """A choice as Python's own type: NumPy's numbers are numbers too."""
    if isinstance(value, bool | str):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _require_real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} = {value!r} must be a finite number")
    return float(value)


def _require_integer(
    name: str, value: Any, low: int, high: int, *, multiple_of: int = 1, alternative: str | None = None
) -> None:
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    if not (integral and low <= value <= high and value % multiple_of == 0):
        kind = "an integer" if multiple_of == 1 else f"a multiple of {multiple_of}"
        other = f" or {alternative}" if alternative else ""
        raise ValueError(f"{name} = {value!r} must be {kind} from {low} to {high}{other}")

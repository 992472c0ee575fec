"""What the numbers are: MXFP8 formats, block quantization, tensor-core products. NumPy only."""

from mxfp8fa.numerics.backward import AttentionGradients, BackwardTile, attention_mxfp8_backward
from mxfp8fa.numerics.backward_inputs import SecondPayloads
from mxfp8fa.numerics.exp2 import exp2
from mxfp8fa.numerics.fma import fma
from mxfp8fa.numerics.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    F16,
    FORMATS,
    TF32,
    Format,
    decode,
    decode_scalar,
    encode,
    encode_scalar,
    get_format,
)
from mxfp8fa.numerics.forward import ForwardTile, attention_mxfp8
from mxfp8fa.numerics.mma import mma
from mxfp8fa.numerics.mx_tensor import BLOCK, MXTensor
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.quantize import quantize
from mxfp8fa.numerics.reference import attention_reference, attention_reference_backward
from mxfp8fa.numerics.scalar import quantize_block_scalar, scale_code_scalar
from mxfp8fa.numerics.scale_rules import SCALE_RULES, scale_codes
from mxfp8fa.numerics.sqnr import (
    SqnrEntry,
    StrictSummary,
    row_sqnr_db,
    sqnr_db,
    strict_summary,
    verdict,
    worst_row_sqnr_db,
)

__all__ = [
    "BF16",
    "BLOCK",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "E8M0",
    "F16",
    "FORMATS",
    "SCALE_RULES",
    "TF32",
    "AttentionGradients",
    "AttentionOptions",
    "BackwardTile",
    "Format",
    "ForwardTile",
    "MXTensor",
    "SecondPayloads",
    "SqnrEntry",
    "StrictSummary",
    "attention_mxfp8",
    "attention_mxfp8_backward",
    "attention_reference",
    "attention_reference_backward",
    "decode",
    "decode_scalar",
    "encode",
    "encode_scalar",
    "exp2",
    "fma",
    "get_format",
    "mma",
    "quantize",
    "quantize_block_scalar",
    "row_sqnr_db",
    "scale_code_scalar",
    "scale_codes",
    "sqnr_db",
    "strict_summary",
    "verdict",
    "worst_row_sqnr_db",
]

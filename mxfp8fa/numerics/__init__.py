"""What the numbers are: MXFP8 formats, block quantization, tensor-core products. NumPy only."""

from mxfp8fa.numerics.exp2 import exp2
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
from mxfp8fa.numerics.mma import mma
from mxfp8fa.numerics.quantize import BLOCK, SCALE_RULES, MXTensor, quantize, scale_codes

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
    "Format",
    "MXTensor",
    "decode",
    "decode_scalar",
    "encode",
    "encode_scalar",
    "exp2",
    "get_format",
    "mma",
    "quantize",
    "scale_codes",
]

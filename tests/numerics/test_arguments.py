"""Arguments of the wrong kind: a ValueError that says what was given and what is allowed, never a TypeError."""

import time

import numpy as np
import pytest

from mxfp8fa.layouts import cu_tiles, unpack_scales
from mxfp8fa.numerics import (
    AttentionOptions,
    MXTensor,
    attention_mxfp8,
    attention_reference,
    decode,
    encode,
    encode_scalar,
    exp2,
    fma,
    mma,
    quantize,
    sqnr_db,
)
from mxfp8fa.numerics.formats import round_values

X = np.ones((32, 64), np.float32)
TOKENS = np.ones((1, 32, 1, 32), np.float32)
MASKED = np.ma.masked_array(X, mask=X > 0)
MASKED_TOKENS = np.ma.masked_array(TOKENS, mask=TOKENS > 0)
MX = quantize(X, axes=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exp2(X[0, :3], out=[1.0] * 3), "out is a list; allowed: an array"),
        (lambda: exp2(X, out=np.broadcast_to(np.float32(0), X.shape)), "out is read-only float32 (32, 64); allowed: writable"),
        (lambda: MX.transpose("a", 0), "order = ('a', 0) is not a permutation of the axes 0 to 1"),
        (lambda: MX.transpose(1.0, 0), "order = (1.0, 0) is not a permutation of the axes 0 to 1"),
        (lambda: MX.transpose((1, 2)), "order = (1, 2) is not a permutation of the axes 0 to 1"),
        (lambda: MX.dequantize("nope"), "dtype = 'nope'; allowed: float32, float64"),
        (lambda: MX.dequantize(np.float16), "dtype = float16; allowed: float32, float64"),
        (lambda: MX.scale_of_rows("a"), "axis = a is not blocked; allowed: (1,)"),
        (lambda: MX.scale_of_rows(None), "axis = None is not blocked; allowed: (1,)"),
        (lambda: quantize(X, axes=np.array(2)), "2 is no axis of an array of rank 2"),
        (lambda: encode_scalar("1", "e4m3"), "value = '1'; allowed: a real number"),
        (lambda: unpack_scales(np.zeros((1, 1, 512), np.uint8), shape=None, axes=1), "shape = None; allowed: a tuple"),
        (lambda: round_values(X, "float8"), "dtype = 'float8'; allowed: float32, float16, bfloat16"),
    ],
)  # fmt: skip
def test_a_wrong_kind_is_refused(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: quantize(MASKED), "x"),
        (lambda: encode(MASKED, "e4m3"), "x"),
        (lambda: decode(np.ma.masked_array(MX.codes), "e4m3"), "codes"),
        (lambda: exp2(MASKED), "x"),
        (lambda: fma(X, MASKED, X), "x"),
        (lambda: mma(X, X, MASKED), "c"),
        (lambda: sqnr_db(X, MASKED), "reference"),
        (lambda: attention_mxfp8(TOKENS, MASKED_TOKENS, TOKENS), "k"),
        (lambda: attention_reference(TOKENS, TOKENS, MASKED_TOKENS), "v"),
        (lambda: quantize(X, cu_seqlens=np.ma.masked_array([0, 32])), "cu_seqlens"),
        (lambda: cu_tiles(np.ma.masked_array([0, 32])), "cu_seqlens"),
    ],
)
def test_a_masked_array_is_refused(call, name):
    """`np.asarray` would drop the mask: what is hidden would be computed with."""
    with pytest.raises(ValueError, match=rf"^{name} is a masked array; masks mean nothing here"):
        call()


def test_an_mx_tensor_of_masked_arrays_is_refused():
    with pytest.raises(ValueError, match="codes is MaskedArray; allowed: a uint8 array"):
        MXTensor(np.ma.masked_array(MX.codes), MX.scale_e8m0, axes=(1,))


def test_axes_and_orders_as_numpy_takes_them():
    assert quantize(X, axes=np.array(0)).axes == quantize(X, axes=np.array([0])).axes == (0,)
    assert MX.transpose((1, 0)).axes == MX.transpose([1, 0]).axes == MX.transpose(1, 0).axes == MX.T.axes == (0,)


def test_the_time_per_empty_sequence_does_not_grow_with_their_number():
    """Each of them used to count the blocks of all before it: 16 times as many took 160 times as long."""

    def seconds(count):
        empty, offsets = np.zeros((0, 1, 32), np.float32), np.zeros(count + 1, np.int64)
        start = time.process_time()
        attention_mxfp8(empty, empty, empty, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
        return time.process_time() - start

    seconds(100)
    few, many = min(seconds(500) for _ in range(3)), seconds(8000)
    assert many < 3 * 16 * few, f"500 sequences: {few:.3f} s, 8,000: {many:.3f} s"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_values_are_rounded_once_to_nearest_even(dtype, source):
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)
    x = np.concatenate([bits.view(np.float32), special])
    with np.errstate(invalid="ignore"):  # signaling NaN
        rounded = round_values(x.astype(source), dtype)
        expected = torch.from_numpy(x).to(getattr(torch, dtype)).to(torch.float32).numpy()
    np.testing.assert_array_equal(rounded, expected)
    assert rounded.dtype == source


def test_a_float64_is_not_rounded_twice():
    """1 + 2^-9 + 2^-40 lies above the tie of bfloat16 that float32 would put it on."""
    assert round_values(np.array([1 + 2.0**-8 + 2.0**-40]), "bfloat16")[0] == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_output_is_rounded_to_out_dtype(dtype):
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 40, 2, 64)).astype(np.float32)
    plain, lse = attention_mxfp8(q, k, v)
    rounded, same_lse = attention_mxfp8(q, k, v, options=AttentionOptions(out_dtype=dtype))
    np.testing.assert_array_equal(rounded, round_values(plain, dtype))
    np.testing.assert_array_equal(same_lse, lse)
    assert rounded.dtype == np.float32 and (dtype == "float32") == np.array_equal(rounded, plain)

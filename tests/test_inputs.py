"""The real file is what its script says; the synthetic generator has the habits that its arguments switch on."""

import math
from importlib import resources

import numpy as np
import pytest

from mxfp8fa.numerics.inputs import REAL_FILE, load_real, synthetic_llm


def test_real_file_is_small_and_packaged():
    data = resources.files("mxfp8fa.numerics") / "data" / REAL_FILE
    assert data.is_file()
    assert len(data.read_bytes()) <= 1_000_000


def test_real_arrays_are_float16_values_of_the_stated_shape():
    real = load_real()
    assert list(real) == ["minilm-layer0", "minilm-layer3"]
    for inputs in real.values():
        for name, array in inputs.tensors().items():
            assert array.shape == (1, 512, 3, 32), (inputs.name, name)
            assert array.dtype == np.float32
            assert np.isfinite(array).all()
            assert np.array_equal(array.astype(np.float16).astype(np.float32), array)


def test_real_gradient_is_scaled_out_of_the_subnormals():
    for inputs in load_real().values():
        assert 1 <= np.abs(inputs.do).max() < 2
        # Below 2^-14 float16 loses bits; the power of two in the script is there to keep nearly all values above.
        assert np.mean(np.abs(inputs.do) < 2.0**-14) < 0.01


def test_real_attention_is_not_uniform_noise():
    """A trained head looks at few keys: the largest probability of a row is far above 1/512."""
    for inputs in load_real().values():
        s = np.einsum("bqhd,bkhd->bhqk", inputs.q, inputs.k, dtype=np.float64) * inputs.softmax_scale
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        assert p.max(axis=-1).mean() > 20 / 512


def logits(inputs):
    """(B, Hq, Sq, Sk) in float64, K repeated for grouped heads."""
    k = np.repeat(inputs.k, inputs.q.shape[2] // inputs.k.shape[2], axis=2)
    return np.einsum("bqhd,bkhd->bhqk", inputs.q, k, dtype=np.float64) * inputs.softmax_scale


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("outlier_channels", [0, 4])
@pytest.mark.parametrize("logit_std", [1.0, 2.0, 8.0])
def test_logit_std_is_what_was_asked(head_dim, outlier_channels, logit_std):
    inputs = synthetic_llm(
        seqlen_q=256, head_dim=head_dim, logit_std=logit_std, outlier_channels=outlier_channels, seed=3
    )
    # The sample std of 2 x 256 x 256 logits is limited by 512 rows of q, each with its own norm, and as many of k; with
    # four x8 channels those four carry nearly all, so |q|^2 over 4 channels varies by sqrt(2/4) a row: about
    # 0.7 / sqrt(512) / 2 * sqrt(2) = 2.2 % (one sigma) on the std. Five sigma: 11 %.
    assert logits(inputs).std() == pytest.approx(logit_std, rel=0.11)


def test_k_mean_shifts_whole_rows_only():
    shifted = synthetic_llm(seqlen_q=128, k_mean=4.0, seed=1)
    s = logits(shifted)
    assert (s - s.mean(axis=-1, keepdims=True)).std() == pytest.approx(1.0, rel=0.1)
    assert s.mean(axis=-1).std() == pytest.approx(4.0, rel=0.2)  # q . mean: std 4 over rows
    assert np.abs(shifted.k.mean(axis=(0, 1))) == pytest.approx(np.full((2, 128), 4.0), rel=0.15)


def test_v_mean_moves_v_only():
    plain, shifted = (synthetic_llm(seqlen_q=64, v_mean=mean, seed=1) for mean in (0.0, 4.0))
    assert np.array_equal(plain.k, shifted.k) and np.array_equal(plain.q, shifted.q)
    assert np.abs(shifted.v - plain.v) == pytest.approx(np.full(plain.v.shape, 4.0), rel=1e-5)


def test_outlier_channels_stand_out_by_their_gain():
    inputs = synthetic_llm(seqlen_q=512, outlier_channels=4, outlier_gain=10.0, seed=5)
    for array in (inputs.q, inputs.k):
        channel_std = np.sort(array.std(axis=(0, 1)), axis=-1)
        assert channel_std[:, -4:] / channel_std[:, :-4].mean() == pytest.approx(np.full((2, 4), 10.0), rel=0.2)
    same = [set(np.argsort(a.std(axis=(0, 1))[0])[-4:].tolist()) for a in (inputs.q, inputs.k)]
    assert same[0] == same[1]


def test_shapes_groups_and_seed():
    inputs = synthetic_llm(batch=2, seqlen_q=33, seqlen_k=65, num_heads_q=4, num_heads_kv=2, head_dim=64, seed=9)
    assert inputs.q.shape == inputs.do.shape == (2, 33, 4, 64)
    assert inputs.k.shape == inputs.v.shape == (2, 65, 2, 64)
    assert all(array.dtype == np.float32 for array in inputs.tensors().values())
    again = synthetic_llm(batch=2, seqlen_q=33, seqlen_k=65, num_heads_q=4, num_heads_kv=2, head_dim=64, seed=9)
    other = synthetic_llm(batch=2, seqlen_q=33, seqlen_k=65, num_heads_q=4, num_heads_kv=2, head_dim=64, seed=10)
    for name, array in inputs.tensors().items():
        assert array.tobytes() == again.tensors()[name].tobytes()
        assert array.tobytes() != other.tensors()[name].tobytes()
    assert inputs.softmax_scale == 1 / math.sqrt(64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_dim": 32}, r"head_dim = 32 must be one of \(64, 128\)"),
        ({"logit_std": 0.0}, "logit_std = 0.0 must be above 0"),
        ({"logit_std": math.nan}, "logit_std = nan"),
        ({"logit_std": 17.0}, "at most 16"),
        ({"outlier_channels": 128}, "outlier_channels = 128 must be from 0 to head_dim - 1 = 127"),
        ({"outlier_channels": -1}, "outlier_channels = -1"),
        ({"outlier_gain": 0.5}, "outlier_gain = 0.5 must be finite and at least 1"),
        ({"outlier_gain": math.inf}, "outlier_gain = inf"),
        ({"k_mean": math.inf}, "k_mean = inf must be finite"),
        ({"v_mean": math.nan}, "v_mean = nan must be finite"),
        ({"batch": 0}, "batch = 0 must be at least 1"),
        ({"seqlen_q": 0}, "seqlen_q = 0 must be at least 1"),
        ({"seqlen_k": 0}, "seqlen_k = 0 must be at least 1"),
        ({"num_heads_q": 0}, "num_heads_q = 0 must be at least 1"),
        ({"num_heads_q": 4, "num_heads_kv": 3}, "num_heads_kv = 3 must divide num_heads_q = 4"),
        ({"num_heads_kv": 0}, "num_heads_kv = 0 must divide"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        synthetic_llm(**arguments)

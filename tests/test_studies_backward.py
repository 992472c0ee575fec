"""Experiments of the backward: what notebook 13 says is computed, not written down."""

from dataclasses import replace

import numpy as np
import pytest

from mxfp8fa.layouts import pack_scales
from mxfp8fa.numerics import AttentionOptions, quantize
from mxfp8fa.numerics.inputs import synthetic_llm
from mxfp8fa.numerics.sqnr import sqnr_db
from mxfp8fa.studies import backward as study
from mxfp8fa.studies.attention import TENSORS, Case


def test_the_two_orders_are_those_of_the_packing():
    ds = np.random.default_rng(0).standard_normal((128, 128)) * np.exp2(np.arange(16) * 5 % 7).reshape(4, 4).repeat(
        32, axis=0
    ).repeat(32, axis=1)
    x = quantize(ds.astype(np.float32), axes=(0, 1))
    for rows, product in (("tokens", "dK"), ("head_dim", "dQ")):
        packed = pack_scales(x, rows=rows).reshape(32, 4, 4).transpose(1, 0, 2).reshape(128, 4)
        np.testing.assert_array_equal(packed, x.scale_e8m0.reshape(-1)[study.scale_atoms()[product]])


def test_float16_halves_the_bytes_and_costs_no_accuracy():
    wide, half = study.dq_formats(tokens=256)
    assert (wide.tile_bytes, wide.total_bytes) == (128 * 128 * 4, (2 + 2) * 256 * 128 * 4)
    assert half.total_bytes * 2 == wide.total_bytes and abs(half.sqnr_db - wide.sqnr_db) < 0.02


def test_s_has_to_come_from_the_payload_that_made_lse():
    same, mixed, squares = study.payloads_of_s().values()
    assert same["dV"] > squares["dV"] + 2 > mixed["dV"] + 3


@pytest.mark.parametrize(("exp", "low", "high"), [("exact", 0.0015, 0.018), ("direct", 0.0025, 0.024)])
def test_rows_of_p_sum_to_one_on_average(exp, low, high):
    for std in (1, 8):
        sums = study.row_sums(exp, std)
        assert low < sums.std() < high and abs(sums.mean() - 1) < 0.004


@pytest.mark.slow
def test_sqnr_by_the_kernels_is_that_of_the_model():
    """Packed, grouped, and with a head_dim that has to be padded."""
    for needed in ("torch", "cutlass.cute", "llvmlite"):
        pytest.importorskip(needed)
    from mxfp8fa.studies.kernel_sqnr import by_kernels

    whole = synthetic_llm(seqlen_q=60, seqlen_k=60, num_heads_q=2, num_heads_kv=1, head_dim=64, seed=3)
    x = replace(whole, **{name: getattr(whole, name)[..., :32] for name in ("q", "k", "v", "do")})
    case, options = Case(x, cu_seqlens=(0, 23, 60)), AttentionOptions()
    found, model = by_kernels(case, options), case.mxfp8(options)
    for tensor in TENSORS:
        assert found[tensor].shape == model[tensor].shape and sqnr_db(found[tensor], model[tensor]) > 100

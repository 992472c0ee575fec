"""MXOperand: MXTensor in torch with packed scales, there and back."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")

from mxfp8fa.kernels import MXOperand  # noqa: E402
from mxfp8fa.layouts import pack_scales  # noqa: E402
from mxfp8fa.numerics import quantize  # noqa: E402

LENGTHS = np.array([0, 64, 64, 224], np.int32)


def tensor(shape, axes, cu_seqlens=None):
    """A tensor whose every element has a power of two of its own, so that no two blocks have one scale by design."""
    rng = np.random.default_rng(0)
    exponent = rng.integers(-20, 20, shape)
    x = (rng.standard_normal(shape) * 2.0**exponent).astype(np.float32)
    return quantize(x, axes=axes, cu_seqlens=cu_seqlens, tail="partial")


CASES = [
    ((160, 96), (1,), None, {"tokens": (2, 1, 512)}),
    ((160, 96), (0,), None, {"head_dim": (1, 2, 512)}),
    ((160, 192), (0, 1), None, {"tokens": (2, 2, 512), "head_dim": (2, 2, 512)}),
    ((2, 130, 3, 64), (3,), None, {"tokens": (2, 3, 2, 1, 512)}),
    ((2, 130, 3, 64), (1,), None, {"head_dim": (2, 3, 1, 2, 512)}),
    ((2, 130, 3, 64), (1, 3), None, {"tokens": (2, 3, 2, 1, 512), "head_dim": (2, 3, 1, 2, 512)}),
    ((224, 2, 64), (2,), LENGTHS, {"tokens": (2, 3, 1, 512)}),
    ((224, 2, 64), (0,), LENGTHS, {"head_dim": (2, 1, 3, 512)}),
    ((224, 2, 64), (0, 2), LENGTHS, {"tokens": (2, 3, 1, 512), "head_dim": (2, 1, 3, 512)}),
]


@pytest.mark.parametrize(("shape", "axes", "cu_seqlens", "packed"), CASES)
def test_there_and_back(shape, axes, cu_seqlens, packed):
    x = tensor(shape, axes, cu_seqlens)
    operand = MXOperand.from_mx_tensor(x)
    assert {rows: tuple(s.shape) for rows, s in operand.scales.items()} == packed
    for rows in packed:
        np.testing.assert_array_equal(operand.scales_with_rows(rows), pack_scales(x, rows=rows))
    back = operand.to_mx_tensor()
    np.testing.assert_array_equal(back.codes, x.codes)
    np.testing.assert_array_equal(back.scale_e8m0, x.scale_e8m0)
    assert (back.axes, back.fmt, operand.shape) == (x.axes, x.fmt, shape)


def test_codes_keep_their_strides():
    """The transpose of a row-major tensor stays a transpose: that is how a kernel knows an MN-major operand."""
    x = tensor((128, 64), (0,)).T
    operand = MXOperand.from_mx_tensor(x)
    assert operand.codes.stride() == (1, 64) and operand.axes == (1,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"codes": torch.zeros(128, 64)},
            r"codes is torch.float32 \(128, 64\); allowed: torch.uint8 of rank 2, 3 or 4",
        ),
        ({"axes": (0,)}, r"scales has rows \['tokens'\]; blocks along axes \(0,\) need \['head_dim'\]"),
        ({"axes": ()}, r"axes = \(\); allowed for shape \(128, 64\): 0, 1 or both"),
        ({"scales": {"tokens": torch.zeros(1, 2, 512, dtype=torch.uint8)}}, r"\(1, 2, 512\); .* \(1, 1, 512\)"),
        ({"codes": torch.zeros(4, 32, 64, dtype=torch.uint8)}, "rank 3 is packed sequences and needs cu_seqlens"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    given = {
        "codes": torch.zeros(128, 64, dtype=torch.uint8),
        "scales": {"tokens": torch.zeros(1, 1, 512, dtype=torch.uint8)},
        "axes": (1,),
    }
    MXOperand(**given)
    with pytest.raises(ValueError, match=message):
        MXOperand(**(given | change))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([0, 64, 32, 224], r"cu_seqlens = \[0, 64, 32, 224\] must start at 0, never decrease and end at 224"),
        ([0, 64, 64, 300], "must start at 0, never decrease and end at 224"),
        ([1, 64, 64, 224], "must start at 0"),
        ([0.0, 224.0], r"cu_seqlens is torch.float32 \(2,\); allowed: int32 or int64"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(lengths, message):
    x = MXOperand.from_mx_tensor(tensor((224, 2, 64), (2,), LENGTHS))
    with pytest.raises(ValueError, match=message):
        MXOperand(x.codes, x.scales, x.axes, cu_seqlens=torch.tensor(lengths))


def test_as_many_tiles_as_there_may_be():
    """What a GPU makes, since it need not be asked how many there are: here three tiles, at most (224 + 3 * 127) // 128 = 4."""
    x = MXOperand.from_mx_tensor(tensor((224, 2, 64), (0, 2), LENGTHS))
    for more, fits in ((-1, False), (1, True), (2, False)):
        pad = torch.nn.functional.pad
        scales = {"tokens": pad(x.scales["tokens"], (0, 0, 0, 0, 0, more)), "head_dim": pad(x.scales["head_dim"], (0, 0, 0, more))}
        if fits:
            moved = MXOperand(x.codes, scales, x.axes, cu_seqlens=x.cu_seqlens)
            np.testing.assert_array_equal(moved.to_mx_tensor().scale_e8m0, x.to_mx_tensor().scale_e8m0)
            continue
        with pytest.raises(ValueError, match=rf"need torch.uint8 \(2, {3 if more < 0 else 4}, 1, 512\)"):
            MXOperand(x.codes, scales, x.axes, cu_seqlens=x.cu_seqlens)
    scales = x.scales | {"tokens": torch.zeros(2, 4, 1, 512, dtype=torch.uint8)}
    with pytest.raises(ValueError, match=r"scales\['head_dim'\] .* need torch.uint8 \(2, 1, 4, 512\)"):
        MXOperand(x.codes, scales, x.axes, cu_seqlens=x.cu_seqlens)


def test_an_orientation_that_the_blocks_do_not_serve():
    operand = MXOperand.from_mx_tensor(tensor((128, 64), (1,)))
    with pytest.raises(ValueError, match="have scales with rows \\['tokens'\\]; 'head_dim' was asked for"):
        operand.scales_with_rows("head_dim")

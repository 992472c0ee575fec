"""Data and checks that the tests of the backward kernels share."""

from dataclasses import dataclass

import numpy as np
import torch

from mxfp8fa import emulator
from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.kernels import MXOperand
from mxfp8fa.kernels.backward.call import backward
from mxfp8fa.kernels.execution import emulation
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, quantize
from mxfp8fa.numerics.backward import AttentionGradients, attention_mxfp8_backward
from mxfp8fa.numerics.backward_inputs import SecondPayloads


def run_kernel(compiled, arguments, **options):
    """Run in the emulator with everything switched on that can object, and expect it to be silent."""
    report = emulator.run(compiled, *arguments, wait_ld="required", check="races", **options)
    assert report.races == []
    return report


def uneven(shape, seed):
    """(B, S, H, D) normal values; every block of 32 x 32 has a power of two of its own."""
    rng = np.random.default_rng(seed)
    batch, seqlen, heads, head_dim = shape
    blocks = batch, -(-seqlen // 32), heads, head_dim // 32
    power = 2.0 ** (np.arange(np.prod(blocks)).reshape(blocks) * 5 % 7 - 3.0)
    power = power.repeat(32, axis=1)[:, :seqlen].repeat(32, axis=3)
    return (rng.standard_normal(shape) * power).astype(np.float32)


def assert_same(result, expected):
    """Bit for bit the same, any NaN being equal to any NaN and 0 to -0 not."""
    got, want = (np.ascontiguousarray(x, np.float32) for x in (result, expected))
    assert got.shape == want.shape
    differ = (got.view(np.uint32) != want.view(np.uint32)) & ~(np.isnan(got) & np.isnan(want))
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{differ.sum()} of {differ.size} differ; first at {at}: {got[at]!r}, expected {want[at]!r}"
        )


def never_written(shape, dtype=torch.float32):
    """Memory for a result, filled with what no kernel here makes."""
    return torch.full(shape, -77, dtype=dtype)


class ArrivalOrder(Watch):
    """Writes down the additions to global memory: (CTA that sent it, first address), in order."""

    watching = True

    def __init__(self):
        self.additions = []
        self._acting = []  # operations; one may finish another first

    def begin(self, op):
        self._acting.append(op)

    def end(self, op):
        self._acting.pop()

    def memory(self, addresses, size_bytes, *, write, atomic=False):
        if write and atomic and self._acting:
            self.additions.append((self._acting[-1].agent[1], int(addresses[0])))


@dataclass(frozen=True)
class Call:
    """One backward call: operands, what the forward left, and what the model makes of them.

    Attributes:
        operands: keyword arguments of `backward`.
        expected: of the model; dQ in its order.
        tiles: the dQ tiles, (128, D) by (batch, query head, query tile, key tile).
    """

    operands: dict
    expected: AttentionGradients
    tiles: dict


SQUARE = AttentionOptions(qk_blocks="square")


def make_call(shape, *, causal=False, options=SQUARE, dtype=torch.float32, edit=None, softmax_scale=0.07):
    """Quantized Q, K, V and dO of (B, Sq, Sk, Hq, Hkv, D), the forward by the model, and its backward.

    edit: called with the dict of q, k, v, do before they are quantized.
    """
    batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim = shape
    size = {"q": (seqlen_q, heads_q), "k": (seqlen_k, heads_kv), "v": (seqlen_k, heads_kv), "do": (seqlen_q, heads_q)}
    x = {name: uneven((batch, *s, head_dim), seed) for seed, (name, s) in enumerate(size.items())}
    if edit is not None:
        edit(x)
    do = torch.from_numpy(x["do"]).to(dtype)
    square = options.resolved_qk_blocks(causal) == "square"
    q, k = (quantize(x[n], axes=(1, 3) if square else 3, tail="partial") for n in ("q", "k"))
    axes = (1, 3) if options.grad_qk_blocks == "square" else 1
    second = {n: None if square else quantize(x[n], axes=axes, tail="partial") for n in ("q", "k")}
    v, v_second = (quantize(x["v"], axes=axis, tail="partial") for axis in (1, 3))
    call = {"softmax_scale": softmax_scale, "causal": causal, "options": options}
    o, lse = attention_mxfp8(q, k, v, **call)
    o = torch.from_numpy(o).to(dtype)
    tiles = {}
    expected = attention_mxfp8_backward(
        q, k, v, do.float().numpy(), o.float().numpy(), lse, **call,
        second=SecondPayloads(q=second["q"], k=second["k"], v=v_second),
        on_tile=lambda t: tiles.update({(t.batch, t.head, t.q_tile, t.kv_tile): t.dq}),
    )  # fmt: skip
    to_operand = MXOperand.from_mx_tensor
    operands = {"q": to_operand(q), "k": to_operand(k), "v": to_operand(v_second), "o": o}
    operands |= {"lse": torch.from_numpy(lse), "do": do, **call}
    operands |= {f"{n}_second": to_operand(s) for n, s in second.items() if s is not None}
    return Call(operands, expected, tiles)


def run_call(call, *, check="races", trace=None, **emulate):
    """Run the kernels as `run_kernel` does; returns the gradients and the report."""
    more = {name: emulate.pop(name) for name in ("dtype", "dlse", "dq_overflows") if name in emulate}
    with emulation(check=check, wait_ld="required", trace=trace, **emulate) as report:
        gradients = backward(**call.operands, **more)
    assert report.races == []
    return gradients, report


def check_call(call, *, schedule="eager", **emulate):
    """Run the kernels and compare all gradients with the model, bit for bit; returns the gradients.

    dQ is compared with the model's tiles, added up in the order in which each part of them arrived.
    """
    order = ArrivalOrder() if emulate.get("check") == "off" else None
    gradients, _ = run_call(call, schedule=schedule, trace=order, **emulate)
    assert_same(gradients.dV, call.expected.dV)
    assert_same(gradients.dK, call.expected.dK)
    if order is None:
        assert_same(gradients.dQ, call.expected.dQ)
    else:
        assert_same(gradients.dQ, added_in_order(order, call))
    return gradients


def added_in_order(order, call):
    """dQ from the model's tiles, every part of 32 queries and 32 columns in its order of arrival."""
    batch, seqlen, heads, head_dim = call.expected.dQ.shape
    tiles, part_bytes = -(-seqlen // 128), 32 * 32 * 4
    sums = np.zeros((batch, heads, tiles * 128, head_dim), np.float32)
    start = min(address for _, address in order.additions)
    group = heads // call.operands["k"].shape[2]
    for (kv_tile, kv_head, b), address in order.additions:
        number, rest = divmod(address - start, part_bytes)
        rest_of_tiles, part = divmod(number, 4 * head_dim // 32)
        (outer, tile), (warp, column) = divmod(rest_of_tiles, tiles), divmod(part, head_dim // 32)
        assert rest == 0 and outer // heads == b and outer % heads // group == kv_head
        rows, columns = slice(32 * warp, 32 * warp + 32), slice(32 * column, 32 * column + 32)
        here = sums[b, outer % heads, 128 * tile : 128 * tile + 128][rows, columns]
        here += call.tiles[b, outer % heads, tile, kv_tile][rows, columns]
    return (sums * np.float32(call.operands["softmax_scale"])).transpose(0, 2, 1, 3)[:, :seqlen]

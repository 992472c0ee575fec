"""Chains with a carry flag against Python's unbounded integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.machine.kernels import launch

EDGES = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
PAIRS = [(a | b << 32, c | d << 32) for a, b, c, d in itertools.product([0, 1, 0x80000000, 0xFFFFFFFF], repeat=4)]


def chain(body, inputs, outputs):
    """Run a body on rows of u32 inputs (%r10, %r11, ...); returns rows of outputs (%r20, ...)."""
    inputs = np.asarray(inputs, np.uint32)
    rows, count = inputs.shape
    source = np.zeros((-(-rows // 32) * 32, count), np.uint32)
    source[:rows] = inputs
    out = np.zeros((len(source), outputs), np.uint32)
    loads = "".join(f" ld.global.u32 %r{10 + i}, [%rd6+{4 * i}];\n" for i in range(count))
    stores = "".join(f" st.global.u32 [%rd7+{4 * i}], %r{20 + i};\n" for i in range(outputs))
    place = f"""
 mov.u32 %r3, %ctaid.x;
 mad.lo.u32 %r3, %r3, 32, %r1;
 mul.wide.u32 %rd6, %r3, {4 * count};
 add.s64 %rd6, %rd6, %rd2;
 mul.wide.u32 %rd7, %r3, {4 * outputs};
 add.s64 %rd7, %rd7, %rd1;
"""
    launch(place + loads + body + stores, out, source, grid=len(source) // 32)
    return out[:rows].tolist()


def words(x, count):
    return [x >> 32 * i & 0xFFFFFFFF for i in range(count)]


def test_64_bit_addition_and_subtraction_in_halves():
    rows = [words(a, 2) + words(b, 2) for a, b in PAIRS]
    body = " add.cc.u32 %r20, %r10, %r12;\n addc.cc.u32 %r21, %r11, %r13;\n addc.u32 %r22, 0, 0;\n"
    assert chain(body, rows, 3) == [words(a + b, 3) for a, b in PAIRS]
    body = " sub.cc.u32 %r20, %r10, %r12;\n subc.cc.u32 %r21, %r11, %r13;\n subc.u32 %r22, 0, 0;\n"
    assert chain(body, rows, 3) == [words(a - b, 3) for a, b in PAIRS]


@pytest.mark.parametrize("sign", ["u", "s"])
def test_multiply_add_of_two_words(sign):
    triples = [(a, b, c) for a, b in itertools.product(EDGES, repeat=2) for c in (0, 0xFFFFFFFF)]
    body = f" mad.lo.cc.{sign}32 %r20, %r10, %r11, %r12;\n madc.hi.{sign}32 %r21, %r10, %r11, %r12;\n"

    def value(x):
        return x - (1 << 32) if sign == "s" and x >> 31 else x

    want = []
    for a, b, c in triples:
        product = value(a) * value(b)
        low = (product & 0xFFFFFFFF) + c
        want.append([low & 0xFFFFFFFF, ((product >> 32) + c + (low >> 32)) & 0xFFFFFFFF])
    assert chain(body, [list(t) for t in triples], 2) == want


def test_carry_that_was_never_set_is_poison():
    with pytest.raises(em.PoisonError):
        chain(" addc.u32 %r20, %r10, 0;\n", [[1]], 1)


def test_carry_is_kept_by_instructions_without_cc():
    body = " add.cc.u32 %r20, %r10, %r10;\n add.u32 %r20, %r10, 1;\n addc.u32 %r21, 0, 0;\n"
    assert chain(body, [[0xFFFFFFFF], [1]], 2) == [[0, 1], [2, 0]]

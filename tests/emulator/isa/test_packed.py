"""Pairs of f32 in 64 bits (PTX ISA 9.7.3, .f32x2), and how uninitialised bits spread through packed instructions."""

import exact_floats as exact
import numpy as np
import pytest
from exact_floats import F32, MODES, bulk

from mxfp8fa.emulator.isa import packed, registry

COUNT = 400


def pair(low, high):
    return [lo | hi << 32 for lo, hi in zip(low, high, strict=True)]


SPELLINGS = [f"{op}.{mode}{ftz}" for op in ("add", "sub", "mul", "fma") for mode in MODES for ftz in ("", ".ftz")]


@pytest.mark.parametrize("name", [*SPELLINGS, "add", "sub", "mul"])
def test_f32x2_is_two_independent_f32(name):
    """Element 0 in the low 32 bits; different numbers in the two elements, so that a swap shows."""
    operands = 3 if name.startswith("fma") else 2
    low, high = (exact.tuples(F32, operands, COUNT, seed, limit=COUNT) for seed in (1, 2))
    elements = [bulk(f"{name}.f32", *columns) for columns in (low, high)]
    packed_columns = [pair(lo, hi) for lo, hi in zip(low, high, strict=True)]
    assert bulk(f"{name}.f32x2", *packed_columns) == pair(*elements)


def test_f32x2_by_hand():
    one_and_two, three_and_minus_one = 0x40000000_3F800000, 0xBF800000_40400000
    assert bulk("add.f32x2", [one_and_two], [three_and_minus_one]) == [0x3F800000_40800000]
    assert bulk("mul.rn.f32x2", [one_and_two], [three_and_minus_one]) == [0xC0000000_40400000]
    assert bulk("fma.rn.f32x2", [one_and_two], [one_and_two], [three_and_minus_one]) == [0x40400000_40800000]


@pytest.mark.parametrize(("dtype", "half"), [(np.uint32, 16), (np.uint64, 32)])
def test_poison_stays_in_its_element(dtype, half):
    element = (1 << half) - 1
    clean = np.zeros(3, dtype)
    spoiled = np.array([1, 1 << half, 0], dtype)
    (result,) = packed.elementwise_shadow([clean, clean], [clean, spoiled])
    assert result.tolist() == [element, element << half, 0]
    (result,) = packed.elementwise_shadow([clean, clean], [spoiled, spoiled[::-1]])
    assert result.tolist() == [element, element << half, element]
    assert result.dtype == dtype


@pytest.mark.parametrize(("width", "dtype"), [(16, np.uint32), (8, np.uint16), (4, np.uint8)])
def test_poison_of_packing_conversions(width, dtype):
    """Of two f32 operands a goes to the upper part and b to the lower one."""
    a = np.array([0, 1 << 31, 0, 7], np.uint32)
    b = np.array([0, 0, 1, 1 << 22], np.uint32)
    field = (1 << width) - 1
    (result,) = packed.packing_shadow(width, dtype)([a, b], [a, b])
    assert result.tolist() == [0, field << width, field, field << width | field]
    assert result.dtype == dtype


def test_packed_instructions_have_a_poison_rule():
    """All element-wise packed arithmetic, and the conversions that pack two f32."""
    arithmetic = ["add.f32x2", "fma.rn.f32x2", "mul.bf16x2", "fma.rn.relu.f16x2", "max.NaN.bf16x2", "ex2.approx.f16x2"]
    packing = ["rn.bf16x2", "rz.relu.f16x2", "rn.satfinite.e4m3x2", "rn.satfinite.e2m1x2"]
    for name in arithmetic + [f"cvt.{p}.f32" for p in packing]:
        opcode, *qualifiers = name.split(".")
        found = next(f for n in (2, 3, 4) if (f := registry.find(opcode, qualifiers, n)))
        assert "shadow" in found[0].extra, name

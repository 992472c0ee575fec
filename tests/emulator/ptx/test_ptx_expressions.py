"""Constants and constant expressions. Expected values of the sign rules were read from ptxas 13.5's machine code."""

import math
import struct

import numpy as np
import pytest
from ptx_snippets import operands

from mxfp8fa.emulator.ptx import Immediate, PTXSyntaxError
from mxfp8fa.emulator.ptx.expressions import literal

U64 = 1 << 64


def value(text):
    (_, constant) = operands(f"mov.b64 rd1, {text};")
    assert isinstance(constant, Immediate)
    return constant


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("42", 42), ("0x7771U", 0x7771), ("017", 15), ("0b101", 5), ("-1", -1), ("+4", 4), ("- -4", 4),
        ("9223372036854775807", 2**63 - 1), ("0xFFFFFFFFFFFFFFFF", 2**64 - 1), ("18446744073709551615", 2**64 - 1),
        ("(1+2)*4", 12), ("1+2*4", 9), ("WARP_SZ", 32), ("WARP_SZ-1", 31), ("2*-3", -6), ("7-2-1", 4),
        ("1<<4|1", 17), ("6&3^1", 3), ("1|2&3", 3), ("5>3", 1), ("5<=3", 0), ("4==4&&3!=3||1", 1), ("1<2==1", 1),
        ("0?1:2", 2), ("1?1:0?2:3", 1), ("(0?1:0)?2:3", 3), ("!5", 0), ("!0", 1), ("!!7", 1), ("1.5<2.0", 1),
        ("~0", 2**64 - 1), ("~0>>1", 2**63 - 1), ("-1>>1", -1), ("-1U>>1", 2**63 - 1), ("(.u64)-1>>1", 2**63 - 1),
        ("(.s64)0xFFFFFFFFFFFFFFFF", -1), ("(-1&-1)>>1", -1), ("0x8000000000000000>>1", 2**62),
        ("-7/2", -3), ("7/-2", -3), ("-7U/2", (2**64 - 7) // 2), ("-7 % 2", 1), ("7 % 3", 1), ("1<<63", -(2**63)),
        ("9223372036854775807+1", -(2**63)), ("-1<0U", 0), ("-1<0", 1), ("0-1U", 2**64 - 1),
    ],
)  # fmt: skip
def test_integers(text, expected):
    found = value(text)
    assert (found.kind, found.value, found.bits) == ("int", expected, expected % U64)


def test_a_long_chain_needs_no_stack():
    assert value("1" + "+1" * 5000).value == 5001
    assert value("-" * 5001 + "1").value == -1


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("0f3F800000", "f32", 0x3F800000),
        ("0F7fc12345", "f32", 0x7FC12345),
        ("0fFF812345", "f32", 0xFF812345),
        ("0d3FF8000000000000", "f64", 0x3FF8000000000000),
        ("0D7FF0000000000001", "f64", 0x7FF0000000000001),
        ("1.5", "f64", 0x3FF8000000000000),
        (".25", "f64", 0x3FD0000000000000),
        ("-2.0", "f64", 0xC000000000000000),
        ("-0.0", "f64", 0x8000000000000000),
        ("1e400", "f64", 0x7FF0000000000000),
        ("(1.5+1.0)*2.0", "f64", 0x4014000000000000),
        ("1.0/4.0-0.25", "f64", 0),
    ],
)
def test_floats_keep_their_bits(text, kind, bits):
    found = value(text)
    assert (found.kind, found.bits) == (kind, bits)


@pytest.mark.parametrize(
    "number",
    [0.0, -0.0, 1.0, 0.1, 1 / 3, 2.0**-149, 2.0**-150, 2.0**-126, 3.4028235e38, 3.4028236e38, 1e39, -1e300, math.inf],
)
def test_a_decimal_constant_rounds_to_float32(number):
    with np.errstate(over="ignore"):
        expected = int(np.float32(number).view(np.uint32))
    encoded = struct.unpack("<Q", struct.pack("<d", number))[0]
    assert literal(f"0d{encoded:016X}").float_bits(32) == expected


def test_a_float32_constant_widens_to_float64():
    assert literal("0f3FC00000").float_bits(64) == 0x3FF8000000000000
    assert literal("0fFF800000").float_bits(64) == 0xFFF0000000000000


def test_widths_of_integers():
    assert value("-1").integer_bits(16) == 0xFFFF
    assert value("0x12345").integer_bits(8) == 0x45
    assert literal("0f3F800000").integer_bits(32) == 0x3F800000


@pytest.mark.parametrize(("text", "width"), [("0f3F800000", 64), ("0d3FF8000000000000", 32), ("1.5", 32), ("1.5", 16)])
def test_a_float_is_no_bit_pattern_of_another_width(text, width):
    # ptxas refuses `mov.b32 r, 1.5` and takes `mov.b32 r, 0f3FC00000`.
    with pytest.raises(ValueError, match="bit pattern"):
        literal(text).integer_bits(width)


@pytest.mark.parametrize(("text", "width"), [("1", 32), ("0x3F800000", 32), ("1.5", 16)])
def test_an_integer_is_no_float(text, width):
    with pytest.raises(ValueError, match="bit float"):
        literal(text).float_bits(width)


def test_nan_constants_compare_by_bits():
    assert literal("0f7FC00000") == literal("0F7fc00000") != literal("0f7FC00001")


@pytest.mark.parametrize(
    "text",
    ["1<<64", "1>>-1", "1/0", "1%0", "1.0/0.0", "1.5%1.0", "~1.5", "!1.5", "1.5<<1", "1+1.0", "(1", "1?2", "1+", "()",
     "0x1FFFFFFFFFFFFFFFF", "18446744073709551616", "1 2", "(.u32)1"],
)  # fmt: skip
def test_no_expression(text):
    with pytest.raises(PTXSyntaxError):
        value(text)

"""From cycles of a cluster to the chip: tilings, dealing of tiles, increments, units."""

import pytest

from mxfp8fa.timing.chip import Increments, bandwidth_us, on_chip, petaflops
from mxfp8fa.timing.measurements import TABLES
from mxfp8fa.timing.programs import Tiling
from mxfp8fa.timing.rates import CONSTANTS, Rates, uncertain
from mxfp8fa.timing.shapes import AttentionShape

SHAPE = AttentionShape.parse("b4-h16-s8192-d128")


def test_increments_of_a_linear_kernel():
    start, tile, step = 5000.0, 900.0, 2500.0

    def cycles(tiles, steps):
        return start + tiles * tile + tiles * steps * step

    found = Increments.fit((4, cycles(1, 4)), (8, cycles(1, 8)), (8, cycles(2, 4)))
    assert found == Increments(start, tile, step)
    alone = Increments.fit((4, cycles(1, 4)), (8, cycles(1, 8)), None)
    assert alone == Increments(start + tile, 0.0, step)
    assert alone.cycles(1, 100) == cycles(1, 100)


def test_steps_of_a_causal_problem():
    """Rows 0 to 255 see up to 256 keys, and so on; the last tile sees all."""
    shape = AttentionShape.parse("b1-h1-s1024-d128", causal=True)
    assert Tiling(rows=256).steps(shape) == [8, 6, 4, 2]
    assert Tiling(rows=128, backward=True).steps(shape) == [8, 7, 6, 5, 4, 3, 2, 1]
    more_keys = AttentionShape.parse("b1-h1-s256-sk1024-d128", causal=True)
    assert Tiling(rows=256).steps(more_keys) == [8]
    odd = AttentionShape.parse("b2-h3-s300-sk130-d128")
    assert Tiling(rows=256).steps(odd) == [2] * 12


def test_tiles_are_dealt():
    rates, increments = Rates({"cta_start": 100}), Increments(1000.0, 50.0, 10.0)
    work = Tiling(rows=256).steps(SHAPE)
    assert len(work) == 2048 and set(work) == {64}
    persistent = on_chip(SHAPE, Tiling(rows=256, persistent=True), increments, rates)
    assert (persistent.rounds, persistent.steps) == (14, 14 * 64)
    assert persistent.cycles == 1000 + 14 * 50 + 14 * 640
    each = on_chip(SHAPE, Tiling(rows=256), increments, rates)
    assert each.cycles == 14 * (1000 + 50 + 640 + 100)
    assert each.balance == pytest.approx(2048 / 148 / 14)


def test_longest_first_balances_a_causal_problem():
    shape = AttentionShape.parse("b4-h16-s8192-d128", causal=True)
    chip = on_chip(shape, Tiling(rows=256), Increments(0.0, 0.0, 1.0), Rates({"cta_start": 0}))
    mean = sum(Tiling(rows=256).steps(shape)) / 148
    assert mean <= chip.cycles < 1.02 * mean


def test_units():
    assert petaflops(SHAPE.flops(), 1433.0) == pytest.approx(1.5348, rel=1e-3)
    chip = on_chip(SHAPE, Tiling(rows=256), Increments(0.0, 0.0, 1.0), Rates({"cta_start": 0}))
    assert chip.microseconds(2.0, Rates({"launch_us": 5.0})) == pytest.approx(chip.cycles / 2000 + 5)
    one_head = AttentionShape.parse("b1-h1-s1024-d64")
    assert bandwidth_us(one_head, 2, 2, Rates({"hbm": 8.0})) == pytest.approx(4 * 1024 * 64 * 2 / 8e12 * 1e6)


def test_constants_are_consistent():
    for name, c in CONSTANTS.items():
        assert c.low <= c.value <= c.high, name
        assert c.confidence in ("high", "medium", "low") and c.source and c.what
    names = {name for name, _ in uncertain()}
    assert {"ldtm", "utccp", "f2fp_8", "fmnmx"} <= names and "fma" not in names


def test_published_rows_agree_with_their_own_times():
    """Times and FLOP/s that one source gives for one run: 1.433, 4.407, 4.043, 0.775 and 2.056 ms."""
    rows = {row.label: row for table in (TABLES[0], TABLES[2]) for row in table.rows}
    for label, us in (
        ("flash-attn-4 2 CTAs, b4-h16-s8192-d128", 1433),
        ("flash-attn-4-backward, b4-h16-s8192-d128", 4407),
        ("flash-attn-4-backward 2 CTAs, b4-h16-s8192-d128", 4043),
        ("flash-attn-4, b4-h16-s8192-d128 causal", 775),
        ("cudnn 2 CTAs, b1-h24-hkv8-s16384-d128", 2056),
    ):
        assert rows[label].microseconds == pytest.approx(us, rel=1e-3)
    assert sum(len(table.rows) for table in TABLES) == 25

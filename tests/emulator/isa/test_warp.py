"""Warp collectives against a loop over lanes, with divided groups, inactive lanes and every kind of f32."""

import math
import random

import numpy as np
import pytest
from scalar_lanes import f32, random_words, signed

from mxfp8fa.emulator.isa import warp
from mxfp8fa.emulator.isa.by_hand import evaluate

LANES = range(32)
FULL = 0xFFFFFFFF


def objects(values):
    return np.array(list(values), dtype=object)


def call(mnemonic, *columns, mask=FULL):
    """Evaluate on 32 lanes of raw operands with the given active lanes; lists of ints or bools."""
    active = np.array([bool(mask >> i & 1) for i in LANES])
    out = evaluate(mnemonic, *map(objects, columns), mask=active)
    return [x.tolist() for x in out] if isinstance(out, tuple) else out.tolist()


def grouped(masks):
    """One membermask per lane from masks that divide the lanes between them; lanes of no group get 0."""
    return [next((m for m in masks if m >> i & 1), 0) for i in LANES]


def members(mask):
    return [i for i in LANES if mask >> i & 1]


GROUPINGS = [
    [FULL],
    [0x0000FFFF, 0xFFFF0000],
    [0x11111111, 0xEEEEEEEE],
    [1 << 7, FULL ^ (1 << 7)],
    [0x00F0A005, 0x00000FF0],  # the other lanes are inactive
]


def source_lane(mode, lane, b, c):
    """PTX ISA, shfl.sync: the lane that is read, or None when it is out of range."""
    segment, clamp, offset = c >> 8 & 31, c & 31, b & 31
    first = lane & segment
    last = first | clamp & ~segment & 31
    if mode == "up":
        j = lane - offset
        return j if j >= last else None
    j = {"down": lane + offset, "bfly": lane ^ offset, "idx": first | offset & ~segment & 31}[mode]
    return j if j <= last else None


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 4, 2, 1])
def test_shfl_within_segments(mode, width):
    a = random_words(32, 32, seed=width)
    c = ((32 - width) << 8) | (0 if mode == "up" else 31)
    for b in [*range(33), 63, FULL]:
        d, p = call(f"shfl.sync.{mode}.b32", a, [b] * 32, [c] * 32, [FULL] * 32)
        sources = [source_lane(mode, i, b, c) for i in LANES]
        assert p == [j is not None for j in sources]
        assert d == [a[i if j is None else j] for i, j in zip(LANES, sources, strict=True)]


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl_with_operands_that_differ_by_lane(mode):
    rng = random.Random(1)
    for _ in range(50):
        a, b, c = (random_words(32, 32, seed=rng.random()) for _ in range(3))
        d, p = call(f"shfl.sync.{mode}.b32", a, b, c, [FULL] * 32)
        sources = [source_lane(mode, i, b[i], c[i]) for i in LANES]
        assert p == [j is not None for j in sources]
        assert d == [a[i if j is None else j] for i, j in zip(LANES, sources, strict=True)]


def test_shfl_as_cuda_uses_it():
    a = list(range(100, 132))
    assert call("shfl.sync.idx.b32", a, [5] * 32, [31] * 32, [FULL] * 32)[0] == [105] * 32
    assert call("shfl.sync.bfly.b32", a, [1] * 32, [31] * 32, [FULL] * 32)[0] == [100 + (i ^ 1) for i in LANES]
    up, p = call("shfl.sync.up.b32", a, [1] * 32, [0] * 32, [FULL] * 32)
    assert up == [100, *range(100, 131)] and p == [False] + [True] * 31
    down, p = call("shfl.sync.down.b32", a, [1] * 32, [31] * 32, [FULL] * 32)
    assert down == [*range(101, 132), 131] and p == [True] * 31 + [False]


def for_each_member(masks, got, expected):
    """Compare the active lanes only: the others write nothing."""
    for mask in masks:
        for lane in members(mask):
            assert got[lane] == expected(lane, mask), (lane, hex(mask))


@pytest.mark.parametrize("masks", GROUPINGS)
def test_vote(masks):
    rng = random.Random(2)
    patterns = [[False] * 32, [True] * 32, [i == 7 for i in LANES], [i != 7 for i in LANES]]
    patterns += [[rng.random() < 0.5 for _ in LANES] for _ in range(10)]
    active = sum(masks)
    for a in patterns:
        votes = {m: call(f"vote.sync.{m}.pred", a, grouped(masks), mask=active) for m in ("all", "any", "uni")}
        for_each_member(masks, votes["all"], lambda _, m, a=a: all(a[i] for i in members(m)))
        for_each_member(masks, votes["any"], lambda _, m, a=a: any(a[i] for i in members(m)))
        for_each_member(masks, votes["uni"], lambda _, m, a=a: len({a[i] for i in members(m)}) == 1)
        word = call("vote.sync.ballot.b32", a, grouped(masks), mask=active)
        for_each_member(masks, word, lambda _, m, a=a: sum(1 << i for i in members(m) if a[i]))


@pytest.mark.parametrize("masks", GROUPINGS)
@pytest.mark.parametrize("bits", [32, 64])
def test_match(masks, bits):
    rng = random.Random(3)
    few = random_words(bits, 3, seed=4)
    few.append(few[0] ^ (1 << (bits - 1)))  # differs from another one in the top bit only
    cases = [[rng.choice(few) for _ in LANES] for _ in range(10)] + [[few[0]] * 32]
    cases += [[few[0] if i < 16 else few[3] for i in LANES]]
    for a in cases:
        got = call(f"match.any.sync.b{bits}", a, grouped(masks), mask=sum(masks))
        for_each_member(masks, got, lambda lane, m, a=a: sum(1 << i for i in members(m) if a[i] == a[lane]))
        d, p = call(f"match.all.sync.b{bits}", a, grouped(masks), mask=sum(masks))
        for_each_member(masks, p, lambda _, m, a=a: len({a[i] for i in members(m)}) == 1)
        for_each_member(masks, d, lambda _, m, a=a: m if len({a[i] for i in members(m)}) == 1 else 0)


def test_activemask_and_elect():
    assert call("activemask.b32", mask=0x80F00001) == [0x80F00001] * 32
    for masks in GROUPINGS:
        d, p = call("elect.sync", grouped(masks), mask=sum(masks))
        for_each_member(masks, d, lambda _, m: min(members(m)))
        for_each_member(masks, p, lambda lane, m: lane == min(members(m)))


@pytest.mark.parametrize("masks", GROUPINGS)
def test_redux_integers(masks):
    rng = random.Random(5)
    operations = {
        "add.u32": lambda xs: sum(xs) % 2**32,
        "add.s32": lambda xs: sum(xs) % 2**32,
        "min.u32": min,
        "max.u32": max,
        "min.s32": lambda xs: min(xs, key=lambda x: signed(x, 32)),
        "max.s32": lambda xs: max(xs, key=lambda x: signed(x, 32)),
        "and.b32": lambda xs: FULL & ~sum({1 << b for b in LANES if any(not x >> b & 1 for x in xs)}),
        "or.b32": lambda xs: sum({1 << b for b in LANES if any(x >> b & 1 for x in xs)}),
        "xor.b32": lambda xs: sum({1 << b for b in LANES if sum(x >> b & 1 for x in xs) % 2}),
    }
    cases = [[x] * 32 for x in (0, FULL, 0x80000000, 0x7FFFFFFF)]  # nothing beats the identity of min or max
    for seed in range(4):
        cases.append(random_words(32, 32, seed=seed))
        cases[-1][rng.randrange(32)], cases[-1][rng.randrange(32)] = 0x80000000, 0x7FFFFFFF
    for a in cases:
        for name, reduce in operations.items():
            got = call(f"redux.sync.{name}", a, grouped(masks), mask=sum(masks))
            for_each_member(masks, got, lambda _, m, f=reduce, a=a: f([a[i] for i in members(m)]))


SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x3F800000, 0xBF800000]
SPECIAL += [0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000]
NANS = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF]


def f32_extremum(op, codes, absolute, nan_wins):
    """PTX ISA, redux.sync: NaN inputs are left out, or win under .NaN; +0.0 > -0.0; the result NaN is canonical."""
    numbers = [c & 0x7FFFFFFF if absolute else c for c in codes if not math.isnan(f32(c))]
    if not numbers or (nan_wins and len(numbers) < len(codes)):
        return 0x7FFFFFFF
    return {"min": min, "max": max}[op](numbers, key=lambda c: (f32(c), math.copysign(1, f32(c))))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("nan_wins", [False, True])
@pytest.mark.parametrize("masks", GROUPINGS)
def test_redux_f32(op, absolute, nan_wins, masks):
    rng = random.Random(6)
    cases = [[rng.choice(pool) for _ in LANES] for pool in (SPECIAL, SPECIAL + NANS, NANS, SPECIAL[:2], SPECIAL[:4])]
    cases += [[rng.choice(NANS) if i == 7 else x for i, x in enumerate(cases[0])]]
    mnemonic = f"redux.sync.{op}{'.abs' * absolute}{'.NaN' * nan_wins}.f32"
    for a in cases:
        got = call(mnemonic, a, grouped(masks), mask=sum(masks))
        for_each_member(masks, got, lambda _, m, a=a: f32_extremum(op, [a[i] for i in members(m)], absolute, nan_wins))


def test_poison_of_one_member_reaches_its_group_only():
    masks = np.array(grouped([0x0000FFFF, 0xFFFF0000]), np.uint32)
    clean = np.zeros(32, np.uint32)
    one = clean.copy()
    one[3] = 0x100
    values = [clean, masks]
    assert warp.group_shadow(values, [one, clean])[0].tolist() == [FULL] * 16 + [0] * 16
    assert warp.group_shadow(values, [clean, one])[0].tolist() == [FULL if i == 3 else 0 for i in LANES]
    assert warp.vote_shadow(values, [one != 0, clean])[0].tolist() == [True] * 16 + [False] * 16
    assert warp.ballot_shadow(values, [one != 0, clean])[0].tolist() == [8] * 16 + [0] * 16
    word, predicate = warp.match_all_shadow(values, [one.astype(np.uint64), clean])
    assert word.tolist() == [FULL] * 16 + [0] * 16 and predicate.tolist() == [True] * 16 + [False] * 16
    leader, mine = warp.elect_shadow([masks], [one])
    assert leader.tolist() == [FULL if i == 3 else 0 for i in LANES] and mine.tolist() == [i == 3 for i in LANES]


def test_poison_of_a_lane_outside_the_group_is_ignored():
    masks = np.full(32, 0x0000FFFF, np.uint32)
    outside = np.zeros(32, np.uint32)
    outside[20] = FULL
    clean = np.zeros(32, np.uint32)
    assert not warp.group_shadow([clean, masks], [outside, clean])[0].any()
    assert not warp.ballot_shadow([clean, masks], [outside != 0, clean])[0].any()

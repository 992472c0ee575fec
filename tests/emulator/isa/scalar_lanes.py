"""How the instruction tests run: a row of Python integers (raw bits) per lane, compared with plain Python."""

import itertools
import random
import struct

import numpy as np

from mxfp8fa.emulator.isa.by_hand import evaluate

EDGES = {
    n: [0, 1, 2, (1 << n) - 1, (1 << n) - 2, 1 << (n - 1), (1 << (n - 1)) - 1, (1 << (n - 1)) + 1] for n in (16, 32, 64)
}
SHIFTS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 255, 256, 1 << 31, (1 << 32) - 1]


def signed(x, bits):
    """The integer that raw bits mean in two's complement."""
    return x - (1 << bits) if x >> (bits - 1) else x


def number(x, t):
    """The integer that raw bits mean in a PTX integer type: ``number(0xFFFF, "s16") == -1``."""
    return signed(x, int(t[1:])) if t[0] == "s" else x


def f32(x):
    return struct.unpack("<f", struct.pack("<I", x))[0]


def f64(x):
    return struct.unpack("<d", struct.pack("<Q", x))[0]


def f16(x):
    return struct.unpack("<e", struct.pack("<H", x))[0]


def bf16(x):
    return f32(x << 16)


def random_words(bits, count, seed):
    """Random integers of all magnitudes, so that small, large, and nearly full words occur."""
    rng = random.Random(seed)
    words = [rng.getrandbits(bits) >> rng.randrange(bits) for _ in range(count)]
    return [w ^ ((1 << bits) - 1) if rng.random() < 0.3 else w for w in words]


def rows_of(bits, count, seed):
    """Rows of operands: all combinations of edge values, then random rows. bits: width per operand."""
    edges = list(itertools.product(*(EDGES[b] for b in bits)))
    chosen = edges if len(edges) <= 512 else random.Random(seed).sample(edges, 512)
    columns = [random_words(b, count, seed + i) for i, b in enumerate(bits)]
    return chosen + list(zip(*columns, strict=True))


def run(mnemonic, rows):
    """Evaluate rows of raw operands, 32 at a time; a list of ints or bools, or of tuples for several results."""
    results = []
    for start in range(0, len(rows), 32):
        chunk = rows[start : start + 32]
        columns = [np.array(column, dtype=object) for column in zip(*chunk, strict=True)]
        out = evaluate(mnemonic, *columns)
        out = out if isinstance(out, tuple) else (out,)
        results += list(zip(*(column.tolist() for column in out), strict=True))
    return [r[0] if len(r) == 1 else r for r in results]


def check(mnemonic, rows, expected):
    """Compare every row with expected(*row), and name the first row that differs."""
    got = run(mnemonic, rows)
    assert len(got) == len(rows)
    for row, result in zip(rows, got, strict=True):
        want = expected(*row)
        assert result == want, f"{mnemonic} {[hex(x) for x in row]}: got {result}, expected {want}"

"""Prove that mxfp8fa.numerics.exp2 is correctly rounded for every float32 input.

The float64 result y before the final rounding has a bounded relative error. Rounding y to float32 is then right unless
y lies within that bound of a rounding boundary, the midpoint of two neighbouring float32. So:

    1. bound the error of the polynomial and of Horner's rule in float64 (mpmath, 200 bits);
    2. evaluate y for every float32 x with |x| < 256 and keep those within MARGIN float64 units in the last place of a
       boundary; beyond, arguments are clamped and the result is 0 or infinity;
    3. settle these with mpmath.

Step 2 looks at 2.2 * 10^9 inputs: about two minutes on one core. `--fraction 0.01` looks at every hundredth chunk.
`--derive` finds the polynomial's coefficients again by a Remez exchange. Needs mpmath (extra `dev`).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpmath import mp, mpf

from mxfp8fa.numerics.exp2 import _CHUNK, COEFFICIENTS, _Work, exp2, exp2_float64

DEGREE = len(COEFFICIENTS) - 1
MARGIN = 4  # float64 units in the last place; step 1 has to find less
INPUT_END = 0x43800000  # bit pattern of 256.0


def polynomial(coefficients, f):
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * f + mpf(c)
    return total


def approximation_bound():
    """Bound of |p(f) / 2^f - 1| on [-1/2, 1/2]: samples, plus what the error can gain between two of them.

    g = p - 2^f has the power series sum d_k f^k with d_k = c_k - (ln 2)^k / k!, hence |g''| is at most the sum of
    k (k - 1) |d_k| 2^(2 - k). Between samples h apart |g| exceeds the nearer one by at most (h / 2) max |g'|, and that
    |g'| by at most h max |g''| what it is at the sample.
    """
    steps = 1 << 12
    h = mpf(1) / steps
    terms = 60
    d = [mpf(COEFFICIENTS[k] if k <= DEGREE else 0) - mp.log(2) ** k / mp.factorial(k) for k in range(terms)]
    second = sum(k * (k - 1) * abs(d[k]) * mpf(2) ** (2 - k) for k in range(2, terms))
    derivative = [k * d[k] for k in range(1, terms)]
    worst = mpf(0)
    for i in range(steps + 1):
        f = mpf(i) / steps - mpf(1) / 2
        slope = abs(polynomial(derivative, f)) + h * second
        worst = max(worst, (abs(polynomial(d, f)) + h * slope / 2) / mp.power(2, f - h))
    return worst


def evaluation_bound():
    """Bound of Horner's rounding error relative to 2^f, for |f| <= 1/2 (exact) and float64 with u = 2^-53.

    q <- fl(fl(q f) + c): the old error shrinks by |f|, the product adds u |q f|, the sum u |q f + c|, both at most
    u times their value at f = 1/2, since every coefficient is positive. 2^f is at least 2^(-1/2).
    """
    u, half = mpf(2) ** -53, mpf(1) / 2
    size, error = mpf(COEFFICIENTS[-1]), mpf(0)
    for c in COEFFICIENTS[-2::-1]:
        product = (size + error) * half
        error = error * half + u * product
        size = product + mpf(c)
        error += u * (size + error)
    return error * mp.sqrt(2)


def near_boundary(y):
    """Which float64 results are within MARGIN units in their last place of a float32 rounding boundary."""
    exponent = (y.view(np.int64) >> 52) - 1023
    extra = np.maximum(-126 - exponent, 0)  # bits that a subnormal float32 lacks
    in_float32_units = np.ldexp(y, (23 - exponent - extra).astype(np.int32))
    from_boundary = np.abs(in_float32_units - np.floor(in_float32_units) - 0.5)
    return np.ldexp(from_boundary, (29 + extra).astype(np.int32)) <= MARGIN


def scan(fraction):
    """Bit patterns of the inputs that need settling, and the number of inputs looked at."""
    work = _Work(_CHUNK)
    hard, seen = [], 0
    chunks = np.arange(0, INPUT_END, _CHUNK, dtype=np.int64)
    step = max(1, round(1 / fraction))
    offsets = np.arange(_CHUNK, dtype=np.int64)
    for index, start in enumerate(chunks[::step]):
        for sign in (0, 0x80000000):
            bits = (start + offsets + sign).astype(np.uint32)
            y = exp2_float64(bits.view(np.float32), work)
            found = near_boundary(y)
            if found.any():
                hard += bits[found].tolist()
            seen += bits.size
        if index % (len(chunks[::step]) // 10 + 1) == 0:
            print(f"  {100 * index // len(chunks[::step])} %", flush=True)
    return hard, seen


def correctly_rounded_bits(x):
    """2^x rounded to float32 (nearest even) by mpmath, as a bit pattern; x is a Python float."""
    with mp.workprec(300):
        exact = mp.power(2, mpf(x))
        exponent = max(int(mp.floor(mpf(x))), -126)
        if exponent > 127:
            return 0x7F800000
        units = exact / mpf(2) ** (exponent - 23)
        return (exponent + 126 << 23) + int(mp.nint(units))  # nint: ties to even


def derive(degree, rounds=12):
    """Minimax coefficients of 1 + c_1 f + ... for the relative error of 2^f, by Remez exchange; printed as hex."""
    points = [mp.cos(mp.pi * (2 * k + 1) / (2 * (degree + 1))) / 2 for k in range(degree + 1)][::-1]
    for _ in range(rounds):
        rows = [[x ** (j + 1) / mp.power(2, x) for j in range(degree)] + [(-1) ** i] for i, x in enumerate(points)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([1 - mp.power(2, -x) for x in points]))
        coefficients = [mpf(1), *(solution[j] for j in range(degree))]
        points = extrema(coefficients, degree + 1)
    error = max(abs(polynomial(coefficients, x) / mp.power(2, x) - 1) for x in points)
    print(f"degree {degree}: relative error 2^{float(mp.log(error, 2)):.2f} before rounding the coefficients")
    print("\n".join(float(c).hex() for c in coefficients))


def extrema(coefficients, count, samples=4000):
    """Where the error is largest between its sign changes, the `count` largest in order."""
    xs = [mpf(i) / samples - mpf(1) / 2 for i in range(samples + 1)]
    error = [polynomial(coefficients, x) / mp.power(2, x) - 1 for x in xs]
    peaks, best = [], 0
    for i in range(1, samples + 1):
        if (error[i] > 0) != (error[best] > 0):
            peaks.append(best)
            best = i
        elif abs(error[i]) > abs(error[best]):
            best = i
    largest = sorted([*peaks, best], key=lambda i: -abs(error[i]))[:count]
    return [xs[i] for i in sorted(largest)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float, default=1.0, help="part of the inputs to look at (default: all)")
    parser.add_argument("--derive", action="store_true", help="find the coefficients again and stop")
    arguments = parser.parse_args()
    mp.prec = 200
    if arguments.derive:
        derive(DEGREE)
        return
    approximation, evaluation = approximation_bound(), evaluation_bound()
    # A unit in the last place of y is at least 2^-53 of it.
    units = float((approximation + evaluation + approximation * evaluation) * mpf(2) ** 53)
    print(f"polynomial: relative error below 2^{float(mp.log(approximation, 2)):.2f}")
    print(f"evaluation: relative error below 2^{float(mp.log(evaluation, 2)):.2f}")
    print(f"together below {units:.2f} float64 units in the last place; margin {MARGIN}")
    if units >= MARGIN:
        raise SystemExit("the margin is too small for the bound")
    start = time.perf_counter()
    hard, seen = scan(arguments.fraction)
    print(f"{seen:,} inputs in {time.perf_counter() - start:.0f} s, {len(hard)} near a rounding boundary:")
    wrong = 0
    for bits in hard:
        x = np.uint32(bits).view(np.float32)
        got, expected = int(exp2(x).view(np.uint32)), correctly_rounded_bits(float(x))
        wrong += got != expected
        verdict = "" if got == expected else f", WRONG: {expected:#010x}"
        print(f"  {bits:#010x} {float(x).hex():>22} -> {got:#010x}{verdict}")
    print(f"{wrong} of them rounded wrongly")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()

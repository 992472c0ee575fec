"""The checker under every exercise of the course."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any


def check(answer: Callable[..., Any], cases: Iterable[tuple[tuple[Any, ...], Any]], *, show: Callable = repr) -> None:
    """Call `answer` on every case and print "ok", the first mismatch, or "not attempted".

    An answer of None to the first case is the untouched stub. Numbers have to agree to 12 digits, NaN agrees with NaN,
    everything else has to be equal.

    Args:
        answer: the reader's function.
        cases: pairs of a tuple of arguments and the result expected for them.
        show: how arguments and results are printed; `hex` suits codes.
    """
    count = 0
    for arguments, expected in cases:
        call = f"{answer.__name__}({', '.join(_shown(argument, show) for argument in arguments)})"
        try:
            found = answer(*arguments)
        except Exception as error:  # whatever the reader wrote: the message belongs below the exercise
            print(f"first mismatch: {call} raised {type(error).__name__}: {error}")
            return
        if found is None and count == 0:
            print("not attempted")
            return
        if not _agree(found, expected):
            print(f"first mismatch: {call} = {_shown(found, show)}, expected {_shown(expected, show)}")
            return
        count += 1
    print(f"ok, {count} {'case' if count == 1 else 'cases'}")


def _agree(found: Any, expected: Any) -> bool:
    """Whether two results count as equal; tuples and lists element by element."""
    if isinstance(expected, tuple | list):
        same_length = isinstance(found, tuple | list) and len(found) == len(expected)
        return same_length and all(map(_agree, found, expected))
    try:
        found_number, expected_number = float(found), float(expected)
    except (TypeError, ValueError):
        return bool(found == expected)
    if math.isnan(expected_number):
        return math.isnan(found_number)
    return math.isclose(found_number, expected_number, rel_tol=1e-12)


def _shown(value: Any, show: Callable) -> str:
    """`show` of the value, or its repr where `show` does not take it (hex of a float)."""
    try:
        return str(show(value))
    except TypeError:
        return repr(value)

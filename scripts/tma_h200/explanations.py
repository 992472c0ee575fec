"""Why a kernel's results differ. Only consulted for those that do."""

from __future__ import annotations

import re

KERNELS: tuple[tuple[str, str], ...] = ()


def explain(name: str) -> str:
    """What is known about a difference; "not explained" if nothing."""
    return next((text for pattern, text in KERNELS if re.search(pattern, name)), "not explained")

"""The error of the host side."""

from __future__ import annotations


class HostError(RuntimeError):
    """Host code needs something that a CPU without a CUDA driver cannot give, or used it against its rules."""

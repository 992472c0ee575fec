"""The checker: happens-before over threads and asynchronous agents, barrier protocol, what is left over at exit."""

from mxfp8fa.emulator.check.checker import Checker
from mxfp8fa.emulator.check.findings import Finding, format_findings

__all__ = ["Checker", "Finding", "format_findings"]

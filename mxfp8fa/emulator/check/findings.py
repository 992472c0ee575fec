"""What the checker reports."""

from __future__ import annotations

from dataclasses import dataclass

from mxfp8fa.emulator.errors import Site


@dataclass
class Finding:
    """One problem; the same pair of sites is reported once and counted.

    Attributes:
        kind: "race", "visibility" (ordered, but not visible across proxies), "barrier", "leak" or "outstanding".
        what: one sentence.
        where: the first place it was seen at ("shared offset 0x4400 of CTA (0, 0, 0)").
        first, second: the two accesses, with who made them; second is the later one. None where there is only one.
        count: how often it was seen.
        allowed: "" or why it is known to be benign (`check.allowed`).
    """

    kind: str
    what: str
    where: str
    first: tuple[str, Site] | None = None
    second: tuple[str, Site] | None = None
    count: int = 1
    allowed: str = ""

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.what} ({self.where}{f'; {self.count} times' if self.count > 1 else ''})"]
        for label, side in (("first", self.first), ("then", self.second)):
            if side is not None:
                actor, site = side
                source = f", {site.source}" if site.source else ""
                lines.append(f"    {label:5} {actor}, PTX line {site.ptx_line}{source}: {site.text}")
        return "\n".join(lines)


def format_findings(findings: list[Finding]) -> str:
    """All findings as text."""
    return "\n".join(map(str, findings)) if findings else "no findings"

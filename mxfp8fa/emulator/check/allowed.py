"""Findings in other people's kernels that are true by the letter and known to be benign, with the reason.

A finding is allowed when kernel, kind and both instructions match. It stays in the report's `allowed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mxfp8fa.emulator.check.findings import Finding


@dataclass(frozen=True)
class Allowed:
    """One known finding.

    Attributes:
        kernel: regular expression, found in the kernel's name.
        kind: of the finding.
        first, second: regular expressions, found in the two instructions.
        reason: why it does no harm.
    """

    kernel: str
    kind: str
    first: str
    second: str
    reason: str


ALLOWED = (
    Allowed(
        kernel=r"^cudnn_kernel",
        kind="visibility",
        first=r"^st\.shared\.b8 \[[^]]*\], 127;?$",
        second=r"^tcgen05\.cp\.",
        reason="cuDNN's MXFP8 forward fills the constant scales of P (512 bytes of 127, which is 1) with st.shared and reaches "
        "tcgen05.cp through fence.mbarrier_init and a CTA barrier, without fence.proxy.async. Nobody writes them again, and "
        "between the stores and the first copy lie the barrier and a whole product Q K^T",
    ),
    Allowed(
        kernel=r"flash_bwd_preprocess",
        kind="race",
        first=r"^(@!?%p\d+ )?st\.global\.(b32|f32) ",
        second=r"^(@!?%p\d+ )?st\.global\.(b32|f32) ",
        reason="flash-attn-4's preprocess has 256 threads for 128 rows, and all of them store LSE in base 2 while the row exists: "
        "threads 128 to 255 write the rows of the next CTA, the same values from the same input",
    ),
)


def reason_to_allow(finding: Finding) -> str:
    """Why a finding is benign, or "" if nothing is known about it."""
    if finding.first is None or finding.second is None:
        return ""
    first, second = finding.first[1], finding.second[1]
    for known in ALLOWED:
        if (
            known.kind == finding.kind
            and re.search(known.kernel, second.kernel)
            and re.search(known.first, first.text)
            and re.search(known.second, second.text)
        ):
            return known.reason
    return ""

"""Shapes of attention, as the command line and tables write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELDS = {"b": "batch", "h": "num_heads_q", "hkv": "num_heads_kv", "s": "seqlen_q", "sk": "seqlen_k", "d": "head_dim"}
_TERM = re.compile(r"(hkv|sk|[bhsd])(\d+)")


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """One attention problem.

    Attributes:
        batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k, head_dim: sizes.
        causal: bottom-right aligned.
    """

    batch: int = 1
    num_heads_q: int = 1
    num_heads_kv: int = 1
    seqlen_q: int = 256
    seqlen_k: int = 384
    head_dim: int = 128
    causal: bool = False

    @classmethod
    def parse(cls, text: str, *, causal: bool = False) -> AttentionShape:
        """From "b8-h16-s2048-d128"; hkv defaults to h, sk to s.

        Raises:
            ValueError: a term that is none of b, h, hkv, s, sk, d with a positive number, or one given twice; heads of
                queries that are no multiple of those of keys.
        """
        given: dict[str, int] = {}
        for term in text.lower().split("-"):
            match = _TERM.fullmatch(term)
            if match is None or int(match[2]) < 1:
                raise ValueError(f"shape {text!r}: {term!r} is none of b, h, hkv, s, sk, d with a positive number")
            if _FIELDS[match[1]] in given:
                raise ValueError(f"shape {text!r}: {match[1]} is given twice")
            given[_FIELDS[match[1]]] = int(match[2])
        given.setdefault("num_heads_kv", given.get("num_heads_q", 1))
        if given.get("num_heads_q", 1) % given["num_heads_kv"]:
            raise ValueError(f"shape {text!r}: hkv has to divide h")
        if "seqlen_q" in given:
            given.setdefault("seqlen_k", given["seqlen_q"])
        return cls(**given, causal=causal)

    def __str__(self) -> str:
        heads = f"h{self.num_heads_q}" + (f"-hkv{self.num_heads_kv}" if self.num_heads_kv != self.num_heads_q else "")
        tokens = f"s{self.seqlen_q}" + (f"-sk{self.seqlen_k}" if self.seqlen_k != self.seqlen_q else "")
        return f"b{self.batch}-{heads}-{tokens}-d{self.head_dim}" + (" causal" if self.causal else "")

    def flops(self, *, backward: bool = False) -> int:
        """Floating-point operations as the field counts them: 4 (forward) or 10 (backward) per pair and element of D.

        Causal problems count half of all pairs, as published tables do.
        """
        pairs = self.seqlen_q * self.seqlen_k // (2 if self.causal else 1)
        return (10 if backward else 4) * self.batch * self.num_heads_q * self.head_dim * pairs

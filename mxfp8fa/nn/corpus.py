"""Bytes to train on that every Python carries: the source text of its own standard library, file by file."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

# Folders of a standard library that differ between distributions of the same version, or that hold no prose-like code.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "ensurepip"}
VALIDATION_EVERY = 20


@dataclass(frozen=True)
class Corpus:
    """Two runs of bytes from different files.

    Attributes:
        train: (N,) uint8.
        validation: (M,) uint8: every 20th file.
        about: what it is, with the hash of all bytes in order.
    """

    train: torch.Tensor
    validation: torch.Tensor
    about: dict[str, str | int]


def standard_library() -> Corpus:
    """The .py files of the running Python's standard library in the order of their paths; every 20th is for validation.

    Raises:
        ValueError: there are no such files (an embedded Python, say).
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p.relative_to(root) for p in root.rglob("*.py"))
    paths = [p for p in paths if not SKIPPED & set(p.parts)]
    if not paths:
        raise ValueError(f"{root} holds no .py files; the corpus is the source text of a Python that carries its library")
    texts = [(root / p).read_bytes() for p in paths]
    validation = b"".join(texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY])
    train = b"".join(text for i, text in enumerate(texts) if (i + 1) % VALIDATION_EVERY)
    about: dict[str, str | int] = {
        "corpus": f"standard library of Python {platform.python_version()}, {len(paths)} .py files without tests",
        "train_bytes": len(train),
        "validation_bytes": len(validation),
        "sha256": hashlib.sha256(b"".join(texts)).hexdigest(),
    }
    tensors = [torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in (train, validation)]
    return Corpus(tensors[0], tensors[1], about)

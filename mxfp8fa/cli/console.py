"""What commands share: errors, tables on stdout, progress on stderr, and output files that are whole or not there."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class CommandError(Exception):
    """Something the user has to change; the message says what was given and what is allowed."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in aligned columns: the first column to the left, the others to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


class Progress:
    """Numbered steps with their times on stderr, so that stdout stays for results.

    Args:
        total: how many steps there will be.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce a step, and print how long it took when it is over."""
        self.done += 1
        start = time.perf_counter()
        print(f"[{self.done:2d}/{self.total}] {what} ...", end="", flush=True, file=sys.stderr)
        try:
            yield
        except BaseException:
            print(" stopped", file=sys.stderr)
            raise
        print(f" {time.perf_counter() - start:.1f} s", file=sys.stderr)


def add_output(parser: argparse.ArgumentParser) -> None:
    """The option --output, the same for every command that draws."""
    explained = "folder for the PNG files, made if missing (default: figures)"
    parser.add_argument("--output", metavar="FOLDER", default="figures", help=explained)


def output_folder(path: str) -> Path:
    """The folder at `path`, made if missing, and known to take files before anything long is computed.

    Raises:
        CommandError: it is a file, cannot be made, or cannot be written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise CommandError(f"{folder} is not a folder") from None
    except OSError as error:
        raise CommandError(f"cannot write to the folder {folder}: {error.strerror or error}") from None
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one move: a reader, or an interrupted run, never sees half a file.

    Raises:
        CommandError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)

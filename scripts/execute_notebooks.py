"""Execute notebooks in place: a new kernel, all cells from top to bottom, outputs kept.

    .venv/bin/python scripts/execute_notebooks.py [notebooks/00_map.ipynb ...]      (all of notebooks/ without names)

Unlike `jupyter nbconvert --execute --inplace` this writes no execution times, no version of Python and no stream in
pieces, so executing twice gives the same bytes and a change in git is a change of content.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
CELL_TIMEOUT_S = 120


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        kernel_name="python3",
        resources=where,
    )
    client.execute()
    notebook.metadata.language_info = {"name": "python"}
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def main() -> None:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        execute(path)


if __name__ == "__main__":
    main()

"""Imports go one way: numerics <- layouts <- emulator <- kernels <- attention <- nn <- {cli, notebooks}.

Every import statement of the package is read from its syntax tree, those inside functions too, and an edge that goes
the wrong way is named with its file and line. A second test imports the lower rooms with torch and cutlass blocked.
"""

import ast
import graphlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mxfp8fa"

# What each room may import from the package, itself apart. A room missing here fails the test until it is placed.
LOWER = ["numerics", "layouts", "emulator", "kernels", "attention", "nn"]
MAY_IMPORT = {room: set(LOWER[:rank]) for rank, room in enumerate(LOWER)} | {
    "published": set(),
    "timing": {"numerics", "layouts", "emulator", "published"},
    "studies": {*LOWER, "timing", "published"},
    "plots": {"numerics", "layouts", "studies", "published"},  # studies for the types of what is drawn
    "cli": {*LOWER, "timing", "published", "studies", "plots"},
    "__main__": {"cli"},
}
# Top-level third-party packages per room; None: no limit but PEERS.
MAY_REQUIRE = {
    "numerics": {"numpy"},
    "layouts": {"numpy"},
    "published": set(),
    "studies": {"numpy", "torch"},
    "plots": {"numpy", "matplotlib"},
    "cli": {"numpy", "matplotlib", "torch"},
}
PEERS = {"ml_dtypes", "torchao", "flash_attn", "cudnn", "quack", "gfloat", "triton"}


class Import(NamedTuple):
    """One imported module and where."""

    where: str
    room: str
    target: str


def room_of(module: str) -> str:
    """The first name below the package: "mxfp8fa.numerics.mma" -> "numerics"; "" for the package itself."""
    return [*module.split("."), ""][1]


def imports_of(source: str, module: str, where: str, is_package: bool = False) -> list[Import]:
    """Every import statement in `source`, with relative imports resolved against `module`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            stem = ".".join(base + ([node.module] if node.module else []))
            # `from mxfp8fa import plots` names its room in the list of names.
            targets = [f"{stem}.{alias.name}" for alias in node.names] if stem == "mxfp8fa" else [stem]
        else:
            continue
        found += [Import(f"{where}:{node.lineno}", room_of(module), target) for target in targets]
    return found


def package_imports() -> list[Import]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found += imports_of(path.read_text(), module, str(path.relative_to(PACKAGE.parent)), is_package)
    return found


def wrong_edges(found: list[Import]) -> list[str]:
    """One sentence per import that goes against the direction, leaves its room's third parties or reaches a peer."""
    wrong = []
    for where, room, target in found:
        top = target.split(".")[0]
        if top == "mxfp8fa":
            other = room_of(target)
            if room and room not in MAY_IMPORT:
                wrong.append(f"{where}: room {room!r} has no place in the order; add it to tests/test_imports.py")
            elif other in MAY_IMPORT and other not in MAY_IMPORT.get(room, set()) | {room}:
                wrong.append(f"{where}: {room or 'the package itself'} must not import {other} ({target})")
        elif top in PEERS:
            wrong.append(f"{where}: the package must not import {top}; only tests and benchmarks may")
        elif top not in sys.stdlib_module_names and room in MAY_REQUIRE and top not in MAY_REQUIRE[room]:
            wrong.append(f"{where}: {room} must not need {top}")
    return wrong


def test_the_package_imports_in_one_direction():
    assert wrong_edges(package_imports()) == []


def modules_imported(tree: ast.AST, known: set[str]) -> set[str]:
    """The modules of the package that a file needs to run, inside functions too; imports for type checkers apart."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known or {node.module}
        else:
            found |= modules_imported(node, known)
    return found


def test_no_module_needs_itself_by_way_of_others():
    files = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
    files = {module.removesuffix(".__init__"): path for module, path in files.items()}
    graph = {m: modules_imported(ast.parse(p.read_text()), set(files)) - {m} for m, p in files.items()}
    assert len(graph["mxfp8fa.emulator.isa"]) > 20
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


def test_every_room_is_placed():
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
    assert rooms - {"__init__"} <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("mxfp8fa.numerics.mma", "from mxfp8fa.layouts import atom", "numerics must not import layouts"),
        ("mxfp8fa.numerics.mma", "from mxfp8fa import layouts", "numerics must not import layouts"),
        ("mxfp8fa.numerics.mma", "from ..emulator import lanes", "numerics must not import emulator"),
        ("mxfp8fa.emulator.isa.mov", "import mxfp8fa.kernels.forward", "emulator must not import kernels"),
        ("mxfp8fa.emulator.isa.mov", "def f():\n    from ...attention import g", "emulator must not import attention"),
        ("mxfp8fa.attention", "from mxfp8fa.plots import style", "attention must not import plots"),
        ("mxfp8fa.studies.sqnr", "from mxfp8fa.plots import style", "studies must not import plots"),
        ("mxfp8fa.plots.style", "from mxfp8fa.cli import main", "plots must not import cli"),
        ("mxfp8fa.numerics.mma", "import torch", "numerics must not need torch"),
        ("mxfp8fa.kernels.forward", "import ml_dtypes", "must not import ml_dtypes"),
        ("mxfp8fa.newroom.x", "from mxfp8fa.numerics import mma", "room 'newroom' has no place"),
    ],
)
def test_a_wrong_edge_is_named(module, source, message):
    (complaint,) = wrong_edges(imports_of(source, module, "here.py"))
    assert message in complaint and complaint.startswith("here.py:")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mxfp8fa.layouts.atom", "from mxfp8fa.numerics.quantize import quantize"),
        ("mxfp8fa.numerics.mma", "from .formats import E4M3\nimport numpy as np\nfrom math import inf"),
        ("mxfp8fa.cli.figures", "from mxfp8fa.plots import style\nfrom mxfp8fa import __version__"),
    ],
)
def test_a_right_edge_is_silent(module, source):
    assert wrong_edges(imports_of(source, module, "here.py")) == []


BLOCKED_IMPORT = textwrap.dedent(
    """
    import importlib, importlib.abc, pkgutil, sys

    class Block(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {blocked!r}:
                raise ModuleNotFoundError(f"{{name}} is blocked by this test", name=name)

    sys.meta_path.insert(0, Block())
    count = 0
    for room in {rooms!r}:
        package = importlib.import_module("mxfp8fa." + room)
        count += 1
        for found in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
                count += 1
    print(count)
    """
)


@pytest.mark.parametrize(
    ("rooms", "blocked"),
    [
        (("numerics", "layouts", "emulator"), ("torch", "cutlass", "ml_dtypes", "matplotlib")),
        (("numerics", "published", "studies", "cli"), ("torch", "cutlass", "ml_dtypes", "matplotlib", "llvmlite")),
    ],
    ids=["lower rooms without torch and cutlass", "core with NumPy only"],
)
def test_rooms_import_without(rooms, blocked):
    present = tuple(room for room in rooms if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").exists())
    script = BLOCKED_IMPORT.format(rooms=present, blocked=blocked)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > len(present)

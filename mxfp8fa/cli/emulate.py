"""Run an unmodified CuTe DSL program on the CPU: every kernel that it launches is executed by the emulator.

SCRIPT runs as `python SCRIPT ARGS...` would. Its compiled functions are compiled for sm_100a and executed here, with CPU
tensors; what it asks of torch.cuda is answered as far as a CPU can. A table of all launches follows on stderr.
Exit status: the script's own; 3 when a kernel did something wrong; 1 when the checker found something.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

from mxfp8fa.cli.console import CommandError
from mxfp8fa.emulator.machine.launch import CHOICES, Options

_FOUND, _KERNEL_ERROR = 1, 3
_ARCHITECTURE = "sm_100a"
_EXPLAINED = {
    "schedule": "eager: warps in turn, asynchronous work completes at issue; lazy: warps in reverse, asynchronous work "
    "completes only when no warp can run; random: both at random",
    "uninitialised": "poison: memory never written may be read and moved, but must not reach a branch, an address, a "
    "barrier or global memory; strict: no load may touch it",
    "accumulate": "arithmetic of tcgen05.mma; blackwell is the published model of the hardware",
    "wait_ld": "dependency: a tcgen05.ld completes at wait::ld or when its register is used, as on the hardware; "
    "required: its registers are poison until wait::ld",
    "check": "races: look for accesses that nothing orders, and for misused barriers",
    "engine": "compiled: hot instructions run as machine code; numpy: all of them in Python, with the same results",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The script, its arguments, and the emulator's options."""
    for name, allowed in CHOICES.items():
        default = next(f.default for f in fields(Options) if f.name == name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            choices=allowed,
            default=default,
            help=f"{_EXPLAINED[name]} (default: {default})",
        )
    parser.add_argument("--seed", type=int, default=0, help="seed of --schedule random (default: 0)")
    parser.add_argument("--sm-count", type=int, default=148, help="SMs that the device reports (default: 148)")
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")


def run(args: argparse.Namespace) -> int:
    """Run the script under `active`."""
    path = Path(args.script)
    if not path.is_file():
        raise CommandError(f"{args.script}: there is no such file")
    try:
        options = Options(seed=args.seed, sm_count=args.sm_count, **{name: getattr(args, name) for name in CHOICES})
    except ValueError as error:
        raise CommandError(str(error)) from None
    _need_dsl()
    os.environ.setdefault("CUTE_DSL_ARCH", _ARCHITECTURE)
    return _run_script(
        path, args.arguments, {f.name: getattr(options, f.name) for f in fields(Options)}, quiet=args.quiet
    )


def _need_dsl() -> None:
    missing = [name for name in ("cutlass", "llvmlite") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"{' and '.join(missing)} cannot be imported. The emulator's host side needs the extra `kernels`, which is "
            "published for Linux only: pip install 'mxfp8fa[kernels]'"
        )


def _run_script(path: Path, arguments: list[str], options: dict[str, Any], *, quiet: bool) -> int:
    from mxfp8fa.emulator import EmulationError, active

    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    code = 0
    with active(progress=not quiet, **options) as report:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
        except EmulationError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = _KERNEL_ERROR
        except Exception:
            traceback.print_exc()
            code = 1
        finally:
            sys.argv, sys.path[:] = argv, search
    if not quiet:
        print(report, file=sys.stderr)
    return code or (_FOUND if report.races else 0)

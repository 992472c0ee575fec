"""The command `mxfp8fa`: one module per command, each with SUMMARY, add_arguments(parser) and run(args).

To add a command: write mxfp8fa/cli/<name>.py with these three ("_" in the file name is "-" on the command line), and
put its name into COMMANDS. What only some users have installed (matplotlib, torch) is imported inside functions:
`mxfp8fa --help` has to work with NumPy only.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence

from mxfp8fa import __version__
from mxfp8fa.cli.console import CommandError

COMMANDS = ("demo", "sqnr", "emulate", "trace", "mutate", "inspect", "train_demo", "figures")


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands; each carries its `run` as the default of `run`."""
    parser = argparse.ArgumentParser(
        prog="mxfp8fa",
        description="MXFP8 block-scaled attention for NVIDIA Blackwell: numerics, kernels, and an emulator for them.",
        epilog="`mxfp8fa COMMAND --help` explains the options of a command.",
    )
    version = f"mxfp8fa {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"mxfp8fa.cli.{name}")
        command = commands.add_parser(
            name.replace("_", "-"),
            help=module.SUMMARY,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, prog=command.prog)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 if it did what it was asked, 2 if the arguments or the surroundings did not allow it (said on stderr), 130
        after an interrupt.
    """
    # The products here are small: a second BLAS thread waits more than it works (on two busy cores `demo --no-figures`
    # took 133 s with two threads and 7 s with one). NumPy reads this once, when the first command module below imports
    # it; a value the user has set stays.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    args = build_parser().parse_args(argv)
    try:
        code = args.run(args)
        if sys.stdout is not None:  # None: started with a closed stdout
            sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"{args.prog}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _discard_stdout()  # its reader is gone, as in `mxfp8fa sqnr | head -1`
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_stdout()
        print(f"{args.prog}: error: cannot write to stdout: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{args.prog}: interrupted", file=sys.stderr)
        return 130


def _discard_stdout() -> None:
    """Give Python something to flush into at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

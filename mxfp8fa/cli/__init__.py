"""The command `mxfp8fa`: one module per command, each with add_arguments(parser) and run(args).

To add a command: write mxfp8fa/cli/<name>.py with these two ("_" in the file name is "-" on the command line), and put
its name into COMMANDS. Only the module of the command that was given is imported. What only some users have installed
(matplotlib, torch) is imported inside functions: `mxfp8fa COMMAND --help` has to work with NumPy only.
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

# Name of the module, and what the command does in a line of `mxfp8fa --help`.
COMMANDS = {
    "demo": "the tour: quantization, the kernel in the emulator, accuracy, figures (three minutes, no GPU)",
    "sqnr": "SQNR of MXFP8 attention, forward and backward, with verdicts",
    "exponential": "ways to P: accuracy, SASS per score, cycles of a step",
    "emulate": "run a CuTe DSL program on the CPU, without a GPU",
    "trace": "run a kernel and draw its timeline, memories and barriers",
    "mutate": "break a kernel's barriers one by one: does the checker notice?",
    "inspect": "what a compiled kernel needs: registers, spills, SASS per score, compile time",
    "model": "how fast a kernel would be on a B200 (modelled)",
    "bench": "time the producers on a CUDA GPU",
    "train_demo": "train a small model in BF16 and in MXFP8",
    "figures": "redraw the pictures of figures/",
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser with all commands; each carries its `run` as the default of `run`.

    Args:
        only: the one command, as on the command line, whose module is imported and whose options are known; None: all.
    """
    parser = argparse.ArgumentParser(
        prog="mxfp8fa",
        description="MXFP8 block-scaled attention for NVIDIA Blackwell: numerics, kernels, and an emulator for them.",
        epilog="`mxfp8fa COMMAND --help` explains the options of a command.",
    )
    version = f"mxfp8fa {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        spelled = name.replace("_", "-")
        command = commands.add_parser(
            spelled, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if only in (None, spelled):
            module = importlib.import_module(f"mxfp8fa.cli.{name}")
            command.description = module.__doc__
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
    # took 133 s with two threads and 7 s with one). NumPy reads this once, when the command's module below imports
    # it; a value the user has set stays.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    argv = sys.argv[1:] if argv is None else argv
    args = build_parser(only=argv[0] if argv else "").parse_args(argv)
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

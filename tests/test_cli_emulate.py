"""`mxfp8fa emulate`: unmodified programs on the CPU, and what it says when they or their kernels are wrong."""

from __future__ import annotations

import sys

import pytest

from mxfp8fa.cli import main

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")

PROGRAM = '''
import sys, torch, cutlass, cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    i = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    c[i] = a[i] + b[i]

@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    add_kernel(a, b, c).launch(grid=[CTAS, 1, 1], block=[128, 1, 1])

a, b = (torch.randn(256, device="cuda") for _ in range(2))
c = torch.empty_like(a)
add(from_dlpack(a), from_dlpack(b), from_dlpack(c))
torch.cuda.synchronize()
print("PASS" if torch.equal(c, a + b) else "FAIL", *sys.argv[1:])
'''


def write(tmp_path, ctas):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("CTAS", str(ctas)))
    return str(script)


def test_runs_an_unmodified_program(tmp_path, capsys):
    argv = list(sys.argv)
    assert main(["emulate", "--check", "races", "--schedule", "random", write(tmp_path, 2), "one", "two"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == "PASS one two"
    assert "add_kernel" in err and "128 warp-instructions" in err and "emulated" in err
    assert sys.argv == argv


def test_a_wrong_kernel_is_status_3(tmp_path, capsys):
    assert main(["emulate", "--quiet", write(tmp_path, 3)]) == 3
    err = capsys.readouterr().err
    assert "OutOfBounds" in err and "CTA (2, 0, 0)" in err


@pytest.mark.parametrize(
    ("text", "code"),
    [("import sys; sys.exit(7)", 7), ("raise SystemExit('no')", 1), ("raise KeyError('x')", 1), ("print(1)", 0)],
)
def test_the_status_of_the_script(tmp_path, text, code):
    script = tmp_path / "s.py"
    script.write_text(text)
    assert main(["emulate", "--quiet", str(script)]) == code


def test_missing_script_and_wrong_option(capsys):
    assert main(["emulate", "nothing.py"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["emulate", "--schedule", "fast", "x.py"])
    assert "'eager', 'lazy', 'random'" in capsys.readouterr().err

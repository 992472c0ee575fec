"""PTX that compilers wrote: the CuTe DSL's and nvcc's. Each test skips when its compiler is not installed.

The strongest test of all: a module that was parsed and printed again must give ptxas the very same program, byte for
byte. It fails if an operand, a name, an offset, a label or an initial value is read wrongly anywhere.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ptx_snippets import ACCEPTED, REFUSED

from mxfp8fa.emulator.ptx import Label, parse
from mxfp8fa.emulator.ptx.printer import print_module

HERE = Path(__file__).parent


def find_tool(name):
    """A CUDA tool on the path, or in the `nvidia` packages of this environment."""
    found = shutil.which(name)
    folders = [Path(p) / "nvidia" for p in sys.path if (Path(p) / "nvidia").is_dir()]
    return found or next((str(p) for folder in folders for p in folder.rglob(f"bin/{name}")), None)


def assemble(text, folder, *, check=True):
    """The program ptxas makes of PTX text, as bytes; None if it refuses the text and that is no failure."""
    tool = find_tool("ptxas")
    if tool is None:
        pytest.skip("ptxas is not installed")
    source, output = folder / "text.ptx", folder / "text.cubin"
    source.write_text(re.sub(r"^\.version .*", ".version 9.0", text, count=1, flags=re.MULTILINE))
    run = subprocess.run([tool, "-arch=sm_100a", source, "-o", output], capture_output=True, text=True, timeout=120)
    if "Unsupported" in run.stderr and "version" in run.stderr:
        pytest.skip("this ptxas is too old for PTX 9.0")
    assert run.returncode == 0 or not check, run.stderr
    return output.read_bytes() if run.returncode == 0 else None


def test_ptxas_accepts_what_the_tests_call_good(tmp_path):
    assert [name for name, text in ACCEPTED.items() if assemble(text, tmp_path, check=False) is None] == []


def test_ptxas_refuses_what_the_tests_call_bad(tmp_path):
    assert [name for name, (text, _, _) in REFUSED.items() if assemble(text, tmp_path, check=False)] == []


# nvcc.


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    """PTX of features.cu for nvcc options."""
    folder = tmp_path_factory.mktemp("nvcc")

    def compiled(*options):
        tool = find_tool("nvcc")
        if tool is None:
            pytest.skip("nvcc is not installed")
        output = folder / "-".join(["features", *options])
        run = subprocess.run(
            [tool, "-arch=sm_100a", "-ptx", *options, HERE / "features.cu", "-o", output],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if run.returncode:
            pytest.skip(f"nvcc cannot compile for sm_100a: {run.stderr[-300:]}")
        return output.read_text()

    return compiled


def test_nvcc_program(features):
    module = parse(features())
    kernel = module.kernels["features"]
    assert list(module.kernels) == ["features", "halves"]
    assert {name for name, f in module.functions.items() if not f.has_body} == {"vprintf"}
    assert (kernel.max_threads, kernel.directives["minnctapersm"], kernel.param_bytes) == (256, (2,), 112)
    assert module.kernels["halves"].required_cluster == (2, 1, 1)
    # `buffer`, then `small` at the next multiple of 16; `dynamic` (alignment 16) after its 3 bytes.
    assert kernel.static_shared_bytes == 1024 + 3 and kernel.dynamic_shared_offset_bytes == 1040
    assert module.variables["coefficients"].initial[:4] == b"\0\0\xc0\x3f"
    table = module.variables["table"].initial.ljust(24, b"\0")
    assert [table[4 * i] for i in range(6)] == [1, 2, 3, 4, 5, 6]
    assert [r.generic for r in module.variables["names"].relocations] == [True, True]
    assert any(i.opcode == "call" for i in kernel.instructions)
    assert all(isinstance(i.operands[0], Label) for i in kernel.instructions if i.opcode == "bra")


def test_nvcc_indirect_calls(features):
    module = parse(features("-DINDIRECT"))
    assert [r.symbol for r in module.variables["operations"].relocations] == ["_Z6triplei", "_Z9fibonaccii"]
    (call,) = [i for i in module.kernels["features"].instructions if i.opcode == "call" and len(i.operands) == 4]
    assert call.operands[3].space == "prototype"


def test_nvcc_line_information(features):
    text = (HERE / "features.cu").read_text().split("\n")
    kernel = parse(features("-lineinfo")).kernels["features"]
    (atomic,) = [i for i in kernel.instructions if i.opcode == "atom"]
    place = atomic.source
    while place.inlined_at:
        place = place.inlined_at
    assert place.file.endswith("features.cu") and "atomicAdd" in text[place.line - 1]
    (permute,) = [i for i in kernel.instructions if i.opcode == "prmt"]
    assert "mix(int a, int b)" in text[permute.source.line - 1]
    assert "mix(v, n)" in text[permute.source.inlined_at.line - 1] and permute.source.function


def test_nvcc_debug_information(features):
    module = parse(features("-G"))
    assert "debug" in module.target and list(module.kernels) == ["features", "halves"]


def test_nvcc_program_survives_printing(features, tmp_path):
    text = features()
    assert assemble(print_module(parse(text)), tmp_path) == assemble(text, tmp_path)
    assert print_module(parse(features("-lineinfo"))) == print_module(parse(text))


# The CuTe DSL.


@pytest.fixture(scope="session")
def dsl_ptx(tmp_path_factory):
    """PTX of a kernel of dsl_kernels.py, with or without line information."""
    known = {}

    def compiled(name, line_information=False):
        pytest.importorskip("torch")
        pytest.importorskip("cutlass.cute")
        if (name, line_information) not in known:
            folder = tmp_path_factory.mktemp("dsl")
            environment = {"CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": str(folder)}
            environment["CUTE_DSL_LINEINFO"] = str(int(line_information))
            command = [sys.executable, HERE / "dsl_kernels.py", name]
            run = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)
            assert run.returncode == 0, run.stderr[-3000:]
            (output,) = folder.rglob("*.ptx")
            known[name, line_information] = output.read_text()
        return known[name, line_information]

    return compiled


def test_dsl_kernel(dsl_ptx):
    (kernel,) = parse(dsl_ptx("wait_and_double")).kernels.values()
    assert kernel.required_block == (128, 1, 1)
    assert [(p.offset_bytes, p.size_bytes) for p in kernel.params] == [(0, 16), (16, 16), (32, 4)]
    (dynamic,) = kernel.variables
    assert (dynamic.space, dynamic.linkage, dynamic.offset_bytes) == ("shared", "extern", None)
    (wait,) = [i for i in kernel.instructions if "try_wait" in i.qualifiers]
    done, again = kernel.instructions[wait.index + 1 : wait.index + 3]
    assert (done.guard.register, done.operands[0]) == (wait.operands[0], Label("DONE", wait.index + 3))
    assert again.operands[0] == Label("LAB_WAIT", wait.index)


def test_dsl_line_information(dsl_ptx):
    (plain,) = parse(dsl_ptx("wait_and_double")).kernels.values()
    (located,) = parse(dsl_ptx("wait_and_double", True)).kernels.values()
    assert [(i.mnemonic, i.operands) for i in located.instructions] == [
        (i.mnemonic, i.operands) for i in plain.instructions
    ]
    assert all(i.source is None for i in plain.instructions)

    source = (HERE / "dsl_kernels.py").read_text().split("\n")
    said = {i.mnemonic: source[i.source.line - 1] for i in located.instructions if i.source.column}
    assert all(Path(i.source.file).name == "dsl_kernels.py" for i in located.instructions)
    assert "mbarrier_init" in said["mbarrier.init.shared.b64"]
    assert "out[thread] = a[thread]" in said["add.f32"]
    # The block of inline assembly carries lines of its own text (the wait two lines further down): not these.
    assert "the line the wait loop must point at" in said["mbarrier.try_wait.parity.shared.b64"]
    assert "the line the wait loop must point at" in said["bra.uni"]


def test_dsl_kernel_survives_printing(dsl_ptx, tmp_path):
    text = dsl_ptx("wait_and_double")
    assert assemble(print_module(parse(text)), tmp_path) == assemble(text, tmp_path)


@pytest.mark.peers
@pytest.mark.slow
def test_flash_attention_4(dsl_ptx, tmp_path):
    if importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn-4 is not installed")
    text = dsl_ptx("flash_attention_4")
    located = dsl_ptx("flash_attention_4", True)
    (kernel,) = parse(text).kernels.values()
    (with_lines,) = parse(located).kernels.values()
    assert [i.mnemonic for i in with_lines.instructions] == [i.mnemonic for i in kernel.instructions]
    assert (
        len([p for p in kernel.params if p.alignment_bytes == 64 and p.size_bytes == 128]) == 4
    )  # tensor maps Q K V O
    assert kernel.required_block == (512, 1, 1) and len(kernel.instructions) > 4000
    assert assemble(print_module(parse(text)), tmp_path) == assemble(text, tmp_path)

    waits = [i for i in with_lines.instructions if "try_wait" in i.qualifiers]
    said = [Path(w.source.file).read_text().split("\n")[w.source.line - 1] for w in waits]
    assert any("producer_acquire" in line for line in said) and any("wait" in line for line in said)

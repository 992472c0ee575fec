"""`mxfp8fa inspect`: our own steps, and what is known of other people's kernels."""

import json
import os
from pathlib import Path

import pytest

for needed in ("torch", "cutlass.cute", "llvmlite"):
    pytest.importorskip(needed)

from mxfp8fa.cli import main  # noqa: E402
from mxfp8fa.cli.console import CommandError  # noqa: E402
from mxfp8fa.cli.programs import load_source  # noqa: E402
from mxfp8fa.kernels import backward  # noqa: E402
from mxfp8fa.timing.binary import ToolError, tool  # noqa: E402
from mxfp8fa.timing.shapes import AttentionShape  # noqa: E402

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
try:
    tool("nvdisasm"), tool("cuobjdump")
except ToolError:
    pytest.skip("needs the extra `timing`", allow_module_level=True)


def inspected(capsys, *arguments):
    assert main(["inspect", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_steps(capsys):
    """Step 6 loops over the keys; step 5 has one tile and no loop; both convert every probability of a row once."""
    loop, tile = inspected(capsys, "step6", "--vs", "step5")
    assert loop["shipped_cubin"] and tile["shipped_cubin"]
    assert tile["steady_loop"] is None
    steady = loop["steady_loop"]
    assert steady["scores"] == 128 and steady["exponentials"] in (128, 129)  # and one for the factor of the old row sum
    assert steady["by_unit"]["convert"] == 0.5 and steady["by_unit"]["MUFU"] >= 1
    assert 3 < steady["sass_per_score"] < 12
    assert sum(steady["by_unit"].values()) == pytest.approx(steady["sass_per_score"], abs=0.01)
    assert loop["source_lines"]["step6_kv_loop.py"] < 400 and loop["compile_cpu_s"] > 0.1


def test_backward(capsys):
    """A thread has 64 pairs of query and key a turn: an exponential and two conversions each; no spills, 8 s at most."""
    (kernel,) = inspected(capsys, "backward")
    steady = kernel["steady_loop"]
    assert (steady["scores"], steady["exponentials"]) == (128, 64)
    assert kernel["spill_instructions"] == kernel["stack_bytes"] == 0 and kernel["compile_cpu_s"] < 8
    assert sorted(kernel["registers_by_role"]) == [80, 112, 160]


@pytest.mark.peers
def test_lines_of_the_backward_against_peers():
    """Less than a third of flash-attn-4's: three kernels and what is around them here, its three kernels there."""
    flash_attn = pytest.importorskip("flash_attn")
    theirs = [Path(folder) / "cute" / f"flash_bwd_{part}.py" for folder in flash_attn.__path__
              for part in ("sm100", "preprocess", "postprocess")]  # fmt: skip
    ours = Path(backward.__file__).parent.glob("*.py")
    count = [sum(len(file.read_text().splitlines()) for file in files) for files in (ours, theirs)]
    assert 0 < 3 * count[0] < count[1]


@pytest.mark.peers
@pytest.mark.slow
def test_cudnn_backward(capsys):
    pytest.importorskip("cudnn")
    (kernel,) = inspected(capsys, "cudnn-backward", "--head-dim", "256", "--two-cta")
    assert kernel["spill_instructions"] == 0 and kernel["registers"] == 168
    assert main(["inspect", "cudnn-backward"]) == 2
    assert "cudnn-backward has head_dim 256 and CTA pairs; given: head_dim 128" in capsys.readouterr().err


@pytest.mark.peers
@pytest.mark.slow
def test_peers(capsys):
    """Counts of flash-attn-4 4.0.0b36 and nvidia-cudnn-frontend 1.32.0, as anybody can count them in a disassembly."""
    pytest.importorskip("flash_attn")
    pytest.importorskip("cudnn")
    bf16, fp8, cudnn = inspected(capsys, "flash-attn-4", "--vs", "flash-attn-4-fp8", "cudnn")
    assert all(k["spill_instructions"] == 0 and k["registers"] == 128 for k in (bf16, fp8, cudnn))
    # flash-attn-4 evaluates 16 of 128 exponentials by polynomial, cuDNN 32; one more is the factor of the old sum.
    assert [k["steady_loop"]["exponentials"] for k in (bf16, fp8, cudnn)] == [113, 113, 97]
    assert cudnn["steady_loop"]["sass_per_score"] == pytest.approx(4.45, abs=0.03)


def test_wrong_targets_are_refused():
    with pytest.raises(CommandError, match=r"step99: there is no such target; allowed are step2, step3, step5"):
        load_source("step99")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("b8-h16-s2048-d128", AttentionShape(batch=8, num_heads_q=16, num_heads_kv=16, seqlen_q=2048, seqlen_k=2048)),
        ("h4-hkv2-s100-sk300-d64", AttentionShape(num_heads_q=4, num_heads_kv=2, seqlen_q=100, seqlen_k=300, head_dim=64)),
    ],
)
def test_shapes(text, shape):
    assert AttentionShape.parse(text) == shape
    assert AttentionShape.parse(str(shape)) == shape


@pytest.mark.parametrize("text", ["", "s0", "x4", "s-128", "128"])
def test_wrong_shapes_are_refused(text):
    with pytest.raises(ValueError, match="none of b, h, hkv, s, sk, d"):
        AttentionShape.parse(text)


def test_flops():
    """4 D per pair: the published forward of 4 x 8192 tokens, 16 heads, took 1.433 ms at 1534.8 TFLOP/s."""
    shape = AttentionShape.parse("b4-h16-s8192-d128")
    assert shape.flops() / 1.433e-3 == pytest.approx(1534.8e12, rel=1e-3)
    assert shape.flops(backward=True) == 2.5 * shape.flops()

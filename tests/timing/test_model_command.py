"""`mxfp8fa model`: what it refuses before it compiles, a step end to end, and the causal backward."""

import importlib.util
import json

import pytest

for needed in ("torch", "cutlass.cute", "llvmlite"):
    pytest.importorskip(needed)

from mxfp8fa.cli import main  # noqa: E402
from mxfp8fa.cli.programs import attention_options, load_source  # noqa: E402
from mxfp8fa.timing.binary import ToolError, assemble, binaries_of, disassemble, tool  # noqa: E402
from mxfp8fa.timing.estimate import kernel, short_shape  # noqa: E402
from mxfp8fa.timing.programs import Tiling  # noqa: E402
from mxfp8fa.timing.shapes import AttentionShape  # noqa: E402

try:
    tool("nvdisasm"), tool("cuobjdump"), tool("ptxas")
except ToolError:
    pytest.skip("needs the extra `timing`", allow_module_level=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("forward --shape s0", "'s0' is none of b, h, hkv, s, sk, d with a positive number"),
        ("forward --shape b2-b3", "b is given twice"),
        ("forward --shape h4-hkv3-s128", "hkv has to divide h"),
        ("forward --shape s256-d96", "head_dim has to be 64 or 128"),
        ("forward --shape s256-d64 s256-d128", "the same in all shapes"),
        ("forward --shape b4096-h4096-s4096", "more than 5,000,000 tiles"),
        ("forward --causal --shape s256-sk128", "allowed are s <= sk"),
        ("forward --clock 0", "0.1 to 3 GHz"),
        ("forward --clock nan", "0.1 to 3 GHz"),
        ("forward --two-cta", "forward has no CTA pairs"),
        ("step7 --causal", "step7 has no mask"),
        ("step7 --options exp=direct", "step7 has none; allowed for forward, backward"),
        ("forward --options exp=fast", "exp = 'fast' is not allowed"),
        ("forward --options speed=2", "allowed are NAME=VALUE with qk_blocks"),
        ("backward --options tile_m=64", "options.tile_m = 64 is not in the backward kernel"),
        ("step5", "it has no loop over the keys"),
        ("step99", "there is no such target"),
    ],
)
def test_what_cannot_be_modelled_is_refused(arguments, message, capsys):
    assert main(["model", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_options_are_those_of_attention():
    chosen = attention_options(["exp=direct", "row_sum=rounded", "direct_share=0.5"])
    assert (chosen.exp, chosen.row_sum, chosen.direct_share) == ("direct", "rounded", 0.5)
    assert load_source("backward", options=["dq_accumulate=float16"]).tiling.around_bytes == 11


def test_step7_end_to_end(tmp_path, capsys):
    """Cycles per step are those of the chain, steps add up, and picture and trace are there."""
    assert main(["model", "step7", "--shape", "s128-sk2048-d64", "--out", str(tmp_path), "--clock", "1.6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (result,) = found["results"]
    assert found["kind"] == "modelled" and result["steps_per_sm"] == 16
    expected = found["cycles_once"] + 16 * found["cycles_per_step"]
    assert result["cycles"] == pytest.approx(expected + 800, abs=20)  # and the start of a CTA
    assert list(result["us"]) == ["1.6 GHz"]
    attribution = found["attribution"]
    assert attribution["lost"] == attribution["differing"] == 0 and attribution["replayed"] > 5000
    assert attribution["replayed_without_line"] < 0.02 * attribution["replayed"]
    assert found["sass_replayed"]["UTCQMMA"].split(" of ")[0] == found["sass_replayed"]["UTCQMMA"].split(" of ")[1]
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in trace if e["ph"] == "C"} >= {"tensor core", "MUFU", "FMA", "ALU", "SMEM", "TMA"}
    assert max(e["args"]["%"] for e in trace if e["ph"] == "C") <= 100
    assert (tmp_path / "timeline.png").stat().st_size > 10_000


def test_short_problems_of_a_causal_backward_have_one_full_tile():
    shape = AttentionShape(causal=True)
    tiling = Tiling(rows=128, backward=True)
    short = short_shape(shape, tiling, steps=4, tiles=1)
    assert tiling.steps(short) == [4, 3, 2, 1]
    dense = short_shape(AttentionShape(), tiling, steps=4, tiles=1)
    assert tiling.steps(dense) == [4]


@pytest.mark.slow
def test_causal_backward():
    """The cluster that is timed is the one that sees all queries; masking costs a little, not half."""
    made = {
        causal: kernel(load_source("backward", causal=causal), AttentionShape(head_dim=64, causal=causal))
        for causal in (False, True)
    }
    longest = made[True].runs[1]
    assert longest.cluster == next(iter(longest.replay.record.ctas)) and len(longest.replay.record.ctas) == 8
    steps = {causal: m.increments().step for causal, m in made.items()}
    assert steps[False] == pytest.approx(steps[True], rel=0.15)


@pytest.mark.peers
@pytest.mark.slow
def test_somebody_elses_kernel(capsys):
    """flash-attn-4 at head_dim 64, by the command. A step of two tiles is four products of 256 cycles, 128 x 128 x 64 each,
    and 2,048 cycles of exponentials, some of which flash-attn-4 takes from the special function unit."""
    if importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn-4 is not installed")
    assert main(["model", "flash-attn-4", "--shape", "b1-h1-s256-d64", "--clock", "1.6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 4 * 256 < found["cycles_per_step"] < 4 * 256 + 2 * 2048
    done = {op: counts.split(" of ") for op, counts in found["sass_replayed"].items()}
    assert {"UTCHMMA", "MUFU.EX2", "LDTM", "STTM"} <= set(done) and all(a == b != "0" for a, b in done.values())
    assert found["attribution"]["lost"] == 0 and found["attribution"]["replayed_without_line"] == 0
    (result,) = found["results"]
    assert result["cycles"] == pytest.approx(
        found["cycles_once"] + found["cycles_per_tile"] + 2 * found["cycles_per_step"], abs=2
    )
    flops, us = 4 * 64 * 256 * 256, result["us"]["1.6 GHz"]
    assert result["pflops"]["1.6 GHz"] == pytest.approx(flops / us / 1e9, rel=0.02) != 0


def test_a_twin_made_by_ptxas_is_the_shipped_cubin():
    """Where a cubin has no PTX lines, the model reads the twin: its opcodes and stall counts are those of the original."""
    from mxfp8fa.cli.targets import block_scaled
    from mxfp8fa.timing.compilations import compilations

    with compilations() as found:
        block_scaled()
    (shipped,) = binaries_of(found[-1].compiled).values()
    assert shipped.shipped and shipped.differing == 0
    twin = disassemble(assemble(shipped.ptx))[shipped.kernel]
    original = shipped.function.instructions
    assert [i.opcode for i in twin.instructions] == [i.opcode for i in original]
    assert [i.control.stall for i in twin.instructions] == [i.control.stall for i in original]
    same = sum(a.ptx_line == b.ptx_line for a, b in zip(twin.instructions, original, strict=True))
    assert same > 0.95 * len(original)  # the shipped cubin comes from the compiler's library, the twin from the text of its PTX

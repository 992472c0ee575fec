"""The quantizing projection: its own float32 results against float64, and its codes bit for bit those of the rule.

In the emulator: the tcgen05 main loop. The wgmma main loop is compiled here; it runs on Hopper only
(`test_producers_gpu.py`).
"""

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from cuda.bindings.driver import CUstream  # noqa: E402
from test_producer_quantize import assert_equals_numpy  # noqa: E402

from mxfp8fa.kernels.execution import compile_once, emulation  # noqa: E402
from mxfp8fa.kernels.producers import gemm, gemm_blackwell, gemm_quantize  # noqa: E402


def operands(tokens, n, k):
    generator = torch.Generator().manual_seed(0)
    scale = 2.0 ** torch.randint(-6, 7, (tokens, 1), generator=generator)
    x = (torch.randn(tokens, k, generator=generator) * scale).bfloat16()
    weight = torch.randn(n, k, generator=generator) * 2.0 ** torch.randint(-6, 7, (n, 1), generator=generator)
    return x, weight.bfloat16()


def run(function, *args, schedule="eager", **options):
    with emulation(check="races", wait_ld="required", schedule=schedule, seed=1) as report:
        result = function(*args, **options)
    assert report.races == []
    return result


@pytest.fixture(scope="module")
def projection():
    x, weight = operands(130, 288, 96)
    return x, weight, run(gemm, x, weight, dtype=torch.float32)


def test_float32_result(projection):
    """Products of BF16 are exact in float32; K + K / 16 additions at most lose 2^-24 of the sum of magnitudes each."""
    x, weight, d = projection
    exact = x.double() @ weight.double().T
    bound = (96 + 6) * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    assert ((d - exact).abs() <= bound).all()
    assert (run(gemm, x, weight) == d.bfloat16()).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_codes_are_those_of_the_own_float32_value(projection, axes, schedule):
    x, weight, d = projection
    assert_equals_numpy(run(gemm_quantize, x, weight, axes=axes, schedule=schedule), d, axes=axes)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_heads_and_several_results_of_one_product(head_dim):
    x, weight = operands(80, 256, 64)
    d = run(gemm, x, weight, dtype=torch.float32).view(2, 40, -1, head_dim)
    kinds = ((1,), (1, 3))
    found = run(gemm_quantize, x.view(2, 40, 64), weight, head_dim=head_dim, axes=kinds)
    for operand, axes in zip(found, kinds, strict=True):
        assert_equals_numpy(operand, d, axes=axes)


def test_packed_sequences():
    x, weight = operands(172, 128, 64)
    lengths = torch.tensor([0, 5, 5, 140, 172], dtype=torch.int32)
    d = run(gemm, x, weight, dtype=torch.float32).view(172, 2, 64)
    operand = run(gemm_quantize, x, weight, head_dim=64, axes=(0, 2), cu_seqlens=lengths)
    assert_equals_numpy(operand, d, axes=(0, 2), cu_seqlens=lengths)


def test_no_tokens():
    assert gemm_quantize(torch.zeros(0, 64).bfloat16(), torch.zeros(32, 64).bfloat16(), axes=(1,)).codes.shape == (0, 32)


@pytest.mark.parametrize("axes", [None, ((0,), (1,), (0, 1))], ids=["BF16", "all blocks"])
def test_wgmma_main_loop_compiles(axes, monkeypatch):
    """For sm_90a, down to SASS, with every kind of epilogue."""
    pytest.importorskip("nvidia.cu13", reason="needs nvdisasm")
    from mxfp8fa.emulator.host import ptx_of
    from mxfp8fa.kernels.producers import gemm as entry
    from mxfp8fa.timing.binary import assemble, disassemble

    compiled = []

    def compile_only(function, *args, device, constants, memory):
        compiled.append(compile_once(function, *args, CUstream(0), constants=constants, target="sm_90a"))

    monkeypatch.setattr(sys.modules[entry.__module__], "launch", compile_only)
    monkeypatch.setattr(sys.modules[entry.__module__], "target_for", lambda device: "sm_90a")
    x, weight = operands(130, 288, 96)
    if axes is None:
        gemm(x, weight)
    else:
        gemm_quantize(x, weight, axes=axes)
    (function,) = disassemble(assemble(ptx_of(compiled[0]), "sm_90a")).values()
    assert sum(instruction.mnemonic == "HGMMA" for instruction in function.instructions) >= 8


def test_the_tables_in_the_docstring_are_the_records():
    assert str(gemm_blackwell.TMEM).split() == gemm_blackwell.__doc__.split("allocated:")[1].split("Barriers:")[0].split()


@pytest.mark.parametrize(
    ("shape", "weight", "options", "message"),
    [
        ((32, 64), (32, 96), {}, r"x \(32, 64\) and weight \(32, 96\); allowed"),
        ((32, 64), (40, 64), {}, r"N and K positive multiples of 32"),
        ((1, 32, 64), (96, 64), {"head_dim": 96, "axes": (3,)}, r"head_dim = 96; allowed: 32, 64 and multiples of 128"),
        ((32, 64), (64, 64), {"head_dim": 64}, r"needs cu_seqlens"),
        ((1, 32, 64), (64, 64), {}, r"head_dim is None"),
    ],
)
def test_bad_arguments(shape, weight, options, message):
    with pytest.raises(ValueError, match=message):
        gemm_quantize(torch.zeros(shape).bfloat16(), torch.zeros(weight).bfloat16(), **{"axes": (1,), **options})

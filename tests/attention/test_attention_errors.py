"""What flash_attn_func refuses: every case by its message, before anything is compiled, from both sides of the limit."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.attention import AttentionOptions, MXOperand, emulation, flash_attn_func, quantize  # noqa: E402
from mxfp8fa.attention.checks import MAX_ELEMENTS  # noqa: E402
from mxfp8fa.kernels import execution  # noqa: E402


def floats(seqlen_q=5, seqlen_k=7, head_dim=64, heads=(2, 2), batch=1, dtype=torch.bfloat16):
    q = torch.zeros(batch, seqlen_q, heads[0], head_dim, dtype=dtype)
    return [q, *(torch.zeros(batch, seqlen_k, heads[1], head_dim, dtype=dtype) for _ in range(2))]


def operand(axes=(1, 3), shape=(1, 7, 2, 64), **keywords):
    return quantize(torch.ones(shape), axes=axes, tail="partial", **keywords)


def swapped(x, i, value):
    return [value if j == i else y for j, y in enumerate(x)]


SHAPES = [
    (floats(head_dim=32), "head_dim = 32 is not supported; allowed: 64 and 128 (zero-pad D, and pass the softmax_scale"),
    (floats(head_dim=256), "head_dim = 256 is not supported"),
    (floats(heads=(3, 2)), "Hq = 3 is not a multiple of Hkv = 2"),
    (floats(heads=(2, 4)), "Hq = 2 is not a multiple of Hkv = 4"),
    (floats(heads=(2, 0)), "there must be at least one head"),
    (swapped(floats(), 0, torch.zeros(2, 5, 2, 64)), "q has batch 2 and k 1; they must be equal"),
    (swapped(floats(), 2, torch.zeros(1, 8, 2, 64)), "k has shape (1, 7, 2, 64) and v (1, 8, 2, 64); they must be equal"),
    (swapped(floats(), 0, torch.zeros(1, 5, 2, 128)), "q has head_dim 128 and k 64; they must be equal"),
    (swapped(floats(), 0, torch.zeros(5, 2, 64)), "q has shape (5, 2, 64); without cu_seqlens it must be (B, S, H, D)"),
    (swapped(floats(), 1, torch.zeros(())), "k has shape ()"),
]  # fmt: skip

KINDS = [
    (swapped(floats(), 0, None), "q is a NoneType; allowed: a torch tensor or an MXOperand"),
    (swapped(floats(), 2, [1.0]), "v is a list; allowed: a torch tensor or an MXOperand"),
    (floats(dtype=torch.float64), "q is torch.float64; allowed: a tensor of torch.float32, torch.float16, torch.bfloat16"),
    (floats(dtype=torch.uint8), "q is torch.uint8; allowed: a tensor of"),
    (floats(dtype=torch.float8_e4m3fn), "q is torch.float8_e4m3fn; allowed: a tensor of"),
    (swapped(floats(), 1, floats(dtype=torch.float16)[1]), "k is torch.float16, v is torch.bfloat16; allowed: one dtype"),
    (swapped(floats(), 2, floats()[2].to("meta")), "q on cpu, k on cpu, v on meta; allowed: all on one device"),
]  # fmt: skip

OPERANDS = [
    (swapped(floats(), 1, operand(axes=1)), "k has blocks along axes (1,) of (B, S, H, D), but the product contracts axis 3"),
    (swapped(floats(), 0, operand(axes=1, shape=(1, 5, 2, 64))), "q has blocks along axes (1,)"),
    (swapped(floats(), 2, operand(axes=3)), "product contracts axis 1; allowed: (1,), or (1, 3) for squares"),
    (swapped(floats(), 1, operand(fmt="e5m2")), "k is an MXOperand in e5m2 without cu_seqlens; allowed: e4m3"),
    (
        swapped(floats(), 1, operand(axes=2, shape=(7, 2, 64), cu_seqlens=torch.tensor([0, 7]))),
        "k is an MXOperand in e4m3 with cu_seqlens; allowed: e4m3 without cu_seqlens",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "message"), SHAPES + KINDS + OPERANDS)
def test_tensors_that_are_refused(stand_in, tensors, message):
    with pytest.raises(ValueError) as error:
        flash_attn_func(*tensors)
    assert message in str(error.value)
    assert stand_in.calls == []


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        *(({"softmax_scale": s}, f"softmax_scale = {s!r} must be a finite number above 0")
          for s in (0.0, -1.0, float("inf"), float("nan"), "1", True, 1j, [1.0])),
        ({"softmax_scale": 2.0**-127}, "does not fit the float32 of the kernel; allowed are 2^-126 to 2^123"),
        ({"softmax_scale": 1e300}, "does not fit the float32 of the kernel"),
        ({"causal": 1}, "causal = 1 must be True or False"),
        ({"causal": None}, "causal = None must be True or False"),
        ({"return_lse": "yes"}, "return_lse = 'yes' must be True or False"),
        ({"options": {"rule": "floor"}}, "options is a dict; allowed: AttentionOptions or None"),
        ({"options": AttentionOptions(tile_n=96)}, "options.tile_n = 96 is not in the kernel; allowed: 128"),
        ({"options": AttentionOptions(kv_order="ascending")}, "options.kv_order = 'ascending' is not in the kernel"),
    ],
)  # fmt: skip
def test_arguments_that_are_refused(stand_in, keywords, message):
    with pytest.raises(ValueError) as error:
        flash_attn_func(*floats(), **keywords)
    assert message in str(error.value)
    assert stand_in.calls == []


def test_the_pair_of_offset_and_threshold_is_refused_where_it_is_made():
    with pytest.raises(ValueError, match=r"p_offset \+ rescale_threshold = 8 \+ 4.0 is above log2 448"):
        AttentionOptions(rescale_threshold=4)


def test_k_mean_of_quantized_k_is_refused(stand_in):
    with pytest.raises(ValueError, match="k_mean = True needs k as floats; k is an MXOperand"):
        flash_attn_func(*swapped(floats(), 1, operand()), options=AttentionOptions(k_mean=True))


def test_scales_of_the_wrong_packed_shape_are_refused():
    x = operand(shape=(1, 129, 2, 64))
    with pytest.raises(ValueError, match=r"scales\['tokens'\] is torch.uint8 \(1, 2, 1, 1, 512\); .* \(1, 2, 2, 1, 512\)"):
        MXOperand(x.codes, {**x.scales, "tokens": x.scales["tokens"][:, :, :1]}, x.axes)


def with_codes(x, codes):
    return MXOperand(codes, x.scales, x.axes)


@pytest.mark.parametrize(
    ("make", "strides"),
    [
        (lambda c: torch.zeros(1, 7, 2, 72, dtype=torch.uint8)[..., :64], (1008, 144, 72, 1)),
        (lambda c: torch.zeros(1, 7, 2, 128, dtype=torch.uint8)[..., ::2], (1792, 256, 128, 2)),
        (lambda c: c.transpose(1, 3).contiguous().transpose(1, 3), (896, 1, 7, 14)),
        (lambda c: c[:, :1].expand(-1, 7, -1, -1), (896, 0, 64, 1)),
    ],
)
def test_strides_that_tma_cannot_take_are_refused(stand_in, make, strides):
    x = operand()
    codes = make(x.codes)
    assert codes.stride() == strides
    with pytest.raises(ValueError) as error:
        flash_attn_func(*swapped(floats(), 1, with_codes(x, codes)))
    assert f"codes of k of shape (1, 7, 2, 64) have strides {strides}, which TMA cannot take; allowed: 1" in str(error.value)


def test_strides_that_tma_can_take(stand_in):
    """A slice of a packed tensor of codes; and any stride along an axis of length 1, which nobody walks."""
    packed = torch.zeros(1, 7, 3, 2, 64, dtype=torch.uint8)
    x = operand()
    flash_attn_func(*swapped(floats(), 1, with_codes(x, packed[:, :, 1])))
    one_head = operand(shape=(1, 7, 1, 64))
    codes = one_head.codes.as_strided((1, 7, 1, 64), (5, 64, 3, 1))
    flash_attn_func(*swapped(floats(heads=(2, 1)), 1, with_codes(one_head, codes)))
    assert len(stand_in.calls) == 2


def test_an_address_that_tma_cannot_take_is_refused(stand_in):
    x = operand()
    memory = torch.zeros(x.codes.numel() + 64, dtype=torch.uint8)
    start = -memory.data_ptr() % 16
    for offset in (0, 8):
        codes = memory[start + offset :][: x.codes.numel()].view(x.shape)
        tensors = swapped(floats(), 1, with_codes(x, codes))
        if offset == 0:
            flash_attn_func(*tensors)
            continue
        with pytest.raises(ValueError, match=r"codes of k start at an address that is not a multiple of 16 bytes.*\.clone"):
            flash_attn_func(*tensors)


def test_more_elements_than_32_bits_can_count_are_refused():
    """On the meta device, where two billion elements take no memory; one token fewer is accepted."""
    tokens = 2**31 // 64
    for seqlen, allowed in ((tokens - 1, True), (tokens, False)):
        q, k = torch.empty(1, 1, 1, 64, device="meta"), torch.empty(1, seqlen, 1, 64, device="meta")
        assert (k.numel() <= MAX_ELEMENTS) == allowed
        if allowed:
            assert flash_attn_func(q, k, k).shape == q.shape
            continue
        with pytest.raises(ValueError, match=r"k has 2147483648 elements; allowed: at most 2\^31 - 1"):
            flash_attn_func(q, k, k)


def a_gpu(monkeypatch, capability, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    return torch.device("cuda", 0)


@pytest.mark.parametrize(("capability", "name"), [((9, 0), "NVIDIA H200"), ((12, 0), "NVIDIA GeForce RTX 5090"), ((8, 0), "A100")])
def test_another_gpu_is_told_what_to_do(monkeypatch, capability, name):
    device = a_gpu(monkeypatch, capability, name)
    with pytest.raises(ValueError) as error:
        execution.target_of(device)
    for part in (f"{name} of compute capability {capability[0]}.{capability[1]}", "need 10.0 (B200, GB200) or 10.3", "with .cpu()"):
        assert part in str(error.value)


def test_a_blackwell_data_centre_gpu_gets_code_of_its_own(monkeypatch):
    """Code for sm_100a does not load on compute capability 10.3."""
    assert execution.target_of(a_gpu(monkeypatch, (10, 0), "NVIDIA B200")) == "sm_100a"
    assert execution.target_of(a_gpu(monkeypatch, (10, 3), "NVIDIA B300")) == "sm_103a"
    assert execution.target_of(torch.device("cpu")) == "sm_100a"


def test_a_device_that_is_no_gpu_of_nvidias_is_refused():
    with pytest.raises(ValueError, match=r"tensors are on mps; allowed: CUDA devices of compute capability 10.0 or 10.3. CPU"):
        execution.target_of(torch.device("mps"))


def test_an_emulator_option_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="unknown option 'chek'; allowed: schedule, seed"), emulation(chek="races"):
        pass
    with pytest.raises(ValueError, match="check 'rces': allowed are off, races"), emulation(check="rces"):
        pass


def script(text):
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.strip()


def test_without_the_toolchain_it_says_what_to_install():
    said = script(
        """
        import sys, importlib.util, torch
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name in ("cutlass", "llvmlite") else find(name, *a)
        from mxfp8fa.attention import flash_attn_func
        try:
            flash_attn_func(*torch.zeros(3, 1, 5, 1, 64))
        except ModuleNotFoundError as error:
            print(error)
        """
    )
    assert said.startswith("cutlass and llvmlite cannot be imported") and said.endswith("pip install 'mxfp8fa[kernels]'")


def test_importing_touches_neither_cuda_nor_the_dsl():
    """No context, no environment, no module of the DSL, and torch as it was."""
    said = script(
        """
        import os, sys, torch
        environment, default = dict(os.environ), torch.get_default_dtype()
        before, modules = {name: getattr(torch, name) for name in dir(torch)}, set(sys.modules)
        import mxfp8fa.attention
        assert dict(os.environ) == environment and torch.get_default_dtype() == default
        assert {name: getattr(torch, name) for name in before} == before
        new, heavy = set(sys.modules) - modules, ("cutlass", "cuda", "llvmlite")
        heavy = [m for m in new if m.split(".")[0] in heavy or m == "mxfp8fa.emulator"]
        print(torch.cuda.is_initialized(), heavy)
        """
    )
    assert said == "False []"


def test_the_package_itself_stays_light():
    said = script("import sys, mxfp8fa; print([m for m in ('numpy', 'torch', 'cutlass') if m in sys.modules])")
    assert said == "[]"

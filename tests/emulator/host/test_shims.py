"""cuda_shims: what GPU programs ask for, and that everything is put back."""

import pytest

from mxfp8fa.emulator.host import active, cuda_shims
from mxfp8fa.emulator.host.cuda_view import is_cuda_tensor

torch = pytest.importorskip("torch")


def test_everything_is_put_back_even_after_an_error():
    hardware = pytest.importorskip("cutlass.utils").HardwareInfo
    driver, runtime = pytest.importorskip("cuda.bindings.driver"), pytest.importorskip("cuda.bindings.runtime")
    owners = (torch.cuda, hardware, driver, runtime, torch.autograd.function.BackwardCFunction)
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(LookupError), cuda_shims():
        assert any(dict(vars(owner)) != old for owner, old in zip(owners, before, strict=True))
        raise LookupError
    assert [dict(vars(owner)) for owner in owners] == before
    assert torch.empty(1).device.type == "cpu"
    with pytest.raises((RuntimeError, AssertionError)):
        torch.empty(1, device="cuda")


def test_torch_cuda():
    with cuda_shims(sm_count=7):
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == torch.cuda.get_device_capability("cuda:0") == (10, 0)
        properties = torch.cuda.get_device_properties(0)
        assert (properties.multi_processor_count, properties.major) == (7, 10)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        assert stream.cuda_stream != torch.cuda.current_stream().cuda_stream == 0
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            start.record()
            end.record(stream)
        end.synchronize()
        assert 0 <= start.elapsed_time(end) < 1000
        with pytest.raises(RuntimeError, match="must be recorded"):
            start.elapsed_time(torch.cuda.Event())


def test_factories_and_moves():
    with cuda_shims():
        device = torch.device("cuda")
        made = [
            torch.zeros(3, device="cuda"),
            torch.randn(3, device=device, dtype=torch.bfloat16),
            torch.arange(3, device="cuda:0"),
            torch.tensor([1, 2], device="cuda"),
            torch.ones(3).to("cuda"),
            torch.ones(3).to(device, torch.float16),
            torch.ones(3).cuda(),
            torch.empty_like(torch.ones(3), device="cuda"),
            torch.full((2,), 7.0, device="cuda", requires_grad=True),
        ]
        assert all(is_cuda_tensor(t) and t.device.type == "cuda" and t.is_cuda for t in made)
        assert made[1].dtype == torch.bfloat16 and made[5].dtype == torch.float16
        assert made[-1].is_leaf and made[-1].requires_grad
        assert torch.device("cuda").type == "cuda" and torch.zeros(3).device.type == "cpu"
        cpu = torch.ones(3)
        assert cpu.cuda().data_ptr() != cpu.data_ptr() != cpu.to("cuda").data_ptr()
        same = made[0]
        assert same.cuda() is same and torch.empty(2, device=same.device).is_cuda
        assert not made[0].cpu().is_cuda and made[0].to("cpu").device.type == "cpu"


def test_backward_of_a_python_function_sees_cuda_tensors():
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            x, nothing = ctx.saved_tensors
            assert nothing is None
            tensors = (x, gradient, gradient.contiguous(), torch.empty(1, device="cuda"))
            seen.extend(t.is_cuda for t in tensors)
            return 2 * x * gradient

    with cuda_shims():
        x = torch.tensor([3.0, 4.0], device="cuda", requires_grad=True)
        Square.apply(x).sum().backward()
    assert seen == [True] * 4 and x.grad.tolist() == [6, 8]


@torch.library.custom_op("mxfp8fa_test::cuda_only", mutates_args=("out",), device_types="cuda")
def cuda_only(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x + torch.ones(x.shape, device=x.device))


def test_custom_operators_for_cuda_only():
    with cuda_shims():
        x, out = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
        torch.ops.mxfp8fa_test.cuda_only(x, out)
        cuda_only(out, x)
    assert out.tolist() == [1, 1, 1] and x.tolist() == [2, 2, 2]


def test_cuda_bindings():
    driver, runtime = pytest.importorskip("cuda.bindings.driver"), pytest.importorskip("cuda.bindings.runtime")
    fine, good = driver.CUresult.CUDA_SUCCESS, runtime.cudaError_t.cudaSuccess
    with cuda_shims(sm_count=9):
        assert driver.cuInit(0) == (fine,) and driver.cuDeviceGetCount() == (fine, 1)
        code, device = driver.cuDeviceGet(0)
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        assert code == fine and driver.cuDeviceGetAttribute(attribute, device) == (fine, 9)
        assert driver.cuCtxCreate(None, 0, device)[0] == fine
        code, stream = driver.cuStreamCreate(0)
        assert code == fine and int(stream) != 0 and driver.cuStreamSynchronize(stream) == (fine,)
        (_, start), (_, end) = driver.cuEventCreate(0), driver.cuEventCreate(0)
        driver.cuEventRecord(start, stream)
        driver.cuEventRecord(end, stream)
        assert driver.cuEventElapsedTime(start, end)[1] >= 0
        assert runtime.cudaDeviceSynchronize() == (good,) and runtime.cudaGetDeviceCount() == (good, 1)


def test_hardware_info():
    utils = pytest.importorskip("cutlass.utils")
    with cuda_shims(sm_count=148):
        info = utils.HardwareInfo()
        assert [info.get_max_active_clusters(n) for n in (1, 2, 16)] == [148, 74, 9]
        assert info.get_device_multiprocessor_count() == 148
        with pytest.raises(ValueError, match="between 1 and 32"):
            info.get_max_active_clusters(0)


def test_an_ordinary_example_program(programs):
    """What CuTe DSL examples do around a kernel: checks, streams, tensors on the GPU, compile, call, benchmark."""
    import cutlass
    import cutlass.torch as cutlass_torch
    from cuda.bindings import driver
    from cutlass import cute, testing
    from cutlass.cute.runtime import from_dlpack

    launches = []
    with cuda_shims(sm_count=2), active(lambda call: call.execute(launches.append)):
        if not torch.cuda.is_available():
            raise RuntimeError("GPU is required to run this example")
        torch.manual_seed(1111)
        a = cutlass_torch.matrix(1, 16, 32, False, cutlass.Float32, device="cuda").flatten()
        b, c = torch.randn(512, device="cuda"), torch.empty(512, device="cuda")
        _, torch_c = cutlass_torch.cute_tensor_like(c, cutlass.Float32, is_dynamic_layout=True, assumed_align=16)
        clusters = cutlass.utils.HardwareInfo().get_max_active_clusters(1)
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        tensors = [from_dlpack(t, assumed_align=16) for t in (a, b)]
        compiled = cute.compile(programs.three_launches, *tensors, 0, stream)
        compiled(*tensors, 16 * clusters, cutlass_torch.default_stream())
        torch.cuda.synchronize()
        arguments = testing.JitArguments(*tensors, 0, stream)
        time_us = testing.benchmark(compiled, kernel_arguments=arguments, warmup_iterations=1, iterations=2)
    assert len(launches) == 3 * 4 and launches[0].smem_bytes == 32
    assert tensors[0].memspace == cute.AddressSpace.gmem and torch_c.is_cuda and time_us >= 0

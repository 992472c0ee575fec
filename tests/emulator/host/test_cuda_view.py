"""as_cuda: what the DSL, TVM-FFI and torch see, and that it is the same memory."""

import numpy as np
import pytest

from mxfp8fa.emulator.host import as_cuda
from mxfp8fa.emulator.host.cuda_view import CudaArray, is_cuda_tensor, plain

torch = pytest.importorskip("torch")


def test_torch_tensor_keeps_memory_and_changes_its_device():
    cpu = torch.arange(6.0).reshape(2, 3)
    cuda = as_cuda(cpu)
    assert cuda.device == torch.device("cuda", 0) and cuda.is_cuda and cuda.get_device() == 0
    assert cuda.data_ptr() == cpu.data_ptr() and cuda.shape == cpu.shape and cuda.__dlpack_device__() == (2, 0)
    cuda[0, 0] = 9
    assert cpu[0, 0] == 9 and cpu.device.type == "cpu"
    assert as_cuda(cuda) is cuda


def test_results_of_torch_functions_are_cuda_tensors():
    cuda = as_cuda(torch.ones(3))
    like, half = torch.empty_like(cuda, device="cuda"), cuda.to("cuda", torch.float16)
    for result in (cuda + 1, cuda[1:], like, half, cuda.cuda()):
        assert is_cuda_tensor(result) and result.device.type == "cuda"
    assert torch.equal(cuda * 2, torch.full((3,), 2.0))


@pytest.mark.parametrize("move", [lambda t: t.cpu(), lambda t: t.to("cpu"), lambda t: t.to(device=torch.device("cpu"))])
def test_moving_to_the_cpu_copies(move):
    cuda = as_cuda(torch.ones(3))
    cpu = move(cuda)
    assert type(cpu) is torch.Tensor and cpu.device.type == "cpu" and cpu.data_ptr() != cuda.data_ptr()


def test_numpy_and_plain_share_memory():
    cuda = as_cuda(torch.zeros(3))
    assert type(plain(cuda)) is torch.Tensor and plain(cuda).data_ptr() == cuda.data_ptr()
    assert cuda.numpy().ctypes.data == cuda.data_ptr()


def test_gradients_flow_through():
    weight = torch.ones(3, requires_grad=True)
    (as_cuda(weight) * 2).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "uint8", "int64", "bool"])
def test_the_dsl_sees_global_memory(programs, dtype):
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    kind = getattr(torch, dtype)
    cpu = torch.zeros(4, 16 * kind.itemsize, dtype=torch.uint8).view(kind)
    plain_tensor, cuda_tensor = from_dlpack(cpu), from_dlpack(as_cuda(cpu))
    assert plain_tensor.memspace == cute.AddressSpace.generic and cuda_tensor.memspace == cute.AddressSpace.gmem
    assert cuda_tensor.data_ptr == cpu.data_ptr() and cuda_tensor.shape == (4, 16)
    assert cuda_tensor.element_type == plain_tensor.element_type


def test_numpy_arrays_and_other_exporters(programs):
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = as_cuda(array)
    assert isinstance(view, CudaArray) and view.__dlpack_device__() == (2, 0) and as_cuda(view) is view
    tensor = from_dlpack(view)
    assert tensor.memspace == cute.AddressSpace.gmem and tensor.data_ptr == array.ctypes.data
    assert tensor.stride == (4, 1)


def test_tvm_ffi_sees_cuda(programs):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    assert str(tvm_ffi.from_dlpack(as_cuda(np.zeros(3))).device) == "cuda:0"
    tensor = from_dlpack(as_cuda(torch.zeros(3)), enable_tvm_ffi=True)
    assert tensor.memspace == cute.AddressSpace.gmem


def test_what_is_no_cpu_tensor_is_refused():
    with pytest.raises(ValueError, match="got int"):
        as_cuda(3)
    with pytest.raises(ValueError, match="got one on meta"):
        as_cuda(torch.zeros(3, device="meta"))

    class Elsewhere:
        def __dlpack__(self):
            raise AssertionError

        def __dlpack_device__(self):
            return 10, 0

    with pytest.raises(ValueError, match="device type 10"):
        as_cuda(Elsewhere())

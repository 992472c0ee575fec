"""Compiles one kernel for sm_100a without a GPU: `dsl_kernels.py NAME`, run in a process of its own.

The DSL reads its environment once, so the caller sets it: CUTE_DSL_ARCH=sm_100a, CUTE_DSL_KEEP=ptx and
CUTE_DSL_DUMP_DIR say what is written where, CUTE_DSL_LINEINFO=1 adds line information.
"""

import importlib.util
import sys
import types

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

THREADS = 128


@cute.kernel
def wait_and_double(a: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    barrier = cutlass.memory.SmemAllocator().allocate_array(cutlass.Int64, 1)
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
    cute.arch.sync_threads()
    if thread == 0:
        cute.arch.mbarrier_arrive(barrier)
    cute.arch.mbarrier_wait(barrier, 0)  # the line the wait loop must point at
    if thread < n:
        out[thread] = a[thread] + a[thread]


@cute.jit
def host(a: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    wait_and_double(a, out, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def compile_wait_and_double():
    tensors = [from_dlpack(torch.zeros(THREADS)).mark_layout_dynamic() for _ in range(2)]
    cute.compile(host, *tensors, THREADS)


def compile_flash_attention_4():
    """flash-attn-4's forward kernel, head dimension 128, not causal."""
    import cutlass.utils
    from cuda.bindings.driver import CUstream

    class Hardware:
        """Stands in for the query of the GPU, of which there is none."""

        def __init__(self, *_):
            pass

        def get_max_active_clusters(self, _):
            return 148

        def get_device_multiprocessor_count(self):
            return 148

    cutlass.utils.HardwareInfo = Hardware
    if importlib.util.find_spec("triton") is None:  # quack's autotuner wants it; no kernel does
        autotuner = types.ModuleType("quack.autotuner")
        autotuner.autotune = lambda **_: lambda function: function
        autotuner.AutotuneConfig = lambda **_: None
        sys.modules["quack.autotuner"] = autotuner
    from flash_attn.cute.flash_fwd_sm100 import FlashAttentionForwardSm100
    from flash_attn.cute.utils import AuxData

    inputs = [torch.zeros(1, 256, 1, 128, dtype=torch.bfloat16) for _ in range(4)]
    tensors = [from_dlpack(t, assumed_align=16).mark_layout_dynamic(leading_dim=3) for t in inputs]
    tensors.append(from_dlpack(torch.zeros(1, 1, 256), assumed_align=4).mark_layout_dynamic(leading_dim=2))
    kernel = FlashAttentionForwardSm100(128, 128, m_block_size=128, n_block_size=128, q_stage=2)
    optional = [*[None] * 8, None, None, AuxData(None, None), *[None] * 8]
    cute.compile(kernel, *tensors, cutlass.Float32(0.1), *optional, CUstream(0))


if __name__ == "__main__":
    globals()[f"compile_{sys.argv[1]}"]()

"""MXAttention under DDP and FSDP2: two gloo processes on this CPU against one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel

from mxfp8fa.nn import MXAttention

WORLD = 2
pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")


def make_layer():
    torch.manual_seed(0)
    return MXAttention(64, 2, 1, 32, causal=True, rope_base=1e4, qk_norm=True)


def batch():
    return torch.randn(WORLD, 40, 64, generator=torch.Generator().manual_seed(1))


def gradients(module, x):
    module(x).square().mean().backward()
    return {
        name.removeprefix("module."): (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad)
        for name, p in module.named_parameters()
    }


def worker(rank, init_method, expected):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=WORLD)
    x = batch()[rank : rank + 1]
    for wrap in (DistributedDataParallel, fully_shard):
        for name, found in gradients(wrap(make_layer()), x).items():
            # The mean of two gradients that are each rounded to BF16, against BF16 of their sum.
            error = (found - expected[name]).norm() / expected[name].norm()
            assert error < 2.0**-7, (rank, wrap.__name__, name, error)
    sharded = make_layer()
    fully_shard(sharded.q_proj)
    try:
        sharded(x)
    except ValueError as error:
        assert "fully_shard on this MXAttention" in str(error)
    else:
        raise AssertionError("weights that are sharded while used were taken")
    dist.destroy_process_group()


def test_ddp_and_fsdp2_average_what_one_process_gives(tmp_path):
    expected = gradients(make_layer(), batch())
    spawn(worker, (f"file://{tmp_path}/rendezvous", expected), nprocs=WORLD)

"""One launch of a producer, for a profiler: `ncu --clock-control none python bench/profile_producers.py rmsnorm 1 65536 4096`.

Run as `python bench/profile_producers.py (quantize|rmsnorm|gemm) AXES SIZES...`: axes "1", "0" or "01"; sizes tokens and
columns, or tokens, N and K.
"""

from __future__ import annotations

import sys

import torch

from mxfp8fa.kernels.producers import gemm_quantize, quantize, rmsnorm_quantize


def main() -> None:
    what, axes = sys.argv[1], tuple(int(axis) for axis in sys.argv[2])
    tokens, columns, *depth = (int(size) for size in sys.argv[3:])
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    for _ in range(2):
        if what == "quantize":
            quantize(random(tokens, columns), axes=axes)
        elif what == "rmsnorm":
            rmsnorm_quantize(random(tokens, columns), random(columns), axes=axes)
        else:
            gemm_quantize(random(tokens, depth[0]), random(columns, depth[0]), axes=axes)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()

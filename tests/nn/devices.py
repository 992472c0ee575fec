"""The devices a test runs on: the CPU, and a GPU where there is one."""

import pytest
import torch

cuda = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
DEVICES = ["cpu", cuda]

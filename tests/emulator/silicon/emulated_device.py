"""A stand-in for `silicon.cuda.Device` that launches on the emulator, so that the script's own plumbing is tested without a GPU."""

from __future__ import annotations

import ctypes
from ctypes import c_uint64

import numpy as np
from silicon.cuda import AssemblyError

from mxfp8fa.emulator.api import run_ptx

REFUSED = "clmad"  # an instruction this device's compiler does not know


class EmulatedModule:
    def __init__(self, text: str):
        self.text = text

    def function(self, name: str) -> tuple[str, str]:
        return self.text, name

    def unload(self) -> None:
        pass


class EmulatedDevice:
    name, capability, driver, target, ptx_version = "emulated", (9, 0), "none", "sm_90a", "8.8"

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray] = {}

    def load(self, ptx: str) -> EmulatedModule:
        log = [
            f"ptxas x, line {i}; error   : unknown {REFUSED}"
            for i, line in enumerate(ptx.split("\n"), 1)
            if REFUSED in line
        ]
        if log:
            raise AssemblyError("\n".join(log))
        return EmulatedModule(ptx)

    def upload(self, array: np.ndarray) -> c_uint64:
        address = self.allocate(array.nbytes)
        self.memory[address.value][: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return address

    def allocate(self, size_bytes: int) -> c_uint64:
        raw = np.full(max(size_bytes, 16) + 16, 0xCD, np.uint8)
        raw = raw[-raw.ctypes.data % 16 :]
        self.memory[raw.ctypes.data] = raw
        return c_uint64(raw.ctypes.data)

    def download(self, address: c_uint64, count: int, dtype: type) -> np.ndarray:
        return self.memory[address.value][: count * np.dtype(dtype).itemsize].copy().view(dtype)

    def free(self, address: c_uint64) -> None:
        del self.memory[address.value]

    def launch(self, function, grid, block, parameters, *, cluster=(1, 1, 1), shared_bytes=0, seconds=10.0) -> None:
        text, name = function
        values = [p.value for p in parameters]
        assert all(isinstance(p, ctypes._SimpleCData) for p in parameters)
        run_ptx(
            text,
            name,
            grid=grid,
            block=block,
            cluster=cluster,
            smem_bytes=shared_bytes,
            params=values,
            allow=list(self.memory.values()),
        )

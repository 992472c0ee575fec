"""MXFP8 block-scaled FlashAttention-4 for NVIDIA Blackwell: numerics, kernels, and a Blackwell SM in Python.

Rooms, in the one direction of imports: numerics <- layouts <- emulator <- kernels <- attention <- nn.
`numerics`, `layouts` and `emulator` import without torch and without the CuTe DSL.
"""

__version__ = "0.1.0"

"""The instruction set: one definition per instruction form, by family. Importing this package fills the registry."""

from mxfp8fa.emulator.isa import bits as _bits  # noqa: F401
from mxfp8fa.emulator.isa import compare as _compare  # noqa: F401
from mxfp8fa.emulator.isa import integer as _integer  # noqa: F401
from mxfp8fa.emulator.isa import logic as _logic  # noqa: F401
from mxfp8fa.emulator.isa import warp as _warp  # noqa: F401

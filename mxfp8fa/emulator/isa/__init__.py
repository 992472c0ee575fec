"""The instruction set: one definition per instruction form, by family. Importing this package fills the registry."""

from mxfp8fa.emulator.isa import (  # noqa: F401
    atomic,
    barrier,
    bits,
    compare,
    control,
    copy_async,
    integer,
    logic,
    matrix,
    mbarriers,
    memory,
    movement,
    warp,
)

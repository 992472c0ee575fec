"""Three kernels, each without one fence, for the exercises of notebook 04. Do not imitate them.

    store       a tile is written by threads and stored by the TMA unit
    announce    a bulk copy completes on an mbarrier
    tensor      four warps pass values through tensor memory

Each module has make(), which returns (compiled, args) for `emulator.run`; `mxfp8fa.studies.broken` runs them.
"""

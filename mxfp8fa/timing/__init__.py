"""Cycles from the compiled binary: what a kernel's SASS is, what it costs, and how well that predicts published times.

    binary.py    the SASS that the compiler shipped, with its PTX lines       sass.py, units.py   instructions, execution units
    flow.py      blocks and loops of SASS                                     facts.py            `mxfp8fa inspect`

Needs the programs nvdisasm and cuobjdump (extra `timing`); no GPU.
"""

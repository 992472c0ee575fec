"""The PTX front end: text in, kernels as flat lists of instructions with resolved names out.

`parse(text)` is the way in. `scanner` makes tokens, `parser` reads the module level, `body` the statements of a
function, `operands`, `expressions`, `declarations` and `initialisers` their parts, `scopes` resolves names; `syntax`
and `module` are the result. It knows the shape of every instruction and the meaning of none.
"""

from __future__ import annotations

from mxfp8fa.emulator.ptx.errors import PTXSyntaxError
from mxfp8fa.emulator.ptx.module import Function, Kernel, Module
from mxfp8fa.emulator.ptx.parser import parse
from mxfp8fa.emulator.ptx.syntax import (
    SINK,
    Address,
    Arguments,
    BranchTargets,
    Guard,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Part,
    Pointer,
    Register,
    Relocation,
    Sink,
    SourceLocation,
    SpecialRegister,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
)

__all__ = [
    "SINK",
    "Address",
    "Arguments",
    "BranchTargets",
    "Function",
    "Guard",
    "Immediate",
    "Instruction",
    "Kernel",
    "Label",
    "Module",
    "Negated",
    "Operand",
    "PTXSyntaxError",
    "Pair",
    "Part",
    "Pointer",
    "Register",
    "Relocation",
    "Sink",
    "SourceLocation",
    "SpecialRegister",
    "Symbol",
    "TensorAddress",
    "Variable",
    "Vector",
    "parse",
]

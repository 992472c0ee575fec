"""Every pure instruction in every spelling: machine code and NumPy give the same bits, on edge values and random ones."""

import ctypes
import itertools
import random
import re
import types
import zlib

import numpy as np
import pytest

import mxfp8fa.emulator.isa  # noqa: F401  (fills the registry)
from mxfp8fa.emulator import compiled
from mxfp8fa.emulator.isa import trace
from mxfp8fa.emulator.isa.registry import REGISTRY
from mxfp8fa.emulator.lanes import LANES, raw_dtype
from mxfp8fa.emulator.machine.warp import FULL, lanes_of
from mxfp8fa.emulator.ptx import syntax
from mxfp8fa.emulator.values import BITS

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no machine code here")

PURE = [d for definitions in REGISTRY.values() for d in definitions if d.kind == "pure"]
ROUNDS = 6
# Values of 16, 32 and 64 bits where arithmetic changes its mind: zeros, subnormals, ones, halves, limits, infinities, NaNs.
EDGES = {
    1: [0, 1],
    8: [0, 1, 0x7E, 0x7F, 0x80, 0xFF],
    16: [0, 1, 0x3FF, 0x400, 0x3C00, 0x3F80, 0x7BFF, 0x7C00, 0x7C01, 0x7F7F, 0x7F80, 0x8000, 0xBC00, 0xFC00, 0xFFFF],
    32: [0, 1, 31, 32, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F000000, 0x4B000001, 0x7F7FFFFF, 0x7F800000, 0x7F800001,
         0x7FFFFFFF, 0x80000000, 0xBF800000, 0xFF800000, 0xFFFFFFFF],
    64: [0, 1, 63, 64, 0xFFFFFFFFFFFFF, 0x3FF0000000000000, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000,
         0x7FF0000000000001, 0x8000000000000000, 0xBFF0000000000000, 0xFFFFFFFFFFFFFFFF, 0x3F8000003F800000],
}  # fmt: skip


def spellings(definition):
    parts = []
    for optional, plain in re.findall(r"\{\.([^}]+)\}|\.([\w:]+)", definition.pattern.split(" ")[0]):
        words = [f".{w}" for w in definition.choices.get(optional or plain, (optional or plain,))]
        parts.append(["", *words] if optional else words)
    return ["".join(words) for words in itertools.product(*parts)]


def forms(definition):
    """(qualifiers, modifiers, number of inputs) of every spelling."""
    inputs = [o for o in definition.operands if not o.output]
    counts = range(sum(not o.optional for o in inputs), len(inputs) + 1)
    return [(text, definition.modifiers(text), count) for text in spellings(definition) for count in counts]


def words(t, rng):
    """32 raw values of a type: an edge or random bits in each lane."""
    width = BITS[t]
    chosen = [rng.choice(EDGES[width]) if rng.random() < 0.6 else rng.getrandbits(width) for _ in range(LANES)]
    return np.array(chosen, dtype=np.uint64).astype(raw_dtype(t))


def register(t, number):
    return syntax.Register(f"r{number}", "pred" if t == "pred" else f"b{BITS[t]}", number)


class Kernel:
    """Just enough of a program for one instruction: its registers, inputs first."""

    carry_register = 1 << 20

    def __init__(self, definition, modifiers, count):
        from mxfp8fa.emulator.compiled.layout import RegisterLayout
        from mxfp8fa.emulator.compiled.translate import Form

        _, self.types, self.result_types = trace.graph(definition, modifiers, count)
        every = [*self.types, *self.result_types]
        self.blank = [np.zeros(LANES, raw_dtype(t)) for t in every]
        self.layout = RegisterLayout(self.blank)
        inputs = tuple((register(t, i), t) for i, t in enumerate(self.types))
        results = tuple((register(t, len(inputs) + i), t) for i, t in enumerate(self.result_types))
        instruction = syntax.Instruction(0, definition.opcode, (), definition.opcode, (), None, 1)
        name = definition.extra.get("membermask")
        specs = [o.name for o in definition.operands if not o.output]
        self.member = None if name is None else specs.index(name)
        self.form = Form(instruction, definition, modifiers, inputs, results, self.member)
        self.evaluate = trace.compiled(definition, modifiers, count)


def run_compiled(address, kernel, inputs, bits, slots):
    """The function on these inputs; returns its answer and the rows of the outputs, which begin as all ones."""
    from mxfp8fa.emulator.compiled.layout import RegisterRows, RegisterShadows
    from mxfp8fa.emulator.compiled.state import NODE_WORDS, STATE_WORDS, NodeField, State

    rows, shadows = RegisterRows(kernel.layout), RegisterShadows(kernel.layout)
    for i, x in enumerate(inputs):
        rows[i] = x
        shadows[i] = None
    for i in range(len(inputs), len(kernel.blank)):
        rows[i] = ~kernel.blank[i]
    state, node = np.zeros(STATE_WORDS, np.int64), np.zeros(NODE_WORDS, np.int64)
    state[State.REGISTERS], state[State.POISON] = rows.address, shadows.address
    state[State.MASK], state[State.LIVE] = bits, FULL
    node[NodeField.NEXT] = 1
    for i, r in enumerate(slots.registers if slots else ()):
        node[NodeField.SLOT + i] = r.id << 32 | kernel.layout.offsets[r.id]
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address)
    answer = function(state.ctypes.data, node.ctypes.data)
    outputs = range(len(inputs), len(kernel.blank))
    return answer, [rows[i] for i in outputs], [int(shadows.lanes[i]) for i in outputs]


def compile_all(kernels):
    """Addresses of the kernels' functions, and the slots of those that work across lanes."""
    from mxfp8fa.emulator.compiled.engine import load_functions
    from mxfp8fa.emulator.compiled.region import Slots, collective_function, region_function
    from mxfp8fa.emulator.compiled.translate import Translator, traits_of

    functions, slots = [], []
    for n, kernel in enumerate(kernels):
        program = types.SimpleNamespace(carry_register=0)
        instruction = syntax.Instruction(n, "", (), str(n), (), None, 1)
        form = type(kernel.form)(
            instruction, kernel.form.definition, kernel.form.modifiers, kernel.form.inputs, kernel.form.outputs, kernel.member
        )
        if traits_of(form).other_lanes:
            slots.append(Slots(form))
            functions.append(collective_function(f"f{n}", Translator(program), slots[-1]))
        else:
            slots.append(None)
            everything = (1 << len(kernel.blank)) - 1
            functions.append(region_function(Translator(program), [form], everything, kernel.layout))
    return load_functions(functions), slots


def masks(kernel, rng):
    """Active lanes of each round; instructions with a membermask name just these lanes."""
    return [FULL, 1, 1 << 31] + [rng.getrandbits(32) | 1 << rng.randrange(32) for _ in range(ROUNDS - 3)]


def check(kernel, address, slots, rng):
    for bits in masks(kernel, rng):
        inputs = [words(t, rng) for t in kernel.types]
        if kernel.member is not None:
            inputs[kernel.member][:] = FULL if bits == FULL else bits
        with np.errstate(all="ignore"):
            expected = kernel.evaluate(lanes_of(bits), *inputs)
        answer, results, poison = run_compiled(address, kernel, inputs, bits, slots)
        assert answer >= 0
        for want, got in zip(expected, results, strict=True):
            active = lanes_of(bits)
            np.testing.assert_array_equal(got[active], want[active])
            assert (got[~active] == ~np.zeros_like(got[~active])).all()
        assert poison == [FULL & ~bits] * len(results)


@pytest.mark.parametrize("most", [4, pytest.param(1 << 30, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("definition", PURE, ids=lambda d: f"{d.function.__module__.rsplit('.', 1)[-1]}: {d.pattern}")
def test_machine_code_equals_numpy(definition, most):
    from mxfp8fa.emulator.compiled.translate import traits_of

    rng = random.Random(zlib.crc32(definition.pattern.encode()))
    known = forms(definition)
    chosen = known if len(known) <= most else rng.sample(known, most)
    kernels = [Kernel(definition, modifiers, count) for _, modifiers, count in chosen]
    kernels = [k for k in kernels if traits_of(k.form).translatable]
    addresses, slots = compile_all(kernels)
    for kernel, address, own in zip(kernels, addresses, slots, strict=True):
        check(kernel, address, own, rng)

"""Every pure definition in every spelling traces, compiles, runs, explains itself, and is alone with its form."""

import itertools
import re

import numpy as np
import pytest

import mxfp8fa.emulator.isa  # noqa: F401  (fills the registry)
from mxfp8fa.emulator import lanes
from mxfp8fa.emulator.isa import trace
from mxfp8fa.emulator.isa.registry import CONFIDENCE, REGISTRY
from mxfp8fa.emulator.values import BITS, Value

ALL = [d for definitions in REGISTRY.values() for d in definitions]
PURE = [d for d in ALL if d.kind == "pure"]
FULL = np.ones(lanes.LANES, bool)


def name_of(definition):
    return f"{definition.function.__module__.rsplit('.', 1)[-1]}: {definition.pattern}"


def spellings(definition):
    """Every dotted qualifier string of a definition: all alternatives, each optional part present and absent."""
    parts = []
    for optional, plain in re.findall(r"\{\.([^}]+)\}|\.([\w:]+)", definition.pattern.split(" ")[0]):
        words = [f".{w}" for w in definition.choices.get(optional or plain, (optional or plain,))]
        parts.append(["", *words] if optional else words)
    return ["".join(words) for words in itertools.product(*parts)]


def input_counts(definition):
    inputs = [o for o in definition.operands if not o.output]
    return range(sum(not o.optional for o in inputs), len(inputs) + 1)


def output_count(definition):
    return sum(2 if o.pair else 1 for o in definition.operands if o.output) + definition.extra.get("carry_out", False)


@pytest.mark.parametrize("definition", PURE, ids=name_of)
def test_traces_and_runs_in_every_spelling(definition):
    """On all zeros and all ones: results are arrays of 32 lanes in the raw type the graph promises."""
    for text, count in itertools.product(spellings(definition), input_counts(definition)):
        modifiers = definition.modifiers(text)
        assert modifiers is not None, text
        outputs, types, result_types = trace.graph(definition, modifiers, count)
        assert len(outputs) == output_count(definition), text
        assert all(isinstance(o, Value) and o.type in BITS for o in outputs), text
        function = trace.compiled(definition, modifiers, count)
        for fill in (0, -1):
            arguments = [np.full(lanes.LANES, fill).astype(lanes.raw_dtype(t)) for t in types]
            with np.errstate(all="ignore"):
                results = function(FULL, *arguments)
            assert [r.shape for r in results] == [(lanes.LANES,)] * len(outputs), text
            assert [r.dtype for r in results] == [lanes.raw_dtype(t) for t in result_types], text


@pytest.mark.parametrize("definition", ALL, ids=name_of)
def test_explains_itself(definition):
    assert definition.summary.endswith("."), "the first line of the docstring is the semantics, one sentence or more"
    assert re.match(r"\d+\.\d+", definition.section), "the section of the PTX ISA, 9.7.1 add"
    assert definition.confidence in CONFIDENCE
    inputs = {o.name for o in definition.operands if not o.output}
    assert set(definition.moves) <= inputs
    assert definition.extra.get("membermask", next(iter(inputs), None)) in inputs | {None}


def test_no_form_has_two_definitions():
    clashes = []
    for definition in PURE:
        counts = set(operand_counts(definition))
        for other in REGISTRY[definition.opcode]:
            if other is not definition and counts & set(operand_counts(other)):
                shared = [text for text in spellings(definition) if other.modifiers(text) is not None]
                clashes += [(name_of(definition), name_of(other), text) for text in shared]
    assert not clashes


def operand_counts(definition):
    return range(sum(not o.optional for o in definition.operands), len(definition.operands) + 1)


def test_every_collective_names_its_membermask():
    collectives = [d for d in PURE if ".sync" in d.pattern]
    assert len(collectives) >= 10
    assert all(d.extra.get("membermask") for d in collectives)


def depends_on(node, indices):
    return (node.op == "arg" and node.attr in indices) or any(depends_on(a, indices) for a in node.args)


@pytest.mark.parametrize("definition", [d for d in PURE if d.moves], ids=name_of)
def test_moved_bits_only_move(definition):
    """Poison follows moved operands through the definition itself, which is sound only if it acts bit by bit.

    With the other operands fixed, f must give 0 for 0, and f(x | y) must be f(x) | f(y).
    """
    rng = np.random.default_rng(1)
    names = [o.name for o in definition.operands if not o.output]
    moved = {i for i, n in enumerate(names) if n in definition.moves}
    for text in spellings(definition):
        modifiers = definition.modifiers(text)
        outputs, types, _ = trace.graph(definition, modifiers, len(names))
        function = trace.compiled(definition, modifiers, len(names))
        carries = [depends_on(o, moved) for o in outputs]
        assert any(carries), text

        def random_argument(t):
            if t == "pred":
                return rng.random(lanes.LANES) < 0.5
            raw = rng.integers(0, 2 ** BITS[t], lanes.LANES, dtype=lanes.raw_dtype(t))
            return raw >> rng.integers(0, BITS[t], lanes.LANES).astype(raw.dtype)  # small shift amounts occur too

        for _ in range(8):
            x, y = ([random_argument(t) for t in types] for _ in range(2))
            y = [v if i in moved else x[i] for i, v in enumerate(y)]
            both = [a | b if i in moved else a for i, (a, b) in enumerate(zip(x, y, strict=True))]
            nothing = [np.zeros_like(a) if i in moved else a for i, a in enumerate(x)]
            with np.errstate(all="ignore"):
                fx, fy, f_both, f_nothing = (function(FULL, *arguments) for arguments in (x, y, both, nothing))
            for carry, a, b, ab, none in zip(carries, fx, fy, f_both, f_nothing, strict=True):
                if carry:
                    assert not none.any(), text
                    assert np.array_equal(ab, a | b), text

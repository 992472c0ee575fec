"""The comparison script itself: inputs, kernels, distances, and its way through a stand-in for the GPU."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from measured import ROOT, results
from silicon import forms as silicon_forms
from silicon import gpu, sample, worker
from silicon.comparison import NOT_COMPARABLE, compare, ulp_distance
from silicon.emulated import run_form
from silicon.explanations import FORMS, PROGRAMS, explain
from silicon.inputs import COUNT, EDGES, FLOATS, float_edges, integer_edges, pool, random_words, unary_pool
from silicon.programs import all_programs
from silicon.report import page

from mxfp8fa.emulator.isa.registry import find
from mxfp8fa.emulator.isa.snippets import BLOCK_THREADS, forms_of, qualifier_choices

KINDS = ("pred", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")


def test_random_words_are_splitmix64() -> None:
    """First outputs for seed 0 of the published generator; a changed generator would void the stored results."""
    assert zlib.crc32(b"") == 0
    assert [hex(int(w)) for w in random_words("", 3)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_pools_cover_edges(kind: str) -> None:
    assert COUNT % BLOCK_THREADS == 0 and len(unary_pool(kind)) % BLOCK_THREADS == 0
    for position in range(3):
        assert len(pool(kind, position)) == COUNT
    if kind in FLOATS or kind[0] == "i":
        edges = float_edges(kind) if kind in FLOATS else integer_edges(int(kind[1:]))
        assert len(set(edges.tolist())) == EDGES or kind == "i8"
        pairs = set(zip(pool(kind, 0)[: EDGES**2].tolist(), pool(kind, 1)[: EDGES**2].tolist(), strict=True))
        assert len(pairs) == len(set(edges.tolist())) ** 2, "not every pair of edge values"


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_float_edges_hold_every_class(name: str) -> None:
    kind = FLOATS[name]
    magnitude = float_edges(name) & np.uint64((1 << (kind.bits - 1)) - 1)
    infinity = ((1 << kind.exponent_bits) - 1) << kind.mantissa_bits
    assert (magnitude == 0).sum() == 2 and (magnitude == infinity).sum() == 2
    assert (magnitude > infinity).sum() >= 8
    assert ((magnitude > 0) & (magnitude < 1 << kind.mantissa_bits)).sum() >= 6


def test_forms_spell_out_every_alternative() -> None:
    (definition, _) = find("mul24", ["lo", "u32"], 3) or (None, None)
    assert definition is not None
    assert [f.mnemonic for f in forms_of(definition)] == [
        "mul24.lo.u32",
        "mul24.lo.s32",
        "mul24.hi.u32",
        "mul24.hi.s32",
    ]
    assert qualifier_choices(definition) == [[".lo", ".hi"], [".u32", ".s32"]]


def test_forms_have_names_of_their_own_and_mean_themselves() -> None:
    """No definition hides another: looking a mnemonic up finds the definition that it was made from."""
    found = [f for f in silicon_forms.all_forms().values()]
    for form in found[::17]:
        opcode, *qualifiers = form.mnemonic.split(".")
        operands = sum(not o.optional or o.name in {i.name for i in form.inputs} for o in form.definition.operands)
        looked_up = find(opcode, qualifiers, operands)
        assert looked_up is not None and looked_up[0].function is form.definition.function, form.key


@pytest.mark.parametrize(
    ("x", "y", "distance"),
    [(0x3F800000, 0x3F800001, 1), (0x00000000, 0x80000000, 0), (0x00000001, 0x80000001, 2), (0x7F7FFFFF, 0x7F800000, 1),
     (0x7FC00000, 0x7FFFFFFF, 0), (0x7FC00000, 0x7F800000, NOT_COMPARABLE), (0x3F800000, 0xBF800000, 2 * 0x3F800000)],
)  # fmt: skip
def test_ulp_distance(x: int, y: int, distance: int) -> None:
    assert ulp_distance(np.array([x], np.uint32), np.array([y], np.uint32), FLOATS["f32"])[0] == distance


def test_ulp_distance_across_flushed_subnormals() -> None:
    zero, smallest = np.array([0x80000000], np.uint32), np.array([0x80800001], np.uint32)
    assert ulp_distance(zero, smallest, FLOATS["f32"], flushed=True)[0] == 2
    assert ulp_distance(zero, smallest, FLOATS["f32"])[0] == 0x800001


def _compare_with_change(key: str, change: int, index: int):
    form = silicon_forms.all_forms()[key]
    arrays, active = silicon_forms.inputs(form)
    results = silicon_forms.emulate(form, arrays, active)
    changed = [r.copy() for r in results]
    changed[0][index] ^= changed[0].dtype.type(change)
    return compare(form, arrays, changed, results, silicon_forms.defined(form, arrays, active))


def test_a_single_wrong_bit_is_found() -> None:
    outcome = _compare_with_change("add.s32/2", 1, 777)
    assert outcome.mismatches == 1 and len(outcome.examples) == 1


def test_undefined_results_are_not_compared() -> None:
    form = silicon_forms.all_forms()["div.u32/2"]
    zero_divisor = int(np.nonzero(silicon_forms.inputs(form)[0][1] == 0)[0][0])
    outcome = _compare_with_change("div.u32/2", 1, zero_divisor)
    assert outcome.mismatches == 0 and outcome.unspecified_different == 1


def test_approximate_results_are_measured_in_ulp() -> None:
    outcome = _compare_with_change("rcp.approx.f32/1", 4, 4000)
    assert outcome.mismatches == 0 and outcome.max_ulp == 4 and outcome.histogram["3-4"] == 1


def test_nan_payloads_are_counted_apart() -> None:
    form = silicon_forms.all_forms()["add.rn.f32/2"]
    arrays, active = silicon_forms.inputs(form)
    nan = int(np.nonzero(silicon_forms.emulate(form, arrays, active)[0] == 0x7FFFFFFF)[0][0])
    outcome = _compare_with_change("add.rn.f32/2", 2, nan)
    assert (outcome.mismatches, outcome.nan_only) == (1, 1)


def test_the_way_through_a_device(tmp_path: Path) -> None:
    """Kernels, launches, refused forms, comparison and the stored sample, with the emulator's machine as the device."""
    keys = [
        "add.s32/2",
        "clmad.lo.u64/3",
        "lop3.b32/4",
        "setp.lt.and.s32/3",
        "activemask.b32/0",
        "cvt.rn.f32.u8/1",
        "shfl.sync.bfly.b32/4",
    ]
    keys = [k for k in keys if k in silicon_forms.all_forms()]
    device = EmulatedDevice()
    found = worker.run_forms(device, keys)
    assert found["clmad.lo.u64/3"] == {"refused": "unknown clmad"}
    measured = [k for k in keys if "clmad" not in k]
    assert all(found[k]["outcome"]["mismatches"] == 0 for k in measured)
    program = all_programs()["control.packing"]
    words = gpu.run_program(device, program)
    path = tmp_path / "sample.npz"
    sample.save(path, {k: found[k]["kept"] for k in measured}, {program.name: words})
    entries, programs = sample.load(path)
    for entry in entries:
        form = silicon_forms.all_forms()[entry.key]
        for kept, again in zip(entry.outputs, silicon_forms.emulate(form, entry.arrays, entry.active), strict=True):
            np.testing.assert_array_equal(kept, again)
    assert programs[program.name].checksum == sample.checksum([words])


def test_explanations_are_for_what_differs() -> None:
    assert explain("tma.edge.before.f32.nan", PROGRAMS) and explain("tma.illegal.load.unaligned", PROGRAMS)
    assert not explain("tma.edge.before.f32.zero", PROGRAMS) and not explain("add.s32/2", FORMS)


def test_the_page_is_made_from_the_results() -> None:
    assert (ROOT / "docs/silicon.md").read_text() == page(results()), "run: python scripts/silicon report"


@pytest.mark.parametrize("key", ["add.cc.u32/2", "addc.cc.s64/2", "subc.cc.u32/2", "sub.cc.s32/2", "madc.hi.u32/3"])
def test_carry_flags_go_through_the_kernel(key: str) -> None:
    """The flag that is read comes from an input, the one that is written is an output."""
    form = silicon_forms.all_forms()[key]
    arrays, active = silicon_forms.inputs(form)
    arrays, active = [a[-BLOCK_THREADS:] for a in arrays], active[-BLOCK_THREADS:]
    for machine, lanes in zip(run_form(form, arrays, active), silicon_forms.emulate(form, arrays, active), strict=True):
        np.testing.assert_array_equal(machine, lanes)

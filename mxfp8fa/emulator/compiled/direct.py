"""Which memory and barrier instructions have a compiled function, and the nodes for it.

A form that is not here (another space, a conversion, an immediate to store) keeps its Python step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mxfp8fa.emulator.compiled.copies import rows_kind
from mxfp8fa.emulator.compiled.layout import RegisterLayout
from mxfp8fa.emulator.compiled.memory import TILE
from mxfp8fa.emulator.compiled.multiply import form_number, signed, widths
from mxfp8fa.emulator.isa.memory import space_of, words_of
from mxfp8fa.emulator.machine.binding import match
from mxfp8fa.emulator.ptx import syntax

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.program import Program

FENCES = ("fence", "membar")
NO_REGISTER = -1


@dataclass(frozen=True)
class Direct:
    """The compiled form of an instruction.

    Attributes:
        function: name of a runtime function.
        slots: of its operands, see `RegisterLayout.slot`.
        words: words of an access.
        offset: added to the address.
        constant: added to the second operand.
        expect: an arrival that expects bytes, or a wait that may block.
    """

    function: str
    slots: tuple[int, ...] = ()
    words: int = 1
    offset: int = 0
    constant: int = 0
    expect: bool = False


def direct_form(instruction: syntax.Instruction, live: int, program: Program, layout: RegisterLayout) -> Direct | None:
    """The compiled form of an instruction that is not register-to-register, or None; `live`: registers needed after it."""
    found = match(instruction)
    if found is None or found[0].kind != "machine":
        return None
    modifiers, opcode = found[1], instruction.opcode
    if opcode == "ld" and space_of(modifiers.get("ss")) == "param":
        return _parameter(instruction, modifiers, program, layout)
    if opcode in ("ld", "st") and "type" in modifiers:
        return _access(instruction, modifiers, program, layout)
    if opcode == "tcgen05" and instruction.qualifiers[0] == "mma":
        return _multiply(instruction, modifiers, layout)
    if opcode == "tcgen05" and instruction.qualifiers[0] == "commit":
        return _commit(instruction, modifiers, program, layout)
    if opcode == "tcgen05" and instruction.qualifiers[0] == "cp":
        return _rows(instruction, modifiers, layout)
    if opcode == "tcgen05" and instruction.guard is None:
        return _tensor(instruction, modifiers, layout)
    if opcode == "cp" and instruction.qualifiers[:2] == ("async", "bulk") and "dst" in modifiers:
        tensor = instruction.qualifiers[2] == "tensor"
        return (_tensor_copy if tensor else _bulk_copy)(instruction, modifiers, program, layout)
    if opcode == "mbarrier":
        return _barrier(instruction, live, program, layout)
    if opcode in ("bar", "barrier"):
        return _thread_barrier(instruction, layout)
    if opcode in FENCES and not instruction.operands and instruction.guard is None:
        return Direct("pass_by")
    return None


def _address(operand: Any, program: Program, layout: RegisterLayout) -> tuple[int, int, int] | None:
    """(slot, bits, offset) of an address, or None."""
    if not isinstance(operand, syntax.Address):
        return None
    base, offset = operand.base, operand.offset
    if isinstance(base, syntax.Register) and base.bits in (32, 64):
        return layout.slot(base.id), base.bits, offset
    if isinstance(base, syntax.Symbol) and base.space == "shared":
        return layout.rank_slot, 32, offset + program.address_of(base)
    return None


def _word_slots(operand: Any, bits: int, layout: RegisterLayout) -> tuple[int, ...] | None:
    """Slots of registers of exactly these bits, or None."""
    elements: Sequence[Any] = operand.elements if isinstance(operand, syntax.Vector) else [operand]
    if not all(isinstance(e, syntax.Register) and e.type != "pred" and e.bits == bits for e in elements):
        return None
    return tuple(layout.slot(e.id) for e in elements)


def _access(
    instruction: syntax.Instruction, modifiers: dict[str, Any], program: Program, layout: RegisterLayout
) -> Direct | None:
    load = instruction.opcode == "ld"
    place = {"shared": "shared", "shared::cta": "shared", "global": "global"}.get(space_of(modifiers.get("ss")))
    if place is None or modifiers["type"] == "b128":
        return None
    size, count = words_of(modifiers["type"], modifiers.get("vec"))
    value, at = instruction.operands[:2] if load else instruction.operands[1::-1]
    address, slots = _address(at, program, layout), _word_slots(value, 8 * size, layout)
    if address is None or slots is None or len(slots) != count or (place == "global" and address[1] != 64):
        return None
    slot, bits, offset = address
    return Direct(f"{'load' if load else 'store'}_{place}_{size}_{bits}", (slot, *slots), count, offset)


def _parameter(
    instruction: syntax.Instruction, modifiers: dict[str, Any], program: Program, layout: RegisterLayout
) -> Direct | None:
    """A load of kernel parameters from a known place."""
    value, at = instruction.operands[:2]
    if not isinstance(at, syntax.Address):
        return None
    place = at.base
    if not isinstance(place, syntax.Symbol) or place.space != "param" or modifiers["type"] == "b128":
        return None
    size, count = words_of(modifiers["type"], modifiers.get("vec"))
    elements: Sequence[Any] = value.elements if isinstance(value, syntax.Vector) else [value]
    widths = {e.bits // 8 for e in elements if isinstance(e, syntax.Register) and e.type != "pred"}
    start = program.address_of(place) + at.offset
    first = program.parameters.ctypes.data
    inside = first <= start and start + size * count <= first + program.kernel.param_bytes
    if len(elements) != count or len(widths) != 1 or min(widths) < size or max(widths) > 8 or start % (size * count) or not inside:
        return None
    if not all(isinstance(e, syntax.Register) for e in elements):
        return None
    name = f"load_parameter_{size}_{min(widths)}_{int(modifiers['type'][0] == 's')}"
    return Direct(name, tuple(layout.slot(e.id) for e in elements), count, start)


def _tensor(instruction: syntax.Instruction, modifiers: dict[str, Any], layout: RegisterLayout) -> Direct | None:
    kind = instruction.qualifiers[0]
    if kind in ("wait::ld", "wait::st"):
        return Direct("wait_tensor")
    if kind.startswith("fence"):
        return Direct("pass_by")
    if kind not in ("ld", "st") or modifiers.get("shape") != "32x32b":
        return None
    if modifiers.get("pack_16b") or modifiers.get("unpack_16b"):
        return None
    value, at = instruction.operands if kind == "ld" else instruction.operands[::-1]
    slots = _word_slots(value, 32, layout)
    if slots is None or not isinstance(at, syntax.Address) or not isinstance(at.base, syntax.Register) or at.base.bits != 32:
        return None
    tile = 1 if len(slots) % TILE else TILE
    return Direct(f"{'load' if kind == 'ld' else 'store'}_tensor_{tile}", (layout.slot(at.base.id), *slots), len(slots), at.offset)


def _multiply(instruction: syntax.Instruction, modifiers: dict[str, Any], layout: RegisterLayout) -> Direct | None:
    """Operands: d, a, b, descriptor, {mask of disabled lanes}, enable, and of scaled forms sfa and sfb before enable."""
    operands, kind = list(instruction.operands), modifiers["kind_"]
    if modifiers["group"] != "cta_group::1" or kind not in ("kind::f16", "kind::f8f6f4", "kind::mxf8f6f4"):
        return None
    scaled, tensor_a = kind == "kind::mxf8f6f4", isinstance(operands[1], syntax.Address)
    disabled: Sequence[Any] = operands[4].elements if isinstance(operands[4], syntax.Vector) else ()
    operands = [x for x in operands if not isinstance(x, syntax.Vector)]
    if len(operands) != (7 if scaled else 5) or len(disabled) not in (0, 4):
        return None
    if scaled:
        operands.insert(4, operands.pop())  # enable, sfa, sfb
    values = [_operand(x, bits, layout) for x, bits in zip(operands, widths(scaled=scaled, tensor_a=tensor_a), strict=True)]
    masks = [_operand(x, 32, layout) for x in disabled]
    if None in values or any(m is None or m[1] for m in masks):
        return None
    slots = [word for pair in values if pair for word in pair] + [m[0] for m in masks if m]
    number = form_number(kind[6:], modifiers.get("vector"))
    return Direct(f"multiply_{int(scaled) + 2 * tensor_a}", tuple(slots), len(masks), constant=number)


def _tensor_copy(
    instruction: syntax.Instruction, modifiers: dict[str, Any], program: Program, layout: RegisterLayout
) -> Direct | None:
    """A load of a box to the own CTA. Operands: [d], [map, {coordinates}], [mbarrier], and maybe a cache hint."""
    place, source, *others = instruction.operands
    pair = "cta_group::2" in (modifiers.get("group"), modifiers.get("late_group"))
    if modifiers.get("multicast") or pair or modifiers.get("mode") not in (None, "tile"):
        return None
    if not isinstance(source, syntax.TensorAddress):
        return None
    coordinates = [_operand(x, 32, layout) for x in source.coordinates]
    slots = _copy_slots((place, others[0], source.address), coordinates, program, layout)
    return Direct(f"load_box_{len(coordinates)}", slots) if slots else None


def _bulk_copy(
    instruction: syntax.Instruction, modifiers: dict[str, Any], program: Program, layout: RegisterLayout
) -> Direct | None:
    """A load of bytes to the own CTA. Operands: [d], [source], bytes, [mbarrier], and maybe a cache hint."""
    place, source, size, barrier = instruction.operands[:4]
    if modifiers.get("multicast"):
        return None
    slots = _copy_slots((place, barrier, source), [_operand(size, 32, layout)], program, layout)
    return Direct("load_bulk", slots) if slots else None


def _copy_slots(
    addresses: Sequence[Any], others: list[tuple[int, int] | None], program: Program, layout: RegisterLayout
) -> tuple[int, ...] | None:
    """Pairs of slot and constant: destination, mbarrier and source, then the others; None if one has another form."""
    found = [_address(x, program, layout) for x in addresses]
    if [a and a[1] for a in found] != [32, 32, 64] or None in others:
        return None
    pairs = [(a[0], a[2]) for a in found if a] + [x for x in others if x]
    return tuple(word for pair in pairs for word in pair)


def _rows(instruction: syntax.Instruction, modifiers: dict[str, Any], layout: RegisterLayout) -> Direct | None:
    """tcgen05.cp. Operands: [address], descriptor."""
    pairs = [_operand(x, bits, layout) for x, bits in zip(instruction.operands, (32, 64), strict=True)]
    if modifiers["group"] != "cta_group::1" or modifiers.get("unpack") or None in pairs:
        return None
    return Direct("copy_rows", tuple(word for pair in pairs if pair for word in pair), constant=rows_kind(modifiers["form"]))


def _operand(operand: Any, bits: int, layout: RegisterLayout) -> tuple[int, int] | None:
    """(slot, constant to add) of an operand of so many bits (1: a predicate), or of an address."""
    constant = 0
    if isinstance(operand, syntax.Address):
        operand, constant = operand.base, operand.offset
    if isinstance(operand, syntax.Immediate) and not constant:
        return layout.zero_slot, signed(operand.integer_bits(bits))
    if not isinstance(operand, syntax.Register) or bits != (1 if operand.type == "pred" else operand.bits):
        return None
    return layout.slot(operand.id), constant


def _commit(
    instruction: syntax.Instruction, modifiers: dict[str, Any], program: Program, layout: RegisterLayout
) -> Direct | None:
    """An arrival, where all work before it is complete."""
    address = _address(instruction.operands[0], program, layout)
    if address is None or len(instruction.operands) > 1 or modifiers["group"] != "cta_group::1":
        return None
    return Direct(f"commit_{address[1]}", (address[0], layout.zero_slot), 1, address[2], 1)


def _barrier(instruction: syntax.Instruction, live: int, program: Program, layout: RegisterLayout) -> Direct | None:
    qualifiers, operands = instruction.qualifiers, list(instruction.operands)
    if "parity" in qualifiers:
        result, at, parity = operands[:3]
        address, known = _address(at, program, layout), _value(parity, layout)
        if address is None or known is None or not isinstance(result, syntax.Register):
            return None
        slots = (address[0], known[0], layout.slot(result.id))
        waits = qualifiers[0] == "try_wait"
        return Direct(f"wait_parity_{address[1]}", slots, offset=address[2], constant=known[1], expect=waits)
    if qualifiers[0] != "arrive" or "noComplete" in qualifiers:
        return None
    if not isinstance(operands[0], syntax.Address):
        token = operands.pop(0)
        if isinstance(token, syntax.Register) and live >> token.id & 1:
            return None  # the state before the arrival is wanted
    address = _address(operands[0], program, layout)
    if address is None:
        return None
    known = _value(operands[1], layout) if len(operands) > 1 else (layout.zero_slot, 1)
    if known is None:
        return None
    expect = "expect_tx" in qualifiers
    return Direct(f"arrive_{address[1]}", (address[0], known[0]), 1, address[2], known[1], expect)


def _thread_barrier(instruction: syntax.Instruction, layout: RegisterLayout) -> Direct | None:
    """bar.warp.sync, and arrivals of whole warps at a barrier of so many threads."""
    known = [_value(operand, layout) for operand in instruction.operands]
    if not known or None in known:
        return None
    (first, second), *others = (k for k in known if k is not None)
    qualifiers = [q for q in instruction.qualifiers if q not in ("cta", "aligned")]
    if qualifiers == ["warp", "sync"]:
        return Direct("warp_sync", (first,), constant=second)
    if qualifiers == ["sync"] and not others:
        return Direct("bar_sync", (first, layout.zero_slot), offset=second, expect=True)
    if qualifiers in (["sync"], ["arrive"]) and len(others) == 1:
        return Direct(f"bar_{qualifiers[0]}", (first, others[0][0]), offset=second, constant=others[0][1])
    return None


def _value(operand: Any, layout: RegisterLayout) -> tuple[int, int] | None:
    """(slot, constant) of a 32-bit operand."""
    if isinstance(operand, syntax.Immediate):
        return layout.zero_slot, int(operand.value) & 0xFFFFFFFF
    if isinstance(operand, syntax.Register) and operand.type != "pred" and operand.bits == 32:
        return layout.slot(operand.id), 0
    return None

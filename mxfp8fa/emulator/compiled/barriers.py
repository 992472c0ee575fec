"""Compiled mbarrier instructions on a barrier of the own CTA: arrivals, and waits for a phase that is complete.

A wait that would block and everything that is an error are the Python step's. The word of a barrier: `machine.mbarrier`.
"""

from __future__ import annotations

from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.memory import require_direct, shared_offset
from mxfp8fa.emulator.compiled.state import WOKEN, NodeField, State

_FIELD = (1 << 20) - 1
_TX_SHIFT, _TX_BITS, _PHASE, _VALID = 40, 21, 61, 62


def _barrier(f: FunctionWriter, mask: str, bits: int) -> tuple[str, str]:
    """(offset, word) of the one barrier that all active lanes name; refuses if there is none, or several."""
    slot = f.slot(0)
    f.require_clean([slot], mask)
    base = f.uniform(f.row(slot), bits, mask)
    address = f.put(f"add i64 {base}, {f.word(NodeField.OFFSET)}")
    if bits == 32:
        address = f.put(f"and i64 {address}, {0xFFFFFFFF}")
    offset = shared_offset(f, address, "8")
    f.require(f.put(f"icmp eq i64 {f.load('i64', f.word(State.SHARED_SHADOW, 'ptr'), offset)}, 0"))
    word = f.load("i64", f.word(State.SHARED, "ptr"), offset)
    f.require(f.put(f"icmp eq i64 {f.put(f'lshr i64 {word}, {_VALID}')}, 1"))
    return offset, word


def wait_parity(bits: int) -> FunctionWriter:
    """mbarrier.test_wait and try_wait.parity that find the phase complete. Slots: address, parity, predicate."""
    f = FunctionWriter(f"wait_parity_{bits}")
    require_direct(f)
    mask = f.mask()
    _, word = _barrier(f, mask, bits)
    parity_slot = f.slot(1)
    f.require_clean([parity_slot], mask)
    given = f.put(f"add i64 {f.uniform(f.row(parity_slot), 32, mask)}, {f.word(NodeField.CONSTANT)}")
    parity = f.put(f"and i64 {given}, 1")
    phase = f.put(f"and i64 {f.put(f'lshr i64 {word}, {_PHASE}')}, 1")
    f.require(f.put(f"icmp ne i64 {phase}, {parity}"))
    result = f.slot(2)
    row = f.row(result)
    with f.lanes(mask) as lane:
        f.store("i8", "1", row, lane)
    f.cleanse(result, mask)
    f.body = f.finish()
    return f


def commit(bits: int) -> FunctionWriter:
    """tcgen05.commit where everything before it is complete. Slots: address, zero."""
    return arrive(bits, commits=True)


def arrive(bits: int, *, commits: bool = False) -> FunctionWriter:
    """mbarrier.arrive by every active lane, or one that expects bytes, by one lane.

    Slots: address, arrivals of a lane or bytes. EXPECT: whether it is bytes.
    """
    f = FunctionWriter(f"{'commit' if commits else 'arrive'}_{bits}")
    require_direct(f)
    if commits:
        f.require(f.put(f"icmp ne i64 {f.word(State.PRODUCTS)}, 0"))
    mask = f.mask()
    offset, word = _barrier(f, mask, bits)
    lanes = f.lane_count(mask)
    expects = f.put(f"icmp ne i64 {f.word(NodeField.EXPECT)}, 0")
    slot = f.slot(1)
    f.require_clean([slot], mask)
    value = f.put(f"add i64 {f.uniform(f.row(slot), 32, mask)}, {f.word(NodeField.CONSTANT)}")
    f.require(f.put(f"icmp ule i64 {value}, {_FIELD}"))
    alone = f.put(f"icmp eq i64 {lanes}, 1")
    some = f.put(f"icmp ne i64 {value}, 0")
    f.require(f.put(f"select i1 {expects}, i1 {alone}, i1 {some}"))
    tx = f.put(f"ashr i64 {f.put(f'shl i64 {word}, 3')}, 43")  # 21 bits, with their sign
    tx = f.put(f"add i64 {tx}, {f.put(f'select i1 {expects}, i64 {value}, i64 0')}")
    f.require(f.put(f"icmp sle i64 {tx}, {_FIELD}"))
    pending = f.put(f"and i64 {word}, {_FIELD}")
    count = f.put(f"select i1 {expects}, i64 1, i64 {f.put(f'mul i64 {lanes}, {value}')}")
    f.require(f.put(f"icmp ule i64 {count}, {pending}"))
    left = f.put(f"sub i64 {pending}, {count}")
    complete = f.put(f"icmp eq i64 {f.put(f'or i64 {left}, {tx}')}, 0")
    single = f.put(f"icmp eq i64 {f.word(State.WAITING)}, 0")
    woken = f.word(State.WOKEN)
    room = f.put(f"icmp slt i64 {woken}, {WOKEN}")
    f.require(f.put(f"or i1 {f.put(f'xor i1 {complete}, true')}, {f.put(f'and i1 {single}, {room}')}"))
    expected = f.put(f"and i64 {f.put(f'lshr i64 {word}, 20')}, {_FIELD}")
    left = f.put(f"select i1 {complete}, i64 {expected}, i64 {left}")
    flip = f.put(f"select i1 {complete}, i64 {1 << _PHASE}, i64 0")
    kept = f.put(f"and i64 {word}, {~(_FIELD | ((1 << _TX_BITS) - 1) << _TX_SHIFT)}")
    tx_field = f.put(f"shl i64 {f.put(f'and i64 {tx}, {(1 << _TX_BITS) - 1}')}, {_TX_SHIFT}")
    new = f.put(f"or i64 {f.put(f'or i64 {kept}, {tx_field}')}, {left}")
    f.store("i64", f.put(f"xor i64 {new}, {flip}"), f.word(State.SHARED, "ptr"), offset)
    who = f.put(f"add i64 {f.word(NodeField.NEXT)}, {f.word(State.WARP_MARK)}")
    f.store("i64", who, f.word(State.ARRIVALS, "ptr"), offset)
    f.add_word(State.EPOCH, "1")
    with f.when(complete):
        place = f.put(f"add i64 {woken}, {int(State.WOKEN_AT)}")
        f.store("i64", offset, "%state", place, "i64")
        f.set_word(State.WOKEN, f.put(f"add i64 {woken}, 1"))
    f.body = f.finish()
    return f


def warp_sync() -> FunctionWriter:
    """bar.warp.sync where all live threads of the warp are here and in the mask that all of them name. Slots: the mask."""
    f = FunctionWriter("warp_sync")
    require_direct(f)
    mask = f.mask()
    f.require(f.put(f"icmp eq i64 {f.put(f'zext i32 {mask} to i64')}, {f.word(State.LIVE)}"))
    slot = f.slot(0)
    f.require_clean([slot], mask)
    named = f.put(f"or i64 {f.uniform(f.row(slot), 32, mask)}, {f.word(NodeField.CONSTANT)}")
    others = f.put(f"xor i64 {named}, -1")
    f.require(f.put(f"icmp eq i64 {f.put(f'and i64 {f.word(State.LIVE)}, {others}')}, 0"))
    f.body = f.finish()
    return f

"""Compiled barriers: arrivals and waits at mbarriers of the own CTA, at named barriers of whole warps, bar.warp.sync.

A warp whose threads are together waits here (`State.BLOCKED`) and is woken here. Other waits, and everything that is an
error, are the Python step's. The word of an mbarrier: `machine.mbarrier`; the words of a named barrier: `BarrierWord`.
"""

from __future__ import annotations

from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.memory import require_direct, shared_offset
from mxfp8fa.emulator.compiled.state import BLOCK, WOKEN, Blocked, NodeField, Schedule, State
from mxfp8fa.emulator.machine.barriers import ALL, LIVE_ROW, BarrierWord
from mxfp8fa.emulator.machine.cluster import NAMED_BARRIERS
from mxfp8fa.emulator.machine.warp import WARP_LANES

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
    return _valid_word(f, address)


def _valid_word(f: FunctionWriter, address: str) -> tuple[str, str]:
    """(offset, word) of the mbarrier at a shared address; refuses if there is none in the own CTA."""
    offset = shared_offset(f, address, "8")
    f.require(f.put(f"icmp eq i64 {f.load('i64', f.word(State.SHARED_SHADOW, 'ptr'), offset)}, 0"))
    word = f.load("i64", f.word(State.SHARED, "ptr"), offset)
    f.require(f.put(f"icmp eq i64 {f.put(f'lshr i64 {word}, {_VALID}')}, 1"))
    return offset, word


def barrier_word(f: FunctionWriter, address: str) -> tuple[str, str, str, str]:
    """(offset, word, pending arrivals, transaction count) of the mbarrier at a shared address of the own CTA."""
    offset, word = _valid_word(f, address)
    return offset, word, *_counts(f, word)


def _counts(f: FunctionWriter, word: str) -> tuple[str, str]:
    """(pending arrivals, transaction count): 20 bits, and 21 with their sign."""
    return f.put(f"and i64 {word}, {_FIELD}"), f.put(f"ashr i64 {f.put(f'shl i64 {word}, 3')}, 43")


def update_barrier(f: FunctionWriter, offset: str, word: str, pending: str, tx: str, complete: str) -> None:
    """Give an mbarrier new counts, or begin its next phase; note who did it."""
    expected = f.put(f"and i64 {f.put(f'lshr i64 {word}, 20')}, {_FIELD}")
    left = f.put(f"select i1 {complete}, i64 {expected}, i64 {pending}")
    flip = f.put(f"select i1 {complete}, i64 {1 << _PHASE}, i64 0")
    kept = f.put(f"and i64 {word}, {~(_FIELD | ((1 << _TX_BITS) - 1) << _TX_SHIFT)}")
    tx_field = f.put(f"shl i64 {f.put(f'and i64 {tx}, {(1 << _TX_BITS) - 1}')}, {_TX_SHIFT}")
    new = f.put(f"or i64 {f.put(f'or i64 {kept}, {tx_field}')}, {left}")
    f.store("i64", f.put(f"xor i64 {new}, {flip}"), f.word(State.SHARED, "ptr"), offset)
    who = f.put(f"add i64 {f.word(NodeField.NEXT)}, {f.word(State.WARP_MARK)}")
    f.store("i64", who, f.word(State.ARRIVALS, "ptr"), offset)
    f.add_word(State.EPOCH, "1")


def _alone(f: FunctionWriter) -> str:
    """Whether the warp may block here: it is scheduled by compiled code, and all of its threads are together."""
    scheduled = f.put(f"icmp ne i64 {f.word(State.SCHEDULE)}, 0")
    return f.put(f"and i1 {scheduled}, {f.put(f'icmp eq i64 {f.word(State.STOPS)}, 0')}")


def _block(f: FunctionWriter, kind: Blocked, key: str) -> None:
    f.set_word(State.BLOCKED, str(int(kind)))
    f.set_word(State.KEY, key)


def require_room(f: FunctionWriter, completes: str) -> None:
    """Refuse to complete a phase if a group of this warp may be among those that wait, or the list of the woken is full."""
    together = f.put(f"icmp eq i64 {f.word(State.APART)}, 0")
    room = f.put(f"icmp slt i64 {f.word(State.WOKEN)}, {WOKEN}")
    f.require(f.put(f"or i1 {f.put(f'xor i1 {completes}, true')}, {f.put(f'and i1 {together}, {room}')}"))


def wake_waiters(f: FunctionWriter, kind: Blocked, key: str) -> None:
    """A phase is complete: wake the warps that wait for it in compiled code, and note it for those in Python's records."""
    schedule = f.word(State.SCHEDULE, "ptr")
    scheduled = f.put(f"icmp ne ptr {schedule}, null")
    cta, mine = f.word(State.CTA), f.put("alloca i64")
    f.do(f"store i64 1, ptr {mine}")
    with f.when(scheduled):
        f.do(f"store i64 {f.load('i64', schedule, int(Schedule.WAITERS), 'i64')}, ptr {mine}")
        warps = f.load("ptr", schedule, int(Schedule.WARPS), "i64")
        with f.loop(f.load("i64", schedule, int(Schedule.COUNT), "i64")) as i:
            state = f.load("ptr", warps, i, "ptr")
            words = [(State.CTA, cta), (State.BLOCKED, str(int(kind))), (State.KEY, key)]
            same = [f.put(f"icmp eq i64 {f.load('i64', state, int(word), 'i64')}, {value}") for word, value in words]
            with f.when(f.put(f"and i1 {same[0]}, {f.put(f'and i1 {same[1]}, {same[2]}')}")):
                f.store("i64", "0", state, int(State.BLOCKED), "i64")
    with f.when(f.put(f"icmp ne i64 {f.put(f'load i64, ptr {mine}')}, 0")):
        woken = f.word(State.WOKEN)
        noted = key if kind is Blocked.MBARRIER else f.put(f"sub i64 -1, {key}")
        f.store("i64", noted, "%state", f.put(f"add i64 {woken}, {int(State.WOKEN_AT)}"), "i64")
        f.set_word(State.WOKEN, f.put(f"add i64 {woken}, 1"))


def wait_parity(bits: int) -> FunctionWriter:
    """mbarrier.test_wait and try_wait.parity. Slots: address, parity, predicate; EXPECT: whether to wait."""
    f = FunctionWriter(f"wait_parity_{bits}")
    require_direct(f)
    mask = f.mask()
    offset, word = _barrier(f, mask, bits)
    parity_slot = f.slot(1)
    f.require_clean([parity_slot], mask)
    given = f.put(f"add i64 {f.uniform(f.row(parity_slot), 32, mask)}, {f.word(NodeField.CONSTANT)}")
    parity = f.put(f"and i64 {given}, 1")
    phase = f.put(f"and i64 {f.put(f'lshr i64 {word}, {_PHASE}')}, 1")
    missing = f.put(f"icmp eq i64 {phase}, {parity}")
    may_block = f.put(f"and i1 {f.put(f'icmp ne i64 {f.word(NodeField.EXPECT)}, 0')}, {_alone(f)}")
    f.require(f.put(f"or i1 {f.put(f'xor i1 {missing}, true')}, {may_block}"))
    with f.when(missing):
        _block(f, Blocked.MBARRIER, offset)
    f.leave_if(missing, BLOCK)
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
    pending, tx = _counts(f, word)
    tx = f.put(f"add i64 {tx}, {f.put(f'select i1 {expects}, i64 {value}, i64 0')}")
    f.require(f.put(f"icmp sle i64 {tx}, {_FIELD}"))
    count = f.put(f"select i1 {expects}, i64 1, i64 {f.put(f'mul i64 {lanes}, {value}')}")
    f.require(f.put(f"icmp ule i64 {count}, {pending}"))
    left = f.put(f"sub i64 {pending}, {count}")
    complete = f.put(f"icmp eq i64 {f.put(f'or i64 {left}, {tx}')}, 0")
    require_room(f, complete)
    update_barrier(f, offset, word, left, tx, complete)
    with f.when(complete):
        wake_waiters(f, Blocked.MBARRIER, offset)
    f.body = f.finish()
    return f


# -- barriers of threads ----------------------------------------------------------------------------------------------


def bar_sync() -> FunctionWriter:
    """bar.sync by a whole warp. Slots: the number of the barrier, and as `_arrival`."""
    f = FunctionWriter("bar_sync")
    require_direct(f)
    mask = f.mask()
    f.require(_alone(f))
    _require_whole_warp(f, mask)
    number, barrier = _named_barrier(f, mask)
    token, generation = f.word(State.TOKEN), _word(f, barrier, BarrierWord.GENERATION)
    arrived = f.put(f"icmp ne i64 {token}, -1")
    early = f.put(f"and i1 {arrived}, {f.put(f'icmp eq i64 {token}, {generation}')}")
    with f.when(early):
        _block(f, Blocked.NAMED, number)
    f.leave_if(early, BLOCK)
    with f.when(arrived):
        f.set_word(State.TOKEN, "-1")
    passed = f.label()
    arriving = f.label()
    f.do(f"br i1 {arrived}, label %{passed}, label %{arriving}")
    f.start(arriving)
    complete = _arrival(f, mask, number, barrier)
    waits = f.put(f"xor i1 {complete}, true")
    with f.when(waits):
        f.set_word(State.TOKEN, generation)
        _block(f, Blocked.NAMED, number)
    f.leave_if(waits, BLOCK)
    f.do(f"br label %{passed}")
    f.start(passed)
    f.body = f.finish()
    return f


def bar_arrive() -> FunctionWriter:
    """bar.arrive by a whole warp. Slots: the number of the barrier, and as `_arrival`."""
    f = FunctionWriter("bar_arrive")
    require_direct(f)
    mask = f.mask()
    _require_whole_warp(f, mask)
    number, barrier = _named_barrier(f, mask)
    _arrival(f, mask, number, barrier)
    f.body = f.finish()
    return f


def _require_whole_warp(f: FunctionWriter, mask: str) -> None:
    f.require(f.put(f"icmp eq i64 {f.put(f'zext i32 {mask} to i64')}, {f.word(State.LIVE)}"))


def _named_barrier(f: FunctionWriter, mask: str) -> tuple[str, str]:
    """(number, address) of the barrier in slot 0; OFFSET is added to the slot."""
    slot = f.slot(0)
    f.require_clean([slot], mask)
    number = f.put(f"add i64 {f.uniform(f.row(slot), 32, mask)}, {f.word(NodeField.OFFSET)}")
    f.require(f.put(f"icmp ult i64 {number}, {NAMED_BARRIERS}"))
    return number, f.at(f.word(State.BARRIERS, "ptr"), f.put(f"mul i64 {number}, {len(BarrierWord)}"), "i64")


def _word(f: FunctionWriter, barrier: str, word: BarrierWord) -> str:
    return f.load("i64", barrier, int(word), "i64")


def _set(f: FunctionWriter, barrier: str, word: BarrierWord, value: str) -> None:
    f.store("i64", value, barrier, int(word), "i64")


def _arrival(f: FunctionWriter, mask: str, number: str, barrier: str) -> str:
    """A warp arrives; whether that completes the phase.

    Slot 1 and CONSTANT: the number of threads of the barrier; EXPECT: it is all of the CTA that have not exited.
    """
    slot = f.slot(1)
    f.require_clean([slot], mask)
    given = f.put(f"add i64 {f.uniform(f.row(slot), 32, mask)}, {f.word(NodeField.CONSTANT)}")
    everybody = f.put(f"icmp ne i64 {f.word(NodeField.EXPECT)}, 0")
    live = f.load("i64", f.word(State.BARRIERS, "ptr"), LIVE_ROW * len(BarrierWord), "i64")
    count = f.put(f"select i1 {everybody}, i64 {live}, i64 {given}")
    noted = f.put(f"select i1 {everybody}, i64 {ALL}, i64 {given}")
    f.require(f.put(f"icmp eq i64 {f.put(f'and i64 {count}, {WARP_LANES - 1}')}, 0"))
    f.require(f.put(f"icmp ule i64 {count}, {f.word(State.THREADS)}"))
    for word in (BarrierWord.PARTIAL, BarrierWord.REDUCES):
        f.require(f.put(f"icmp eq i64 {_word(f, barrier, word)}, 0"))
    expected = _word(f, barrier, BarrierWord.EXPECTED)
    first = f.put(f"icmp eq i64 {expected}, 0")
    f.require(f.put(f"or i1 {first}, {f.put(f'icmp eq i64 {expected}, {noted}')}"))
    arrived = f.put(f"add i64 {_word(f, barrier, BarrierWord.ARRIVED)}, {WARP_LANES}")
    f.require(f.put(f"icmp ule i64 {arrived}, {count}"))
    complete = f.put(f"icmp eq i64 {arrived}, {count}")
    require_room(f, complete)
    _set(f, barrier, BarrierWord.LAST, f.put(f"add i64 {f.word(NodeField.NEXT)}, {f.word(State.WARP_MARK)}"))
    _set(f, barrier, BarrierWord.EXPECTED, f.put(f"select i1 {complete}, i64 0, i64 {noted}"))
    _set(f, barrier, BarrierWord.ARRIVED, f.put(f"select i1 {complete}, i64 0, i64 {arrived}"))
    with f.when(complete):
        _set(f, barrier, BarrierWord.GENERATION, f.put(f"add i64 {_word(f, barrier, BarrierWord.GENERATION)}, 1"))
        f.add_word(State.EPOCH, "1")
        wake_waiters(f, Blocked.NAMED, number)
    return complete


def warp_sync() -> FunctionWriter:
    """bar.warp.sync where all live threads of the warp are here and in the mask that all of them name. Slots: the mask."""
    f = FunctionWriter("warp_sync")
    require_direct(f)
    mask = f.mask()
    _require_whole_warp(f, mask)
    slot = f.slot(0)
    f.require_clean([slot], mask)
    named = f.put(f"or i64 {f.uniform(f.row(slot), 32, mask)}, {f.word(NodeField.CONSTANT)}")
    others = f.put(f"xor i64 {named}, -1")
    f.require(f.put(f"icmp eq i64 {f.put(f'and i64 {f.word(State.LIVE)}, {others}')}, 0"))
    f.body = f.finish()
    return f

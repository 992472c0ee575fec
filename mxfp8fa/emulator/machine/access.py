"""Loads, stores and atomics of a warp: which memory an address is in, the checks, the words moved.

All functions take the warp, the active threads as a bit set, and 32-lane address arrays (uint64); only active lanes count.
A word is 1, 2, 4 or 8 bytes. Values come as 32-lane arrays with a shadow (None, or an array whose one bits are poison).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, Misaligned, OutOfBounds, PoisonError
from mxfp8fa.emulator.machine.cluster import CTA, offset_of
from mxfp8fa.emulator.machine.memory import (
    LOCAL_WINDOW,
    SHARED_BASE,
    SHARED_OFFSET_MASK,
    SHARED_WINDOW,
    WINDOW_BYTES,
    LocalMemory,
)
from mxfp8fa.emulator.machine.warp import Warp, indices_of

Tracked = tuple[np.ndarray, np.ndarray | None]
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SHARED_SPACES = ("shared", "shared::cta", "shared::cluster")


def split_spaces(space: str, addresses: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(space, positions, addresses within that space) for the active addresses; resolves generic addresses."""
    if space not in ("generic", "param"):
        yield space, np.arange(addresses.size), addresses
        return
    shared = (addresses >= SHARED_WINDOW) & (addresses < SHARED_WINDOW + WINDOW_BYTES)
    local = (addresses >= LOCAL_WINDOW) & (addresses < LOCAL_WINDOW + WINDOW_BYTES)
    for name, where, window in (
        ("global", ~(shared | local), 0),
        ("shared::cluster", shared, SHARED_WINDOW),
        ("local", local, LOCAL_WINDOW),
    ):
        positions = np.nonzero(where)[0]
        if positions.size:
            yield name, positions, addresses[positions] - np.uint64(window)


def split_ctas(warp: Warp, space: str, addresses: np.ndarray) -> Iterator[tuple[CTA, np.ndarray, np.ndarray]]:
    """(CTA, positions, offsets) of shared addresses."""
    own = warp.cta if space in ("shared", "shared::cta") else None
    ranks = addresses >> np.uint64(24)
    for rank in np.unique(ranks):
        positions = np.nonzero(ranks == rank)[0]
        cta = warp.cta.cluster.cta_of(int(addresses[positions[0]]), own=own)
        yield cta, positions, addresses[positions] & np.uint64(SHARED_OFFSET_MASK)


def load(
    warp: Warp, bits: int, space: str, addresses: np.ndarray, word_bytes: int, count: int = 1, *, atomic: bool = False
) -> list[Tracked]:
    """`count` consecutive words per active lane."""
    lanes = indices_of(bits)
    dtype = WORDS[word_bytes]
    values = np.zeros((count, 32), dtype)
    shadow: np.ndarray | None = None
    step = (np.arange(count, dtype=np.uint64) * np.uint64(word_bytes))[:, None]
    for place, at, where in split_spaces(space, addresses[lanes]):
        warp.machine.count_bytes(_traffic(space, place, "load"), where.size * word_bytes * count)
        if place in _SHARED_SPACES:
            for cta, inside, offsets in split_ctas(warp, place, where):
                _rename_lanes(lanes[at[inside]], cta.shared.check, offsets, word_bytes * count, "load")
                warp.machine.watch.shared(cta, offsets, word_bytes * count, write=False, atomic=atomic)
                got, poison = cta.shared.words.load(offsets[None, :] + step, word_bytes)
                values[:, lanes[at[inside]]] = got
                shadow = _add_shadow(shadow, values, lanes[at[inside]], poison)
        elif place == "local":
            memory = local_memory(warp)
            positions = memory.place(lanes[at], where, word_bytes * count, "load")
            got, poison = memory.words.load(positions[None, :] + step, word_bytes)
            values[:, lanes[at]] = got
            shadow = _add_shadow(shadow, values, lanes[at], poison)
        else:
            _rename_lanes(lanes[at], warp.machine.memory.check, where, word_bytes * count, "load", write=False)
            warp.machine.watch.memory(where, word_bytes * count, write=False, atomic=atomic)
            values[:, lanes[at]] = warp.machine.memory.load(where[None, :] + step, word_bytes)
    if shadow is not None and warp.machine.options.uninitialised == "strict":
        lane = int(np.nonzero(shadow.any(axis=0))[0][0])
        raise PoisonError(
            f"load of {space} memory that was never written (address {int(addresses[lane]):#x})", lane=lane
        )
    return [(values[i], None if shadow is None or not shadow[i].any() else shadow[i]) for i in range(count)]


def store(
    warp: Warp, bits: int, space: str, addresses: np.ndarray, words: list[Tracked], *, atomic: bool = False
) -> None:
    """Consecutive words per active lane. Poison may go to shared and local memory, not to global memory."""
    lanes = indices_of(bits)
    word_bytes = words[0][0].dtype.itemsize
    access_bytes = word_bytes * len(words)
    for place, at, where in split_spaces(space, addresses[lanes]):
        warp.machine.count_bytes(_traffic(space, place, "store"), where.size * access_bytes)
        if place in _SHARED_SPACES:
            for cta, inside, offsets in split_ctas(warp, place, where):
                chosen = lanes[at[inside]]
                _rename_lanes(chosen, cta.shared.check, offsets, access_bytes, "store")
                warp.machine.watch.shared(cta, offsets, access_bytes, write=True, atomic=atomic)
                for i, (value, shadow) in enumerate(words):
                    part = None if shadow is None else shadow[chosen]
                    cta.shared.words.store(offsets + np.uint64(i * word_bytes), word_bytes, value[chosen], part)
        elif place == "local":
            memory = local_memory(warp)
            positions = memory.place(lanes[at], where, access_bytes, "store")
            for i, (value, shadow) in enumerate(words):
                part = None if shadow is None else shadow[lanes[at]]
                memory.words.store(positions + np.uint64(i * word_bytes), word_bytes, value[lanes[at]], part)
        elif place == "global":
            chosen = lanes[at]
            _rename_lanes(chosen, warp.machine.memory.check, where, access_bytes, "store", write=True)
            warp.machine.watch.memory(where, access_bytes, write=True, atomic=atomic)
            for i, (value, shadow) in enumerate(words):
                refuse_poison(shadow, chosen, f"a store to global memory (address {int(where[0]):#x}...)")
                warp.machine.memory.store(where + np.uint64(i * word_bytes), word_bytes, value[chosen])
        else:
            raise IllegalOperation(f"store to {place} memory")
    warp.machine.progress()


def update(
    warp: Warp,
    bits: int,
    space: str,
    addresses: np.ndarray,
    word_bytes: int,
    compute: Callable[[int, np.ndarray], np.ndarray],
) -> Tracked:
    """Read-modify-write one word per lane, lane by lane where addresses repeat; returns the old values.

    compute(bits, old) returns the new 32-lane values for the lanes in bits.
    """
    remaining = bits
    old_values = np.zeros(32, WORDS[word_bytes])
    old_shadow: np.ndarray | None = None
    while remaining:
        lanes = indices_of(remaining)
        first = np.unique(addresses[lanes], return_index=True)[1]
        now = 0
        for k in first:
            now |= 1 << int(lanes[k])
        ((old, shadow),) = load(warp, now, space, addresses, word_bytes, atomic=True)
        chosen = indices_of(now)
        refuse_poison(shadow, chosen, f"an atomic operation on {space} memory that was never written")
        store(warp, now, space, addresses, [(compute(now, old), None)], atomic=True)
        old_values[chosen] = old[chosen]
        remaining &= ~now
    return old_values, old_shadow


def refuse_poison(shadow: np.ndarray | None, lanes: np.ndarray, where: str) -> None:
    """PoisonError naming the first of `lanes` whose value is (partly) poison."""
    if shadow is not None:
        bad = np.nonzero(shadow[lanes])[0]
        if bad.size:
            raise PoisonError(f"a value that was never written reaches {where}", lane=int(lanes[bad[0]]))


def local_memory(warp: Warp) -> LocalMemory:
    """The warp's private memory, made on first use."""
    if warp.local is None:
        warp.local = LocalMemory(warp.program.local_bytes)
    return warp.local


def shared_word(warp: Warp, space: str, address: int, size_bytes: int, what: str) -> tuple[CTA, int]:
    """CTA and offset of one checked shared address (mbarriers and the like)."""
    if address >= SHARED_WINDOW:
        address -= SHARED_WINDOW
    own = warp.cta if space in ("shared", "shared::cta") else None
    cta = warp.cta.cluster.cta_of(address, own=own)
    offset = offset_of(address)
    if offset < SHARED_BASE or offset + size_bytes > SHARED_BASE + cta.shared.size_bytes or offset % size_bytes:
        cta.shared.check(np.array([offset], np.uint64), size_bytes, what)
    return cta, offset


def _traffic(space: str, place: str, direction: str) -> str:
    """The name under which bytes are counted: parameters apart from the memory that holds them here."""
    return f"{'param' if space == 'param' else place.split('::')[0]} {direction}"


def _rename_lanes(lanes: np.ndarray, check: Callable[..., None], *args: object, **kwargs: object) -> None:
    """Run a check whose error names a position, and name the lane instead."""
    try:
        check(*args, **kwargs)
    except (OutOfBounds, Misaligned) as error:
        error.lane = None if error.lane is None else int(lanes[error.lane])
        raise


def _add_shadow(
    shadow: np.ndarray | None, like: np.ndarray, lanes: np.ndarray, poison: np.ndarray | None
) -> np.ndarray | None:
    if poison is None:
        return shadow
    if shadow is None:
        shadow = np.zeros_like(like)
    shadow[:, lanes] = poison
    return shadow

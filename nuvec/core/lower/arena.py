"""The memory that runs of a program reuse: a program's own arenas, the scratch of tiles, and that
of large outputs nobody has any more."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.lower.placement import Buffer, Placement


class Views(tuple[np.ndarray, ...]):
    """A program's buffers in one block of memory."""

    block: Block


class Arenas:
    """The arenas of one program: a run takes one and gives it back, runs at the same time take one
    each.  Without a lock: popping and appending are atomic.  A run that raises drops its own."""

    __slots__ = ("__weakref__", "_buffers", "_free", "_slots", "give")

    def __init__(self, placement: Placement) -> None:
        self._buffers: tuple[Buffer, ...] = placement.buffers
        self._slots = placement.slots
        self._free: deque[tuple[np.ndarray, ...]] = deque(maxlen=8)
        self.give = self._free.append

    def clear(self) -> None:
        """Let go of what is kept for later runs."""
        self._free.clear()

    def take(self) -> tuple[np.ndarray, ...]:
        try:
            return self._free.pop()
        except IndexError:
            keep(self, sum(self._slots))
            memory = [aligned(n) for n in self._slots]
            return tuple(_buffers(self._buffers, memory))


class Block:
    """Memory that one tile at a time works in; `views` are the buffers of programs in it.

    size -- enough for every program there has been"""

    size = 0

    def __init__(self) -> None:
        self.memory = aligned(Block.size)
        self.views: weakref.WeakKeyDictionary[Any, Views] = weakref.WeakKeyDictionary()


class Scratch:
    """As `Arenas`, for the program of a tile: the memory is one block a thread, which all tiles of
    all programs take turns in."""

    __slots__ = ("__weakref__", "_buffers", "_sizes", "size")

    def __init__(self, placement: Placement) -> None:
        self._buffers = placement.buffers
        self._sizes = [-(-n // ALIGNED) * ALIGNED for n in placement.slots]
        self.size = sum(self._sizes)
        Block.size = max(Block.size, self.size)

    def take(self) -> Views:
        try:
            block = _blocks.pop()
            if block.memory.size < self.size:
                raise IndexError
        except IndexError:
            block = Block()
        views = block.views.get(self)
        if views is None:
            views = block.views[self] = self._views(block)
        return views

    def _views(self, block: Block) -> Views:
        memory, start = [], 0
        for n in self._sizes:
            memory.append(block.memory[start : start + n])
            start += n
        views = Views(_buffers(self._buffers, memory))
        views.block = block
        return views

    @staticmethod
    def give(views: Views) -> None:
        _blocks.append(views.block)

    @staticmethod
    def clear() -> None:
        """Let go of what is kept for later runs."""
        _blocks.clear()


class Spare(np.ndarray[Any, Any]):
    """Memory that outputs are views of, one at a time.

    Being of a type of its own it is the base of such an output alone: NumPy makes the output the
    base of views of it.  So while nobody but `Spares` refers to it, nobody sees its memory.  (It
    is a view itself, of what `aligned` took, which is the base of views of it.)"""


class Spares:
    """The arrays for one output of a program: in the memory of an earlier one that is gone, or in
    new memory, whose pages the system would have to make anew in every run."""

    __slots__ = ("__weakref__", "_dtype", "_kept", "_shape", "_size")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        self._size = math.prod(shape) * dtype.itemsize
        self._kept: deque[Spare] = deque(maxlen=KEPT)

    def __call__(self) -> np.ndarray:
        """An array like `np.empty`'s."""
        memory = self._free()
        if memory is None:
            keep(self, self._size)
            memory = aligned(self._size, Spare).view(self._dtype).reshape(self._shape)
        self._kept.append(memory)
        return memory.view(np.ndarray)

    def _free(self) -> Spare | None:
        for _ in range(len(self._kept)):
            try:
                memory = self._kept.popleft()
            except IndexError:  # other threads have them all
                break
            if sys.getrefcount(memory) == sys.getrefcount(memory.base) == UNSEEN:
                return memory
            self._kept.append(memory)
        return None

    def clear(self) -> None:
        """Let go of what is kept for later runs."""
        self._kept.clear()


# What programs keep for later runs, in all: (arenas or spares) -> bytes, the oldest first.
_keeping: dict[weakref.ref[Arenas | Spares], int] = {}
_lock = threading.Lock()


def keep(owner: Arenas | Spares, size: int) -> None:
    """Note that a program takes memory that it keeps.  Where all programs keep more than `MOST`,
    those that took theirs first let go of it."""
    gone: list[Arenas | Spares] = []
    with _lock:
        me = weakref.ref(owner)
        _keeping[me] = _keeping.pop(me, 0) + size
        for other in [r for r in _keeping if r() is None]:
            del _keeping[other]
        total = sum(_keeping.values())
        for other in list(_keeping):
            if total <= MOST or other == me:
                break
            total -= _keeping.pop(other)
            found = other()
            if found is not None:
                gone.append(found)
    for other_owner in gone:
        other_owner.clear()


def aligned(size: int, kind: type[np.ndarray] = np.ndarray) -> Any:
    """So many bytes, the first at the beginning of a line of the cache: NumPy's loops take up to
    twice as long where each vector they write ends in another line than it begins in."""
    memory = kind(size + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]


def owns_memory(x: np.ndarray) -> bool:
    """Whether an array's memory is its own, or only lent to it by `Spares`."""
    return x.flags.owndata or (type(x.base) is Spare and x.base.nbytes == x.nbytes)


MOST = 1 << 29  # bytes that all programs keep together for later runs
SPARE = 1 << 16  # bytes of an output whose memory is kept, and aligned
SPARES = 1 << 28  # bytes of outputs, of one program, whose memory is kept
KEPT = 2  # arrays of an output: in a loop the last one is there when the next is made
UNSEEN = 2  # what getrefcount says of one that only its caller refers to
ALIGNED = 64  # bytes of a line of the cache
_blocks: deque[Block] = deque(maxlen=64)


def _buffers(buffers: Sequence[Buffer], memory: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [
        memory[b.slot][: _size(b)].view(b.dtype).reshape(b.shape)
        if memory[b.slot].size else np.empty(b.shape, b.dtype)
        for b in buffers
    ]  # fmt: skip


def _size(b: Buffer) -> int:
    size = b.dtype.itemsize
    for n in b.shape:
        size *= n
    return size

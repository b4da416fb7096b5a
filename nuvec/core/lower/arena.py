"""The memory that runs of a program reuse: a program's own arenas, and the scratch of tiles."""

from __future__ import annotations

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

    __slots__ = ("_buffers", "_free", "_slots", "give")

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
            memory = [np.empty(n, np.uint8) for n in self._slots]
            return tuple(_buffers(self._buffers, memory))


class Block:
    """Memory that one tile at a time works in; `views` are the buffers of programs in it.

    size -- enough for every program there has been"""

    size = 0

    def __init__(self) -> None:
        self.memory = np.empty(Block.size, np.uint8)
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

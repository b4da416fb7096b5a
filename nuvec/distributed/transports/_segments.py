"""How a large reduction is cut into segments, and each segment into one part a rank.

The arrays of a message are laid out behind each other (on paper: nothing is copied), each from a
multiple of `ALIGN` bytes. The layout is cut at multiples of `ALIGN`, which every item size divides,
so no element is ever split.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._specs import as_bytes

ALIGN = 64
PART_BYTES = 1 << 19
"""A rank's part of a segment: enough to pay for a frame, small enough to stay in cache."""


class Piece(NamedTuple):
    """Elements ``start:stop`` of one array, flat; and where they stand in scratch memory."""

    array: int
    start: int
    stop: int
    scratch: int


@dataclass
class Segment:
    """One segment: the pieces that each rank folds."""

    parts: list[list[Piece]]
    scratch_bytes: int
    block_lengths: list[int]
    """In a scatter: the elements of each array's block, by which outputs are shifted."""
    item_sizes: list[int]

    def views(self, flat: Sequence[Buffer], rank: int) -> list[memoryview[Any]]:
        """The bytes of the part of `rank` in arrays."""
        return [as_bytes(flat[p.array][p.start : p.stop]) for p in self.parts[rank]]

    def scratch_views(self, scratch: Buffer, rank: int) -> list[memoryview[Any]]:
        """The places in scratch memory for the part of `rank`."""
        memory = as_bytes(scratch)
        return [memory[p.scratch : p.scratch + size] for p, size in self._sizes(rank)]

    def _sizes(self, rank: int) -> list[tuple[Piece, int]]:
        return [(p, (p.stop - p.start) * self.item_sizes[p.array]) for p in self.parts[rank]]

    def out_shift(self, piece: Piece, rank: int) -> int:
        """What to subtract from a piece's place in the input for its place in the output."""
        return rank * self.block_lengths[piece.array] if self.block_lengths else 0


def cut(
    arrays: Sequence[Buffer],
    size: int,
    each_rank_has_all: bool = False,
    part_bytes: int = PART_BYTES,
) -> list[Segment]:
    """Cut `arrays` for `size` ranks, into parts of at most `part_bytes`, rounded down to `ALIGN`.

    Normally each rank's part of a segment is a different stretch of the layout. With
    `each_rank_has_all`, `arrays` are one rank's blocks of a scatter: the parts are the same stretch
    of every rank's block. There is always at least one segment, so that every call has a step 0.
    """
    layout = tuple([(array.size, array.itemsize) for array in arrays])
    return _cut(layout, size, each_rank_has_all, part_bytes)


@lru_cache(maxsize=64)
def _cut(
    arrays: tuple[tuple[int, int], ...], size: int, each_rank_has_all: bool, part_bytes: int
) -> list[Segment]:
    """As `cut`, of arrays given as (elements, bytes of one); training cuts the same ones again."""
    item_sizes = [item for _, item in arrays]
    offsets = []
    total = 0
    for count, item in arrays:
        offsets.append(total)
        total += -(-count * item // ALIGN) * ALIGN
    ends = [offset + n * item for offset, (n, item) in zip(offsets, arrays, strict=True)]

    def pieces(low: int, high: int, shifts: Sequence[int]) -> list[Piece]:
        found = []
        for index in range(bisect_right(ends, low), len(ends)):
            offset, end = offsets[index], ends[index]
            if offset >= high:
                break
            first, last = max(low, offset), min(high, end)
            if first < last:
                item, shift = item_sizes[index], shifts[index]
                start, stop = (first - offset) // item, (last - offset) // item
                found.append(Piece(index, start + shift, stop + shift, first - low))
        return found

    none = [0] * len(arrays)
    part_bytes = part_bytes // ALIGN * ALIGN
    stride = part_bytes if each_rank_has_all else part_bytes * size
    segments = []
    for low in range(0, max(total, 1), stride):
        high = min(low + stride, total)
        if each_rank_has_all:
            part = high - low
            shifts = [[rank * count for count, _ in arrays] for rank in range(size)]
            parts = [pieces(low, high, shifts[rank]) for rank in range(size)]
            blocks = [count for count, _ in arrays]
        else:
            part = -(-(high - low) // (size * ALIGN)) * ALIGN
            bounds = [min(low + rank * part, high) for rank in range(size + 1)]
            parts = [pieces(bounds[rank], bounds[rank + 1], none) for rank in range(size)]
            blocks = []
        segments.append(Segment(parts, max(part, 1), blocks, item_sizes))
    return segments

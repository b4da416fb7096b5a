"""The collectives of a ring, as what each rank sends to the next and receives from the previous.

Each takes a `Flow`, the call, this rank, the ring's size n and the arrays. Ranks are counted modulo
n. All of a call's frames follow from its arguments, so every rank sends in the order in which the
next one asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._call import Call, Op
from nuvec.distributed.transports._flow import Flow
from nuvec.distributed.transports._frames import Frame, Views
from nuvec.distributed.transports._reduce import fold, is_widened
from nuvec.distributed.transports._segments import Piece, Segment, cut
from nuvec.distributed.transports._specs import as_bytes

__all__ = ["RUN"]

SMALL = 1 << 15
"""Up to this many bytes a reduction hands everything round, and each rank folds all of it."""

PART_BYTES = 1 << 20
"""A rank's part of a segment: worth a frame, and small enough to be added in cache."""

AHEAD = 2
"""How many segments are begun before the first of them is done."""

Collective = Callable[[Flow, Call, int, int, list[Buffer]], list[Buffer]]


def circulate(flow: Flow, rank: int, size: int, blocks: Sequence[Views]) -> None:
    """Hand every rank's block round: ``blocks[rank]`` is this rank's, the others are filled.

    A block is as long on every rank, and may be empty.
    """
    steps = [flow.expect_shared(blocks[(rank - s - 1) % size]) for s in range(size - 1)]
    for s, frames in enumerate(steps):
        flow.send_shared(blocks[(rank - s) % size])
        flow.wait(frames)


def _gather(flow: Flow, call: Call, rank: int, size: int, arrays: list[Buffer]) -> list[Buffer]:
    outs = [flow.empty((size, *array.shape), array.dtype) for array in arrays]
    for out, array in zip(outs, arrays, strict=True):
        out[rank] = array
    blocks = [[as_bytes(out[r : r + 1]) for out in outs] for r in range(size)]
    circulate(flow, rank, size, blocks)
    return [
        out.reshape(size * array.shape[0], *array.shape[1:]) if array.ndim else out
        for out, array in zip(outs, arrays, strict=True)
    ]


def _barrier(flow: Flow, call: Call, rank: int, size: int, arrays: list[Buffer]) -> list[Buffer]:
    circulate(flow, rank, size, [[]] * size)
    return []


def _broadcast(flow: Flow, call: Call, rank: int, size: int, arrays: list[Buffer]) -> list[Buffer]:
    """A round of empty frames, in which the root's message follows behind, segment by segment."""
    root = call.peer
    outs = [flow.empty(array.shape, array.dtype) for array in arrays]
    if rank == root:
        for out, array in zip(outs, arrays, strict=True):
            out[...] = array
    views = [as_bytes(out) for out in outs]
    if sum(map(len, views)) <= PART_BYTES:
        circulate(flow, rank, size, [views if r == root else [] for r in range(size)])
        return outs
    circulate(flow, rank, size, [[]] * size)
    stretches = [v[at : at + PART_BYTES] for v in views for at in range(0, len(v), PART_BYTES)]
    channels = [i % flow.channels for i in range(len(stretches))]
    if rank == root:
        for channel, stretch in zip(channels, stretches, strict=True):
            flow.send(channel, [stretch])
        return outs
    frames = [flow.expect(c, [stretch]) for c, stretch in zip(channels, stretches, strict=True)]
    for frame, channel, stretch in zip(frames, channels, stretches, strict=True):
        flow.wait([frame])
        if (rank + 1) % size != root:
            flow.send(channel, [stretch])
    return outs


def _all_to_all(flow: Flow, call: Call, rank: int, size: int, arrays: list[Buffer]) -> list[Buffer]:
    """Blocks travel together, and at every rank the first of them has arrived."""
    outs = [flow.empty(array.shape, array.dtype) for array in arrays]
    for out, array in zip(outs, arrays, strict=True):
        _block(out, rank, size)[...] = _block(array, rank, size)
    travelling = [
        [_block(array, (rank + d) % size, size) for array in arrays] for d in range(1, size)
    ]
    for s in range(size - 1):
        arriving = [[_block(out, (rank - 1 - s) % size, size) for out in outs]]
        arriving += [[np.empty_like(b) for b in blocks] for blocks in travelling[1:]]
        frames = flow.expect_shared([as_bytes(b) for blocks in arriving for b in blocks])
        flow.send_shared([as_bytes(b) for blocks in travelling for b in blocks])
        flow.wait(frames)
        travelling = arriving[1:]
    return outs


def _block(array: Buffer, index: int, count: int) -> Buffer:
    length = array.shape[0] // count
    return array[index * length : (index + 1) * length]


# Reductions.


def _all_reduce(flow: Flow, call: Call, rank: int, size: int, arrays: list[Buffer]) -> list[Buffer]:
    outs = [flow.empty(array.shape, array.dtype) for array in arrays]
    if sum([array.nbytes for array in arrays]) <= SMALL:
        _reduce_small(flow, call.op, rank, size, arrays, outs)
    else:
        segments = cut(arrays, size, part_bytes=PART_BYTES)
        _Reduction(flow, call.op, rank, size, arrays, outs, segments, gathers=True).run()
    return outs


def _sum_scatter(
    flow: Flow, call: Call, rank: int, size: int, arrays: list[Buffer]
) -> list[Buffer]:
    blocks = [_block(array, rank, size) for array in arrays]
    outs = [flow.empty(block.shape, block.dtype) for block in blocks]
    segments = cut(blocks, size, each_rank_has_all=True, part_bytes=PART_BYTES)
    _Reduction(flow, call.op, rank, size, arrays, outs, segments, gathers=False).run()
    return outs


def _reduce_small(
    flow: Flow, op: Op, rank: int, size: int, arrays: list[Buffer], outs: list[Buffer]
) -> None:
    total = sum([array.nbytes for array in arrays])
    memory = np.empty((size, total), np.uint8)
    blocks: list[Views] = [[as_bytes(memory[r])] for r in range(size)]
    blocks[rank] = [as_bytes(array) for array in arrays]
    circulate(flow, rank, size, blocks)
    at = 0
    for array, out in zip(arrays, outs, strict=True):
        values: list[Buffer] = [
            np.ndarray(array.shape, array.dtype, memory[r].data, at) for r in range(size)
        ]
        values[rank] = array
        fold(op, values, out)
        at += array.nbytes


class _Reduction:
    """A reduction in segments: n - 1 steps in which parts are added to, then n - 1 in which the
    results go round (or none, when each rank keeps its part).

    In step s of the first phase a rank receives part ``rank - 2 - s``; the last one is its own. In
    step s of the second it receives part ``rank - 1 - s``.
    """

    def __init__(
        self,
        flow: Flow,
        op: Op,
        rank: int,
        size: int,
        arrays: list[Buffer],
        outs: list[Buffer],
        segments: list[Segment],
        gathers: bool,
    ) -> None:
        self._flow, self._op, self._rank, self._size = flow, op, rank, size
        self._sources = [array.reshape(-1) for array in arrays]
        self._outs = [out.reshape(-1) for out in outs]
        self._wide = [is_widened(op, array.dtype) for array in arrays]
        self._segments, self._gathers = segments, gathers
        self._steps = 2 * (size - 1) if gathers else size - 1
        self._order = _order(len(segments), self._steps, size - 1)
        self._numbers = _numbers(self._order, self._steps, flow.channels)
        self._frames: dict[tuple[int, int], Frame] = {}
        self._targets: dict[tuple[int, int], list[Buffer]] = {}

    def run(self) -> None:
        for k, s in self._order:
            if s == _BEGIN:
                self._begin(k)
                continue
            self._flow.wait([self._frames.pop((k, s))])
            received = self._targets.pop((k, s))
            if s < self._size - 1:
                received = self._add(k, s, received)
            if s + 1 < self._steps:
                self._send(k, received)

    def _part(self, s: int) -> int:
        """The part that is received in a step."""
        first = 2 if s < self._size - 1 else 1 - (self._size - 1)
        return (self._rank - first - s) % self._size

    def _begin(self, k: int) -> None:
        """Ask for the segment's frames, and send the part that starts at this rank."""
        segment, channel = self._segments[k], k % self._flow.channels
        for s in range(self._steps):
            targets = [self._room(segment, p, s) for p in segment.parts[self._part(s)]]
            self._targets[k, s] = targets
            views = [as_bytes(target) for target in targets]
            self._frames[k, s] = self._flow.expect(channel, views, self._numbers[k, s])
        pieces = segment.parts[(self._rank - 1) % self._size]
        own = [self._sources[p.array][p.start : p.stop] for p in pieces]
        wide = [self._wide[p.array] for p in pieces]
        self._send(k, [v.astype(np.float32) if w else v for v, w in zip(own, wide, strict=True)])

    def _send(self, k: int, values: list[Buffer]) -> None:
        self._flow.send(k % self._flow.channels, [as_bytes(value) for value in values])

    def _out(self, segment: Segment, piece: Piece) -> Buffer:
        shift = segment.out_shift(piece, self._rank)
        return self._outs[piece.array][piece.start - shift : piece.stop - shift]

    def _room(self, segment: Segment, piece: Piece, s: int) -> Buffer:
        """Where a piece is received.

        What is not yet complete can stand where the result will be: that only arrives once it has
        been passed on and has gone all the way round.
        """
        summed = s < self._size - 1
        if summed and self._wide[piece.array]:
            return np.empty(piece.stop - piece.start, np.float32)
        if self._gathers or s == self._size - 2:
            return self._out(segment, piece)
        return np.empty(piece.stop - piece.start, self._outs[piece.array].dtype)

    def _add(self, k: int, s: int, received: list[Buffer]) -> list[Buffer]:
        """Add this rank's values to a part; it is complete in the last step of the phase."""
        segment = self._segments[k]
        sums = []
        for piece, total in zip(segment.parts[self._part(s)], received, strict=True):
            own = self._sources[piece.array][piece.start : piece.stop]
            if self._wide[piece.array]:
                with np.errstate(all="ignore"):
                    np.add(total, own.astype(np.float32), out=total)
                    if s == self._size - 2:
                        out = self._out(segment, piece)
                        out[...] = total.astype(out.dtype)
                        total = out
            else:
                fold(self._op, [total, own], total)
            sums.append(total)
        return sums


_BEGIN = -1


def _order(count: int, steps: int, lag: int) -> list[tuple[int, int]]:
    """What a rank does, as (segment, step): a step receives, and sends what it made of it.

    A segment's first step comes `lag` steps after that of the one before, and it is begun earlier:
    so what one segment waits for arrives while a rank is busy with another.
    """
    order: list[tuple[int, int]] = []
    begun = 0
    for _, k, s in sorted((k * lag + s, k, s) for k in range(count) for s in range(steps)):
        while begun < min(count, k + AHEAD + 1):
            order.append((begun, _BEGIN))
            begun += 1
        order.append((k, s))
    return order


def _numbers(
    order: Sequence[tuple[int, int]], steps: int, channels: int
) -> dict[tuple[int, int], int]:
    """The number of each frame on its channel, in the order in which the previous rank sends."""
    numbers: dict[tuple[int, int], int] = {}
    counts = [0] * channels
    for k, s in order:
        if s + 1 < steps:
            numbers[k, s + 1] = counts[k % channels]
            counts[k % channels] += 1
    return numbers


RUN: dict[Op, Collective] = {
    Op.ALL_SUM: _all_reduce,
    Op.ALL_MAX: _all_reduce,
    Op.ALL_MIN: _all_reduce,
    Op.SUM_SCATTER: _sum_scatter,
    Op.ALL_GATHER: _gather,
    Op.SPLIT: _gather,
    Op.ALL_TO_ALL: _all_to_all,
    Op.BROADCAST: _broadcast,
    Op.BARRIER: _barrier,
}

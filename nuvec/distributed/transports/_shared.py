"""Collectives through shared memory; the sockets only say that somebody has gone or gives up.

A message is cut into chunks. Every rank writes what others need of its chunk into one of its own
slots and says so; once all have, it reads theirs. In a reduction each rank folds its own part of
the chunk, in rank order, and writes the result into its slot as well, which it says along with the
next chunk. So chunks are in flight together: while one is folded, the results of the one before are
copied out and the next one is written. (A small reduction every rank folds for itself.)

The first word a rank says names the call, so ranks that make different calls of a group find out
before anything is read. A rank waits awake for a little while, then as for frames (`Links.wait`).

Why nobody writes what is still being read: a rank that has said k + 1 has read all it reads after
k - 2. So a rank that has heard k of everybody, and writes chunk k + 1, overwrites chunk k - 3: all
are done with. A call begins where the last one of the group ended, for which the same holds; if
the last one was of another group, its ranks have to say that they are done with it.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence

from nuvec.core.errors import DistributedError, PeerError
from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._call import Call, Op, mismatch
from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports._links import At, Links
from nuvec.distributed.transports._naming import names_of
from nuvec.distributed.transports._reduce import fold
from nuvec.distributed.transports._segments import Piece, Segment, cut
from nuvec.distributed.transports._shared_memory import (
    MAX_CALL,
    SLOT_BYTES,
    SharedMemory,
    call_token,
)
from nuvec.distributed.transports._signals import Signal
from nuvec.distributed.transports.wire import Kind

_log = logging.getLogger(__name__)

SMALL = 1 << 16
"""Up to this many bytes every rank folds all of a reduction."""

POLL_SECONDS = 0.001
"""How often a rank that never has to wait looks at its sockets."""

_CALL = struct.Struct("<BiQQ")

Step = Callable[[int], None]
"""What to do for a chunk, by its number."""


def pack_call(call: Call, group: int) -> bytes | None:
    """A call as ranks announce it; None if that is too long."""
    packed = _CALL.pack(call.op, call.peer, group, call.seq) + call.specs
    return packed if len(packed) <= MAX_CALL else None


def unpack_call(packed: bytes) -> tuple[Call, int]:
    """The inverse of `pack_call`; raises `DistributedError` where it is not one."""
    try:
        op, peer, group, seq = _CALL.unpack_from(packed)
        return Call(Op(op), seq, peer, packed[_CALL.size :]), group
    except (struct.error, ValueError):
        raise DistributedError("malformed call in shared memory") from None


class SharedCollective:
    """One collective call of one rank, through shared memory."""

    def __init__(
        self,
        memory: SharedMemory,
        links: Links,
        at: At,
        rank: int,
        peers: Sequence[tuple[int, Link]],
        announced: bytes,
        arrays: Sequence[Buffer],
    ) -> None:
        """`announced` is the call as `pack_call` gives it."""
        self._memory = memory
        self._links = links
        self._at = at
        self._rank = rank
        self._size = len(at.members)
        self._peers = peers
        self._ranks = [link.peer.rank for _, link in peers]
        self._announced = announced
        self._arrays = arrays
        self._sources = [array.reshape(-1) for array in arrays]
        self._outs: list[Buffer] = []
        self._segments: list[Segment] = []
        self._begins = [0] * self._size
        """Each rank's position at the first chunk."""

    def run(self) -> list[Buffer]:
        """The call's results."""
        op, root = self._at.call.op, self._at.call.peer
        if op is Op.BARRIER:
            return self._copy([], [])
        if op is Op.BROADCAST:
            return self._copy([root], self._empty(self._arrays))
        if op in (Op.ALL_GATHER, Op.SPLIT):
            shapes = [(self._size * a.shape[0], *a.shape[1:]) if a.ndim else (self._size,)
                      for a in self._arrays]  # fmt: skip
            empty = self._memory.outputs.empty
            outs = [empty(s, a.dtype) for s, a in zip(shapes, self._arrays, strict=True)]
            return self._copy(range(self._size), outs)
        if op is Op.ALL_TO_ALL:
            return self._all_to_all()
        if op is Op.SUM_SCATTER:
            return self._sum_scatter()
        if sum([array.nbytes for array in self._arrays]) <= SMALL:
            return self._reduce_small()
        return self._all_reduce()

    # The operations.

    def _reduce_small(self) -> list[Buffer]:
        outs = self._empty(self._arrays)
        self._outs = [out.reshape(-1) for out in outs]
        self._segments = cut(self._arrays, 1, part_bytes=SLOT_BYTES)

        def write(k: int) -> None:
            for piece in self._segments[k].parts[0]:
                source = self._sources[piece.array][piece.start : piece.stop]
                self._shared(self._rank, k, 0, piece)[...] = source

        def reduce(k: int) -> None:
            for piece in self._segments[k].parts[0]:
                out = self._outs[piece.array][piece.start : piece.stop]
                fold(self._at.call.op, self._values(k, piece, 0), out)

        self._in_turn(write, reduce)
        return outs

    def _all_reduce(self) -> list[Buffer]:
        outs = self._empty(self._arrays)
        self._outs = [out.reshape(-1) for out in outs]
        self._segments = cut(self._arrays, self._size, part_bytes=SLOT_BYTES // self._size)

        def reduce(k: int) -> None:
            segment = self._segments[k]
            for piece in segment.parts[self._rank]:
                out = self._shared(self._rank, k, self._rank, piece)
                fold(self._at.call.op, self._values(k, piece, self._rank), out)
                self._outs[piece.array][piece.start : piece.stop] = out

        def copy_out(k: int) -> None:
            for peer, _ in self._peers:
                for piece in self._segments[k].parts[peer]:
                    result = self._shared(peer, k, peer, piece)
                    self._outs[piece.array][piece.start : piece.stop] = result

        self._in_turn(self._write_parts, copy_out, reduce)
        return outs

    def _sum_scatter(self) -> list[Buffer]:
        outs = self._empty(self._cut_blocks())
        self._outs = [out.reshape(-1) for out in outs]

        def reduce(k: int) -> None:
            segment = self._segments[k]
            for piece in segment.parts[self._rank]:
                shift = segment.out_shift(piece, self._rank)
                out = self._outs[piece.array][piece.start - shift : piece.stop - shift]
                fold(self._at.call.op, self._values(k, piece, self._rank), out)

        self._in_turn(self._write_parts, reduce)
        return outs

    def _all_to_all(self) -> list[Buffer]:
        self._cut_blocks()
        outs = self._empty(self._arrays)
        self._outs = [out.reshape(-1) for out in outs]

        def copy_out(k: int) -> None:
            segment = self._segments[k]
            for piece in segment.parts[self._rank]:
                first = piece.start - segment.out_shift(piece, self._rank)
                length = piece.stop - piece.start
                for peer in range(self._size):
                    start = first + segment.out_shift(piece, peer)
                    if peer == self._rank:
                        block = self._sources[piece.array][piece.start : piece.stop]
                    else:
                        block = self._shared(peer, k, self._rank, piece)
                    self._outs[piece.array][start : start + length] = block

        self._in_turn(self._write_parts, copy_out)
        return outs

    def _copy(self, roots: Sequence[int], outs: list[Buffer]) -> list[Buffer]:
        """The arrays of `roots`, behind each other in `outs`."""
        self._outs = [out.reshape(-1) for out in outs]
        self._segments = cut(self._arrays, 1, part_bytes=SLOT_BYTES)

        def target(index: int, piece: Piece) -> Buffer:
            shift = index * self._arrays[piece.array].size
            return self._outs[piece.array][shift + piece.start : shift + piece.stop]

        def write(k: int) -> None:
            if self._rank in roots:
                for piece in self._segments[k].parts[0]:
                    source = self._sources[piece.array][piece.start : piece.stop]
                    self._shared(self._rank, k, 0, piece)[...] = source
                    target(roots.index(self._rank), piece)[...] = source

        def read(k: int) -> None:
            for index, peer in enumerate(roots):
                if peer != self._rank:
                    for piece in self._segments[k].parts[0]:
                        target(index, piece)[...] = self._shared(peer, k, 0, piece)

        self._in_turn(write, read)
        return outs

    # Their parts.

    def _empty(self, like: Sequence[Buffer]) -> list[Buffer]:
        return [self._memory.outputs.empty(array.shape, array.dtype) for array in like]

    def _cut_blocks(self) -> list[Buffer]:
        """Cut arrays of which every rank gets a block; returns one of these blocks each."""
        blocks = [array[: array.shape[0] // self._size] for array in self._arrays]
        self._segments = cut(blocks, self._size, True, SLOT_BYTES // self._size)
        return blocks

    def _write_parts(self, k: int) -> None:
        """Write what the others need of this rank's chunk."""
        for peer, _ in self._peers:
            for piece in self._segments[k].parts[peer]:
                source = self._sources[piece.array][piece.start : piece.stop]
                self._shared(self._rank, k, peer, piece)[...] = source

    def _values(self, k: int, piece: Piece, part: int) -> list[Buffer]:
        """What each rank has for a piece of the part of rank `part`, in rank order."""
        return [
            self._shared(peer, k, part, piece) if peer != self._rank
            else self._sources[piece.array][piece.start : piece.stop]
            for peer in range(self._size)
        ]  # fmt: skip

    def _shared(self, owner: int, k: int, part: int, piece: Piece) -> Buffer:
        """The place of a piece, of the part of rank `part`, in the slot of `owner`."""
        dtype = self._sources[piece.array].dtype
        slot = self._memory.slot(self._at.members[owner], self._begins[owner] + k)
        start = part * self._segments[k].scratch_bytes + piece.scratch
        return slot[start : start + (piece.stop - piece.start) * dtype.itemsize].view(dtype)

    # The order of things.

    def _in_turn(self, write: Step, read: Step, reduce: Step | None = None) -> None:
        """Take every chunk through its steps: `write`, then `reduce` and `read` of what all wrote.

        With `reduce`, `read` is for what all have written in that.
        """
        count, lag = len(self._segments), int(reduce is not None)
        memory = self._memory
        if memory.readers_group != self._at.group:
            self._await_readers()
            memory.readers, memory.readers_group = {}, self._at.group
        begin = self._begins[self._rank] = memory.position
        write(0)
        memory.announce(self._at.group, self._at.call.seq, self._announced)
        memory.position += count + lag
        memory.wake(self._ranks)
        for k in range(count + lag):
            self._wait(k)
            if k == 0:
                self._learn(count + lag)
            if reduce is not None and k < count:
                reduce(k)
            if k + 1 < count:
                write(k + 1)
            if k + 1 < count + lag:
                memory.proceed(begin + k + 1)
                memory.wake(self._ranks)
            if k >= lag:
                read(k - lag)
        memory.finish()

    def _await_readers(self) -> None:
        """Wait until the ranks of the last call, which was of another group, are done with it."""
        links, at = self._links, self._at
        started = time.monotonic()
        warned = False
        while late := self._memory.still_reading():
            links.poll(POLL_SECONDS)
            waited = time.monotonic() - started
            who = names_of(links.links[rank] for rank in late)
            if waited >= links.timeout:
                raise PeerError(
                    f"rank {at.rank} gave up after {waited:.0f} s (NUVEC_TIMEOUT) at {at.text()}: "
                    f"an earlier call has not been ended by {who}"
                )
            if waited >= links.warn_after and not warned:
                warned = True
                _log.warning(
                    "rank %d has waited %.0f s at %s for an earlier call to be ended by %s",
                    at.rank,
                    waited,
                    at.text(),
                    who,
                )

    def _wait(self, k: int) -> None:
        """Wait until everybody has said `k`: a little while awake, then in a poll."""
        memory, call, group = self._memory, self._at.call, self._at.group
        token = call_token(group, call.seq)
        key = (int(Kind.COLLECTIVE), group, call.seq, k)
        signals = []
        for peer, link in self._peers:
            rank = link.peer.rank
            if k == 0:
                word, value = memory.announced_word(rank, call.seq), token
            else:
                word, value = memory.progress_word(rank), self._begins[peer] + k
            signals.append((link, Signal(memory.words, word, value, k == 0, key)))
        now = time.perf_counter()
        if now - memory.polled > POLL_SECONDS:
            memory.polled = now
            self._links.poll(0)
        if not memory.awake.wait(signals):
            memory.sleep(True)
            try:
                self._links.wait(signals, self._at)
            finally:
                memory.sleep(False)

    def _learn(self, used: int) -> None:
        """Look at what the others have announced: the same call, and where they begin."""
        at, memory = self._at, self._memory
        for peer, link in self._peers:
            rank = link.peer.rank
            self._begins[peer], theirs = memory.announced(rank, at.call.seq)
            if theirs != self._announced:
                call, group = unpack_call(theirs)
                members = at.members if group == at.group else None
                raise mismatch((at.rank, at.text()), (rank, call.describe(members, group)))
            memory.readers[rank] = self._begins[peer] + used

"""The mesh transport: a socket for every pair of ranks.

Every collective starts by one frame from each rank to each other that names the call, so ranks
that make different calls find out at once, all of them. Small messages ride in that first frame and
each rank folds all of them. Larger reductions are cut into segments; in each, every rank folds
its own part of the segment, received from all, and sends the result to all. The next segment is on
its way while one is folded, and a segment is small enough to be folded in cache. In both cases
every element is folded in rank order.

Where all ranks of a group are on one host, all this goes through shared memory instead, with the
same bits (`SharedCollective`). Messages from one rank to another always use the sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.distributed.transports._call import Op
from nuvec.distributed.transports._forks import close_after_fork
from nuvec.distributed.transports._frames import Frame, post, push
from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports._linked import LinkedCommunicator
from nuvec.distributed.transports._links import At, Links
from nuvec.distributed.transports._reduce import fold
from nuvec.distributed.transports._segments import PART_BYTES, Segment, cut
from nuvec.distributed.transports._shared import SharedCollective, pack_call
from nuvec.distributed.transports._shared_memory import SharedMemory, share
from nuvec.distributed.transports._specs import as_bytes
from nuvec.distributed.transports.connect import connect
from nuvec.distributed.transports.job import Job

__all__ = ["MeshCommunicator", "mesh_communicator"]

SMALL = 1 << 16
"""Up to this many bytes a reduction sends everything to everyone."""

_REDUCTIONS = (Op.ALL_SUM, Op.ALL_MAX, Op.ALL_MIN)


class MeshCommunicator(LinkedCommunicator):
    """One rank's end of a mesh, or of a group split from it (which shares its sockets)."""

    part_bytes = PART_BYTES
    """A rank's part of a segment."""

    def __init__(
        self,
        links: Links,
        rank: int,
        members: Sequence[int],
        group: int,
        memory: SharedMemory | None = None,
    ) -> None:
        """`memory` is what this rank shares with those of its host, in this group or not."""
        super().__init__(links, rank, members, group)
        self._all_memory = memory
        self._memory = memory if memory is not None and memory.joins(self._members) else None
        self._peers = [
            (index, links.links[member])
            for index, member in enumerate(self._members)
            if index != rank
        ]
        self._scratch: dict[tuple[int, int], Buffer] = {}

    @property
    def name(self) -> str:
        return "mesh"

    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        return type(self)(self._links, rank, members, group, self._all_memory)

    def close(self) -> None:
        self._closed = True
        if self._group == 0:
            self._links.close()
            if self._all_memory is not None:
                self._all_memory.close()

    def _links_to(self, other: int, sending: bool) -> Sequence[Link]:
        return [self._links.links[self._members[other]]]

    # Collectives.

    def _run(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        call = at.call
        announced = pack_call(call, self._group) if self._memory is not None else None
        if self._memory is not None and announced is not None:
            return SharedCollective(
                self._memory, self._links, at, self._rank, self._peers, announced, arrays
            ).run()
        if call.op in _REDUCTIONS:
            if sum([array.nbytes for array in arrays]) <= SMALL:
                return self._reduce_small(at, arrays)
            return self._reduce_large(at, arrays)
        if call.op is Op.SUM_SCATTER:
            return self._sum_scatter(at, arrays)
        return self._move(at, arrays)

    def _reduce_small(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        parts = [as_bytes(array) for array in arrays]
        frames = [post(at, 0, link, None) for _, link in self._peers]
        for _, link in self._peers:
            push(at, 0, link, parts)
        self._links.wait(frames, at, [link for _, link in self._peers])
        payloads = [receive.payload for _, receive in frames]
        results = []
        offset = 0
        for array in arrays:
            values: list[Buffer] = [
                np.ndarray(array.shape, array.dtype, payload, offset) for payload in payloads
            ]
            values.insert(self._rank, array)
            out = np.empty_like(array)
            fold(at.call.op, values, out)
            results.append(out)
            offset += array.nbytes
        return results

    def _reduce_large(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        outs = [np.empty_like(array) for array in arrays]
        flat_in = [array.reshape(-1) for array in arrays]
        flat_out = [out.reshape(-1) for out in outs]
        segments = cut(arrays, self.size, part_bytes=self.part_bytes)

        def start(k: int) -> tuple[list[Frame], list[Frame]]:
            # The results are asked for along with the parts, so that a faster peer's result never
            # has to be kept aside.
            parts = self._post_parts(at, 2 * k, segments[k])
            results = [
                post(at, 2 * k + 1, link, segments[k].views(flat_out, peer))
                for peer, link in self._peers
            ]
            for peer, link in self._peers:
                push(at, 2 * k, link, segments[k].views(flat_in, peer))
            return parts, results

        waiting: list[Frame] = []
        following = start(0)
        for k, segment in enumerate(segments):
            parts, results = following
            if k + 1 < len(segments):
                following = start(k + 1)
            self._links.wait(parts, at)
            self._fold_parts(at, k, segment, flat_in, flat_out)
            mine = segment.views(flat_out, self._rank)
            for _, link in self._peers:
                push(at, 2 * k + 1, link, mine)
            waiting = [frame for frame in waiting if not frame[1].done] + results
        self._links.wait(waiting, at, [link for _, link in self._peers])
        return outs

    def _sum_scatter(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        blocks = [array[: array.shape[0] // self.size] for array in arrays]
        outs = [np.empty_like(block) for block in blocks]
        flat_in = [array.reshape(-1) for array in arrays]
        flat_out = [out.reshape(-1) for out in outs]
        segments = cut(blocks, self.size, True, self.part_bytes)

        def start(k: int) -> list[Frame]:
            parts = self._post_parts(at, 2 * k, segments[k])
            for peer, link in self._peers:
                push(at, 2 * k, link, segments[k].views(flat_in, peer))
            return parts

        following = start(0)
        for k, segment in enumerate(segments):
            parts = following
            if k + 1 < len(segments):
                following = start(k + 1)
            self._links.wait(parts, at)
            self._fold_parts(at, k, segment, flat_in, flat_out)
        self._links.wait([], at, [link for _, link in self._peers])
        return outs

    def _post_parts(self, at: At, step: int, segment: Segment) -> list[Frame]:
        """Ask for the peers' values of this rank's part of a segment, into scratch memory."""
        parity = step // 2 % 2
        frames = []
        for peer, link in self._peers:
            # Two buffers a peer, used in turn: one is folded while the other is filled.
            scratch = self._scratch.get((peer, parity))
            if scratch is None or scratch.nbytes < segment.scratch_bytes:
                scratch = np.empty(segment.scratch_bytes, np.uint8)
                self._scratch[peer, parity] = scratch
            targets = segment.scratch_views(scratch, self._rank)
            frames.append(post(at, step, link, targets))
        return frames

    def _fold_parts(
        self, at: At, k: int, segment: Segment, sources: list[Buffer], outs: list[Buffer]
    ) -> None:
        """Fold this rank's part of a segment out of the scratch memory into `outs`."""
        for piece in segment.parts[self._rank]:
            source = sources[piece.array]
            values: list[Buffer] = []
            for peer in range(self.size):
                if peer == self._rank:
                    values.append(source[piece.start : piece.stop])
                else:
                    scratch = self._scratch[peer, k % 2]
                    end = piece.scratch + (piece.stop - piece.start) * source.itemsize
                    values.append(scratch[piece.scratch : end].view(source.dtype))
            shift = segment.out_shift(piece, self._rank)
            out = outs[piece.array][piece.start - shift : piece.stop - shift]
            fold(at.call.op, values, out)

    def _move(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        """The collectives that only move data: gather, all-to-all, broadcast, barrier, split."""
        op, root, size, rank = at.call.op, at.call.peer, self.size, self._rank
        sent: list[list[Buffer]] = [arrays] * size
        if op in (Op.ALL_GATHER, Op.SPLIT):
            outs = [np.empty((size, *array.shape), array.dtype) for array in arrays]
            received = [[out[peer] for out in outs] for peer in range(size)]
            # out[peer] of a vector would be a scalar, not a view of it.
            if any(array.ndim == 0 for array in arrays):
                received = [[out[peer : peer + 1] for out in outs] for peer in range(size)]
        elif op is Op.ALL_TO_ALL:
            outs = [np.empty_like(array) for array in arrays]
            received = [[_block(out, peer, size) for out in outs] for peer in range(size)]
            sent = [[_block(array, peer, size) for array in arrays] for peer in range(size)]
        else:
            outs = [np.empty_like(array) for array in arrays]
            received = [outs if peer == root else [] for peer in range(size)]
            if rank != root:
                sent = [[] for _ in range(size)]
            else:
                sent[rank] = arrays
        frames = [
            post(at, 0, link, [as_bytes(array) for array in received[peer]])
            for peer, link in self._peers
        ]
        for peer, link in self._peers:
            push(at, 0, link, [as_bytes(array) for array in sent[peer]])
        for out, own in zip(received[rank], sent[rank], strict=True):
            out[...] = own
        self._links.wait(frames, at, [link for _, link in self._peers])
        if op in (Op.ALL_GATHER, Op.SPLIT):
            return [
                out.reshape(size * array.shape[0], *array.shape[1:]) if array.ndim else out
                for out, array in zip(outs, arrays, strict=True)
            ]
        return outs


def _block(array: Buffer, index: int, count: int) -> Buffer:
    length = array.shape[0] // count
    return array[index * length : (index + 1) * length]


def mesh_communicator(job: Job, shared: bool = True) -> MeshCommunicator:
    """Connect to every other rank of `job`; returns when all connections stand.

    Ranks of one host share memory, unless `shared` is false or it cannot be had; then the lowest of
    them logs why, and they go on without.
    """
    return connect_mesh(job, MeshCommunicator, shared)


_Mesh = TypeVar("_Mesh", bound=MeshCommunicator)


def connect_mesh(job: Job, kind: type[_Mesh], shared: bool) -> _Mesh:
    """As `mesh_communicator`, for a communicator of the class `kind`."""
    sockets = connect(job)
    memory = share(job, sockets) if shared else None
    links = {rank: Link(sock, peer) for rank, (sock, peer) in sockets.items()}
    owner = Links(job.rank, links, job.timeout, job.warn_after)
    if memory is not None:
        owner.watch(memory.bell, memory.heard)
    close_after_fork(owner)
    return kind(owner, job.rank, range(len(job.addresses)), 0, memory)

"""The mpi transport: whatever MPI is installed, through mpi4py.

The frames of the mesh travel as MPI messages: they name the call, so that ranks that make different
ones find out, and carry small messages and the parts of a reduction, which every rank folds in rank
order; MPI's own sums promise no order, not even that all ranks get the same bits, and know no
16-bit floats. Large messages that are only moved go through MPI's collectives (on a communicator
that is MPI's Split of its parent's), after a frame without payload from each rank to each other.
That is what the checks cost: one short message for every pair of ranks before each collective.

Where a rank dies, MPI ends the job: mpirun kills the others. A silent rank raises `PeerError` as
elsewhere. Whoever ends with an error tells its peers before `MPI_Finalize`, which mpi4py calls
after the exit functions of Python.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.distributed.transports._call import Op
from nuvec.distributed.transports._checked import DEFAULT_TIMEOUT, WARN_AFTER
from nuvec.distributed.transports._frames import post, push
from nuvec.distributed.transports._links import At
from nuvec.distributed.transports._messages import CHUNK, MessageLink, MessageLinks
from nuvec.distributed.transports.mesh import MeshCommunicator
from nuvec.distributed.transports.wire import Peer

__all__ = ["MpiCommunicator", "mpi_communicator"]

_FRAME, _PAYLOAD = 1, 2
"""MPI's tags: a frame or its announcement, and the payload of what was announced."""

SPIN_SECONDS = 0.0005
"""How long a waiting rank gives way but does not sleep: MPI has nothing to sleep on."""

MAX_PAUSE = 0.001
"""The longest sleep between two looks, in seconds."""

NATIVE = 1 << 16
"""From this many bytes on, messages that are only moved go through MPI's collectives."""

_MOVES = (Op.ALL_GATHER, Op.ALL_TO_ALL, Op.BROADCAST)


class MpiLink(MessageLink):
    """The messages to and from one rank of an MPI communicator."""

    def __init__(self, peer: Peer, comm: MPI.Comm) -> None:
        super().__init__(peer)
        self._comm = comm
        self._receiving: deque[MPI.Request] = deque()

    def _send(self, message: bytes) -> None:
        self._keep(message, self._comm.Isend([message, MPI.BYTE], self.peer.rank, _FRAME))

    def _send_payload(self, payload: memoryview[Any]) -> None:
        for chunk in self.chunks(payload):
            self._keep(chunk, self._comm.Isend([chunk, MPI.BYTE], self.peer.rank, _PAYLOAD))

    def _keep(self, data: bytes | memoryview[Any], request: MPI.Request) -> None:
        if self.pending or not request.Test():
            self.pending.append((request, data, self.payloads_sent))

    def _settle(self, count: int) -> None:
        while self.pending and self.pending[0][2] < count:
            self.pending.popleft()[0].Wait()  # for no more than MPI's own bookkeeping

    def _take_payload(self, target: memoryview[Any]) -> None:
        for chunk in self.chunks(target):
            request = self._comm.Irecv([chunk, MPI.BYTE], self.peer.rank, _PAYLOAD)
            self._receiving.append(request)

    def progress(self) -> bool:
        """Note what has been sent and received; whether anything has."""
        moved = False
        while self.pending and self.pending[0][0].Test():
            self.pending.popleft()
            moved = True
        while self._receiving and self._receiving[0].Test():
            self._receiving.popleft()
            moved = True
            if not self._receiving:
                self.payload_taken()
        if moved:
            self.last_active = time.monotonic()
        return moved


class MpiLinks(MessageLinks):
    """One rank's messages to and from all others of an MPI communicator."""

    def __init__(
        self, comm: MPI.Comm, peers: Sequence[Peer], timeout: float, warn_after: float
    ) -> None:
        self._comm = comm
        self._all = {p.rank: MpiLink(p, comm) for p in peers if p.rank != comm.Get_rank()}
        self._status = MPI.Status()
        self._groups: dict[tuple[int, ...], MPI.Comm] = {}
        """What `group_comm` has made."""
        self._unfinished: list[MPI.Request] = []
        super().__init__(comm.Get_rank(), self._all, timeout, warn_after)

    def _progress(self, seconds: float) -> bool:
        started = time.monotonic()
        pause = 0.0
        try:
            while not self._look():
                waited = time.monotonic() - started
                if waited >= seconds or self._poller.poll(0):
                    return False
                if waited > SPIN_SECONDS:
                    pause = min(MAX_PAUSE, pause + 20e-6)
                # Even 0 lets other threads, and other ranks of this core, go on.
                time.sleep(min(pause, seconds - waited))
        except MPI.Exception as error:
            raise PeerError(f"rank {self.rank}: MPI failed: {error}") from None
        return True

    def finish(self, request: MPI.Request, at: At) -> None:
        """Wait for a collective of MPI's, in which all its ranks are."""
        # Where this ends by an error MPI goes on, in the memory of arrays that the caller has let
        # go of: the request holds on to them.
        self._unfinished.append(request)
        started = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - started
            if waited >= self.timeout:
                raise PeerError(
                    f"rank {self.rank} gave up after {waited:.0f} s (NUVEC_TIMEOUT) at "
                    f"{at.text()}: one of its ranks does not go on, or takes longer than that"
                )
            self.poll(0)  # a rank that fails meanwhile says so
            time.sleep(0 if waited < 1 else MAX_PAUSE)
        self._unfinished.pop()

    def group_comm(self, parent: MPI.Comm, members: tuple[int, ...], rank: int) -> MPI.Comm:
        """MPI's communicator for a group that is split from that of `parent`.

        Groups of the same ranks in the same order have one in common, for MPI has only so many and
        no rank can free its own alone. They never use it at the same time: a rank is in one call
        at a time, and all of the group's ranks are in that one before MPI's part of it begins.
        """
        known = self._groups.get(members)
        # MPI's colours have 31 bits: the group's first member, which is in no other group.
        comm = parent.Split(MPI.UNDEFINED if known is not None else members[0], rank)
        if known is None:
            known = self._groups[members] = comm
        return known

    def _look(self) -> bool:
        """Take in what has arrived; whether anything has."""
        moved = False
        while True:
            # Only what has arrived is received: nothing here waits inside of MPI.
            message = self._comm.Improbe(MPI.ANY_SOURCE, _FRAME, self._status)
            if message is None:
                break
            data = bytearray(self._status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
            moved = True
            self._all[self._status.Get_source()].arrived(data)
        for link in self._all.values():
            if link.pending or link._receiving:
                moved = link.progress() or moved
        return moved


class MpiCommunicator(MeshCommunicator):
    """One rank's end of an MPI job, or of a group split from it."""

    def __init__(
        self, links: MpiLinks, rank: int, members: Sequence[int], group: int, comm: MPI.Comm
    ) -> None:
        """`comm` is MPI's communicator of the group."""
        super().__init__(links, rank, members, group)
        self._mpi_links = links
        self._comm = comm

    @property
    def name(self) -> str:
        return "mpi"

    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        comm = self._mpi_links.group_comm(self._comm, tuple(members), rank)
        return MpiCommunicator(self._mpi_links, rank, members, group, comm)

    def _move(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        if at.call.op not in _MOVES or sum(array.nbytes for array in arrays) < NATIVE:
            return super()._move(at, arrays)
        frames = [post(at, 0, link, []) for _, link in self._peers]
        for _, link in self._peers:
            push(at, 0, link, [])
        self._links.wait(frames, at, [link for _, link in self._peers])
        if at.call.op is Op.BROADCAST:
            return [self._broadcast_bytes(at, array) for array in arrays]
        return [self._exchange_rows(at, array) for array in arrays]

    def _broadcast_bytes(self, at: At, array: Buffer) -> Buffer:
        out = array.copy() if self._rank == at.call.peer else np.empty_like(array)
        data = out.reshape(-1).view(np.uint8)
        for low in range(0, data.size, CHUNK):
            request = self._comm.Ibcast([data[low : low + CHUNK], MPI.BYTE], at.call.peer)
            self._mpi_links.finish(request, at)
        return out

    def _exchange_rows(self, at: At, array: Buffer) -> Buffer:
        """An all-gather, or an all-to-all: a row of bytes to each rank, and one from each."""
        size = self.size
        gathers = at.call.op is Op.ALL_GATHER
        shape = (size, *array.shape) if gathers else array.shape
        out = np.empty(shape, array.dtype)
        # reshape(-1) of nothing leaves the rows' length unknown.
        length = out.nbytes // size
        received = out.reshape(-1).view(np.uint8).reshape(size, length)
        sent = array.reshape(-1).view(np.uint8).reshape(1 if gathers else size, length)
        start = self._comm.Iallgather if gathers else self._comm.Ialltoall
        width = max(1, CHUNK // size)
        if length <= width:
            self._mpi_links.finish(start([sent, MPI.BYTE], [received, MPI.BYTE]), at)
        else:
            # MPI counts what it moves in 32 bits, the distance between rows included.
            for low in range(0, length, width):
                part = np.ascontiguousarray(sent[:, low : low + width])
                place = np.empty((size, part.shape[1]), np.uint8)
                self._mpi_links.finish(start([part, MPI.BYTE], [place, MPI.BYTE]), at)
                received[:, low : low + width] = place
        return (
            out.reshape(size * array.shape[0], *array.shape[1:]) if gathers and array.ndim else out
        )


def mpi_communicator(
    timeout: float = DEFAULT_TIMEOUT, warn_after: float = WARN_AFTER, world: MPI.Comm | None = None
) -> MpiCommunicator:
    """Join the ranks of `world`, MPI's by default; every one of them calls this.

    Raises `ConfigurationError` where MPI was started without support for threads.
    """
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ConfigurationError(
            "MPI was started without support for threads, and nuvec communicates beside the "
            "computation: ask for MPI.THREAD_MULTIPLE (mpi4py does, unless mpi4py.rc says else)"
        )
    # Its messages are apart from all others of the program.
    comm = (MPI.COMM_WORLD if world is None else world).Dup()
    mine = np.zeros(256, np.uint8)
    text = f"{os.getpid()} {socket.gethostname()}".encode()[:256]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.empty((comm.Get_size(), 256), np.uint8)
    comm.Allgather(mine, everyone)
    peers = []
    for rank, row in enumerate(everyone):
        pid, host = row.tobytes().rstrip(b"\0").decode(errors="replace").split(" ", 1)
        peers.append(Peer(rank, host, int(pid)))
    links = MpiLinks(comm, peers, timeout, warn_after)
    return MpiCommunicator(links, comm.Get_rank(), range(comm.Get_size()), 0, comm)

"""The ring transport: TCP between neighbours only, for large messages on few hosts.

Every rank sends to the next and receives from the previous. A large reduction is cut into
segments, and each segment into one part a rank. A part goes round once while every rank adds its
own values to it, and once more to give everyone the result (reduce-scatter, then all-gather): each
rank sends and receives 2 (N - 1) / N of the message, whatever N is (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009). The segments are pipelined:
while a rank adds to one, the frames of others are on their way.

Every rank gets the same bits: each element is summed once, along the ring, in an order that its
place decides; float16 and bfloat16 travel as float32 until they are rounded, once. That is not the
fold in rank order that a mesh promises, except for two ranks.

A collective completes nowhere before every rank has begun the same one, since each result needs a
frame of every rank or follows a round of empty ones. A death is noticed by the neighbours, who pass
it on round the ring as soon as they are in a call.

A group that a split forms is a ring of its own, over the connections that there are: new ones are
made for neighbours that have none yet, and kept for later groups. Frames say of which group they
are.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence

import numpy as np

from nuvec.core.errors import ConfigurationError, DistributedError
from nuvec.distributed.communicator import Buffer, Communicator, Spec
from nuvec.distributed.transports._call import Call, Op
from nuvec.distributed.transports._flow import Flow
from nuvec.distributed.transports._forks import close_after_fork
from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports._linked import LinkedCommunicator
from nuvec.distributed.transports._links import At, Links
from nuvec.distributed.transports._outputs import Outputs
from nuvec.distributed.transports._ring_collectives import RUN
from nuvec.distributed.transports._ring_links import (
    Neighbours,
    connect_ring,
    described,
    listen_for_split,
    listen_on,
    with_addresses,
)
from nuvec.distributed.transports._writer import WrittenLink
from nuvec.distributed.transports.connect import check_secret, remove_directory
from nuvec.distributed.transports.job import Job, retire
from nuvec.distributed.transports.single import SingleCommunicator

__all__ = ["RingCommunicator", "ring_communicator"]

SOCKETS = "NUVEC_RING_SOCKETS"
"""The environment variable that says how many sockets there are to each neighbour."""

DEFAULT_SOCKETS = 2
MAX_SOCKETS = 64


class RingCommunicator(LinkedCommunicator):
    """One rank's end of a ring. All rings of a rank share what it waits with (`Links`)."""

    folds_in_rank_order = False
    sends_to_neighbours_only = True

    def __init__(
        self,
        job: Job,
        links: Links,
        rank: int,
        members: Sequence[int],
        group: int,
        neighbours: Neighbours,
    ) -> None:
        super().__init__(links, rank, members, group)
        self._job, self._neighbours = job, neighbours
        self._outputs = Outputs()

    @property
    def name(self) -> str:
        return "ring"

    def close(self) -> None:
        self._closed = True
        self._outputs.clear()
        if self._group == 0:
            self._links.close()

    # Groups.

    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        me, own = self._me, self._job.addresses[self._me]
        before, after = members[rank - 1], members[(rank + 1) % len(members)]
        sockets = len(self._neighbours[0])
        incoming, outgoing = self._connected(before, me), self._connected(me, after)
        listeners: list[socket.socket] = []
        # (Where nobody has to connect to this rank, it says the interfaces it goes out by.)
        address, directory = own, None
        try:
            if not incoming and before != me:
                if own.unix is not None:
                    directory = tempfile.mkdtemp(prefix="nuvec-")  # mode 0700
                address = listen_for_split(own, me, directory, listeners)
            rows = self.all_gather([described(address)[None]])[0]
            if len(members) == 1:
                return SingleCommunicator(self.name)
            given = {member: rows[self._members.index(member)] for member in members}
            job = with_addresses(self._job, given, f"{group:x}")
            new = connect_ring(
                job,
                None if incoming else before,
                None if outgoing else after,
                sockets,
                listeners,
                self._look,
            )
        except BaseException as error:
            self._links.abort(f"failed at split: {error}")
            raise
        finally:
            for listener in listeners:
                if listener.fileno() >= 0:
                    retire(listener)
            if directory is not None:
                remove_directory(directory)
        self._links.add(_by_key(me, before, after, new))
        neighbours = (outgoing or new[0], incoming or new[1])
        return RingCommunicator(self._job, self._links, rank, members, group, neighbours)

    def _connected(self, sender: int, receiver: int) -> list[WrittenLink]:
        """The connections that some ring has for frames from one rank to another, if any."""
        found: list[WrittenLink] = []
        while (link := self._links.links.get((sender, receiver, len(found)))) is not None:
            assert isinstance(link, WrittenLink)
            found.append(link)
        return found

    def _look(self) -> None:
        """While a group forms: notice deaths."""
        at = self._at(Call(Op.SPLIT, self._calls, -1, b""))
        self._links.call(at, lambda: self._links.poll(0))

    # Collectives.

    def _run(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        call = at.call
        flow = Flow(self._links, at, self._neighbours, self._outputs)
        results = RUN[call.op](flow, call, self._rank, self.size, arrays)
        flow.finish()
        return results

    def _exchange(self, arrays: Sequence[Buffer], perm: Sequence[tuple[int, int]]) -> list[Buffer]:
        if all(self._is_near(source, destination) for source, destination in perm):
            return super()._exchange(arrays, perm)
        # Whatever goes further passes by everyone anyhow.
        gathered = self.all_gather([np.asarray(array)[None] for array in arrays])
        for source, destination in perm:
            if destination == self._rank:
                return [np.array(every[source]) for every in gathered]
        return [np.zeros_like(array) for array in arrays]

    # Point to point.

    def send(self, arrays: Sequence[Buffer], dst: int) -> None:
        self._check_near(Op.SEND, dst)
        super().send(arrays, dst)

    def recv(self, specs: Sequence[Spec], src: int) -> list[Buffer]:
        self._check_near(Op.RECV, src)
        return super().recv(specs, src)

    def _is_near(self, one: int, other: int) -> bool:
        return (one - other) % self.size in (0, 1, self.size - 1)

    def _check_near(self, op: Op, other: int) -> None:
        if 0 <= other < self.size and not self._is_near(self._rank, other):
            before, after = (self._rank - 1) % self.size, (self._rank + 1) % self.size
            direction = "to" if op is Op.SEND else "from"
            raise DistributedError(
                f"{op.label} {direction} rank {other}: in a ring of {self.size}, rank {self._rank} "
                f"is connected to its neighbours, ranks {before} and {after}, only. Between any "
                'two ranks it takes the mesh: init(backend="mesh")'
            )

    def _links_to(self, other: int, sending: bool) -> Sequence[Link]:
        """The sockets for a message to (or from) another rank.

        In a ring of two both neighbours are the same rank: messages go as collectives do.
        """
        onward = (self._rank + (1 if sending else -1)) % self.size
        return self._neighbours[sending ^ (other == onward)]

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
        return self._outputs.empty(shape, dtype)


def _by_key(
    me: int, before: int, after: int, neighbours: Neighbours
) -> dict[tuple[int, int, int], WrittenLink]:
    """The connections by who sends in a ring, who receives, and a number."""
    outgoing, incoming = neighbours
    sent = {(me, after, i): link for i, link in enumerate(outgoing)}
    return sent | {(before, me, i): link for i, link in enumerate(incoming)}


def ring_communicator(job: Job, sockets: int | None = None) -> RingCommunicator:
    """Connect to both neighbours of `job`'s ring; returns when the connections stand.

    sockets -- how many to each neighbour: by default what `NUVEC_RING_SOCKETS` says, else one for
               each address that the host file has for a rank, and at least 2

    Raises `ConfigurationError` for a number that is not from 1 to 64.
    """
    size = len(job.addresses)
    if sockets is None:
        text = os.environ.get(SOCKETS) or "0"
        if not text.isdecimal():
            raise ConfigurationError(f"{SOCKETS}={text!r} is not a whole number")
        most = max(len(address.every_tcp()) for address in job.addresses)
        sockets = int(text) if os.environ.get(SOCKETS) else max(DEFAULT_SOCKETS, most)
    if not 1 <= sockets <= MAX_SOCKETS:
        raise ConfigurationError(
            f"{SOCKETS}={sockets}: there can be 1 to {MAX_SOCKETS} sockets to a neighbour"
        )
    neighbours: Neighbours = ([], [])
    previous, following = (job.rank - 1) % size, (job.rank + 1) % size
    if size > 1:
        check_secret(job)
        by_unix = isinstance(job.route(previous), str)
        listeners = list(job.listeners) or listen_on(job.addresses[job.rank], job.rank, by_unix)
        neighbours = connect_ring(job, previous, following, sockets, listeners)
    by_key = _by_key(job.rank, previous, following, neighbours)
    links = Links(job.rank, by_key, job.timeout, job.warn_after)
    close_after_fork(links)
    return RingCommunicator(job, links, job.rank, range(size), 0, neighbours)

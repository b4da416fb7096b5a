"""`LinkedCommunicator`: what the transports that are made of links have in common: how a call is
run, and messages from one rank to another."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from nuvec.distributed.communicator import Buffer, Spec
from nuvec.distributed.transports._call import Call
from nuvec.distributed.transports._checked import CheckedCommunicator
from nuvec.distributed.transports._frames import post, push, shared_out
from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports._links import At, Links
from nuvec.distributed.transports._own_mail import OwnMail
from nuvec.distributed.transports._specs import as_bytes

__all__ = ["LinkedCommunicator"]


class LinkedCommunicator(CheckedCommunicator):
    """One rank's end of a group that communicates through `Links`, perhaps with other groups."""

    def __init__(self, links: Links, rank: int, members: Sequence[int], group: int) -> None:
        super().__init__(rank, members, group)
        self._links = links
        self._me = self._members[rank]
        self._own_mail = OwnMail()
        links.groups.join(group, self._members)
        weakref.finalize(self, links.groups.let_go, group).atexit = False

    @abstractmethod
    def _links_to(self, other: int, sending: bool) -> Sequence[Link]:
        """The links that share a message to (or from) another rank of the group."""

    @abstractmethod
    def _run(self, at: At, arrays: list[Buffer]) -> list[Buffer]:
        """Run the collective that `at` is at."""

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
        """Memory for an array that is received."""
        return np.empty(shape, dtype)

    def _at(self, call: Call) -> At:
        return At(self._me, call, self._group, self._members)

    def _check_usable(self) -> None:
        self._links.check_usable()

    def abort(self, reason: str) -> None:
        self._links.abort(reason)

    def _collective(self, call: Call, arrays: list[Buffer]) -> list[Buffer]:
        at = self._at(call)

        def run() -> list[Buffer]:
            self._links.circles.begin(self._group, call.seq)
            return self._run(at, arrays)

        return self._links.call(at, run)

    def _send(self, call: Call, arrays: list[Buffer]) -> None:
        if call.peer == self._rank:
            self._own_mail.send(call, arrays)
            return
        at = self._at(call)
        links = self._links_to(call.peer, sending=True)

        def run() -> None:
            self._links.poll(0)
            self._links.check_present(links[0], at)
            self._links.circles.send(self._group, links[0].peer.rank, call.seq)
            shares = shared_out([as_bytes(array) for array in arrays], len(links))
            for link, share in zip(links, shares, strict=False):
                push(at, 0, link, share)
            self._links.wait([], at, links)

        self._links.call(at, run)

    def _recv(self, call: Call, specs: list[Spec]) -> list[Buffer]:
        at = self._at(call)

        def run() -> list[Buffer]:
            if call.peer == self._rank:
                return self._own_mail.recv(at)
            outs = [self._empty(*spec) for spec in specs]
            links = self._links_to(call.peer, sending=False)
            shares = shared_out([as_bytes(out) for out in outs], len(links))
            frames = [post(at, 0, link, share) for link, share in zip(links, shares, strict=False)]
            self._links.wait(frames, at)
            return outs

        return self._links.call(at, run)

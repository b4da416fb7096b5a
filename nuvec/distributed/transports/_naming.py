"""What errors and warnings say of a rank: what it is at, and for whom it waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from nuvec.core.errors import MismatchError, PeerError
from nuvec.distributed.transports._call import Call, Op, mismatch
from nuvec.distributed.transports._link import Aborted, Key, Link, Lost, Unexpected
from nuvec.distributed.transports.wire import Head

__all__ = ["At", "Awaited", "Needed", "described", "explained", "name_of", "names_of", "unfinished"]


class Awaited(Protocol):
    """Something a peer is to bring: a frame, or a signal in shared memory."""

    @property
    def key(self) -> Key: ...
    @property
    def done(self) -> bool: ...


Needed = Sequence[tuple[Link, Awaited]]
"""What a rank waits for, and the links of the peers that bring it."""


class At(NamedTuple):
    """The call a rank is in, for errors; described only when there is one."""

    rank: int
    call: Call
    group: int
    members: tuple[int, ...]

    def text(self) -> str:
        return self.call.describe(self.members, self.group)


def unfinished(needed: Needed) -> dict[Link, int]:
    """The links that have not brought all, each with the step of the frame that comes first."""
    missing: dict[Link, int] = {}
    for link, receive in needed:
        if not receive.done:
            missing.setdefault(link, receive.key[3])
    return missing


def name_of(link: Link) -> str:
    """The rank at the other end, and where it is."""
    return f"rank {link.peer.rank} (host {link.peer.host}, pid {link.peer.pid})"


def names_of(links: Iterable[Link]) -> str:
    """Who is missing: the peers, or those whom they say they wait for. Each once."""
    return ", ".join(dict.fromkeys(link.blames or name_of(link) for link in links))


def described(head: Head, specs: bytes, members: tuple[int, ...] | None) -> str:
    """The call of a frame, as errors describe it."""
    return Call(Op(head.op), head.seq, head.peer, specs).describe(members, head.group)


def explained(error: BaseException, at: At) -> BaseException:
    """What users get for an error of a link; any other is returned as it is."""
    if isinstance(error, Unexpected):
        theirs = described(error.head, error.specs, at.members)
        return mismatch((at.rank, at.text()), (error.link.peer.rank, theirs))
    if isinstance(error, Aborted):
        if error.is_mismatch:
            return MismatchError(error.reason)
        return PeerError(f"{error.reason}; rank {at.rank} was at {at.text()}")
    if isinstance(error, Lost):
        return PeerError(
            f"{name_of(error.link)} died or closed its connection ({error.cause}) while rank "
            f"{at.rank} was at {at.text()}"
        )
    return error

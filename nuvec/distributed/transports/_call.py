"""What a rank is doing: the operations, and one call of one rank as errors describe it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from nuvec.core.errors import MismatchError
from nuvec.distributed.transports._specs import describe_specs


class Op(IntEnum):
    """The operations. The numbers are part of the wire format: append, never renumber."""

    ALL_SUM = 1
    ALL_MAX = 2
    ALL_MIN = 3
    ALL_GATHER = 4
    SUM_SCATTER = 5
    ALL_TO_ALL = 6
    BROADCAST = 7
    BARRIER = 8
    SPLIT = 9
    SEND = 10
    RECV = 11

    @property
    def label(self) -> str:
        """The name users know the operation by."""
        return self.name.lower()


REDUCTIONS = {"sum": Op.ALL_SUM, "max": Op.ALL_MAX, "min": Op.ALL_MIN}
POINT_TO_POINT = (Op.SEND, Op.RECV)


class Call(NamedTuple):
    """One call: ranks agree if op, peer and specs are equal (seq says which call it is)."""

    op: Op
    seq: int
    peer: int
    """The root of a broadcast, the other end of a send or recv (in the group), else -1."""
    specs: bytes
    """The arrays' dtypes and shapes, as `encode_specs` gives them."""

    def agrees(self, other: Call) -> bool:
        """Whether two ranks that make these calls make the same one."""
        return self == other

    def describe(self, members: Sequence[int] | None = None, group: int = 0) -> str:
        """``all_sum #7 float32[4,3]``; ranks in it are those of the whole job.

        A group that a split has formed (its number is not 0) is named by number and `members`.
        """
        peer = self.peer if members is None or self.peer < 0 else members[self.peer]
        text = f"{self.op.label} #{self.seq}"
        if self.op is Op.BROADCAST:
            text += f" (root {peer})"
        elif self.op is Op.SEND:
            text += f" to rank {peer}"
        elif self.op is Op.RECV:
            text += f" from rank {peer}"
        specs = describe_specs(self.specs) if self.op is not Op.SPLIT else ""
        text = f"{text} {specs}".rstrip()
        if group:
            ranks = "" if members is None else f" of ranks {', '.join(map(str, members))}"
            text += f" on group {group % 0xFFFF:04x}{ranks}"
        return text


def mismatch(one: tuple[int, str], other: tuple[int, str]) -> MismatchError:
    """The error for two ranks, given as (rank, what it is at), that make different calls."""
    (rank, at), (peer, peer_at) = sorted((one, other))
    return MismatchError(
        f"rank {rank} is at {at}, rank {peer} at {peer_at}; every rank must make the same calls "
        "in the same order on a group"
    )


def circle(sides: str) -> MismatchError:
    """The error for ranks that wait for each other; `sides` says what each is at, in turn."""
    return MismatchError(
        f"{sides}: each waits for the next, so none can go on; a message has to be sent before the "
        "recv that waits for it, and every rank must make the same calls in the same order on a "
        "group"
    )

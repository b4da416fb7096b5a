"""Messages that a rank sends to itself: they never reach a connection."""

from __future__ import annotations

from nuvec.core.errors import DistributedError
from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._call import Call, mismatch
from nuvec.distributed.transports._links import At

__all__ = ["OwnMail"]


class OwnMail:
    """What a rank has sent itself in one group, and not yet received."""

    def __init__(self) -> None:
        self._mail: dict[int, tuple[Call, list[Buffer]]] = {}

    def send(self, call: Call, arrays: list[Buffer]) -> None:
        """Keep a copy of a message."""
        self._mail[call.seq] = (call, [array.copy() for array in arrays])

    def recv(self, at: At) -> list[Buffer]:
        """The message that the call `at` expects; raises `DistributedError` where there is none,
        `MismatchError` where it is another."""
        if at.call.seq not in self._mail:
            raise DistributedError(
                f"rank {at.rank} is at {at.text()}, and has sent itself no such message"
            )
        sent, arrays = self._mail.pop(at.call.seq)
        if sent.specs != at.call.specs:
            mine = sent.describe(at.members, at.group)
            raise mismatch((at.rank, at.text()), (at.rank, mine))
        return arrays

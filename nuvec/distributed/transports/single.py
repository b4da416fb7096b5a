"""The transport of a process that is alone: every collective is the identity."""

from __future__ import annotations

from collections.abc import Sequence

from nuvec.core.errors import DistributedError, PeerError
from nuvec.distributed.communicator import Buffer, Communicator, Spec
from nuvec.distributed.transports._call import Call
from nuvec.distributed.transports._checked import CheckedCommunicator, again

__all__ = ["SingleCommunicator"]


class SingleCommunicator(CheckedCommunicator):
    """A group of one rank. `name` is that of the transport whose split left it alone."""

    def __init__(self, name: str = "self") -> None:
        super().__init__(0, (0,), 0)
        self._name = name
        self._broken: DistributedError | None = None

    @property
    def name(self) -> str:
        return self._name

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise again(self._broken)

    def _collective(self, call: Call, arrays: list[Buffer]) -> list[Buffer]:
        raise AssertionError("a group of one rank has nobody to call")

    def _send(self, call: Call, arrays: list[Buffer]) -> None:
        raise AssertionError("a group of one rank has nobody to send to")

    def _recv(self, call: Call, specs: list[Spec]) -> list[Buffer]:
        raise AssertionError("a group of one rank has nobody to receive from")

    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        return SingleCommunicator(self._name)

    def close(self) -> None:
        self._closed = True

    def abort(self, reason: str) -> None:
        if self._broken is None:
            self._broken = PeerError(f"the group is broken: {reason}")

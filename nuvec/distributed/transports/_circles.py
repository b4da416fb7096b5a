"""Circles of waiting: ranks that wait for each other, so that none can go on.

A rank that has waited for a while asks the ranks it waits for whether they wait too: a WAITING
frame, which says what exactly it waits for. A rank that is itself blocked, and has not sent that,
hands the question on to those it waits for, adding what it is at; any other rank drops it. A
question that comes back to the rank that asked, still in the same wait, has gone round a circle.

It never blames a circle that is not there. A waiting rank needs all it waits for, so it stays
blocked until the rank it asks has sent what it named; that rank knows what it has sent (what is
still on its way counts), and goes on only once the next one has; and so on, up to the rank that
asked, which has been blocked all along. And every circle is found: the rank that closes it asks
last, when all others are in their waits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from nuvec.core.errors import DistributedError
from nuvec.distributed.transports._call import Call, Op, circle
from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports.wire import MAX_REASON, Head, Kind, pack_head

ASK_SECONDS = 1.0
"""How long a rank waits before it asks."""

_ORIGIN = struct.Struct("<IQ")
_SIDE = "; "


class _Wait(NamedTuple):
    """What a blocked rank is in: its call, the group's number, and the call as text."""

    call: Call
    group: int
    text: str


class Circles:
    """One rank's part in finding circles."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._serial = 0
        """Numbers this rank's waits: a question belongs to one."""
        self._begun: dict[int, int] = {}
        """How many collectives this rank has begun, by group."""
        self._frames: dict[int, dict[Link, tuple[int, int]]] = {}
        """The last collective begun and how many of its frames this rank has sent, by group and
        link, where they are counted."""
        self._sent: dict[int, dict[int, int]] = {}
        """How many messages this rank has sent, by group and receiver (a rank of the job)."""
        self._asked: set[tuple[int, int]] = set()
        """The questions handed on in this wait, by origin and its serial number."""

    # What this rank does; noted before the first byte goes out.

    def begin(self, group: int, seq: int) -> None:
        self._begun[group] = seq + 1

    def counted(self, group: int) -> dict[Link, tuple[int, int]]:
        """Where to note, for each link, the collective's number and how many of its frames have
        been sent. Of a group that does not, a rank has sent all of them once it has begun."""
        return self._frames.setdefault(group, {})

    def send(self, group: int, receiver: int, seq: int) -> None:
        self._sent.setdefault(group, {})[receiver] = seq + 1

    def forget(self, group: int) -> None:
        """A group is gone, and with it whoever might ask about it."""
        for noted in (self._begun, self._frames, self._sent):
            noted.pop(group, None)  # type: ignore[attr-defined]

    def wait(self) -> None:
        """Another wait begins."""
        self._serial += 1
        self._asked.clear()

    # Questions.

    def ask(self, call: Call, group: int, text: str, missing: Mapping[Link, int]) -> None:
        """Ask those this rank waits for; `missing` has the step of the frame each is to bring."""
        self._pass_on((self._rank, self._serial), "", _Wait(call, group, text), missing)

    def answer(
        self, question: Question, call: Call, group: int, text: str, missing: Mapping[Link, int]
    ) -> bool:
        """Look at a question while waiting; raises `MismatchError` if it has come round.

        Returns whether the rank that asks waits for something this rank has not sent.
        """
        head, origin, sides = question.head, question.origin, question.sides
        if head.op == Op.RECV:
            if self._sent.get(head.group, {}).get(question.asker, 0) > head.seq:
                return False
        else:
            begun = self._begun.get(head.group, 0)
            if begun > head.seq + 1 or (begun == head.seq + 1 and self._has_sent(question)):
                return False
        if origin == (self._rank, self._serial):
            raise circle(sides)
        if origin[0] != self._rank and origin not in self._asked:
            self._asked.add(origin)
            self._pass_on(origin, sides, _Wait(call, group, text), missing)
        return True

    def _has_sent(self, question: Question) -> bool:
        """Whether this rank, in the collective of a question, has sent the frame it asks for."""
        head, counted = question.head, self._frames.get(question.head.group)
        return counted is None or counted.get(question.link, (-1, 0)) > (head.seq, head.step)

    def _pass_on(
        self, origin: tuple[int, int], sides: str, wait: _Wait, missing: Mapping[Link, int]
    ) -> None:
        sides += f"{_SIDE if sides else ''}rank {self._rank} is at {wait.text}"
        payload = _ORIGIN.pack(*origin) + sides.encode()[: MAX_REASON - _ORIGIN.size]
        call = wait.call
        for link, step in missing.items():
            if not (link.left or link.ended):
                link.aside(
                    [
                        pack_head(
                            Kind.WAITING, call.op, -1, step, wait.group, call.seq, 0, len(payload)
                        ),
                        payload,
                    ]
                )


class Question(NamedTuple):
    """A WAITING frame: what the rank `asker` waits for, and who asked first."""

    link: Link
    head: Head
    origin: tuple[int, int]
    sides: str

    @classmethod
    def of(cls, link: Link, head: Head, payload: bytes) -> Question:
        """Read a frame; raises `DistributedError` where it is not one."""
        if len(payload) < _ORIGIN.size or head.op in (0, Op.SEND):
            raise DistributedError(f"malformed frame: {head}")
        rank, serial = _ORIGIN.unpack_from(payload)
        sides = payload[_ORIGIN.size :].decode(errors="replace")
        return cls(link, head, (rank, serial), sides)

    @property
    def asker(self) -> int:
        """The rank of the job that waits."""
        return self.link.peer.rank

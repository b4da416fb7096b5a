"""nv.profile, and the profile of several ranks on one time axis."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import numpy as np

from nuvec.core.errors import ArgumentError
from nuvec.core.interpreter import flush
from nuvec.core.profile import Profile, Span
from nuvec.core.profiler import Event, clock
from nuvec.core.traceback import filtered
from nuvec.distributed.axis_group import AxisGroup
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.group import Group

ROUNDS = 16  # of asking a rank for its time


@filtered
def profile(group: Group | None = None) -> Profile:
    """Record what runs inside a `with` block, in the thread that opens it: equations of lazy
    evaluation, the steps of compiled programs, communications, tracing and lowering.

    `print(p)` shows where the time went; `p.events` are the events (`Event` says what they have);
    `p.save("trace.json")` writes them for chrome://tracing or ui.perfetto.dev, `p.trace()` gives
    the same as a dict.  Profiles nest: all that are open get every event.  While none is open,
    nothing is recorded and programs are the same as ever; while one is, they have the same bits.

    What is recorded in the block and evaluated after it is not in the profile: `nv.eval` inside it.

    group -- of several ranks: all of them open the profile, and when they leave it, each gets the
             events of all, by the clock of rank 0.  Leaving runs the communications that are
             pending.  A rank that leaves by an exception keeps its own events alone

    ArgumentError where `group` is no group of ranks; NuvecError for a profile opened twice, or
    inside a traced function.

    >>> import nuvec as nv
    >>> with nv.profile() as p:
    ...     x = nv.exp(nv.ones((4, 3)))
    ...     nv.eval(x)
    >>> [e.name for e in p.events]
    ['exp']
    """
    if group is None:
        return Profile()
    if not isinstance(group, Group) or isinstance(group, AxisGroup):
        raise ArgumentError(
            f"profile: group is {group!r} ({type(group).__name__}), and should be a Group of "
            "ranks that each run the block, such as nv.distributed.default_group(), or None for "
            "this rank alone"
        )
    return RanksProfile(group)


class RanksProfile(Profile):
    """A profile that every rank of a group opens."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group
        self.rank = group.rank()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            if error is None:
                flush(self.group.queue)
        finally:
            self._close()
        if error is None:
            self._gather(self.group.communicator)

    def _gather(self, communicator: Communicator) -> None:
        """Every rank's events, by the clock of rank 0, to all ranks."""
        clocks = clocks_of(communicator)
        own = [[*e] for e in self._events]
        span = self._spans[self.rank]
        text = json.dumps({"span": [span.start, span.end], "events": own})
        self._events.clear()
        for rank, found in enumerate(all_gather_texts(communicator, text)):
            ahead, uncertainty = clocks[rank]
            of_rank = json.loads(found)
            start, end = of_rank["span"]
            self._spans[rank] = Span(start - ahead, end - ahead, uncertainty)
            for fields in of_rank["events"]:
                e = Event(*fields)
                e = e._replace(start=e.start - ahead, end=e.end - ahead, rank=rank)
                self._events.append(e)


def clocks_of(communicator: Communicator) -> list[tuple[int, int]]:
    """By how many nanoseconds each rank's clock is ahead of rank 0's, and by how many that may be
    wrong.  A collective call.

    Rank 0 asks a rank for its time: it was what is answered somewhere between the question and the
    answer.  Of several rounds the shortest says most."""
    token = np.zeros((), np.int64)
    spec = [((), np.dtype(np.int64))]
    found = np.zeros((communicator.size, 2), np.int64)
    for rank in range(1, communicator.size):
        rounds = []
        for _ in range(ROUNDS):
            if communicator.rank == 0:
                asked = clock()
                communicator.send([token], rank)
                (answer,) = communicator.recv(spec, rank)
                answered = clock()
                half = -(-(answered - asked) // 2)
                rounds.append((half, int(answer) - asked - half))
            elif communicator.rank == rank:
                communicator.recv(spec, 0)
                communicator.send([np.array(clock(), np.int64)], 0)
        if rounds:
            half, ahead = min(rounds)
            found[rank] = ahead, half
    (table,) = communicator.broadcast([found], 0)
    return [(ahead, half) for ahead, half in table.tolist()]


def all_gather_texts(communicator: Communicator, text: str) -> list[str]:
    """Every rank's text, in rank order.  A collective call."""
    data = np.frombuffer(text.encode(), np.uint8)
    (sizes,) = communicator.all_gather([np.array([data.size], np.int64)])
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    (rows,) = communicator.all_gather([padded])
    every: Any = rows.reshape(communicator.size, -1)
    return [row[:n].tobytes().decode() for row, n in zip(every, sizes.tolist(), strict=True)]

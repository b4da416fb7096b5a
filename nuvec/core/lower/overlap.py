"""Communications that run while the program computes.

A communication starts as soon as its operands are ready and all recorded before it have started;
a thread of the run's own carries them out, one after the other in the order they were recorded,
which is the order their peers expect.  The program waits where it first uses a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from nuvec.core.ir import Eqn, Var

if TYPE_CHECKING:
    from nuvec.core.lower.schedule import Group

LEAST = 1 << 16  # bytes of a message from which a thread of its own pays


class Started:
    """The communications of one run of a program: `start` returns what `wait` gives the results
    for.  `end` waits for all, for none may be left behind on the wire."""

    __slots__ = ("_last", "_pool")

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def start(self, lower: Callable[..., Any], *operands: Any, **params: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "nuvec-communication")
        self._last = self._pool.submit(lower, *operands, **params)
        return self._last

    def catch_up(self) -> None:
        """Wait until nothing is under way: for a communication that the program itself runs."""
        if self._last is not None:
            self._last.result()

    def end(self) -> None:
        """Wait for what has started; its errors are raised where its results are used."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def start_early(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The same groups with each communication moved to behind what it needs, and behind the
    communication before it."""
    made: dict[Var, int] = {}  # a variable -> the place, in `order`, of the group that makes it
    order: list[Group] = []
    last = -1  # the place of the last communication
    for group in groups:
        place = len(order)
        if _communicates(group):
            place = 1 + max([last, *[made[v] for v in group.inputs if v in made]])
            last = place
            for v, k in made.items():
                if k >= place:
                    made[v] = k + 1
        order.insert(place, group)
        made.update(dict.fromkeys(group.outputs, place))
    return tuple(_independent_first(order))


def _independent_first(groups: Sequence[Group]) -> list[Group]:
    """What does not need the results of a large communication comes before what does, and so do
    the next communications."""
    order: list[Group] = []
    waiting: list[Group] = []
    late: set[Var] = set()  # these results, and what waits for them
    for group in groups:
        needs = not late.isdisjoint(group.inputs)
        if not _communicates(group):
            if needs:
                waiting.append(group)
                late.update(group.outputs)
            else:
                order.append(group)
            continue
        if needs:
            order += waiting
            waiting, late = [], set()
        order.append(group)
        if message_bytes(group.eqns[0]) >= LEAST:
            late.update(group.outputs)
    return order + waiting


def under_way(groups: Sequence[Group]) -> dict[int, int]:
    """Which groups' communications run beside the program, by their places, and the places of the
    groups before which their results are waited for (the number of groups for the end)."""
    first: dict[Var, int] = {}
    for place, group in enumerate(groups):
        for v in group.inputs:
            first.setdefault(v, place)
    found = {}
    for place, group in enumerate(groups):
        if not _communicates(group) or group.eqns[0].primitive.higher_order:
            continue
        message = message_bytes(group.eqns[0])
        needed = min([first.get(v, len(groups)) for v in group.outputs], default=len(groups))
        between = groups[place + 1 : needed]
        if message >= LEAST and any(not _communicates(g) for g in between):
            found[place] = needed
    return found


def message_bytes(eqn: Eqn) -> int:
    return sum(a.aval.nbytes for a in (*eqn.inputs, *eqn.outputs))


def _communicates(group: Group) -> bool:
    return group.eqns[0].effect

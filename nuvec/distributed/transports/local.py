"""The local transport: N ranks as threads of one process.

Ranks meet in one shared `_World`. The last rank to arrive at a collective computes every rank's
result while the others still wait, so inputs are read in place and nobody sees a half-done
result. It exists for tests, notebooks and teaching; the arithmetic is that of the mesh, bit for
bit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nuvec.core.errors import DistributedError, PeerError
from nuvec.distributed.communicator import Buffer, Communicator, Spec
from nuvec.distributed.transports._call import Call, Op, circle, mismatch
from nuvec.distributed.transports._checked import (
    DEFAULT_TIMEOUT,
    LONGEST_WAIT,
    WARN_AFTER,
    CheckedCommunicator,
    again,
)
from nuvec.distributed.transports._reduce import fold

__all__ = ["LocalCommunicator", "local_world", "unreceived"]

_log = logging.getLogger(__name__)


Message = tuple[Call, list[Buffer]]


@dataclass
class _Meeting:
    """One collective under way. Keys are ranks of the job."""

    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    arrays: dict[int, list[Buffer]] = field(default_factory=dict)
    results: dict[int, list[Buffer]] | None = None


@dataclass
class _Waiting:
    """What a blocked rank is at: a meeting, or (with none) a message of `source` in `mail`."""

    text: str
    meeting: _Meeting | None = None
    source: int = -1
    mail: deque[Message] = field(default_factory=deque)

    def needs(self, rank: int) -> bool:
        """Whether this cannot go on before `rank` does its part."""
        if self.meeting is None:
            # With mail it is no longer blocked, it just has not woken up yet.
            return rank == self.source and not self.mail
        meeting = self.meeting
        return meeting.results is None and rank in meeting.members and rank not in meeting.calls


class _World:
    """All that the ranks share. `changed` guards every field."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.changed = threading.Condition()
        self.broken: DistributedError | None = None
        self.left: set[int] = set()
        self.waiting: dict[int, _Waiting] = {}
        self.meetings: dict[tuple[int, int], _Meeting] = {}
        self.mail: defaultdict[tuple[int, int, int], deque[Message]]
        self.mail = defaultdict(deque)

    def fail(self, error: DistributedError) -> DistributedError:
        """Break the world (the first error counts); returns what this rank should raise."""
        if self.broken is None:
            self.broken = error
        self.changed.notify_all()
        return error

    def wait(self, rank: int, at: _Waiting, ready: Callable[[], bool]) -> None:
        """Block until `ready()`; raises if it can never be. Called with `changed` held."""
        started = time.monotonic()
        warned = False
        self.waiting[rank] = at
        try:
            while not ready():
                if self.broken is not None:
                    raise again(self.broken)
                self._check_possible(rank, at)
                waited = time.monotonic() - started
                missing = self._needed(rank, at)
                if waited >= self.timeout:
                    text = f"rank {rank} gave up after {waited:.0f} s (NUVEC_TIMEOUT) at {at.text}"
                    raise self.fail(PeerError(f"{text}: no word from ranks {missing}"))
                if waited >= WARN_AFTER and not warned:
                    warned = True
                    _log.warning(
                        "rank %d has waited %.0f s at %s for ranks %s (threads of this process)",
                        rank,
                        waited,
                        at.text,
                        missing,
                    )
                next_event = self.timeout if warned else min(self.timeout, WARN_AFTER)
                self.changed.wait(min(max(0.0, next_event - waited), LONGEST_WAIT))
        finally:
            del self.waiting[rank]

    def _check_possible(self, rank: int, at: _Waiting) -> None:
        """Raise if this rank waits for one that has left, or, round a circle, for itself."""
        for peer in self._needed(rank, at):
            if peer in self.left:
                raise self.fail(PeerError(f"rank {peer} has left; rank {rank} is at {at.text}"))
        path = self._circle(rank)
        sides = [(r, self.waiting[r].text) for r in path]
        if len(path) == 2 and any(self.waiting[r].meeting is not None for r in path):
            raise self.fail(mismatch(*sides))
        if path:
            raise self.fail(circle("; ".join(f"rank {r} is at {text}" for r, text in sides)))

    def _needed(self, rank: int, at: _Waiting) -> list[int]:
        return [peer for peer in range(self.size) if peer != rank and at.needs(peer)]

    def _circle(self, rank: int) -> list[int]:
        """Blocked ranks, from `rank` on, of which each needs the next and the last one `rank`;
        the shortest such circle, or [] where there is none."""
        reached_from = {rank: rank}
        reached = deque([rank])
        while reached:
            here = reached.popleft()
            for peer in self._needed(here, self.waiting[here]):
                if peer == rank:
                    path = [here]
                    while path[-1] != rank:
                        path.append(reached_from[path[-1]])
                    return path[::-1]
                if peer in self.waiting and peer not in reached_from:
                    reached_from[peer] = here
                    reached.append(peer)
        return []


class LocalCommunicator(CheckedCommunicator):
    """One rank's end of a `local_world` or of a group split from it."""

    def __init__(self, world: _World, rank: int, members: Sequence[int], group: int) -> None:
        super().__init__(rank, members, group)
        self._world = world
        self._me = self._members[rank]

    @property
    def name(self) -> str:
        return "local"

    def _check_open(self) -> None:
        if self._closed or self._me in self._world.left:
            raise DistributedError(
                f"{self!r} is closed: its ranks have ended. Communications over it, and transforms "
                "of them (nv.grad, nv.vmap, ...), go inside the function that run_local calls"
            )
        self._check_usable()

    def _check_usable(self) -> None:
        broken = self._world.broken
        if broken is not None:
            raise type(broken)(f"the group is broken since an earlier error: {broken}")

    def _text(self, call: Call) -> str:
        return call.describe(self._members, self._group)

    def _collective(self, call: Call, arrays: list[Buffer]) -> list[Buffer]:
        world, me = self._world, self._me
        key = (self._group, call.seq)
        with world.changed:
            meeting = world.meetings.setdefault(key, _Meeting(self._members))
            for peer, other in meeting.calls.items():
                if not call.agrees(other):
                    mine = self._text(call), self._text(other)
                    raise world.fail(mismatch((me, mine[0]), (peer, mine[1])))
            meeting.calls[me] = call
            meeting.arrays[me] = arrays
            last = len(meeting.calls) == self.size
            if not last:
                at = _Waiting(self._text(call), meeting)
                world.changed.notify_all()
                world.wait(me, at, lambda: meeting.results is not None)
            else:
                del world.meetings[key]
        if last:
            inputs = [meeting.arrays[member] for member in self._members]
            try:
                results = _compute(call, inputs)
            except BaseException as error:
                self.abort(f"rank {me} failed at {self._text(call)}: {error!r}")
                raise
            with world.changed:
                meeting.results = dict(zip(self._members, results, strict=True))
                world.changed.notify_all()
        assert meeting.results is not None
        return meeting.results[me]

    def _send(self, call: Call, arrays: list[Buffer]) -> None:
        world, dst = self._world, self._members[call.peer]
        copies = [array.copy() for array in arrays]
        with world.changed:
            if dst in world.left:
                raise world.fail(
                    PeerError(f"rank {dst} has left; rank {self._me} is at {self._text(call)}")
                )
            world.mail[self._group, self._me, dst].append((call, copies))
            world.changed.notify_all()

    def _recv(self, call: Call, specs: list[Spec]) -> list[Buffer]:
        world, src = self._world, self._members[call.peer]
        with world.changed:
            mail = world.mail[self._group, src, self._me]
            at = _Waiting(self._text(call), source=src, mail=mail)
            if not mail and src == self._me:
                raise world.fail(
                    DistributedError(
                        f"rank {self._me} is at {at.text}, and has sent itself no such message"
                    )
                )
            world.changed.notify_all()
            world.wait(self._me, at, lambda: bool(mail))
            sent, arrays = mail.popleft()
            if sent.seq != call.seq or sent.specs != call.specs:
                raise world.fail(mismatch((self._me, at.text), (src, self._text(sent))))
            return arrays

    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        return LocalCommunicator(self._world, rank, members, group)

    def close(self) -> None:
        self._closed = True
        if self._group == 0:
            with self._world.changed:
                self._world.left.add(self._me)
                self._world.changed.notify_all()

    def abort(self, reason: str) -> None:
        with self._world.changed:
            self._world.fail(PeerError(f"rank {self._me} (a thread of this process): {reason}"))


def _compute(call: Call, inputs: list[list[Buffer]]) -> list[list[Buffer]]:
    """The result of a collective for every rank, from the inputs of every rank."""
    size = len(inputs)
    results: list[list[Buffer]] = [[] for _ in range(size)]
    for values in zip(*inputs, strict=True):
        first = values[0]
        for rank, result in enumerate(results):
            if call.op in (Op.ALL_SUM, Op.ALL_MAX, Op.ALL_MIN):
                if rank == 0:
                    out = np.empty_like(first)
                    fold(call.op, values, out)
                else:
                    out = results[0][-1].copy()
            elif call.op is Op.SUM_SCATTER:
                blocks = [_block(value, rank, size) for value in values]
                out = np.empty_like(blocks[0])
                fold(call.op, blocks, out)
            elif call.op in (Op.ALL_GATHER, Op.SPLIT):
                out = np.concatenate([np.atleast_1d(value) for value in values])
            elif call.op is Op.ALL_TO_ALL:
                out = np.concatenate([_block(value, rank, size) for value in values])
            else:
                out = values[call.peer].copy()
            result.append(out)
    return results


def _block(array: Buffer, index: int, count: int) -> Buffer:
    length = array.shape[0] // count
    return array[index * length : (index + 1) * length]


def local_world(size: int, timeout: float = DEFAULT_TIMEOUT) -> list[Communicator]:
    """The communicators of `size` ranks, each to be used from a thread of its own.

    `timeout` is how many seconds a silent rank is waited for.
    """
    if size < 1:
        raise ValueError(f"a world needs at least one rank, not {size}")
    world = _World(size, timeout)
    return [LocalCommunicator(world, rank, range(size), 0) for rank in range(size)]


def unreceived(communicators: Sequence[Communicator]) -> list[str]:
    """The messages of a `local_world` that nobody received, in words; for when its ranks are done.

    >>> ranks = local_world(2)
    >>> ranks[0].send([np.ones(3, np.float32)], 1)
    >>> unreceived(ranks)
    ['send #0 to rank 1 float32[3] by rank 0']
    """
    first = communicators[0]
    assert isinstance(first, LocalCommunicator)
    with first._world.changed:
        return [
            f"{call._replace(peer=receiver).describe()} by rank {sender}"
            for (_, sender, receiver), mail in sorted(first._world.mail.items())
            for call, _ in mail
        ]

"""`Links`: all of one rank's links, and the waiting on them.

Whatever a rank waits for, it reads from every peer and writes to every peer that has something
pending. That is what makes an exchange free of deadlock, and a death noticed by ranks that were
not waiting for the dead one.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from nuvec.core.errors import DistributedError, MismatchError, PeerError
from nuvec.distributed.transports._call import Op, mismatch
from nuvec.distributed.transports._checked import LONGEST_WAIT, again
from nuvec.distributed.transports._circles import ASK_SECONDS, Circles, Question
from nuvec.distributed.transports._known import KnownGroups
from nuvec.distributed.transports._leaving import linger, warn_of_unreceived
from nuvec.distributed.transports._link import Link, Receive
from nuvec.distributed.transports._naming import (
    At,
    Needed,
    described,
    explained,
    name_of,
    names_of,
    unfinished,
)
from nuvec.distributed.transports.wire import MAX_REASON, Head, Kind, pack_head

_log = logging.getLogger(__name__)

T = TypeVar("T")

TELL_SECONDS = 0.25
"""How long a failing rank goes on writing so that its reason fits between two frames."""


class Links:
    """The links of the rank `rank` to its peers (by rank of the job)."""

    def __init__(
        self,
        rank: int,
        links: Mapping[Any, Link],
        timeout: float,
        warn_after: float,
    ) -> None:
        """`links` may have any keys."""
        self.rank = rank
        self.links = dict(links)
        self.timeout = timeout
        self.warn_after = warn_after
        self.lock = threading.Lock()
        """Held during a call. `abort` from another thread goes through `_wake` instead."""
        self.broken: DistributedError | None = None
        self._untold = False
        """Whether another thread has broken the group, and has left it to the call to say so."""
        self.circles = Circles(rank)
        self.groups = KnownGroups(self.circles.forget)
        """All of this rank, to describe a peer's call on another group than ours."""
        self._by_fd: dict[int, Link] = {}
        self._doorbells: dict[int, Callable[[], None]] = {}
        self._askers: dict[Link, Head] = {}
        """Who waits for this rank's next frames, as the question said, during a wait."""
        self._poller = select.poll()
        for link in links.values():
            self._register(link)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._poller.register(self._woken.fileno(), select.POLLIN)
        self._closed = self._forked = False

    def add(self, links: Mapping[Any, Link]) -> None:
        """Have further links, over which nothing has been sent or received."""
        for key, link in links.items():
            self.links[key] = link
            self._register(link)

    def watch(self, fd: int, heard: Callable[[], None]) -> None:
        """End a poll when `fd` can be read as well; `heard` then takes what is there."""
        self._doorbells[fd] = heard
        self._poller.register(fd, select.POLLIN)

    def _register(self, link: Link) -> None:
        self._by_fd[link.fd] = link
        self._poller.register(link.fd, select.POLLIN)

    # Waiting.

    def wait(self, needed: Needed, at: At, drain: Iterable[Link] = ()) -> None:
        """Return when all of `needed` have arrived and the links of `drain` are written out."""
        for _, receive in needed:
            if not receive.done:
                break
        else:
            for link in drain:
                if link.pending or link.unwritable:
                    break
            else:
                return
        started = time.monotonic()
        warned = False
        # Asked again before anything is said of it: by then the others know more.
        questions = sorted(
            [min(ASK_SECONDS, self.warn_after / 2), 0.8 * self.warn_after, 0.9 * self.timeout]
        )
        drain = tuple(drain)
        self.circles.wait()
        self._askers.clear()
        for link, _ in needed:
            link.blames = ""
        while True:
            missing = [link for link, receive in needed if not receive.done]
            for link in missing:
                self._check_possible(link, at)
            self._answer(needed, at)
            for link in drain:
                if (link.pending or link.unwritable) and link not in missing:
                    # Who leaves after its part of a collective has had all it needed of it; what
                    # is not written then is a question.
                    if link.left and at.call.op < Op.SEND:
                        continue
                    # (What a thread of its own writes may be written, and not yet accounted for.)
                    if link.wants_room() or link.unwritable:
                        self.check_present(link, at)
                    link.wake_when_written(self._nudge)
                    if link.pending or link.unwritable:
                        missing.append(link)
            if not missing:
                return
            now = time.monotonic()
            while questions and now - started >= questions[0]:
                del questions[0]
                self.circles.ask(at.call, at.group, at.text(), unfinished(needed))
            active = max(started, *(link.last_active for link in missing))
            silent = now - active
            if silent >= self.timeout:
                raise PeerError(
                    f"rank {self.rank} gave up after {silent:.0f} s (NUVEC_TIMEOUT) at "
                    f"{at.text()}: no word from {names_of(missing)}"
                )
            if not warned and silent >= self.warn_after:
                warned = True
                _log.warning(
                    "rank %d has waited %.0f s at %s for %s",
                    self.rank,
                    silent,
                    at.text(),
                    names_of(missing),
                )
            limit = self.timeout if warned else min(self.timeout, self.warn_after)
            until = (started + after - now for after in questions[:1])
            self.poll(min([limit - silent, LONGEST_WAIT, *until]))

    def _answer(self, needed: Needed, at: At) -> None:
        """Look at what other waiting ranks ask, and at what they have answered."""
        for link in self.links.values():
            while link.questions:
                head, payload = link.questions.pop(0)
                question = Question.of(link, head, payload)
                missing = unfinished(needed)
                if self.circles.answer(question, at.call, at.group, at.text(), missing):
                    self._askers[link] = head
                    self._tell_askers([link], missing)
            while link.notes:
                head, payload = link.notes.pop(0)
                missing = unfinished(needed)
                if (head.group, head.seq, head.step) == (at.group, at.call.seq, missing.get(link)):
                    blames = payload.decode(errors="replace")
                    if blames != link.blames:
                        link.blames = blames
                        self._tell_askers(self._askers, missing)

    def _tell_askers(self, askers: Iterable[Link], missing: Iterable[Link]) -> None:
        """Tell those who wait for this rank for whom it waits itself: they name that rank."""
        reason = names_of(missing).encode()[:MAX_REASON]
        for link in askers:
            asked = self._askers[link]
            head = pack_head(
                Kind.BLOCKED, 0, -1, asked.step, asked.group, asked.seq, 0, len(reason)
            )
            if reason and not (link.left or link.ended):
                link.aside([head, reason])

    def _nudge(self) -> None:
        """End a poll, from another thread."""
        try:
            self._wake.send(b".")
        except OSError:
            pass

    def poll(self, seconds: float) -> None:
        """Read and write what is possible, waiting at most `seconds` for anything to be."""
        for link in self.links.values():
            if link.wants_room() != link.watched:
                self._watch(link)
        for fd, event in self._poller.poll(max(0, int(seconds * 1000) + 1) if seconds else 0):
            link_of_fd = self._by_fd.get(fd)
            if link_of_fd is None:
                if fd in self._doorbells:
                    self._doorbells[fd]()
                    continue
                if b"!" in self._woken.recv(4096):
                    raise AbortRequested
                continue
            link = link_of_fd
            if event & ~select.POLLOUT:
                link.read()
                if link.ended:
                    self._poller.unregister(fd)
                    link.watched = link.wants_room()
                    continue
            if event & select.POLLOUT:
                link.flush()

    def _watch(self, link: Link) -> None:
        link.watched = link.wants_room()
        if not link.ended:
            interest = select.POLLIN | (select.POLLOUT if link.watched else 0)
            self._poller.modify(link.fd, interest)

    def _check_possible(self, link: Link, at: At) -> None:
        """Raise if what this rank waits for from `link` can never come.

        Collectives start by a frame from each rank to each other, and end when all have come. So a
        peer whose first frame of another collective is here, unasked for, waits for us there, and
        everything it had sent before has arrived. (It may have the number of ours, which then does
        not ask for frames: a call too long to announce in shared memory sends them.)
        """
        self.check_present(link, at)
        for (kind, group, seq, step), early in link.early.items():
            if kind == Kind.COLLECTIVE and step == 0:
                assert early.head is not None
                same = at.call.op < Op.SEND and (group, seq) == (at.group, at.call.seq)
                if same and Receive(early.key, at.call, None).check(early.head, early.specs):
                    continue
                theirs = described(early.head, early.specs, self.groups.members(group))
                raise mismatch((self.rank, at.text()), (link.peer.rank, theirs))

    def check_present(self, link: Link, at: At) -> None:
        """Raise if the peer has said goodbye."""
        if link.left:
            raise PeerError(
                f"{name_of(link)} has left; rank {self.rank} is at {at.text()} and needs it"
            )

    # Failing.

    def check_usable(self) -> None:
        """Raise if an earlier error has broken the group, or this rank has left it."""
        if self._forked:
            raise DistributedError(
                "a forked child cannot use its parent's connections: it is not a rank. Communicate "
                'in the parent, or start a process that is no fork (multiprocessing\'s "spawn")'
            )
        if self.broken is not None:
            raise type(self.broken)(f"the group is broken since an earlier error: {self.broken}")
        if self._closed:
            raise DistributedError("the group is closed, with the one that it was split from")

    def call(self, at: At, run: Callable[[], T]) -> T:
        """What `run` returns, which has the links to itself; an error in it breaks the group."""
        with self.lock:
            try:
                result = run()
            except BaseException as error:
                raise self._failed(error, at) from None
        self._tell_if_free()  # it may have ended without a look at who has asked it to
        return result

    def _failed(self, error: BaseException, at: At) -> BaseException:
        """Break the group because of `error`, tell the peers, and return what to raise."""
        if isinstance(error, AbortRequested):
            assert self.broken is not None
            cause: BaseException = again(self.broken)
        else:
            cause = explained(error, at)
        if self.broken is None:
            if isinstance(cause, DistributedError):
                self.broken = again(cause)  # without a traceback, whose frames keep arrays
            else:
                self.broken = PeerError(
                    f"rank {self.rank} was interrupted at {at.text()}: {cause!r}"
                )
        # After an interrupt at an unknown point pending data must not be trusted.
        self._tell(flush=isinstance(cause, DistributedError))
        self._untold = False
        return cause

    def abort(self, reason: str) -> None:
        """Break the group; may be called from a thread other than that of a running call."""
        if self._forked:
            return  # the parent's peers are none of the child's business
        if self.broken is None:
            self.broken = PeerError(f"rank {self.rank} ({socket.gethostname()}): {reason}")
        self._untold = True
        if not self._tell_if_free():
            try:
                self._wake.send(b"!")
            except OSError:
                pass

    def _tell_if_free(self) -> bool:
        """Say what another thread has left unsaid; whether no call is running, which will."""
        if self._untold:
            if not self.lock.acquire(blocking=False):
                return False
            try:
                self._tell(flush=True)
            finally:
                self._untold = False
                self.lock.release()
        return True

    def _tell(self, flush: bool) -> None:
        """Give every peer the reason. Where that is impossible, end the connection."""
        links = [link for link in self.links.values() if not (link.left or link.ended)]
        deadline = time.monotonic() + TELL_SECONDS
        while flush and any(link.pending for link in links) and time.monotonic() < deadline:
            poller = select.poll()
            for link in links:
                if not link.ended:
                    poller.register(
                        link.fd, select.POLLIN | (select.POLLOUT if link.wants_room() else 0)
                    )
            for fd, event in poller.poll(50):
                link = self._by_fd[fd]
                if event & ~select.POLLOUT:
                    link.discard()
                if event & select.POLLOUT:
                    link.flush()
            links = [link for link in links if not link.ended]
        frame = self._abort_frame()
        for link in links:
            if link.writing or link.pending:
                link.cut()
            else:
                link.push(frame)

    def _abort_frame(self) -> list[bytes]:
        """What tells a peer why the group is broken."""
        reason = str(self.broken).encode()[:MAX_REASON]
        is_mismatch = isinstance(self.broken, MismatchError)
        return [pack_head(Kind.ABORT, 0, int(is_mismatch), 0, 0, 0, 0, len(reason)), reason]

    # Leaving.

    def close(self) -> None:
        """Say goodbye and close every connection. Harmless when done twice."""
        if self._forked:  # where the lock may be held by a thread that there is not
            return
        with self.lock:
            if self._closed:
                return
            self._closed = True
            if self.broken is None:
                warn_of_unreceived(self.rank, self.links.values())
            self._leave()
            self._woken.close()
            self._wake.close()

    def _leave(self) -> None:
        goodbye = pack_head(Kind.BYE, 0, 0, 0, 0, 0, 0, 0)
        for link in self.links.values():
            if self.broken is None and not link.ended:
                link.push([goodbye])
        linger(self.links.values())
        for link in self.links.values():
            link.close()

    def close_in_child(self) -> None:
        """After a fork: drop the child's copies, so that the parent's death is still noticed."""
        for link in self.links.values():
            link.sock.close()
        self._woken.close()
        self._wake.close()
        self._forked = True


class AbortRequested(Exception):
    """Another thread has called `abort`."""

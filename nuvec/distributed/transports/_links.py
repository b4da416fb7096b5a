"""`Links`: all of one rank's links, and the waiting on them.

Whatever a rank waits for, it reads from every peer and writes to every peer that has something
pending. That is what makes an exchange free of deadlock, and a death noticed by ranks that were
not waiting for the dead one.
"""

from __future__ import annotations

import fcntl
import logging
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nuvec.core.errors import DistributedError, MismatchError, PeerError
from nuvec.distributed.transports._call import Call, Op, mismatch
from nuvec.distributed.transports._circles import ASK_SECONDS, Circles, Question
from nuvec.distributed.transports._link import Aborted, Link, Lost, Receive, Unexpected
from nuvec.distributed.transports.wire import MAX_REASON, Head, Kind, pack_head

_log = logging.getLogger(__name__)

Needed = Sequence[tuple[Link, Receive]]

TELL_SECONDS = 0.25
"""How long a failing rank goes on writing so that its reason fits between two frames."""

LINGER_SECONDS = 2.0
"""How long a leaving rank waits for TCP to hand over its last bytes."""


class At(NamedTuple):
    """The call a rank is in, for errors; described only when there is one."""

    rank: int
    call: Call
    group: int
    members: tuple[int, ...]

    def text(self) -> str:
        return self.call.describe(self.members, self.group)


class Links:
    """The links of the rank `rank` to its peers (by rank of the job)."""

    def __init__(
        self, rank: int, links: dict[int, Link], timeout: float, warn_after: float
    ) -> None:
        self.rank = rank
        self.links = links
        self.timeout = timeout
        self.warn_after = warn_after
        self.lock = threading.Lock()
        """Held during a call. `abort` from another thread goes through `_wake` instead."""
        self.broken: DistributedError | None = None
        self.circles = Circles(rank)
        self.members: dict[int, tuple[int, ...]] = {}
        """The members of each group, to describe a peer's call on another group than ours."""
        self._by_fd = {link.fd: link for link in links.values()}
        self._poller = select.poll()
        for fd in self._by_fd:
            self._poller.register(fd, select.POLLIN)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._poller.register(self._woken.fileno(), select.POLLIN)
        self._closed = False

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
        warned = asked = False
        drain = tuple(drain)
        self.circles.wait()
        while True:
            missing = [link for link, receive in needed if not receive.done]
            for link in missing:
                self._check_possible(link, at)
            self._answer(missing, at)
            for link in drain:
                if (link.pending or link.unwritable) and link not in missing:
                    # Who leaves after its part of a collective has had all it needed of it; what
                    # is not written then is a question.
                    if link.left and at.call.op < Op.SEND:
                        continue
                    self.check_present(link, at)
                    missing.append(link)
            if not missing:
                return
            now = time.monotonic()
            if not asked and now - started >= ASK_SECONDS:
                asked = True
                self.circles.ask(at.call, at.group, at.text(), self._unfinished(needed))
            active = max(started, *(link.last_active for link in missing))
            silent = now - active
            if silent >= self.timeout:
                raise PeerError(
                    f"rank {self.rank} gave up after {silent:.0f} s (NUVEC_TIMEOUT) at "
                    f"{at.text()}: no word from {_names(missing)}"
                )
            if not warned and silent >= self.warn_after:
                warned = True
                _log.warning(
                    "rank %d has waited %.0f s at %s for %s",
                    self.rank,
                    silent,
                    at.text(),
                    _names(missing),
                )
            limit = self.timeout if warned else min(self.timeout, self.warn_after)
            self.poll(limit - silent if asked else min(limit - silent, started + ASK_SECONDS - now))

    def _unfinished(self, needed: Needed) -> set[Link]:
        return {link for link, receive in needed if not receive.done}

    def _answer(self, missing: Iterable[Link], at: At) -> None:
        """Look at what other waiting ranks ask."""
        for link in self.links.values():
            while link.questions:
                head, payload = link.questions.pop(0)
                question = Question.of(link, head, payload)
                self.circles.answer(question, at.call, at.group, at.text(), set(missing))

    def poll(self, seconds: float) -> None:
        """Read and write what is possible, waiting at most `seconds` for anything to be."""
        for link in self.links.values():
            if bool(link.pending) != link.watched:
                self._watch(link)
        for fd, event in self._poller.poll(max(0, int(seconds * 1000) + 1) if seconds else 0):
            link_of_fd = self._by_fd.get(fd)
            if link_of_fd is None:
                raise _AbortRequested
            link = link_of_fd
            if event & ~select.POLLOUT:
                link.read()
                if link.ended:
                    self._poller.unregister(fd)
                    link.watched = bool(link.pending)
                    continue
            if event & select.POLLOUT:
                link.flush()

    def _watch(self, link: Link) -> None:
        link.watched = bool(link.pending)
        if not link.ended:
            interest = select.POLLIN | (select.POLLOUT if link.watched else 0)
            self._poller.modify(link.fd, interest)

    def _check_possible(self, link: Link, at: At) -> None:
        """Raise if what this rank waits for from `link` can never come.

        Collectives start by a frame from each rank to each other, and end when all have come. So a
        peer whose first frame of another collective is here, unasked for, waits for us there, and
        everything it had sent before has arrived.
        """
        self.check_present(link, at)
        for kind, group, seq, step in link.early:
            if kind == Kind.COLLECTIVE and step == 0:
                if at.call.op < Op.SEND and (group, seq) == (at.group, at.call.seq):
                    continue
                early = link.early[kind, group, seq, step]
                assert early.head is not None
                theirs = _described(early.head, early.specs, self.members.get(group))
                raise mismatch((self.rank, at.text()), (link.peer.rank, theirs))

    def check_present(self, link: Link, at: At) -> None:
        """Raise if the peer has said goodbye."""
        if link.left:
            raise PeerError(
                f"{_name(link)} has left; rank {self.rank} is at {at.text()} and needs it"
            )

    # Failing.

    def check_usable(self) -> None:
        """Raise if an earlier error has broken the group."""
        if self.broken is not None:
            raise type(self.broken)(f"the group is broken since an earlier error: {self.broken}")

    def failed(self, error: BaseException, at: At) -> BaseException:
        """Break the group because of `error`, tell the peers, and return what to raise."""
        cause = self._explained(error, at)
        if self.broken is None:
            if isinstance(cause, DistributedError):
                self.broken = cause
            else:
                self.broken = PeerError(
                    f"rank {self.rank} was interrupted at {at.text()}: {cause!r}"
                )
        # After an interrupt at an unknown point pending data must not be trusted.
        self._tell(flush=isinstance(cause, DistributedError))
        return cause

    def _explained(self, error: BaseException, at: At) -> BaseException:
        if isinstance(error, Unexpected):
            theirs = _described(error.head, error.specs, at.members)
            return mismatch((self.rank, at.text()), (error.link.peer.rank, theirs))
        if isinstance(error, Aborted):
            if error.is_mismatch:
                return MismatchError(error.reason)
            return PeerError(f"{error.reason}; rank {self.rank} was at {at.text()}")
        if isinstance(error, Lost):
            return PeerError(
                f"{_name(error.link)} died or closed its connection ({error.cause}) while rank "
                f"{self.rank} was at {at.text()}"
            )
        if isinstance(error, _AbortRequested):
            assert self.broken is not None
            return type(self.broken)(*self.broken.args)
        return error

    def abort(self, reason: str) -> None:
        """Break the group; may be called from a thread other than that of a running call."""
        if self.broken is None:
            self.broken = PeerError(f"rank {self.rank} ({socket.gethostname()}): {reason}")
        if self.lock.acquire(blocking=False):
            try:
                self._tell(flush=True)
            finally:
                self.lock.release()
        else:
            try:
                self._wake.send(b"!")
            except OSError:
                pass

    def _tell(self, flush: bool) -> None:
        """Give every peer the reason. Where that is impossible, end the connection."""
        links = [link for link in self.links.values() if not (link.left or link.ended)]
        deadline = time.monotonic() + TELL_SECONDS
        while flush and any(link.pending for link in links) and time.monotonic() < deadline:
            poller = select.poll()
            for link in links:
                if not link.ended:
                    poller.register(
                        link.fd, select.POLLIN | (select.POLLOUT if link.pending else 0)
                    )
            for fd, event in poller.poll(50):
                link = self._by_fd[fd]
                if event & ~select.POLLOUT:
                    link.discard()
                if event & select.POLLOUT:
                    link.flush()
            links = [link for link in links if not link.ended]
        reason = str(self.broken).encode()[:MAX_REASON]
        is_mismatch = isinstance(self.broken, MismatchError)
        head = pack_head(Kind.ABORT, 0, int(is_mismatch), 0, 0, 0, 0, len(reason))
        for link in links:
            if link.writing or link.pending:
                link.pending.clear()
                _shutdown(link.sock, socket.SHUT_RDWR)
            else:
                link.push([head, reason])

    # Leaving.

    def close(self) -> None:
        """Say goodbye and close every connection. Harmless when done twice."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self._warn_of_unreceived()
            goodbye = pack_head(Kind.BYE, 0, 0, 0, 0, 0, 0, 0)
            for link in self.links.values():
                if self.broken is None and not link.ended:
                    link.push([goodbye])
            self._linger()
            for link in self.links.values():
                link.sock.close()
            self._woken.close()
            self._wake.close()

    def _warn_of_unreceived(self) -> None:
        for link in self.links.values():
            count = sum(kind == Kind.POINT_TO_POINT for kind, *_ in link.early)
            if count and self.broken is None:
                _log.warning(
                    "rank %d leaves without having received %d messages of %s",
                    self.rank,
                    count,
                    _name(link),
                )

    def _linger(self) -> None:
        """Let the last bytes reach the peers.

        Closing a TCP socket with unread input resets the connection and drops what is still on
        its way out, so input is read and thrown away until the output has been acknowledged.
        """
        deadline = time.monotonic() + LINGER_SECONDS
        links = list(self.links.values())
        while True:
            for link in links:
                if link.pending:
                    link.flush()
                if not link.pending:
                    _shutdown(link.sock, socket.SHUT_WR)
                if not link.ended:
                    link.discard()
            links = [link for link in links if link.pending or _unsent(link)]
            if not links or time.monotonic() > deadline:
                return
            time.sleep(0.002)

    def close_in_child(self) -> None:
        """After a fork: drop the child's copies, so that the parent's death is still noticed."""
        for link in self.links.values():
            link.sock.close()
        self._woken.close()
        self._wake.close()
        self.broken = DistributedError("a forked child cannot use its parent's connections")


class _AbortRequested(Exception):
    """Another thread has called `abort`."""


def _shutdown(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:
        pass


def _unsent(link: Link) -> bool:
    """Whether TCP has bytes that the peer's kernel has not acknowledged."""
    if link.sock.family == socket.AF_UNIX or link.ended:
        return False
    try:
        raw = fcntl.ioctl(link.fd, termios.TIOCOUTQ, b"\0" * 4)
    except OSError:
        return False
    return bool(struct.unpack("i", raw)[0])


def _name(link: Link) -> str:
    return f"rank {link.peer.rank} (host {link.peer.host}, pid {link.peer.pid})"


def _names(links: Iterable[Link]) -> str:
    return ", ".join(_name(link) for link in links)


def _described(head: Head, specs: bytes, members: tuple[int, ...] | None) -> str:
    return Call(Op(head.op), head.seq, head.peer, specs).describe(members, head.group)

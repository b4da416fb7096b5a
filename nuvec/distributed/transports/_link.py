"""`Link`: one authenticated socket to one peer, non-blocking in both directions.

A link never waits. `read` takes what has arrived and files it; `push` writes what the kernel takes
and keeps the rest. Because reading never depends on writing, two ranks that send each other more
than the kernel buffers hold both make progress.

Frames find their place by key (kind, group, call, step). One that arrives before it is asked for
is kept in `early`; one that is asked for first goes straight into the buffers of its `Receive`.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core.errors import DistributedError
from nuvec.distributed.transports._call import Call
from nuvec.distributed.transports._specs import as_bytes
from nuvec.distributed.transports.wire import HEADER, Head, Kind, Peer, unpack_head

Key = tuple[int, int, int, int]

_BUFFER = 1 << 16


class Receive:
    """One frame that is expected, or has come early."""

    __slots__ = ("call", "done", "head", "heir", "key", "payload", "specs", "targets")

    def __init__(self, key: Key, call: Call | None, targets: list[memoryview[Any]] | None) -> None:
        """With `targets` the payload fills them in turn; without, it ends up in `payload`."""
        self.key = key
        self.call = call
        self.targets = targets
        self.payload: bytes | memoryview[Any] = b""
        self.done = False
        self.head: Head | None = None
        self.specs = b""
        self.heir: Receive | None = None
        """Who asked for this frame while it was arriving, and gets it when it is complete."""

    def check(self, head: Head, specs: bytes) -> bool:
        """Whether the frame is what was expected. Only step 0 carries the whole call."""
        call = self.call
        if call is None:
            return True
        if head.op != call.op and head.kind == Kind.COLLECTIVE:
            return False
        if head.step == 0 and (
            specs != call.specs or (head.kind == Kind.COLLECTIVE and head.peer != call.peer)
        ):
            return False
        return self.targets is None or head.payload_length == sum(map(len, self.targets))


class Unexpected(Exception):
    """A frame that differs from what this rank expects of the peer."""

    def __init__(self, link: Link, receive: Receive, head: Head, specs: bytes) -> None:
        super().__init__()
        self.link, self.receive, self.head, self.specs = link, receive, head, specs


class Aborted(Exception):
    """The peer has broken the group and says why."""

    def __init__(self, link: Link, reason: str, is_mismatch: bool) -> None:
        super().__init__(reason)
        self.link, self.reason, self.is_mismatch = link, reason, is_mismatch


class Lost(Exception):
    """The connection ended without a goodbye."""

    def __init__(self, link: Link, cause: str) -> None:
        super().__init__(cause)
        self.link, self.cause = link, cause


class Link:
    """The connection to one peer. Not thread-safe: its owner serialises the calls."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self.fd = sock.fileno()
        self.left = False
        """The peer has said goodbye."""
        self.ended = False
        """Nothing more will arrive."""
        self.last_active = time.monotonic()
        self.watched = False
        """Whether the owner waits for room to write."""
        self.early: dict[Key, Receive] = {}
        self.posted: dict[Key, Receive] = {}
        self.questions: list[tuple[Head, bytes]] = []
        """WAITING frames that nobody has looked at."""
        self.notes: list[tuple[Head, bytes]] = []
        """BLOCKED frames likewise."""
        self.blames = ""
        """Whom the peer waits for itself, where it has said so."""
        self.awaited = False
        """Whether its owner waits for a large frame to arrive here."""
        self.pending: deque[memoryview[Any]] = deque()
        """What the kernel has not yet taken of the frames sent."""
        self.writing = False
        """Between a write and its accounting: an interrupt there leaves the stream unusable."""
        self.unwritable = False
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._current: Receive | None = None
        self._targets: deque[memoryview[Any]] = deque()

    # Sending.

    def push(self, parts: Sequence[bytes | memoryview[Any]]) -> None:
        """Send a frame given in parts: what the kernel takes now, the rest when it can."""
        if self.pending:
            self.pending.extend(memoryview(part) for part in parts if len(part))
            return
        # What is pending is known before the first byte goes out: an interrupt in between must
        # find either nothing sent or the whole frame pending.
        self.pending.extend(memoryview(part) for part in parts if len(part))
        self.flush()

    def aside(self, parts: Sequence[bytes | memoryview[Any]]) -> None:
        """Send a question, or the answer to one: it is no sign of progress."""
        active = self.last_active
        self.push(parts)
        self.last_active = active

    def wants_room(self) -> bool:
        """Whether the owner has to call `flush` once there is room to write."""
        return bool(self.pending)

    def wake_when_written(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when nothing is pending any more, unless that is up to the owner."""

    def unacknowledged(self) -> bool:
        """Whether TCP has bytes that the peer's kernel has not acknowledged."""
        if self.sock.family == socket.AF_UNIX or self.ended:
            return False
        try:
            raw = fcntl.ioctl(self.fd, termios.TIOCOUTQ, b"\0" * 4)
        except OSError:
            return False
        return bool(struct.unpack("i", raw)[0])

    def shutdown(self, how: int) -> None:
        """End the connection in one direction or both, if it has not ended."""
        try:
            self.sock.shutdown(how)
        except OSError:
            pass

    def cut(self) -> None:
        """End the connection without what is pending: the peer could not tell where that stops."""
        self.pending.clear()
        self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def flush(self) -> None:
        """Write as much of what is pending as the kernel takes."""
        pending = self.pending
        while pending:
            batch = list(pending)[:64] if len(pending) > 64 else pending
            self.writing = True
            try:
                if len(pending) == 1:
                    sent = self.sock.send(pending[0], socket.MSG_DONTWAIT)
                else:
                    sent = self.sock.sendmsg(batch, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                self.writing = False
                return
            except OSError:
                # Not raised here: what the peer said before it went (its reason, a goodbye) may
                # still be waiting to be read, and reading ends in an error anyhow.
                self.writing = False
                self.unwritable = True
                pending.clear()
                return
            self.last_active = time.monotonic()
            while sent:
                first = pending[0]
                if sent < len(first):
                    pending[0] = first[sent:]
                    break
                sent -= len(first)
                pending.popleft()
            self.writing = False

    def discard(self) -> None:
        """Throw away what has arrived: of a broken group nothing is wanted any more."""
        try:
            self.ended = (
                self.ended or self.sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT) == 0
            )
        except BlockingIOError:
            return
        except OSError:
            self.ended = True

    # Receiving.

    def post(self, key: Key, call: Call | None, targets: list[memoryview[Any]] | None) -> Receive:
        """Ask for a frame. It may be done at once, if it came early."""
        receive = Receive(key, call, targets)
        early = self.early.pop(key, None)
        if early is None:
            self.posted[key] = receive
            return receive
        assert early.head is not None
        if not receive.check(early.head, early.specs):
            raise Unexpected(self, receive, early.head, early.specs)
        if early.done:
            _inherit(receive, early)
        else:
            early.heir = receive
        return receive

    def read(self) -> None:
        """Take in what has arrived (one read of the socket)."""
        direct = self._current is not None and self._start == self._end and self._targets
        try:
            if direct:
                count = self._receive(self._targets[0])
            else:
                self._make_room()
                count = self.sock.recv_into(self._room(), 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.ended = True
            if self.left:
                return
            raise Lost(self, error.strerror or str(error)) from None
        if count == 0:
            self.ended = True
            if not self.left:
                raise Lost(self, "the connection was closed")
            return
        if direct:
            self.last_active = time.monotonic()
            self._advance(count)
            if not self._targets:
                self._complete()
        else:
            self._end += count
            self._parse()

    def _receive(self, target: memoryview[Any]) -> int:
        """Receive some of the payload that comes next; how much."""
        return self.sock.recv_into(target, 0, socket.MSG_DONTWAIT)

    def _room(self) -> memoryview[Any]:
        """Where to read what is not known yet."""
        return self._view[self._end :]

    def _make_room(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            left = self._end - self._start
            self._view[:left] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, left

    def _parse(self) -> None:
        while True:
            if self._current is not None:
                self._fill_from_buffer()
                if self._targets:
                    return
                self._complete()
            available = self._end - self._start
            if available < HEADER.size:
                return
            head = unpack_head(self._buffer, self._start)
            needed = HEADER.size + head.specs_length
            if available < needed:
                if needed > len(self._buffer):
                    self._grow(needed)
                return
            at = self._start + HEADER.size
            self._start += needed
            self._begin(head, bytes(self._view[at : self._start]))

    def _grow(self, needed: int) -> None:
        old = bytes(self._view[self._start : self._end])
        self._buffer = bytearray(needed + _BUFFER)
        self._view = memoryview(self._buffer)
        self._view[: len(old)] = old
        self._start, self._end = 0, len(old)

    def _begin(self, head: Head, specs: bytes) -> None:
        """A frame's header is here: find out where its payload goes."""
        if head.kind == Kind.BYE:
            self.left = True
            return
        # Questions and answers to them are no sign of progress.
        if head.kind in (Kind.COLLECTIVE, Kind.POINT_TO_POINT):
            self.last_active = time.monotonic()
        key = (head.kind, head.group, head.seq, head.step)
        receive = self.posted.pop(key, None)
        if receive is None:
            if key in self.early:
                raise DistributedError(f"malformed stream: frame {head} came twice")
            receive = Receive(key, None, None)
            if head.kind in (Kind.COLLECTIVE, Kind.POINT_TO_POINT):
                self.early[key] = receive
        elif not receive.check(head, specs):
            raise Unexpected(self, receive, head, specs)
        receive.head, receive.specs = head, specs
        if receive.targets is None:
            if head.payload_length <= self._end - self._start:
                end = self._start + head.payload_length
                receive.payload = bytes(self._view[self._start : end])
                self._start = end
                self._targets.clear()
            else:
                # np.empty and not bytearray: it does not clear what is about to be overwritten.
                receive.payload = as_bytes(np.empty(head.payload_length, np.uint8))
                self._targets.append(receive.payload)
        else:
            self._targets.extend(target for target in receive.targets if len(target))
        self._current = receive

    def _fill_from_buffer(self) -> None:
        while self._targets and self._start < self._end:
            target = self._targets[0]
            count = min(len(target), self._end - self._start)
            target[:count] = self._view[self._start : self._start + count]
            self._start += count
            self._advance(count)

    def _advance(self, count: int) -> None:
        target = self._targets[0]
        if count == len(target):
            self._targets.popleft()
        else:
            self._targets[0] = target[count:]

    def _complete(self) -> None:
        receive = self._current
        assert receive is not None and receive.head is not None
        self._current = None
        receive.done = True
        if receive.head.kind == Kind.ABORT:
            reason = bytes(receive.payload).decode(errors="replace")
            raise Aborted(self, reason, receive.head.peer == 1)
        if receive.head.kind == Kind.WAITING:
            self.questions.append((receive.head, bytes(receive.payload)))
        if receive.head.kind == Kind.BLOCKED:
            self.notes.append((receive.head, bytes(receive.payload)))
        if receive.heir is not None:
            _inherit(receive.heir, receive)


def _inherit(receive: Receive, early: Receive) -> None:
    receive.head, receive.specs, receive.done = early.head, early.specs, True
    if receive.targets is None:
        receive.payload = early.payload
        return
    source = memoryview(early.payload)
    for target in receive.targets:
        target[:] = source[: len(target)]
        source = source[len(target) :]

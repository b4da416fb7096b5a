"""Links over a library that carries whole messages, such as MPI or gloo, rather than bytes.

A frame whose payload is short is one message. A longer one is an announcement, which is the frame
without its payload, and then the payload on a channel of its own: by then the receiver knows where
it goes, and takes it there without a copy. So a frame costs what a message of the library costs,
and what ranks do to each other (frames that find their place, mismatches, circles, goodbyes) is
what they do over sockets.

What the library promises: the messages of one rank to another arrive in order on each channel.
"""

from __future__ import annotations

import socket
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nuvec.distributed.transports._forks import close_after_fork
from nuvec.distributed.transports._leaving import LINGER_SECONDS
from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports._links import TELL_SECONDS, AbortRequested, Links
from nuvec.distributed.transports._specs import as_bytes
from nuvec.distributed.transports.wire import (
    HEADER,
    Kind,
    Peer,
    pack_head,
    unpack_head,
)

__all__ = ["CHUNK", "SHORT", "MessageLink", "MessageLinks"]

SHORT = 4000
"""Up to this many bytes a frame is one message: what MPI libraries send without asking first."""

CHUNK = 1 << 28
"""The longest message a payload is cut into: MPI counts in 32 bits, and silence is told apart from
work by the chunks that arrive."""


class MessageLink(Link):
    """The connection to one peer. Of `Link` it has the filing of frames, not the socket."""

    def __init__(self, peer: Peer) -> None:
        with socket.socket(socket.AF_UNIX) as never_connected:
            super().__init__(never_connected, peer)
        self.pending: deque[Any] = deque()
        """What the library has not yet sent, of which the caller's memory must not change."""
        self.payloads_sent = self.payloads_taken = 0
        """How many payloads the library was given to send, and has brought."""
        self._backlog: deque[bytearray] = deque()
        """Frames that came while the payload of an earlier one was still on its way."""
        self._taken: memoryview[Any] | None = None
        """Where the payload that is on its way is put, if not where it belongs."""

    # What a library provides.

    @abstractmethod
    def _send(self, message: bytes) -> None:
        """Start to send a frame or an announcement, of which nobody else has the memory."""

    @abstractmethod
    def _send_payload(self, payload: memoryview[Any]) -> None:
        """Start to send what was announced, and keep it in `pending` until it is sent."""

    @abstractmethod
    def _take_payload(self, target: memoryview[Any]) -> None:
        """Start to receive what was announced; `payload_taken` is called when it is there."""

    @abstractmethod
    def _settle(self, count: int) -> None:
        """The peer, which leaves, has taken the first `count` payloads: they are not pending."""

    # Sending.

    def push(self, parts: Sequence[bytes | memoryview[Any]]) -> None:
        """Send a frame given in parts, of which the first or the first two describe it."""
        if self.ended or self.unwritable:
            return  # reading has said so, or will
        if sum(map(len, parts)) <= SHORT:
            self._send(b"".join(parts))
            return
        first, rest = bytes(parts[0]), parts[1:]
        size = HEADER.size + unpack_head(bytearray(first), 0).specs_length
        if len(first) < size:  # given as header, specs, payload
            first, rest = b"".join(parts[:2]), parts[2:]
        announcement = first[:size]
        payload = [part for part in (first[size:], *rest) if len(part)]
        self._send(announcement)
        if payload:
            # One copy is cheaper than a message for each of many small arrays.
            whole = payload[0] if len(payload) == 1 else b"".join(payload)
            self._send_payload(memoryview(whole))
            self.payloads_sent += 1

    # Receiving.

    def arrived(self, message: bytearray) -> None:
        """File a frame, or the announcement of one."""
        if self._current is None or unpack_head(message, 0).kind == Kind.ABORT:
            # Whoever aborts may never send the payload that is on its way.
            self._file(message)
        else:
            self._backlog.append(message)

    def payload_taken(self) -> None:
        """The payload that was announced is there."""
        self.last_active = time.monotonic()
        if self._taken is not None:
            source = self._taken
            for target in self._targets:
                target[:] = source[: len(target)]
                source = source[len(target) :]
            self._taken = None
        self._targets.clear()
        self.payloads_taken += 1
        self._complete()
        while self._backlog and self._current is None:
            self._file(self._backlog.popleft())

    def _file(self, message: bytearray) -> None:
        self._current = None
        self._targets.clear()
        self._buffer, self._view = message, memoryview(message)
        self._start, self._end = 0, len(message)
        head = unpack_head(message, 0)
        self._parse()
        if head.kind == Kind.BYE:
            # It may arrive before the library says that the last payload has.
            self._settle(head.seq)
        if self._current is None:
            return
        if len(self._targets) == 1:
            self._take_payload(self._targets[0])
        else:
            self._taken = as_bytes(np.empty(head.payload_length, np.uint8))
            self._take_payload(self._taken)

    def close(self) -> None:
        """Nothing: the library's connections are not this link's to close."""

    def chunks(self, payload: memoryview[Any]) -> list[memoryview[Any]]:
        """The messages that a payload is sent and received as."""
        return [payload[low : low + CHUNK] for low in range(0, len(payload), CHUNK)]


class MessageLinks(Links):
    """All of one rank's links over a library."""

    def __init__(
        self, rank: int, links: Mapping[int, MessageLink], timeout: float, warn_after: float
    ) -> None:
        super().__init__(rank, {}, timeout, warn_after)
        self.links = dict(links)
        self._message_links = links
        close_after_fork(self)

    # What a library provides.

    @abstractmethod
    def _progress(self, seconds: float) -> bool:
        """Take in what has arrived, waiting at most `seconds` for something; whether it has."""

    # What `Links` does with sockets.

    def poll(self, seconds: float) -> None:
        """Take in what has arrived, waiting at most `seconds` for something to."""
        if not self._progress(seconds) and self._poller.poll(0) and b"!" in self._woken.recv(4096):
            raise AbortRequested

    def _unsent(self) -> bool:
        return any(link.pending and not (link.ended or link.left) for link in self.links.values())

    def _drain(self, seconds: float) -> None:
        """Let the library send what it was given."""
        deadline = time.monotonic() + seconds
        while self._unsent() and time.monotonic() < deadline:
            try:
                self._progress(0.01)
            except Exception:  # of a broken group, or one that is being left, nothing is wanted
                continue

    def _tell(self, flush: bool) -> None:
        frame = self._abort_frame()
        for link in self.links.values():
            if not link.left:
                link.push(frame)
        self._drain(TELL_SECONDS)

    def _leave(self) -> None:
        if self.broken is None:
            for link in self._message_links.values():
                taken = link.payloads_taken
                link.push([pack_head(Kind.BYE, 0, 0, 0, 0, taken, 0, 0)])
        self._drain(LINGER_SECONDS)

    def close_in_child(self) -> None:
        self._forked = True

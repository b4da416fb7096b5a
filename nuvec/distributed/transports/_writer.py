"""`WrittenLink`: a link whose large frames are written by a thread of its own.

The kernel copies a large frame in one call, without Python's lock, while the rank's own thread
receives and adds. The other direction is read likewise: a payload that is waited for is received
in one call. Small frames go the way of every link.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports.wire import HEADER, Peer

__all__ = ["WrittenLink"]

LARGE = 1 << 16
"""From this many bytes on, a frame is worth waking another thread."""

PATIENCE_SECONDS = 0.05
"""How long a payload is received before the rank looks at its other links."""

_CACHED = 1 << 16
"""The size of socket buffers on one host: what goes through them should stay in cache."""


class WrittenLink(Link):
    """A link with a writer. Its socket blocks, and every other operation on it says not to."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        super().__init__(sock, peer)
        sock.setblocking(True)
        seconds = struct.pack("ll", 0, int(PATIENCE_SECONDS * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self._state = threading.Condition()
        """Guards `pending` while the writer is at work."""
        self._busy = False
        """Whether what is pending is the writer's."""
        self._closing = False
        self._wake: Callable[[], None] | None = None
        self._writer: threading.Thread | None = None

    def push(self, parts: Sequence[bytes | memoryview[Any]]) -> None:
        if not self._busy and sum(map(len, parts)) < LARGE:
            super().push(parts)
            return
        if self._writer is None:
            self._writer = threading.Thread(
                target=self._write, name=f"nuvec writer to rank {self.peer.rank}", daemon=True
            )
            self._writer.start()
        with self._state:
            if self.unwritable or self._closing:
                return
            self.pending.extend(memoryview(part) for part in parts if len(part))
            self._busy = True
            self._state.notify()

    def flush(self) -> None:
        if not self._busy:
            super().flush()

    def wants_room(self) -> bool:
        return not self._busy and bool(self.pending)

    def wake_when_written(self, wake: Callable[[], None]) -> None:
        with self._state:
            self._wake = wake if self._busy else None

    def cut(self) -> None:
        with self._state:
            super().cut()

    def close(self) -> None:
        with self._state:
            self._closing = True
            self._state.notify()
        if self._writer is not None:
            if self._busy:  # its last call ends with the connection
                try:
                    self.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._writer.join(1.0)
        super().close()

    def read(self) -> None:
        super().read()
        if self.awaited and self._targets and not self.ended:
            super().read()

    def _room(self) -> memoryview[Any]:
        # Of what comes before a large payload no more than the header: the payload should go where
        # it belongs at once.
        room = super()._room()
        return room[: HEADER.size] if self.awaited and self._start == self._end else room

    def _receive(self, target: memoryview[Any]) -> int:
        if not self.awaited or len(target) < LARGE:
            return super()._receive(target)
        # All of it, or what comes within the socket's timeout.
        return self.sock.recv_into(target, 0, socket.MSG_WAITALL)

    # The writer's thread.

    def _write(self) -> None:
        while True:
            with self._state:
                while not (self._busy or self._closing):
                    self._state.wait()
                if self._closing and not self._busy:
                    return
                # A few at a time, so that what follows them is freed soon.
                batch = [self.pending[i] for i in range(min(len(self.pending), 4))]
            try:
                sent = self.sock.sendmsg(batch)
            except OSError:
                sent = -1
            del batch
            with self._state:
                self._account(sent)
                wake = None
                if not self._busy:
                    wake, self._wake = self._wake, None
            if wake is not None:
                wake()

    def _account(self, sent: int) -> None:
        """Note that so many bytes have gone, or (if negative) that no more will."""
        if sent < 0:
            self.unwritable = True  # reading ends in an error anyhow, see `Link.flush`
            self.pending.clear()
        else:
            self.last_active = time.monotonic()
        while sent > 0 and self.pending:
            first = self.pending[0]
            if sent < len(first):
                self.pending[0] = first[sent:]
                break
            sent -= len(first)
            self.pending.popleft()
        self._busy = bool(self.pending)


def fit_buffers(sock: socket.socket) -> None:
    """Size a socket's buffers for a peer on the same host; TCP sizes others best by itself."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _CACHED)

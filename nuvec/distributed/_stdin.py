"""The launcher's input, given to every rank, and writing to pipes without waiting for them."""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Sequence
from typing import IO, Protocol

INPUT_LIMIT = 1 << 20
"""Unread input a rank may have before the launcher stops reading its own."""


class Taker(Protocol):
    """Somebody who is given the input."""

    @property
    def unread(self) -> int:
        """How many bytes it was offered and has not taken."""

    def offer(self, data: bytes) -> None:
        """Take this as soon as there is room."""

    def end(self) -> None:
        """There is no more after what was offered."""


class Writer:
    """Writes to a pipe what it is offered, as the pipe takes it. Who reads no more is let go."""

    def __init__(self, pipe: IO[bytes], selector: selectors.BaseSelector) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._selector = selector
        self._data = b""
        self._ending = False
        self.closed = False

    @property
    def unread(self) -> int:
        return len(self._data)

    def offer(self, data: bytes) -> None:
        if not self.closed:
            self._data += data
            self.flush()

    def end(self) -> None:
        self._ending = True
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes now; the selector calls again when it takes more."""
        if self.closed:
            return
        try:
            if self._data:
                taken = os.write(self._pipe.fileno(), self._data)
                self._data = self._data[taken:]
        except BlockingIOError:
            pass
        except OSError:  # it reads no more
            self.close()
            return
        if not self._data and self._ending:
            self.close()
            return
        watched = self._pipe in self._selector.get_map()
        if self._data and not watched:
            self._selector.register(self._pipe, selectors.EVENT_WRITE, self.flush)
        elif watched and not self._data:
            self._selector.unregister(self._pipe)

    def close(self) -> None:
        """Close the pipe; what it has not taken is lost."""
        if not self.closed:
            self.closed, self._data = True, b""
            if self._pipe in self._selector.get_map():
                self._selector.unregister(self._pipe)
            self._pipe.close()


class Broadcast:
    """Reads the launcher's own input and offers it to every taker."""

    def __init__(self, selector: selectors.BaseSelector, takers: Sequence[Taker]) -> None:
        """Where there is no input, or it must not be read, the takers' input ends at once."""
        self._selector = selector
        self._takers = takers
        self._fd: int | None = None
        try:
            fd = sys.stdin.fileno()
            # A background job must not read the terminal: it would be stopped.
            if os.isatty(fd) and os.tcgetpgrp(fd) != os.getpgrp():
                return
            selector.register(fd, selectors.EVENT_READ, self._read)
            self._fd = fd
        except (OSError, ValueError, AttributeError):
            self._end()

    def balance(self) -> None:
        """Read on only while nobody has too much that is unread."""
        if self._fd is None:
            return
        full = any(taker.unread > INPUT_LIMIT for taker in self._takers)
        reading = self._fd in self._selector.get_map()
        if full and reading:
            self._selector.unregister(self._fd)
        elif not full and not reading:
            self._selector.register(self._fd, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        assert self._fd is not None
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            data = b""
        if data:
            for taker in self._takers:
                taker.offer(data)
        else:
            self._selector.unregister(self._fd)
            self._fd = None
            self._end()

    def _end(self) -> None:
        for taker in self._takers:
            taker.end()

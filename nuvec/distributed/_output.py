"""The ranks' output on the launcher's: whole lines, each prefixed by its rank.

Two complications. A prompt or a progress bar has no newline yet: an unfinished line is shown once
its rank has paused or it has become long, and finished or restarted later. And the ranks that lose
a peer print a traceback too, perhaps before the peer's own arrives: tracebacks are held back for a
moment so that the one that explains the others can be shown first.
"""

from __future__ import annotations

import os
import select
import time

_COLORS = (36, 33, 32, 35, 34, 31)  # cyan, yellow, green, magenta, blue, red

PAUSE_SECONDS = 0.1
HOLD_SECONDS = 2.0
_TAIL_BYTES = 1 << 14
_LINE_BYTES = 1 << 16
"""What of an unfinished line is kept in memory at most."""


class Screen:
    """One of the launcher's own streams, shared by all ranks."""

    def __init__(self, fd: int, prefixed: bool) -> None:
        self.fd = fd
        self.prefixed = prefixed
        self.is_terminal = os.isatty(fd)
        self.unfinished: RankStream | None = None
        """Whose unfinished line the cursor is in."""

    def write(self, data: bytes) -> None:
        """Write now; output that nobody reads any more is not worth failing the job."""
        # Not through the stream's buffer: what could not be written would fail again at exit.
        try:
            while data:
                try:
                    data = data[os.write(self.fd, data) :]
                except BlockingIOError:  # somebody who shares the stream has set it so
                    select.select([], [self.fd], [])
        except OSError:
            pass

    def prefix(self, rank: int) -> bytes:
        if not self.prefixed:
            return b""
        text = f"[{rank}] "
        if self.is_terminal:
            text = f"\x1b[{_COLORS[rank % len(_COLORS)]}m{text}\x1b[0m"
        return text.encode()


class RankStream:
    """The stdout or stderr of one rank."""

    def __init__(self, rank: int, screen: Screen, holds_tracebacks: bool) -> None:
        self.rank = rank
        self.screen = screen
        self.tail = b""
        """The last bytes, for judging how the rank ended."""
        self._line = b""
        """What has come since the last line end and is not on the screen."""
        self._last = time.monotonic()
        self._holds_tracebacks = holds_tracebacks
        self._held: list[bytes] | None = None
        self._held_since = 0.0

    def feed(self, data: bytes) -> None:
        """Take what the rank has written."""
        self._last = time.monotonic()
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        if not self.screen.prefixed and not self._holds_tracebacks:
            self.screen.write(data)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if self._holds_tracebacks and line.startswith(b"Traceback (most recent call last)"):
                self._hold()
            if self._held is not None:
                self._held.append(line)
            else:
                self._show(line, b"\n")
        if self._held is None and self.rank == 0 and b"\r" in self._line:
            self._show_progress()
        if self._held is None and len(self._line) > _LINE_BYTES:
            self._show_unfinished()

    def tick(self, now: float) -> None:
        """Show what has waited long enough."""
        if self._held is not None:
            if now - self._held_since > HOLD_SECONDS:
                self.release()
        elif self._line and now - self._last > PAUSE_SECONDS:
            self._show_unfinished()

    def waits(self) -> bool:
        """Whether `tick` will have something to do."""
        return bool(self._line) or self._held is not None

    def release(self) -> None:
        """Show what was held back."""
        held, self._held = self._held, None
        for line in held or ():
            self._show(line, b"\n")

    def finish(self) -> None:
        """The rank is gone: show everything, and end its last line."""
        self.release()
        line, self._line = self._line, b""
        if line or self.screen.unfinished is self:
            self._show(line, b"\n")

    def _hold(self) -> None:
        if self._held is None:
            self._held = []
            self._held_since = time.monotonic()

    def _show_unfinished(self) -> None:
        line, self._line = self._line, b""
        self._show(line, b"")

    def _show(self, line: bytes, end: bytes) -> None:
        screen = self.screen
        prefix = screen.prefix(self.rank)
        line = line.removesuffix(b"\r") if end else line
        restarted = b"\r" in line
        # Of a line drawn over and over, what a terminal would show in the end.
        line = line.rpartition(b"\r")[2]
        if screen.unfinished is self:
            start = b"\r" + prefix if restarted and screen.is_terminal else b""
            if restarted and not screen.is_terminal:
                start = b"\n" + prefix
        elif screen.unfinished is not None:
            start = b"\n" + prefix
        else:
            start = prefix
        screen.write(start + line + end)
        screen.unfinished = None if end else self

    def _show_progress(self) -> None:
        """On a terminal rank 0's progress bar is redrawn as it goes; a log gets its end only."""
        if not self.screen.is_terminal:
            return
        shown = self._line.rstrip(b"\r")
        if shown:
            self._show(b"\r" + shown if self.screen.unfinished is self else shown, b"")
        self._line = b"\r"

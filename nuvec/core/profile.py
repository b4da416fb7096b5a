"""A profile: what ran inside a `with` block, as events, as a table, and as a picture."""

from __future__ import annotations

import errno
import json
import os
from types import TracebackType
from typing import Any, NamedTuple

from nuvec.core.errors import NuvecError
from nuvec.core.node import context
from nuvec.core.profile_report import chrome_trace, table
from nuvec.core.profiler import Event, clock


class Span(NamedTuple):
    """When one rank had the profile open, by the clock of rank 0.

    uncertainty -- by how many nanoseconds the rank's clock may be off against that of rank 0"""

    start: int
    end: int
    uncertainty: int = 0


class Profile:
    """What the thread that opened it evaluated; `nv.profile` makes one.

    events -- the events, in the order they began
    spans  -- rank -> when it had the profile open: nanoseconds since the first rank had

    `print(p)` shows a table, `p.save(path)` writes a picture for chrome://tracing or
    ui.perfetto.dev; both work inside the block too.
    """

    def __init__(self) -> None:
        self.rank = 0
        self._events: list[Event] = []
        self._spans: dict[int, Span] = {}
        self._started: int | None = None

    def add(self, event: Event) -> None:
        """Take an event, from any thread (appending is atomic); its times are those of `clock`."""
        self._events.append(event._replace(rank=self.rank) if self.rank else event)

    def __enter__(self) -> Profile:
        if self._started is not None:
            raise NuvecError("this profile has been opened before: nv.profile() makes another one")
        if context.symbolic:
            raise NuvecError(
                "a profile inside a traced function would see it recorded, and not run: open it "
                "around the call of the transformed function"
            )
        context.profiles = (*context.profiles, self)
        self._started = clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._close()

    def _close(self) -> None:
        assert self._started is not None
        self._spans = {self.rank: Span(self._started, clock())}
        context.profiles = tuple(p for p in context.profiles if p is not self)

    def _absolute_spans(self) -> dict[int, Span]:
        if self._spans or self._started is None:
            return self._spans
        return {self.rank: Span(self._started, clock())}

    @property
    def spans(self) -> dict[int, Span]:
        spans = self._absolute_spans()
        origin = min([s.start for s in spans.values()], default=0)
        return {
            rank: s._replace(start=s.start - origin, end=s.end - origin)
            for rank, s in spans.items()
        }

    @property
    def events(self) -> list[Event]:
        origin = min([s.start for s in self._absolute_spans().values()], default=0)
        found = [e._replace(start=e.start - origin, end=e.end - origin) for e in list(self._events)]
        return sorted(found, key=lambda e: (e.start, -e.end))

    def trace(self) -> dict[str, Any]:
        """The events in Chrome's format: a process a rank, a thread a lane, microseconds."""
        return chrome_trace(self.events, self.spans)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `trace()` to a JSON file.  It is complete or not there, whoever else writes it.

        Raises FileNotFoundError where the file's folder does not exist."""
        folder = os.path.dirname(os.fspath(path))
        if folder and not os.path.isdir(folder):
            what = "the folder to save the profile in does not exist; make it with os.makedirs"
            raise FileNotFoundError(errno.ENOENT, what, folder)
        text = json.dumps(self.trace())
        own = f"{os.fspath(path)}.{os.getpid()}.{self.rank}"
        try:
            with open(own, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(own, path)
        except BaseException:
            if os.path.exists(own):
                os.remove(own)
            raise

    def __str__(self) -> str:
        return table(self.events, self.spans)

    def __repr__(self) -> str:
        ranks = f" of {len(self._spans)} ranks" if len(self._spans) > 1 else ""
        return f"<Profile of {len(self._events)} events{ranks}>"

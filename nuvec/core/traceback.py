"""The user's line: which frame called nuvec, and tracebacks that end there.

`user_frame` finds the line of the user's program that a recorded equation came from. `filtered`
marks a public function: an error of nuvec's that leaves it says which line called it, and any
exception loses the frames inside nuvec, so that the traceback ends in the user's code
(`config.traceback = "full"` keeps them). `note_source` says on an exception from a compiled
program which line of the user's it comes from.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from nuvec.core.config import config
from nuvec.core.errors import NuvecError

__all__ = [
    "PROGRAM",
    "assigned_name",
    "filtered",
    "format_user_frame",
    "note_source",
    "strip",
    "strip_error",
    "user_frame",
]

P = ParamSpec("P")
R = TypeVar("R")

PROGRAM = "<nuvec program "
"""How the names begin that compiled programs have in place of a file."""

_NOTE = "recorded at "
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# Checks are the caller's side of nuvec: a failing one should show where it failed.
_TESTING = os.path.join(_PACKAGE, "testing", "")
# Standard library modules that call on behalf of somebody else.
_GO_BETWEENS = frozenset({functools.__file__, contextlib.__file__, threading.__file__})


@functools.lru_cache(maxsize=4096)
def is_internal(filename: str) -> bool:
    """Whether a file is nuvec's own."""
    return filename.startswith(_PACKAGE) and not filename.startswith(_TESTING)


@functools.lru_cache(maxsize=4096)
def _is_skipped(filename: str) -> bool:
    return filename in _GO_BETWEENS or is_internal(filename)


def user_frame() -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame outside nuvec; None if there is none.

    `functools`, `contextlib` and `threading` count as inside: they call for somebody else.
    """
    frame = sys._getframe(1)
    while _is_skipped(frame.f_code.co_filename):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def format_user_frame() -> str | None:
    """The user's frame as text, "file.py:12 (in f)"; None if there is none."""
    found = user_frame()
    if found is None:
        return None
    filename, line, function = found
    text = f"{os.path.basename(filename)}:{line} (in {function})"
    if len(_lines) < LINES:
        _lines[text] = filename, line
    return text


LINES = 65536  # of users' code that are remembered
_lines: dict[str, tuple[str, int]] = {}
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]*)?=(?!=)")


@functools.lru_cache(maxsize=4096)
def assigned_name(source: str) -> str:
    """What the user's line assigns to, `source` being its text as `format_user_frame` gives it;
    "" where it is no assignment to one name, or the line is not known.

    For names in text only: the line is read from its file, which may have changed."""
    found = _lines.get(source)
    match = _ASSIGNMENT.match(linecache.getline(*found)) if found else None
    return match.group(1) if match else ""


def strip(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without its frames inside nuvec; None when no other frame is in it."""
    kept = []
    while traceback is not None:
        if not is_internal(traceback.tb_frame.f_code.co_filename):
            kept.append(traceback)
        traceback = traceback.tb_next
    stripped: TracebackType | None = None
    for entry in reversed(kept):
        stripped = TracebackType(stripped, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return stripped


def strip_error(error: BaseException) -> None:
    """Strip the traceback of an exception, and of those it was raised from or during, in place.

    For an `except` block that goes on with a bare `raise`: that continues with the exception's
    present traceback and, unlike `raise error`, does not add its own frame. Does nothing when
    `config.traceback` is "full".
    """
    if config.traceback == "full":
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = strip(current.__traceback__)
            pending += [current.__cause__, current.__context__]


def note_source(error: BaseException) -> None:
    """Note on an exception from a compiled program where the failing operation was recorded.

    The line that failed ends in a comment that says so; of programs that call programs it is the
    innermost line that counts. Does nothing to other exceptions, and nothing twice.
    """
    source = ""
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename.startswith(PROGRAM):
            line = linecache.getline(filename, traceback.tb_lineno)
            # The comment holds the results' avals, two spaces, and the user's line.
            source = line.rpartition("  # ")[2].partition("  ")[2].strip() or source
        traceback = traceback.tb_next
    if source and not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_NOTE}{source}")


def filtered(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: its exceptions show no frames inside nuvec.

    Frames of the user's own functions in between (a function given to a transform) stay.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, NuvecError) and error.line is None:
                error.line = format_user_frame()
            strip_error(error)
            raise

    return wrapper

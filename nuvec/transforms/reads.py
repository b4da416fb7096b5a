"""Where a function's own code reads the size of an array."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from nuvec.core.array import Array
from nuvec.core.functions import protocols
from nuvec.core.traceback import format_user_frame, is_internal

_lines: ContextVar[list[str] | None] = ContextVar("lines", default=None)
_watching = threading.Lock()
_watchers = 0
_PLAIN = {name: Array.__dict__[name] for name in ("shape", "size", "nbytes", "aval", "__len__")}


@contextmanager
def sizes_read() -> Iterator[list[str]]:
    """The lines outside of nuvec at which this thread reads an Array's shape, size or length.

    What is read is an integer that may be compared, hashed, or handed to anything written in C:
    there is no telling what follows from it.  While somebody watches, Array's properties look at
    who asks; at other times they cost what they always do."""
    global _watchers
    found: list[str] = []
    token = _lines.set(found)
    with _watching:
        _watchers += 1
        for name, plain in _PLAIN.items():
            setattr(Array, name, _watched(plain))
    try:
        yield found
    finally:
        _lines.reset(token)
        with _watching:
            _watchers -= 1
            if not _watchers:
                for name, plain in _PLAIN.items():
                    setattr(Array, name, plain)


def _watched(plain: Any) -> Any:
    read: Any = plain.fget if isinstance(plain, property) else plain

    def watched(array: Array) -> Any:
        lines = _lines.get()
        if lines is not None:
            file = sys._getframe(1).f_code.co_filename
            if not is_internal(file) or file == protocols.__file__:  # `np.shape(x)`: for the user
                lines.append(str(format_user_frame()))
        return read(array)

    return property(watched) if isinstance(plain, property) else watched


__all__ = ["sizes_read"]

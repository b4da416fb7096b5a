"""What the launcher and its helper on another host say to each other, over ssh's two pipes.

A frame is its kind, the rank it is about, the length of what follows, and that. Only the launcher
and the helper it started are at the ends, over a connection that ssh has authenticated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

GREETING = b"nuvec launcher 1\n"
"""What the helper says first. A login shell may have printed anything before it."""

# From the launcher.
JOB, START, INPUT, INPUT_END, SIGNAL = b"J", b"P", b"I", b"Z", b"S"
# From the helper.
READY, STARTED, REFUSED, OUT, ERR, TAKEN, EXITED = b"R", b"N", b"F", b"O", b"E", b"T", b"X"

_HEAD = struct.Struct(">cII")
MAX_PAYLOAD = 1 << 24


class Frame(NamedTuple):
    """One frame."""

    kind: bytes
    rank: int
    payload: bytes

    def content(self) -> Any:
        """The payload as JSON."""
        return json.loads(self.payload)


def pack(kind: bytes, rank: int = 0, payload: bytes | Any = b"") -> bytes:
    """A frame as bytes; a payload that is not bytes becomes JSON."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return _HEAD.pack(kind, rank, len(data)) + data


class Frames:
    """Puts frames together from pieces of any size."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are now complete; `ValueError` for what is none."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            kind, rank, length = _HEAD.unpack_from(self._data)
            if length > MAX_PAYLOAD:
                raise ValueError(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._data) < end:
                return
            payload, self._data = self._data[_HEAD.size : end], self._data[end:]
            yield Frame(kind, rank, payload)

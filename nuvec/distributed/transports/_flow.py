"""`Flow`: the frames of one collective round a ring.

Every rank sends to the next and receives from the previous, in an order that all ranks compute
alike. So the frames of each socket are simply numbered, and the first one on each announces the
call.
"""

from __future__ import annotations

from collections.abc import Sequence

from nuvec.distributed.transports._frames import Frame, Views, post, push, shared_out
from nuvec.distributed.transports._link import Receive
from nuvec.distributed.transports._links import At, Links
from nuvec.distributed.transports._outputs import Outputs
from nuvec.distributed.transports._ring_links import Neighbours
from nuvec.distributed.transports._writer import LARGE

__all__ = ["Flow"]


def _size(receive: Receive) -> int:
    return sum(map(len, receive.targets or ()))


class Flow:
    """One collective of a group of at least two ranks."""

    def __init__(self, links: Links, at: At, neighbours: Neighbours, outputs: Outputs) -> None:
        self._links, self._at = links, at
        self._counted = links.circles.counted(at.group)
        self.empty = outputs.empty
        self._next, self._previous = neighbours
        self.channels = len(self._next)
        self._sent = [0] * self.channels
        self._asked = [0] * self.channels

    def send(self, channel: int, views: Views) -> None:
        """Send the channel's next frame. The memory of `views` must stay as it is until it has
        arrived."""
        step, link, at = self._sent[channel], self._next[channel], self._at
        self._sent[channel] += 1
        self._counted[link] = at.call.seq, step + 1  # before the first byte goes out
        push(at, step, link, list(views))

    def expect(self, channel: int, views: Views | None, number: int | None = None) -> Frame:
        """Ask for the channel's next frame, or for that of a number."""
        step = self._asked[channel] if number is None else number
        self._asked[channel] = max(self._asked[channel], step + 1)
        return post(self._at, step, self._previous[channel], None if views is None else list(views))

    def send_shared(self, views: Views) -> None:
        """Send a payload over as many channels as it is worth."""
        for channel, share in enumerate(shared_out(views, self.channels)):
            self.send(channel, share)

    def expect_shared(self, views: Views) -> list[Frame]:
        """Ask for a payload that was sent so."""
        shares = shared_out(views, self.channels)
        return [self.expect(channel, share) for channel, share in enumerate(shares)]

    def wait(self, frames: Sequence[Frame]) -> None:
        """Return when all of the frames have arrived."""
        for link, receive in frames:
            link.awaited = not receive.done and _size(receive) >= LARGE
        try:
            self._links.wait(frames, self._at)
        finally:
            for link, _ in frames:
                link.awaited = False

    def finish(self) -> None:
        """Return when everything is written out."""
        self._links.wait([], self._at, self._next)

"""The frames of a call: asking a peer's link for one, sending one, several that share a payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nuvec.distributed.transports._call import Op
from nuvec.distributed.transports._link import Link, Receive
from nuvec.distributed.transports._links import At
from nuvec.distributed.transports.wire import Kind, pack_head

Frame = tuple[Link, Receive]
"""A frame that is asked for, and whose link brings it."""

Views = Sequence["memoryview[Any]"]

_JOINED = 4096
"""Up to this many bytes it is cheaper to join a frame's parts than to send them one by one."""

WORTH_SHARING = 1 << 18
"""From this many bytes on, a payload is shared out over all links to a rank."""

_ALIGN = 64


def post(at: At, step: int, link: Link, targets: list[memoryview[Any]] | None) -> Frame:
    """Ask for the frame of a step; its payload fills `targets`, if given."""
    kind = Kind.COLLECTIVE if at.call.op < Op.SEND else Kind.POINT_TO_POINT
    return link, link.post((kind, at.group, at.call.seq, step), at.call, targets)


def push(at: At, step: int, link: Link, parts: list[Any]) -> None:
    """Send the frame of a step, whose payload are `parts`: bytes, or memoryviews of them."""
    call = at.call
    kind = Kind.COLLECTIVE if call.op < Op.SEND else Kind.POINT_TO_POINT
    specs = call.specs if step == 0 else b""
    length = sum(map(len, parts))
    head = pack_head(kind, call.op, call.peer, step, at.group, call.seq, len(specs), length)
    if length <= _JOINED:
        link.push([b"".join([head, specs, *parts])])
    else:
        link.push([head, specs, *parts])


def shared_out(views: Views, channels: int) -> list[list[memoryview[Any]]]:
    """The bytes of `views` cut into one stretch a channel, all in the first if they are few."""
    total = sum(map(len, views))
    if total < WORTH_SHARING or channels == 1:
        return [list(views)]
    stretch = -(-total // (channels * _ALIGN)) * _ALIGN
    shares: list[list[memoryview[Any]]] = [[] for _ in range(channels)]
    at = 0
    for view in views:
        taken = 0
        while taken < len(view):
            channel = min(at // stretch, channels - 1)
            end = len(view)
            if channel < channels - 1:
                end = min(end, taken + (channel + 1) * stretch - at)
            shares[channel].append(view[taken:end])
            at += end - taken
            taken = end
    return shares

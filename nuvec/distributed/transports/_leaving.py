"""Leaving a job in order: what a rank says, and how it ends its connections."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable

from nuvec.distributed.transports._link import Link
from nuvec.distributed.transports._naming import name_of
from nuvec.distributed.transports.wire import Kind

__all__ = ["LINGER_SECONDS", "linger", "warn_of_unreceived"]

_log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0
"""How long a leaving rank waits for TCP to hand over its last bytes."""


def warn_of_unreceived(rank: int, links: Iterable[Link]) -> None:
    """Log how many messages have come that `rank` has not asked for."""
    for link in links:
        count = sum(kind == Kind.POINT_TO_POINT for kind, *_ in link.early)
        if count:
            _log.warning(
                "rank %d leaves without having received %d messages of %s",
                rank,
                count,
                name_of(link),
            )


def linger(links: Iterable[Link]) -> None:
    """Let the last bytes reach the peers.

    Closing a TCP socket with unread input resets the connection and drops what is still on its way
    out, so input is read and thrown away until the output has been acknowledged.
    """
    deadline = time.monotonic() + LINGER_SECONDS
    links = list(links)
    while True:
        for link in links:
            if link.pending:
                link.flush()
            if not link.pending:
                link.shutdown(socket.SHUT_WR)
            if not link.ended:
                link.discard()
        links = [link for link in links if link.pending or link.unacknowledged()]
        if not links or time.monotonic() > deadline:
            return
        time.sleep(0.002)

"""A forked child must not hold its parent's connections: it would hide the parent's death."""

from __future__ import annotations

import functools
import os
import weakref

from nuvec.distributed.transports._links import Links

__all__ = ["close_after_fork"]

_open: weakref.WeakSet[Links] = weakref.WeakSet()


@functools.cache
def _close_in_forked_children() -> None:
    def after_fork() -> None:
        for links in list(_open):
            links.close_in_child()

    os.register_at_fork(after_in_child=after_fork)


def close_after_fork(links: Links) -> None:
    """Have a forked child drop its copies of these links."""
    _close_in_forked_children()
    _open.add(links)

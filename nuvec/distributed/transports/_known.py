"""`KnownGroups`: the groups of a rank, and for a while those that it had."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["REMEMBERED", "KnownGroups"]

REMEMBERED = 1000
"""How many groups are known after they have gone. A peer that is behind may be in the last call of
one and ask about it; it must not be told that nothing is known of it, but cannot be far behind."""


class KnownGroups:
    """The members of each group, by the group's number."""

    def __init__(self, forgotten: Callable[[int], None]) -> None:
        """`forgotten` is called with a group's number when nothing need be known of it any more."""
        self._members: dict[int, tuple[int, ...]] = {}
        self._gone: deque[int] = deque()
        self._forgotten = forgotten

    def join(self, group: int, members: tuple[int, ...]) -> None:
        """Take part in a group."""
        self._members[group] = members
        while len(self._gone) > REMEMBERED:
            old = self._gone.popleft()
            self._members.pop(old, None)
            self._forgotten(old)

    def let_go(self, group: int) -> None:
        """Nobody here can use the group any more. May be called at any time, by any thread."""
        self._gone.append(group)

    def members(self, group: int) -> tuple[int, ...] | None:
        """A group's members, or None for one that is not known."""
        return self._members.get(group)

    def __len__(self) -> int:
        return len(self._members)

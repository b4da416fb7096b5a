"""What all modules share of which each rank of a group has its own part."""

from __future__ import annotations

from typing import Any

from nuvec.distributed.group import Group
from nuvec.nn.module import Module

__all__ = ["Sharded"]


class Sharded(Module):
    """A module with this rank's part of some arrays, and the group whose ranks have the others.

    It pickles with its part, over the default group, and is read by the same rank of as many."""

    group: Group

    @property
    def sharded_group(self) -> Group:
        """The group whose ranks hold different slices."""
        return self.group

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_place": (self.group.rank(), self.group.size())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        rank, ranks = state.pop("_place")
        vars(self).update(state)
        if (rank, ranks) != (self.group.rank(), self.group.size()):
            raise ValueError(
                f"this {type(self).__name__} is the slice of rank {rank} of {ranks}, and is read "
                f"by rank {self.group.rank()} of {self.group.size()}. Read it on the same rank of "
                "as many, or put the slices together and shard them anew."
            )

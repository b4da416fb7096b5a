"""join: training steps of ranks that do not have equally many batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, from_numpy
from nuvec.distributed.collectives.gather_scatter import all_gather
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group

__all__ = ["join"]

_NEVER, _OUT, _HAS = range(3)  # what a rank says: it never had an input, has no more, has one


def join(
    step_inputs: Iterable[Any],
    group: Group | None = None,
    count: Callable[[Any], float] | None = None,
) -> Iterator[tuple[Any, float]]:
    """This rank's inputs, step by step, until no rank has any: pairs (inputs, weight).

    step_inputs -- what this rank has; the ranks may have differently many, at least one each
    group       -- the ranks that step together
    count       -- `count(inputs)`, their weight; by default the size of the first axis of the first
                   array in them (the number of examples), or 1 where there is none

    A rank that has no more gets its last inputs again, with weight 0: so it takes part in every
    communication of the step, and `average_gradients(gradients, group, weight=weight)` leaves out
    what it computes. All ranks take step after step together, each of which begins with a small
    all_gather. ValueError on every rank where one never had an input.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def run(group):
    ...     batches = [nv.ones(2)] * (1 + 2 * group.rank())
    ...     return [weight for _, weight in nn.join(batches, group)]
    >>> nv.distributed.run_local(run, 2)
    [[2, 0, 0], [2, 2, 2]]
    """
    return _steps(iter(step_inputs), as_group(group, "join"), count or _examples)


def _steps(
    inputs: Iterator[Any], group: Group, count: Callable[[Any], float]
) -> Iterator[tuple[Any, float]]:
    state, current = _NEVER, None
    while True:
        weight: float = 0
        try:
            current = next(inputs)
            state, weight = _HAS, count(current)
        except StopIteration:
            state = _OUT if state != _NEVER else _NEVER
        states = _states(state, group)
        if _HAS not in states:
            return
        if _NEVER in states:
            ranks = ", ".join([str(rank) for rank, s in enumerate(states) if s == _NEVER])
            raise ValueError(
                f"join: rank {ranks} of {group.size()} had no step inputs at all, and cannot take "
                "part even with weight 0. Give each rank one batch at least."
            )
        yield current, weight


def _states(state: int, group: Group) -> list[int]:
    own = from_numpy(np.array([state], np.int32))
    return [int(s) for s in all_gather(own, group).tolist()]


def _examples(inputs: Any) -> int:
    """The size of the first axis of the first array."""
    for leaf in tree.leaves(inputs):
        if isinstance(leaf, Array | np.ndarray) and leaf.ndim:
            return int(leaf.shape[0])
    return 1

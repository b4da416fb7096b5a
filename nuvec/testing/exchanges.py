"""The communications random programs are drawn from, each with what it means in NumPy.

The meaning (`exchange`) is computed from the operands of all ranks at once, so that drawing a
program needs no group; it also is a reference that shares no code with the transports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.distributed.axis_group import AxisGroup
from nuvec.distributed.collectives.all_reduce import all_max, all_min, all_sum, broadcast
from nuvec.distributed.collectives.gather_scatter import all_gather, all_to_all, sum_scatter
from nuvec.distributed.collectives.permute import permute
from nuvec.distributed.collectives.point_to_point import recv_like, send
from nuvec.distributed.group import Group
from nuvec.testing.operation import MARGIN, Choices, Operation

__all__ = ["EXCHANGES", "Unfit"]

Values = Sequence[np.ndarray]


class Unfit(Exception):
    """A value is too near to a kink, a pole or the limit of what a program should reach."""


def _fold(values: Values) -> np.ndarray:
    total = values[0]
    for v in values[1:]:
        total = total + v
    return np.asarray(total)


def _extreme(values: Values, greatest: bool) -> list[np.ndarray]:
    ordered = np.sort(np.stack(values), axis=0)
    if np.any(np.diff(ordered, axis=0) <= MARGIN):
        raise Unfit
    return [np.asarray(ordered[-1 if greatest else 0])] * len(values)


def _own(x: np.ndarray, rank: int, size: int) -> np.ndarray:
    n = x.shape[0] // size
    return x[rank * n : (rank + 1) * n]


def _gathered(values: Values) -> list[np.ndarray]:
    return [np.concatenate([np.atleast_1d(v) for v in values])] * len(values)


def _scattered(values: Values) -> list[np.ndarray]:
    size, total = len(values), _fold(values)
    return [_own(total, r, size) for r in range(size)]


def _exchanged(values: Values) -> list[np.ndarray]:
    size = len(values)
    return [np.concatenate([_own(v, r, size) for v in values]) for r in range(size)]


def _shift(group: Group, x: Array) -> Any:
    """Around the ring: two messages, both of which have a message in their derivative."""
    size = group.size()
    if isinstance(group, AxisGroup):  # its ranks share one program, so they cannot name partners
        return permute(x, [(r, (r + 1) % size) for r in range(size)], group)
    rank = group.rank()
    send(x, (rank + 1) % size, group)
    return recv_like(x, (rank - 1) % size, group)


def _partly(group: Group, x: Array) -> Any:
    """Along the line: the first rank gets zeros."""
    return permute(x, [(r, r + 1) for r in range(group.size() - 1)], group)


def _after_barrier(group: Group, x: Array) -> Any:
    group.barrier()
    return x * 1.0


def _root(choose: Choices, x: np.ndarray, size: int) -> tuple[Any, ...]:
    return (choose.integer(0, size - 1),)


def _divisible(choose: Choices, x: np.ndarray, size: int) -> tuple[Any, ...] | None:
    return () if x.ndim and x.shape[0] and x.shape[0] % size == 0 else None


def _anything(choose: Choices, x: np.ndarray, size: int) -> tuple[Any, ...]:
    return ()


def _make(
    name: str, kinds: str, apply: Callable[..., Any], exchange: Callable[..., list[np.ndarray]],
    params: Any = _anything, sizes: int = 1, covers: tuple[str, ...] = (),
) -> Operation:  # fmt: skip
    def on_group(group: Any, x: Array, *given: Any) -> Any:
        return apply(group, x, *given)

    return Operation(name, covers or (name,), kinds, on_group, params, None, exchange, sizes)


EXCHANGES: list[Operation] = [
    _make("all_sum", "f|c", lambda g, x: all_sum(x, g), lambda vs: [_fold(vs)] * len(vs)),
    _make("all_max", "f", lambda g, x: all_max(x, g), lambda vs: _extreme(vs, True)),
    _make("all_min", "f", lambda g, x: all_min(x, g), lambda vs: _extreme(vs, False)),
    _make("broadcast", "f|c|b", lambda g, x, root: broadcast(x, root, g),
          lambda vs, root: [vs[root]] * len(vs), _root),
    _make("all_gather", "f|c|b", lambda g, x: all_gather(x, g), _gathered),
    _make("sum_scatter", "f", lambda g, x: sum_scatter(x, g), _scattered, _divisible),
    _make("all_to_all", "f|c", lambda g, x: all_to_all(x, g), _exchanged, _divisible),
    _make("shift", "f|c", _shift, lambda vs: [*vs[-1:], *vs[:-1]], sizes=2,
          covers=("send", "recv")),
    _make("permute", "f|c", _partly,
          lambda vs: [np.zeros_like(vs[0]), *vs[:-1]], sizes=2),
    _make("barrier", "f", _after_barrier, lambda vs: [np.asarray(v * 1.0) for v in vs]),
]  # fmt: skip

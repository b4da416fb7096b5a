"""Rows for the collectives: what each computes on every rank, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nuvec import distributed as nd
from nuvec.core import dtypes
from nuvec.distributed.group import Group

Values = Sequence[np.ndarray]  # one a rank


@dataclass(frozen=True)
class CollectiveCase:
    """primitive -- the name of the communication
    function  -- `function(group, *args)`, the same on every rank
    shapes    -- `shapes(size)`: of the arguments, in a group of that size
    reference -- `reference(values, rank)` for an argument's values on all ranks: what `rank` gets
    kinds     -- which dtypes it accepts, by NumPy's letters (f, c, i, u, b)
    alone     -- whether it works in a group of one
    """

    primitive: str
    function: Callable[..., Any]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]
    reference: Callable[[Values, int], np.ndarray]
    label: str = ""
    kinds: str = "fciub"
    alone: bool = True

    def __str__(self) -> str:
        return f"{self.primitive}-{self.label}"


def fold(values: Values, operation: Callable[[Any, Any], Any] = np.add) -> np.ndarray:
    """The left fold in rank order, float16 and bfloat16 in float32, rounded once."""
    dtype = values[0].dtype
    wide = dtypes.accumulation(dtype) if dtypes.is_inexact(dtype) else dtype
    total = values[0].astype(wide)
    for v in values[1:]:
        total = operation(total, v.astype(wide))
    return np.asarray(total).astype(dtype)


def _gathered(values: Values, rank: int) -> np.ndarray:
    return np.concatenate([np.atleast_1d(v) for v in values])


def _own(x: np.ndarray, rank: int, size: int) -> np.ndarray:
    n = x.shape[0] // size
    return x[rank * n : (rank + 1) * n]


def _exchanged(values: Values, rank: int) -> np.ndarray:
    return np.concatenate([_own(v, rank, len(values)) for v in values])


def _rotate(group: Group, x: Any) -> Any:
    size = group.size()
    return nd.permute(x, [(r, (r + 1) % size) for r in range(size)], group)


def _shift(group: Group, x: Any) -> Any:
    size, rank = group.size(), group.rank()
    nd.send(x, (rank + 1) % size, group)
    return nd.recv_like(x, (rank - 1) % size, group)


def _kept(group: Group, x: Any) -> Any:
    """What send returns, where everybody sends to itself and reads it."""
    kept = nd.send(x, group.rank(), group)
    nd.recv_like(x, group.rank(), group)
    return kept


FIXED = {
    "matrix": lambda n: ((2, 3),),
    "scalar": lambda n: ((),),
    "vector": lambda n: ((4,),),
    "empty": lambda n: ((0, 3),),
    "tree": lambda n: ((2,), (), (3, 1)),
}
DIVIDED = {
    "matrix": lambda n: ((2 * n, 3),),
    "vector": lambda n: ((n,),),
    "cube": lambda n: ((n, 2, 2),),
    "empty": lambda n: ((n, 0),),
    "tree": lambda n: ((n,), (2 * n, 2)),
}


def _rows(
    name: str, one: Callable[[Group, Any], Any], reference: Callable[[Values, int], np.ndarray],
    shapes: dict[str, Any] = FIXED, **options: Any,
) -> list[CollectiveCase]:  # fmt: skip
    def tree(group: Group, *args: Any) -> Any:
        return one(group, args[0] if len(args) == 1 else list(args))

    return [
        CollectiveCase(name, tree, shape, reference, label, **options)
        for label, shape in shapes.items()
    ]


CASES = [
    *_rows("all_sum", lambda g, x: nd.all_sum(x, g), lambda v, r: fold(v), kinds="fciu"),
    *_rows("all_max", lambda g, x: nd.all_max(x, g), lambda v, r: fold(v, np.maximum),
           kinds="fiub"),
    *_rows("all_min", lambda g, x: nd.all_min(x, g), lambda v, r: fold(v, np.minimum),
           kinds="fiub"),
    *_rows("broadcast", lambda g, x: nd.broadcast(x, g.size() - 1, g), lambda v, r: v[-1]),
    *_rows("all_gather", lambda g, x: nd.all_gather(x, g), _gathered),
    *_rows("sum_scatter", lambda g, x: nd.sum_scatter(x, g),
           lambda v, r: _own(fold(v), r, len(v)), DIVIDED, kinds="fciu"),
    *_rows("all_to_all", lambda g, x: nd.all_to_all(x, g), _exchanged, DIVIDED),
    *_rows("permute", _rotate, lambda v, r: v[r - 1]),
    *_rows("permute", lambda g, x: nd.permute(x, [(0, g.size() - 1)], g),
           lambda v, r: v[0] if r == len(v) - 1 else np.zeros_like(v[0]),
           {f"{k}-partial": s for k, s in FIXED.items()}),
    *_rows("recv", _shift, lambda v, r: v[r - 1], alone=False),
    *_rows("send", _kept, lambda v, r: v[r], alone=False),
]  # fmt: skip

"""permute: every rank's value to another rank; its transpose is the inverse permutation."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ConcretizationError, ShapeError
from nuvec.core.ir import Aval
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.selection import where
from nuvec.core.ops.structure import concatenate, slice_axis
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered
from nuvec.distributed.collectives.common import (
    along_axis,
    buffers,
    communicate,
    linear_rules,
    traced_rank,
    whole_batch,
)  # fmt: skip
from nuvec.distributed.group import Group, default_group

Perm = tuple[tuple[int, int], ...]


def _rule(*avals: Aval, group: Group, active: bool, perm: Perm) -> tuple[Aval, ...]:
    return avals


def _lower(*values: Any, group: Group, active: bool, perm: Perm) -> tuple[Any, ...]:
    return tuple(group.communicator.permute(buffers(values), perm))


# sum_d <c_d, x_perm^-1(d)> = sum_s <c_perm(s), x_s>, over the ranks that perm has
_jvp, _vjp = linear_rules(
    lambda cs, operands, group, active, perm: permute_p.bind(
        *cs, group=group, active=True, perm=tuple(sorted((d, s) for s, d in perm))
    ),
    lambda: permute_p,
)


def _vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return whole_batch(lambda: permute_p, size, axes, operands, params)


def _axis(x: Array, perm: Perm, **params: Any) -> Array:
    """The rows of `x` in their new places, in runs of neighbours that stay neighbours."""
    source = {d: s for s, d in perm}
    n = x.shape[0]
    runs: list[list[int]] = []  # first source, length; a source of -1 is a row of zeros
    for d in range(n):
        s = source.get(d, -1)
        last = runs[-1] if runs else None
        if last and (s == sum(last) if last[0] >= 0 else s < 0):
            last[1] += 1
        else:
            runs.append([s, 1])
    if len(runs) > 64:
        return _scattered(x, [source.get(d, -1) for d in range(n)])
    parts = [
        slice_axis(x, 0, s, s + length) if s >= 0 else zeros_of(slice_axis(x, 0, 0, length).aval)
        for s, length in runs
    ]
    return parts[0] if len(parts) == 1 else concatenate(parts, axis=0)


def _scattered(x: Array, sources: list[int]) -> Array:
    """A permutation without long runs: one gather."""
    taken = x[from_numpy(np.maximum(np.array(sources, np.int32), 0))]
    if min(sources) >= 0:
        return taken
    present = np.array(sources).reshape(-1, *(1,) * (x.ndim - 1)) >= 0
    return where(from_numpy(present), taken, zeros_of(taken.aval))


permute_p: Primitive = Primitive(
    "permute", _lower, _rule, "effect", jvp=_jvp, vjp=_vjp, vmap=_vmap,
    axis=along_axis(_axis, 0), linear="joint", multiple=True, effect=True,
)  # fmt: skip


def checked_perm(perm: Iterable[Sequence[int]], size: int) -> Perm:
    """The pairs, sorted; ShapeError when they are no partial permutation of `size` ranks."""
    pairs = []
    for pair in perm:
        try:
            source, destination = map(operator.index, pair)
        except ConcretizationError:
            raise traced_rank("permute", pair) from None
        except (TypeError, ValueError):
            raise TypeError(
                f"permute: perm must be pairs of ranks (source, destination), got {pair!r}"
            ) from None
        pairs.append((source, destination))
    for place, what in enumerate(("source", "destination")):
        ranks = [p[place] for p in pairs]
        for r in ranks:
            if not 0 <= r < size:
                raise ShapeError(
                    f"permute: {what} {r} is not in this group of {size} (0 to {size - 1})"
                )
        if len(set(ranks)) < len(ranks):
            twice = sorted({r for r in ranks if ranks.count(r) > 1})
            raise ShapeError(f"permute: rank {twice[0]} is a {what} twice in {pairs}")
    return tuple(sorted(pairs))


@filtered
def permute(x: Any, perm: Iterable[Sequence[int]], group: Group | None = None) -> Any:
    """Rank `src`'s `x` on rank `dst` for each pair (src, dst) of `perm`; zeros on the others.

    x    -- an Array or a tree, of the same shapes and dtypes on every rank
    perm -- the same pairs on every rank, in any order; each rank is a source at most once and a
            destination at most once

    A collective: every rank takes part, also one that is in no pair.  Its transpose is the inverse
    permutation.  Raises ShapeError for pairs that are no partial permutation of the group's ranks,
    MismatchError when ranks give different ones.

    >>> import nuvec as nv
    >>> def program(group):
    ...     return nv.distributed.permute(nv.array(group.rank() + 1), [(0, 1), (1, 2)], group)
    >>> nv.distributed.run_local(program, 3)
    [array(0, dtype=int32), array(1, dtype=int32), array(2, dtype=int32)]
    """
    group = default_group() if group is None else group
    pairs = checked_perm(perm, group.size())
    return communicate(permute_p, x, group, lambda a: a if pairs else zeros_of(a.aval), perm=pairs)

"""all_sum, all_max, all_min, and broadcast, whose transpose is all_sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval
from nuvec.core.ops.arithmetic import divide
from nuvec.core.ops.comparison import equal, isnan, logical_and, logical_or
from nuvec.core.ops.differentiation import stop_gradient_p, zeros_of
from nuvec.core.ops.fold import fold_sum_p
from nuvec.core.ops.reduction import max_p, min_p
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reshape_p
from nuvec.core.ops.structure import slice_axis
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered
from nuvec.distributed.axis_group import AxisGroup, axis_index_p
from nuvec.distributed.collectives.common import (
    Tangents,
    along_axis,
    buffers,
    communicate,
    inexact,
    linear_rules,
    present,
    rank_of,
    refuse_complex,
    spread,
    whole_batch,
)  # fmt: skip
from nuvec.distributed.group import Group, group_or_default

# all_sum is its own transpose: sum_r <c_r, sum_s x_s> = sum_s <sum_r c_r, x_s>


def _sum_rule(*avals: Aval, group: Group, active: bool) -> tuple[Aval, ...]:
    for a in avals:
        if dtypes.is_bool(a.dtype):
            raise DtypeError(
                "all_sum of booleans: use all_max (any rank true) or all_min (all true), or count "
                "with x.astype(nv.int32)"
            )
    return avals


def _lower_sum(*values: Any, group: Group, active: bool) -> tuple[Any, ...]:
    return tuple(group.communicator.all_reduce("sum", buffers(values)))


def _sum_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return whole_batch(lambda: all_sum_p, size, axes, operands, params)


_sum_jvp, _sum_vjp = linear_rules(
    lambda cs, operands, group, active: all_sum_p.bind(*cs, group=group, active=True),
    lambda: all_sum_p,
)

all_sum_p: Primitive = Primitive(
    "all_sum", _lower_sum, _sum_rule, "effect", jvp=_sum_jvp, vjp=_sum_vjp, vmap=_sum_vmap,
    axis=along_axis(lambda x, **params: fold_sum_p.bind(x), None), linear="joint", multiple=True,
    effect=True,
)  # fmt: skip


@filtered
def all_sum(x: Any, group: Group | None = None) -> Any:
    """The sum of every rank's `x`, on every rank; `x` is an Array or a tree of them.

    Shapes and dtypes are the same on all ranks.  Each element is the left fold in rank order.
    Raises DtypeError for booleans, MismatchError when ranks make different calls.

    >>> import nuvec as nv
    >>> nv.distributed.run_local(lambda g: nv.distributed.all_sum(nv.array(g.rank() + 1)), 3)
    [array(6, dtype=int32), array(6, dtype=int32), array(6, dtype=int32)]
    """
    return communicate(all_sum_p, x, group, lambda a: a)


# all_max, all_min: the derivative goes to the winners, wherever they are; ties share it


def _extreme_rule(name: str) -> Any:
    def rule(*avals: Aval, group: Group, active: bool) -> tuple[Aval, ...]:
        for a in avals:
            refuse_complex(name, a.dtype)
        return avals

    return rule


def _shares(outs: Sequence[Array], operands: Sequence[Array]) -> list[Array]:
    """1 where an operand wins, 0 elsewhere (a NaN wins over all others)."""
    won = []
    for out, x in zip(outs, operands, strict=True):
        wins = logical_or(equal(x, out), logical_and(isnan(x), isnan(out)))
        won.append(stop_gradient_p.bind(wins.astype(x.dtype)))
    return won


def _extreme_jvp(
    tangents: Tangents, outs: Sequence[Array], *operands: Array, group: Group, active: bool
) -> list[Array | None]:
    which = inexact(operands)
    if not which:
        return [None] * len(operands)
    won = _shares([outs[i] for i in which], [operands[i] for i in which])
    moved = [
        where(w != 0, tangents[i], zeros_of(operands[i].aval))
        for i, w in zip(which, won, strict=True)
    ]
    found = all_sum_p.bind(*moved, *won, group=group, active=True)
    count = len(which)
    shared = [divide(t, n) for t, n in zip(found[:count], found[count:], strict=True)]
    return spread(shared, which, len(operands))


def _extreme_vjp(
    cs: Tangents, outs: Sequence[Array], *operands: Array, group: Group, active: bool
) -> list[Array | None]:
    which = inexact(operands)
    if not which:
        return [None] * len(operands)
    won = _shares([outs[i] for i in which], [operands[i] for i in which])
    found = all_sum_p.bind(*present(cs, which), *won, group=group, active=True)
    count = len(which)
    given = [
        where(w != 0, divide(c, n), zeros_of(c.aval))
        for c, n, w in zip(found[:count], found[count:], won, strict=True)
    ]
    return spread(given, which, len(operands))


def _extreme(name: str, op: Any, along: Primitive) -> Primitive:
    def lower(*values: Any, group: Group, active: bool) -> tuple[Any, ...]:
        return tuple(group.communicator.all_reduce(op, buffers(values)))

    def vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
        return whole_batch(lambda: primitive, size, axes, operands, params)

    def over(x: Array, **params: Any) -> Array:
        if not x.shape[0]:
            raise ShapeError(
                f"{name} over a mapped axis of size 0: there is no element to take the {op} of"
            )
        return along.bind(x, axes=(0,))

    primitive = Primitive(
        name, lower, _extreme_rule(name), "effect", jvp=_extreme_jvp, vjp=_extreme_vjp, vmap=vmap,
        axis=along_axis(over, None), multiple=True, effect=True,
    )  # fmt: skip
    return primitive


all_max_p: Primitive = _extreme("all_max", "max", max_p)
all_min_p: Primitive = _extreme("all_min", "min", min_p)


@filtered
def all_max(x: Any, group: Group | None = None) -> Any:
    """The elementwise maximum over ranks, on every rank; NaN propagates.

    The gradient goes to the rank that holds the maximum; ranks that tie share it equally.
    Raises DtypeError for complex numbers.
    """
    return communicate(all_max_p, x, group, lambda a: a)


@filtered
def all_min(x: Any, group: Group | None = None) -> Any:
    """The elementwise minimum over ranks, on every rank; as `all_max` otherwise."""
    return communicate(all_min_p, x, group, lambda a: a)


# broadcast: sum_r <c_r, x_root> = <sum_r c_r, x_root>


def _broadcast_rule(*avals: Aval, group: Group, active: bool, root: int) -> tuple[Aval, ...]:
    rank_of("broadcast", root, group)
    return avals


def _broadcast_transpose(
    cs: list[Array], operands: list[Array], group: Group, active: bool, root: int
) -> list[Array]:
    total = all_sum_p.bind(*cs, group=group, active=True)
    # The ranks of an axis group all run this code, so it chooses; others choose likewise, for the
    # zeros of the derivative of a choice can have other signs than those of a constant's.
    at_root: Any
    if isinstance(group, AxisGroup):
        at_root = equal(axis_index_p.bind(group=group)[0], root)
    else:
        at_root = group.rank() == root
    return [where(at_root, t, zeros_of(t.aval)) for t in total]


_broadcast_jvp, _broadcast_vjp = linear_rules(_broadcast_transpose, lambda: broadcast_p)


def _broadcast_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return whole_batch(lambda: broadcast_p, size, axes, operands, params)


def _broadcast_axis(x: Array, root: int, **params: Any) -> Array:
    return reshape_p.bind(slice_axis(x, 0, root, root + 1), shape=x.shape[1:])


def _broadcast_lower(*values: Any, group: Group, active: bool, root: int) -> tuple[Any, ...]:
    return tuple(group.communicator.broadcast(buffers(values), root))


broadcast_p: Primitive = Primitive(
    "broadcast", _broadcast_lower, _broadcast_rule, "effect", jvp=_broadcast_jvp,
    vjp=_broadcast_vjp, vmap=_broadcast_vmap, axis=along_axis(_broadcast_axis, None),
    linear="joint", multiple=True, effect=True,
)  # fmt: skip


@filtered
def broadcast(x: Any, root: int = 0, group: Group | None = None) -> Any:
    """Rank `root`'s `x` on every rank; elsewhere `x` gives structure, shapes and dtypes."""
    group = group_or_default("broadcast", group)
    root = rank_of("broadcast", root, group)
    return communicate(broadcast_p, x, group, lambda a: a, root=root)

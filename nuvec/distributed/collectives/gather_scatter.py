"""all_gather and sum_scatter, which are each other's transpose, and all_to_all, its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.fold import fold_sum_p
from nuvec.core.ops.shape import move_axis, reshape, reshape_p
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered
from nuvec.distributed.collectives.common import (
    along_axis,
    buffers,
    communicate,
    linear_rules,
)  # fmt: skip
from nuvec.distributed.group import Group
from nuvec.transforms.separate import in_c_order


def _batch_second(
    primitive: Primitive, size: int, axes: Sequence[int | None], operands: Sequence[Array],
    params: dict[str, Any],
) -> tuple[list[Array], list[int]]:  # fmt: skip
    """Batching where axis 0 is cut or joined: it stays first and the batch is axis 1.  A scalar
    gets an axis 0 of its own."""
    moved = []
    for x, axis in zip(operands, axes, strict=True):
        x = batch_first(x, axis, size)
        moved.append(reshape(x, (1, size)) if x.ndim == 1 else move_axis(x, 0, 1))
    return primitive.bind(*moved, **params), [1] * len(moved)


# all_gather: sum_r <c_r, [x_0, ..., x_n]> = sum_s <slice s of sum_r c_r, x_s>


def _gather_rule(*avals: Aval, group: Group, active: bool) -> tuple[Aval, ...]:
    n = group.size()
    return tuple(aval((n * a.shape[0], *a.shape[1:]) if a.shape else (n,), a.dtype) for a in avals)


def _gather_transpose(
    cs: list[Array], operands: list[Array], group: Group, active: bool
) -> list[Array]:
    found = sum_scatter_p.bind(*cs, group=group, active=True)
    return [
        reshape_p.bind(c, shape=()) if not x.shape else c
        for c, x in zip(found, operands, strict=True)
    ]


_gather_jvp, _gather_vjp = linear_rules(_gather_transpose, lambda: all_gather_p)


def _gather_lower(*values: Any, group: Group, active: bool) -> tuple[Any, ...]:
    return tuple(group.communicator.all_gather(buffers(values)))


def _gather_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return _batch_second(all_gather_p, size, axes, operands, params)


def _gather_axis(x: Array, **params: Any) -> Array:
    """Axis 0, the ranks, joined with the axis 0 that each rank's part has."""
    if x.ndim == 1:  # scalars
        return x
    return reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


all_gather_p: Primitive = Primitive(
    "all_gather", _gather_lower, _gather_rule, "effect", jvp=_gather_jvp, vjp=_gather_vjp,
    vmap=_gather_vmap, axis=along_axis(_gather_axis, None), linear="joint", multiple=True,
    effect=True,
)  # fmt: skip


@filtered
def all_gather(x: Any, group: Group | None = None) -> Any:
    """Every rank's `x`, concatenated on axis 0 in rank order; a scalar gives a vector of N, also
    in a group of one."""
    return communicate(
        all_gather_p, x, group, lambda a: a if a.shape else reshape_p.bind(a, shape=(1,))
    )


# sum_scatter: sum_r <c_r, slice r of sum_s x_s> = sum_s <[c_0, ..., c_n], x_s>


def divided(name: str, a: Aval, group: Group) -> int:
    """Axis 0 of `a` over the group's size; ShapeError when there is none or it does not divide."""
    n = group.size()
    if not a.shape:
        raise ShapeError(f"{name}: a scalar has no axis 0 to cut into {n} slices")
    if a.shape[0] % n:
        raise ShapeError(
            f"{name}: axis 0 of shape {a.shape} has size {a.shape[0]}, which the {n} ranks of the "
            "group do not divide; pad it to a multiple"
        )
    return a.shape[0] // n


def _scatter_rule(*avals: Aval, group: Group, active: bool) -> tuple[Aval, ...]:
    for a in avals:
        if dtypes.is_bool(a.dtype):
            raise DtypeError("sum_scatter of booleans: convert with x.astype(nv.int32)")
    return tuple(aval((divided("sum_scatter", a, group), *a.shape[1:]), a.dtype) for a in avals)


_scatter_jvp, _scatter_vjp = linear_rules(
    lambda cs, operands, group, active: all_gather_p.bind(*cs, group=group, active=True),
    lambda: sum_scatter_p,
)


def _scatter_lower(*values: Any, group: Group, active: bool) -> tuple[Any, ...]:
    return tuple(group.communicator.sum_scatter(buffers(values)))


def _scatter_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return _batch_second(sum_scatter_p, size, axes, operands, params)


def _scatter_axis(x: Array, **params: Any) -> Array:
    total = fold_sum_p.bind(x)
    n = x.shape[0]
    return reshape(total, (n, total.shape[0] // n, *total.shape[1:]))


sum_scatter_p: Primitive = Primitive(
    "sum_scatter", _scatter_lower, _scatter_rule, "effect", jvp=_scatter_jvp, vjp=_scatter_vjp,
    vmap=_scatter_vmap, axis=along_axis(_scatter_axis, 0), linear="joint", multiple=True,
    effect=True,
)  # fmt: skip


@filtered
def sum_scatter(x: Any, group: Group | None = None) -> Any:
    """This rank's slice, along axis 0, of the sum over ranks.

    Raises ShapeError (a ValueError) when the group's size does not divide axis 0."""
    return communicate(sum_scatter_p, x, group, lambda a: a)


# all_to_all: block s of rank r goes to block r of rank s, and its transpose brings it back


def _exchange_rule(*avals: Aval, group: Group, active: bool) -> tuple[Aval, ...]:
    for a in avals:
        divided("all_to_all", a, group)
    return avals


_exchange_jvp, _exchange_vjp = linear_rules(
    lambda cs, operands, group, active: all_to_all_p.bind(*cs, group=group, active=True),
    lambda: all_to_all_p,
)


def _exchange_lower(*values: Any, group: Group, active: bool) -> tuple[Any, ...]:
    return tuple(group.communicator.all_to_all(buffers(values)))


def _exchange_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return _batch_second(all_to_all_p, size, axes, operands, params)


def _exchange_axis(x: Array, **params: Any) -> Array:
    n = x.shape[0]
    blocks = reshape(x, (n, n, x.shape[1] // n, *x.shape[2:]))  # from, to, ...
    return in_c_order(reshape(move_axis(blocks, 0, 1), x.shape))


all_to_all_p: Primitive = Primitive(
    "all_to_all", _exchange_lower, _exchange_rule, "effect", jvp=_exchange_jvp, vjp=_exchange_vjp,
    vmap=_exchange_vmap, axis=along_axis(_exchange_axis, 0), linear="joint", multiple=True,
    effect=True,
)  # fmt: skip


@filtered
def all_to_all(x: Any, group: Group | None = None) -> Any:
    """Block r of every rank's `x` (axis 0 cut into N), in rank order, on rank r.

    Raises ShapeError (a ValueError) when the group's size does not divide axis 0."""
    return communicate(all_to_all_p, x, group, lambda a: a)

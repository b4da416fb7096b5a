"""What every communication shares: operands from trees, activity, batching of whole messages."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ConcretizationError, DtypeError, ShapeError
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.differentiation import stop_gradient_p
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import format_user_frame
from nuvec.distributed.axis_group import AxisGroup
from nuvec.distributed.group import Group, group_or_default

Tangents = Sequence[Array | None]


def buffers(values: Sequence[Any]) -> list[np.ndarray]:
    """Operands as a transport takes them: C-contiguous arrays."""
    return [np.ascontiguousarray(v).reshape(np.shape(v)) for v in values]


def communicate(
    primitive: Primitive,
    x: Any,
    group: Group | None,
    alone: Callable[[Array], Array] | None = None,
    **params: Any,
) -> Any:
    """Record one communication of a tree: one equation, many operands, one message.

    In a group of one, `alone` says what the operation is there, and nothing is recorded."""
    group = group_or_default(primitive.name, group)
    if isinstance(group, AxisGroup):
        group.check_open(primitive.name)
    leaves, structure = tree.flatten(x)
    given = [operand(leaf, f"{primitive.name}'s operand") for leaf in leaves]
    arrays = [strong(a) for a in given]
    if group.size() == 1 and alone is not None:
        for a in arrays:  # the same errors as in a larger group
            primitive.shape_rule(a.aval, group=group, active=True, **params)
        return tree.unflatten(structure, [alone(a) for a in arrays])
    if not arrays:
        return x
    active = not all(a._node.primitive is stop_gradient_p for a in given)
    outs = located(primitive.bind(*arrays, group=group, active=active, **params))
    return tree.unflatten(structure, outs)


def located(outs: list[Array]) -> list[Array]:
    """Note the user's line on a communication: it may fail long after it was recorded."""
    for node in outs[0]._node.inputs:  # the equation of which the results are projections
        if node.source is None:
            node.source = format_user_frame()
    return outs


def rank_of(name: str, rank: Any, group: Group) -> int:
    """A rank that the user gave, as an int; ShapeError when the group does not have it."""
    try:
        number = operator.index(rank)
    except ConcretizationError:
        raise traced_rank(name, rank) from None
    except TypeError:
        number = -1
    if not 0 <= number < group.size():
        raise ShapeError(
            f"{name}: rank {rank!r} is not in this group of {group.size()} "
            f"(0 to {group.size() - 1})"
        )
    return number


def traced_rank(name: str, given: Any) -> ConcretizationError:
    """The error for a rank, or a pair of them, that is known only when the program runs."""
    return ConcretizationError(
        f"{name}: ranks must be Python ints, in a program that is the same on every rank, and "
        f"{given!r} has no value here. nv.distributed.permute(x, [(0, 1), (1, 2)], group) says who "
        "sends to whom; nv.where chooses between results"
    )


def strong(x: Array) -> Array:
    """A weak scalar in its default dtype: what is sent must not depend on who else promotes."""
    return x.astype(x.dtype) if x.aval.weak else x


def inexact(arrays: Sequence[Array]) -> list[int]:
    """Which operands have derivatives: the same on every rank, since dtypes are."""
    return [i for i, a in enumerate(arrays) if dtypes.is_inexact(a.dtype)]


def present(arrays: Sequence[Any], which: Sequence[int]) -> list[Array]:
    return [arrays[i] for i in which]


def spread(found: Sequence[Array], which: Sequence[int], count: int) -> list[Array | None]:
    """`found` at the places `which` of a list of `count`, None elsewhere."""
    places: list[Array | None] = [None] * count
    for i, x in zip(which, found, strict=True):
        places[i] = x
    return places


def linear_rules(transpose: Callable[..., list[Array]], forward: Callable[[], Primitive]) -> Any:
    """(jvp, vjp) of a linear communication: itself on the tangents, `transpose` on cotangents.

    `transpose(cs, operands, **params)` gets the inexact ones alone."""

    def jvp(tangents: Tangents, outs: Sequence[Array], *operands: Array, **params: Any) -> Any:
        which = inexact(operands)
        found = forward().bind(*present(tangents, which), **params) if which else []
        return spread(found, which, len(operands))

    def vjp(cs: Tangents, outs: Sequence[Array], *operands: Array, **params: Any) -> Any:
        which = inexact(operands)
        if not which:
            return [None] * len(operands)
        found = transpose(present(cs, which), present(operands, which), **params)
        return spread(found, which, len(operands))

    return jvp, vjp


def whole_batch(
    primitive: Callable[[], Primitive], size: int, axes: Sequence[int | None],
    operands: Sequence[Array], params: dict[str, Any],
) -> tuple[list[Array], list[int]]:  # fmt: skip
    """Batching where the batch may stay first: the whole batch in one message.  An operand that
    is not mapped here may be on another rank, so it is sent as a batch too."""
    moved = [batch_first(x, a, size) for x, a in zip(operands, axes, strict=True)]
    return primitive().bind(*moved, **params), [0] * len(moved)


def along_axis(
    rule: Callable[..., Array], out_axis: int | None
) -> Callable[..., tuple[list[Array], list[int | None]]]:
    """The `axis` rule of a communication: `rule(x, **params)` for each operand, whose axis 0 is
    the ranks; its result has the ranks at `out_axis`, None when it is the same for all of them."""

    def axis(
        size: int, axes: Sequence[int | None], *operands: Array, **params: Any
    ) -> tuple[list[Array], list[int | None]]:
        outs = [
            rule(batch_first(x, a, size), **params) for x, a in zip(operands, axes, strict=True)
        ]
        return outs, [out_axis] * len(outs)

    return axis


def refuse_complex(name: str, dtype: np.dtype) -> None:
    if dtypes.is_complex(dtype):
        raise DtypeError(f"{name}: complex numbers have no order; reduce the real parts or nv.abs")

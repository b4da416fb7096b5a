"""sum_gradients and sum_partials: how replicated values enter and leave a sharded computation.

With a loss that every rank computes alike, plain all_sum would count it once a rank.  These two
state what is meant: `sum_gradients` marks a replicated input of a sharded computation (the
identity; its cotangents, partial on each rank, are summed), `sum_partials` sums partial results
into a replicated one (its cotangent, replicated already, passes as it is).  Each is the other's
transpose, and its own jvp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.ir import Aval
from nuvec.core.ops.fold import left_fold
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered
from nuvec.distributed.collectives.all_reduce import _lower_sum, _sum_rule
from nuvec.distributed.collectives.common import (
    along_axis,
    communicate,
    linear_rules,
    whole_batch,
)  # fmt: skip
from nuvec.distributed.group import Group

# Over a mapped axis they stay a pair of primitives (axis 0: the ranks), for the derivatives of the
# batch are to be those of the ranks: a plain identity and a plain sum have others.


def _batch_second(primitive: Callable[[], Primitive]) -> Any:
    def vmap(size: int, axes: Sequence[int | None], x: Array) -> tuple[Array, int]:
        assert axes[0] is not None
        return primitive().bind(move_axis(x, axes[0], 1)), 1

    return vmap


axis_sum_gradients_p: Primitive = Primitive(
    "sum_gradients.axis", lambda x: x, lambda x: x, "effect",
    transpose=lambda i, c, out, x: axis_sum_partials_p.bind(c),
    vmap=_batch_second(lambda: axis_sum_gradients_p),
)  # fmt: skip

axis_sum_partials_p: Primitive = Primitive(
    "sum_partials.axis", lambda x: np.broadcast_to(left_fold(np.asarray(x)), x.shape),
    lambda x: x, "effect",
    transpose=lambda i, c, out, x: axis_sum_gradients_p.bind(c),
    vmap=_batch_second(lambda: axis_sum_partials_p),
)  # fmt: skip


def _gradients_rule(*avals: Aval, group: Group, active: bool) -> tuple[Aval, ...]:
    return avals


def _gradients_lower(*values: Any, group: Group, active: bool) -> tuple[Any, ...]:
    return values


_gradients_jvp, _gradients_vjp = linear_rules(
    lambda cs, operands, group, active: sum_partials_p.bind(*cs, group=group, active=True),
    lambda: sum_gradients_p,
)


def _gradients_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return whole_batch(lambda: sum_gradients_p, size, axes, operands, params)


# Marked an effect although its forward communicates nothing: its backward does, and so it must be
# walked on every rank alike.
sum_gradients_p: Primitive = Primitive(
    "sum_gradients", _gradients_lower, _gradients_rule, "effect", jvp=_gradients_jvp,
    vjp=_gradients_vjp, vmap=_gradients_vmap,
    axis=along_axis(lambda x, **params: axis_sum_gradients_p.bind(x), 0),
    linear="joint", multiple=True, effect=True,
)  # fmt: skip


@filtered
def sum_gradients(x: Any, group: Group | None = None) -> Any:
    """`x`, whose cotangents are summed over ranks: for a replicated input of sharded layers."""
    return communicate(sum_gradients_p, x, group, lambda a: a)


_partials_jvp, _partials_vjp = linear_rules(
    lambda cs, operands, group, active: sum_gradients_p.bind(*cs, group=group, active=True),
    lambda: sum_partials_p,
)


def _partials_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    return whole_batch(lambda: sum_partials_p, size, axes, operands, params)


sum_partials_p: Primitive = Primitive(
    "sum_partials", _lower_sum, _sum_rule, "effect", jvp=_partials_jvp, vjp=_partials_vjp,
    vmap=_partials_vmap, axis=along_axis(lambda x, **params: axis_sum_partials_p.bind(x), 0),
    linear="joint", multiple=True, effect=True,
)  # fmt: skip


@filtered
def sum_partials(x: Any, group: Group | None = None) -> Any:
    """The sum of `x` over ranks, whose cotangent passes unchanged: for partial results of sharded
    layers that add up to a replicated one."""
    return communicate(sum_partials_p, x, group, lambda a: a)

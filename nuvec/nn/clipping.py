"""Gradients scaled down to a norm, on one rank or over those that hold parts of them."""

from __future__ import annotations

from typing import Any

from nuvec.core.array import Array, operand
from nuvec.core.ops.arithmetic import sqrt
from nuvec.core.ops.selection import where
from nuvec.distributed.collectives.all_reduce import all_sum
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group, like, number
from nuvec.nn.optim.base import as_update, map_arrays
from nuvec.nn.optim.transforms import global_norm

__all__ = ["clip_grad_norm", "clip_grad_norm_sharded"]


def clip_grad_norm(gradients: Any, max_norm: float) -> tuple[Any, Array]:
    """(gradients * min(1, max_norm / norm), norm), for the Euclidean norm of all gradients
    together.

    gradients -- a tree of floating arrays; the result has its structure, shapes and dtypes
    max_norm  -- a number, at least 0; infinity clips nothing
    norm      -- a scalar, float32, or float64 where a gradient is; what it was before

    Gradients within the bound keep their bits; a NaN in the norm shows in all of them. In a chain
    of transformations, `optim.clip_by_global_norm` does the same.
    (Pascanu et al. 2013, arXiv:1211.5063; mlx.optimizers.clip_grad_norm)

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> clipped, norm = nn.clip_grad_norm({"w": nv.array([3.0, 4.0])}, 1.0)
    >>> nv.round(clipped["w"], 3), norm
    (array([0.6, 0.8], dtype=float32), array(5., dtype=float32))
    """
    max_norm = number(max_norm, "clip_grad_norm: max_norm", 0, infinite=True)
    return _clipped(gradients, max_norm, global_norm(gradients))


def clip_grad_norm_sharded(
    gradients: Any, max_norm: float, group: Group | None = None
) -> tuple[Any, Array]:
    """`clip_grad_norm` of gradients of which every rank of the group has its own part, as
    `fully_shard` leaves them: the norm is that of all parts together, the same on every rank.

    A gradient that all ranks have alike counts once a rank: leave it out, and clip it with the
    norm that is returned. Every rank calls it.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def clip(group):
    ...     part = nv.array([3.0 + group.rank()])
    ...     return nn.clip_grad_norm_sharded(part, 1.0, group)[1]
    >>> nv.distributed.run_local(clip, 2)
    [array(5., dtype=float32), array(5., dtype=float32)]
    """
    max_norm = number(max_norm, "clip_grad_norm_sharded: max_norm", 0, infinite=True)
    group = as_group(group, "clip_grad_norm_sharded")
    own = global_norm(gradients)
    return _clipped(gradients, max_norm, sqrt(all_sum(own * own, group)))


def _clipped(gradients: Any, max_norm: Any, norm: Array) -> tuple[Any, Array]:
    # The comparison is this way round so that a NaN norm shows instead of passing.
    bound = operand(like(max_norm, norm))
    factor = where(norm <= bound, 1.0, bound / norm)

    def scaled(g: Any) -> Array:
        wide = as_update(g)
        return (wide * like(factor, wide)).astype(operand(g).dtype)

    return map_arrays(scaled, gradients), norm

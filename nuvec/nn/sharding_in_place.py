"""shard_inplace: a module's own arrays, cut to this rank's parts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group
from nuvec.nn.module import Module
from nuvec.nn.names import dotted
from nuvec.nn.segments import Segments, own_part

__all__ = ["shard_inplace"]

# (path, array) -> the axis to cut; the axis and its segments; or None to leave the array whole
Predicate = Callable[[str, Array], int | tuple[int, Segments] | None]


def shard_inplace(
    module: Module,
    sharding: str | Predicate,
    *,
    segments: Segments = 1,
    group: Group | None = None,
) -> None:
    """Keep this rank's part of a module's arrays, in the module.

    sharding -- "all-to-sharded": weights by their rows (their second last axis), biases too;
                "sharded-to-all": weights by their columns (their last axis), biases stay whole;
                or `sharding(path, array)` for each array of `parameters()`, whose path is
                "layers.0.weight" or so: it returns the axis to cut, (axis, segments), or None to
                leave the array whole
    segments -- how each cut axis is divided first, as in `AllToShardedLinear.from_linear`; for a
                string only
    group    -- the ranks that get a part each; None for the default group

    The module stays what it is: it computes with the parts it has, and communicates only where it
    did before (`shard_linear` makes a layer that does). Nothing is changed when an array cannot be
    cut. ValueError where the segments or the ranks do not divide an axis, naming the array and
    both numbers; a quantised weight is cut between its groups.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def rows(group):
    ...     model = nn.Sequential(nn.Linear(4, 6), nn.relu)
    ...     nn.shard_inplace(model, "all-to-sharded", group=group)
    ...     return model.layers[0].weight.shape, model.layers[0].bias.shape
    >>> nv.distributed.run_local(rows, 2)
    [((3, 4), (3,)), ((3, 4), (3,))]
    """
    if not isinstance(module, Module):
        raise TypeError(f"shard_inplace takes a module, got {type(module).__name__}.")
    if isinstance(sharding, str):
        if sharding not in _STRINGS:
            raise ValueError(
                f"shard_inplace: sharding is one of {sorted(_STRINGS)}, or a function of a path "
                f"and an array; got {sharding!r}."
            )
        predicate = _STRINGS[sharding](segments)
    elif callable(sharding):
        if segments != 1:
            raise TypeError(
                "shard_inplace: segments go with a string; the function returns (axis, segments)."
            )
        predicate = sharding
    else:
        raise TypeError(f"shard_inplace: sharding is a string or a function, got {sharding!r:.60}.")
    group = as_group(group, "shard_inplace")
    paths, structure = tree.flatten_with_path(module.parameters())
    parts = [_part(dotted(path), x, predicate, group) for path, x in paths]
    module.update(structure.unflatten(parts))


def _part(path: str, x: Array, predicate: Predicate, group: Group) -> Array:
    found: Any = predicate(path, x)
    if found is None:
        return x
    axis, segments = found if isinstance(found, tuple) and len(found) == 2 else (found, 1)
    try:
        if isinstance(axis, bool):
            raise TypeError
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(
            f"shard_inplace: for {path} the function returned {found!r:.60}, which is neither an "
            "axis nor (axis, segments) nor None."
        ) from None
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"shard_inplace: {path} has shape {x.shape}, and no axis {axis} to cut.")
    axis %= x.ndim
    return own_part("shard_inplace", f"axis {axis} of {path}", x, segments, group, axis)


def _all_to_sharded(segments: Segments) -> Predicate:
    def predicate(path: str, x: Array) -> tuple[int, Segments]:
        return (x.ndim - 1 if _is_bias(path) else max(x.ndim - 2, 0)), segments

    return predicate


def _sharded_to_all(segments: Segments) -> Predicate:
    def predicate(path: str, x: Array) -> tuple[int, Segments] | None:
        return None if _is_bias(path) else (x.ndim - 1, segments)

    return predicate


_STRINGS = {"all-to-sharded": _all_to_sharded, "sharded-to-all": _sharded_to_all}


def _is_bias(path: str) -> bool:
    return path.rpartition(".")[2] == "bias"

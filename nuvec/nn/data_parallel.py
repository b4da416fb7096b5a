"""Data parallelism: every rank has the whole model and its own part of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError
from nuvec.core.ops.build import integer
from nuvec.core.ops.selection import where
from nuvec.distributed.collectives.all_reduce import all_sum, broadcast
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group, like, number
from nuvec.nn.module import Module

__all__ = ["average_gradients", "broadcast_parameters"]

MEBIBYTE = 1 << 20


def average_gradients(
    gradients: Any,
    group: Group | None = None,
    all_reduce_size: int = 32 * MEBIBYTE,
    weight: Any = None,
) -> Any:
    """The mean over the ranks of each gradient: a tree like `gradients`, the same on every rank.

    all_reduce_size -- gradients of one dtype are summed together, in messages of up to this many
                       bytes; 0 sends each by itself
    weight -- this rank's share, a number or a scalar Array, such as the number of its examples:
              the result is sum(weight * gradient) / sum(weight). No weight is negative. A rank of
              weight 0 has no part in it, not even by an infinity or NaN; when all have, the
              result is 0

    The last gradients of the tree go first, as the backward pass has them ready first. None stays
    None. float16 and bfloat16 are summed, and sent, in float32 and rounded once. A mean that its
    dtype holds does not overflow: what is summed has been scaled down, by a power of 2 unless
    there are weights, which keeps all bits of numbers above the smallest normal one times the
    number of ranks.

    Raises DtypeError for a leaf that is no floating array, and ValueError for a weight that is a
    negative number or NaN. Every rank calls it with the same structure, shapes and dtypes. A
    group of one returns the gradients as they are, unless their weight is 0.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def step(group):
    ...     gradient = {"w": nv.full((2,), float(group.rank()))}
    ...     return nn.average_gradients(gradient, group)["w"]
    >>> nv.distributed.run_local(step, 2)
    [array([0.5, 0.5], dtype=float32), array([0.5, 0.5], dtype=float32)]
    """
    group = as_group(group, "average_gradients")
    if integer(all_reduce_size, "average_gradients: all_reduce_size") < 0:
        raise ValueError(f"average_gradients: all_reduce_size counts bytes, got {all_reduce_size}.")
    paths, structure = tree.flatten_with_path(gradients)
    given = [operand(leaf, f"gradients{tree.keystr(path)}") for path, leaf in paths]
    for (path, _), leaf in zip(paths, given, strict=True):
        if not dtypes.is_inexact(leaf.dtype):
            raise DtypeError(
                f"average_gradients: gradients{tree.keystr(path)} is {leaf.aval}, which has no "
                "mean in its dtype. Leave it out (None), or convert it."
            )
    share = None if weight is None else _share(weight)
    ranks = group.size()
    if ranks == 1 and (share is None or (not isinstance(share, Array) and share > 0)):
        return gradients
    leaves = [leaf.astype(dtypes.accumulation(leaf.dtype)) for leaf in given]
    # Dividing by a power of 2 is exact, so the sums get the bits they would have without it.
    scale = 1 << (ranks - 1).bit_length()
    if share is None:
        leaves = [leaf * (1 / scale) for leaf in leaves]
    else:
        # The weights are divided by their sum first: counts times gradients may overflow.
        share = operand(share).astype(dtypes.float64)
        fraction = share / all_sum(share, group)
        leaves = [where(share == 0, 0, leaf * like(fraction, leaf)) for leaf in leaves]
    averaged: list[Array | None] = [None] * len(leaves)
    for bucket in _buckets(leaves, all_reduce_size):
        for i, mean in zip(bucket, all_sum([leaves[i] for i in bucket], group), strict=True):
            if share is None and ranks != scale:
                mean = mean / (ranks / scale)
            averaged[i] = mean.astype(given[i].dtype)
    return structure.unflatten(averaged)


def _share(weight: Any) -> Any:
    """A weight as a number or a scalar Array; whether an Array is negative is not known here."""
    if isinstance(weight, bool | np.bool_):
        return int(weight)
    if isinstance(weight, Array) and dtypes.is_bool(weight.dtype) and not weight.shape:
        return weight.astype(dtypes.int32)
    return number(weight, "average_gradients: weight, one number per rank,", 0)


def _buckets(leaves: list[Array], all_reduce_size: int) -> Iterator[list[int]]:
    """Indices of leaves to sum in one message, from the last leaf to the first.

    A bucket is sent as soon as the next leaf would not fit, so that the first messages leave
    while the backward pass goes on."""
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    for i in reversed(range(len(leaves))):
        dtype, nbytes = leaves[i].dtype, leaves[i].nbytes
        bucket, filled = open_buckets.get(dtype, ([], 0))
        if bucket and filled + nbytes > all_reduce_size:
            yield bucket
            bucket, filled = [], 0
        open_buckets[dtype] = ([*bucket, i], filled + nbytes)
    for bucket, _ in open_buckets.values():
        yield bucket


def broadcast_parameters(parameters: Any, root: int = 0, group: Group | None = None) -> Any:
    """Give every rank the parameters that `root` has.

    parameters -- a tree of arrays, of which a new one is returned; or a `Module`, whose arrays
                  (buffers and frozen ones too) are replaced, and which is returned itself

    One message for all. Raises ValueError for a `root` the group does not have, and for a module
    with layers that are sharded over the same group, whose slices must differ. Every rank calls
    it with the same structure, shapes and dtypes. A group of one changes nothing.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def start(group):
    ...     weights = nv.full((2,), float(group.rank() + 1))
    ...     return nn.broadcast_parameters({"w": weights}, group=group)["w"]
    >>> nv.distributed.run_local(start, 2)
    [array([1., 1.], dtype=float32), array([1., 1.], dtype=float32)]
    """
    group = as_group(group, "broadcast_parameters")
    if not 0 <= root < group.size():
        raise ValueError(f"broadcast_parameters: root {root} is not in a group of {group.size()}.")
    if isinstance(parameters, Module):
        for name, module in parameters.named_modules():
            if group.size() > 1 and getattr(module, "sharded_group", None) == group:
                raise ValueError(
                    f"broadcast_parameters: {name or 'the module'} is a {type(module).__name__} "
                    f"over the same {group}, and its ranks must keep their own slices."
                )
        values = broadcast_parameters(parameters.parameters(), root, group)
        return parameters.update(values)
    leaves, structure = tree.flatten(parameters)
    if group.size() == 1 or not leaves:
        return parameters
    return structure.unflatten(broadcast(leaves, root, group))

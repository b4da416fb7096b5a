"""fully_shard: every rank keeps a part of each parameter, and gathers them all to use them.

(ZeRO stage 3, https://arxiv.org/abs/1910.02054; mlx.nn.fully_shard.)
"""

from __future__ import annotations

from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.distributed.collectives.gather_scatter import all_gather
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group
from nuvec.nn.module import Module
from nuvec.nn.sharded import Sharded

__all__ = ["FullyShardedModule", "fully_shard"]


class FullyShardedModule(Sharded):
    """A module of which every rank of a group holds one part in N of each array, by axis 0.

    module -- the module, with this rank's parts in place of its arrays
    group  -- the ranks

    Called, it gathers the parts of all ranks, in one message, and computes with whole arrays, which
    are let go of afterwards. Arrays of the module that the call replaces (running statistics) are
    cut again. `fully_shard` makes one.
    """

    module: Module
    compute_dtype: Any

    def __init__(
        self, module: Module, group: Group | None = None, compute_dtype: Any = None
    ) -> None:
        super().__init__()
        self.group = as_group(group, "fully_shard")
        self.compute_dtype = None if compute_dtype is None else dtypes.as_dtype(compute_dtype)
        paths, structure = tree.flatten_with_path(module, is_leaf=_is_sharded)
        for path, x in paths:
            self._check(tree.keystr(path), x)
        self.module = structure.unflatten([self._own(x) for _, x in paths])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for the arguments, computed with its whole arrays."""
        return self._gathered("__call__", args, kwargs)

    def as_linear(self, *args: Any, **kwargs: Any) -> Any:
        """The module's `as_linear`, with its whole arrays: an embedding as an output layer."""
        return self._gathered("as_linear", args, kwargs)

    def _gathered(self, method: str, args: Any, kwargs: Any) -> Any:
        leaves, structure = tree.flatten(self.module, is_leaf=_is_sharded)
        places = [i for i, x in enumerate(leaves) if isinstance(x, Array)]
        parts = [self._computed(leaves[i]) for i in places]
        whole = list(leaves)
        if parts:
            for i, x in zip(places, all_gather(parts, self.group), strict=True):
                whole[i] = x
        module = structure.unflatten(list(whole))
        result = getattr(module, method)(*args, **kwargs)
        after = tree.leaves(module, is_leaf=_is_sharded)
        if any(a is not b for a, b in zip(after, whole, strict=True)):
            for i, (now, before) in enumerate(zip(after, whole, strict=True)):
                if now is not before:
                    leaves[i] = self._own(now)
            self.module.update(structure.unflatten(leaves))
        return result

    def _computed(self, x: Array) -> Array:
        if self.compute_dtype is None or not dtypes.is_floating(x.dtype):
            return x
        return x.astype(self.compute_dtype)

    def _own(self, x: Any) -> Any:
        if not isinstance(x, Array):
            return x
        size = x.shape[0] // self.group.size()
        return x[self.group.rank() * size : (self.group.rank() + 1) * size]

    def _check(self, name: str, x: Any) -> None:
        ranks = self.group.size()
        if not isinstance(x, Array):
            return
        if not x.ndim:
            raise ValueError(
                f"fully_shard: {name.lstrip('.')} is a scalar, which has no axis to cut among "
                f"{ranks} ranks. Make it an array of {ranks}, or keep it in a module of its own."
            )
        if x.shape[0] % ranks:
            raise ValueError(
                f"fully_shard: the group's {ranks} ranks do not divide axis 0 of "
                f"{name.lstrip('.')}, of shape {x.shape}: {x.shape[0]} is no multiple of {ranks}."
            )

    def _extra_repr(self) -> str:
        dtype = self.compute_dtype
        text = "" if dtype is None else f", compute_dtype={dtypes.name(dtype)}"
        return f"ranks={self.group.size()}{text}"


def fully_shard(module: Module, *, group: Group | None = None, compute_dtype: Any = None) -> Module:
    """A module that computes what `module` does, with every rank holding one part in N of each of
    its arrays.

    group         -- the N ranks; None for the default group
    compute_dtype -- of the arrays while they are whole; floating arrays are cast, and sent, in it

    The gradient of a part is the sum over the ranks of the gradients of their losses, scattered to
    the ranks whose parts they are: for the mean, divide each loss by `group.size()`. So optimizer
    states are parts too; `clip_grad_norm_sharded` clips such gradients. Applied to the layers of a
    model one by one, each is whole only while it computes; what the gradient needs of it is kept,
    unless `nv.checkpoint` computes the layer again.

    The module given is not changed. In a group of one, and for a module that is sharded already or
    has no arrays, it is returned itself. ValueError where N does not divide an array's axis 0, and
    for scalars. Every rank calls it with the same arrays.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def run(group):
    ...     layer = nn.fully_shard(nn.Linear(4, 6), group=group)
    ...     return layer.module.weight.shape, layer(nv.ones((2, 4))).shape
    >>> nv.distributed.run_local(run, 2)
    [((3, 4), (2, 6)), ((3, 4), (2, 6))]
    """
    if not isinstance(module, Module):
        raise TypeError(f"fully_shard takes a module, got {type(module).__name__}.")
    group = as_group(group, "fully_shard")
    arrays = [x for x in tree.leaves(module, is_leaf=_is_sharded) if isinstance(x, Array)]
    if group.size() == 1 or isinstance(module, FullyShardedModule) or not arrays:
        return module
    return FullyShardedModule(module, group, compute_dtype)


def _is_sharded(value: Any) -> bool:
    return isinstance(value, FullyShardedModule)

"""value_and_grad with respect to a module's trainable parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.core.traceback import filtered
from nuvec.nn.module import Module
from nuvec.transforms.grad import value_and_grad as differentiate

__all__ = ["value_and_grad"]


@filtered
def value_and_grad(model: Module, fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns `fn`'s value and its gradient in `model`'s trainable parameters.

    fn -- uses `model`, which may be among its arguments, and returns the loss, or a tuple or list
          whose first item is the loss; the value comes back as it was returned

    The gradients are nested as `model.trainable_parameters()`: frozen arrays have none, and those
    of integer and boolean arrays are None. Arrays of the model that `fn` replaces and that are not
    trainable (running statistics) keep their new value; the parameters are afterwards what they
    were, also when `fn` raises.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> model = nn.Linear(2, 1).freeze(keys="weight")
    >>> def loss(model, x):
    ...     return model(x).sum()
    >>> value, grads = nn.value_and_grad(model, loss)(model, nv.ones((3, 2)))
    >>> grads
    {'bias': array([3.], dtype=float32)}
    """
    if not isinstance(model, Module):
        raise TypeError(f"nn.value_and_grad takes a module first, got {type(model).__name__}.")

    @wraps(fn)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        paths, structure = tree.flatten_with_path(model.parameters())
        before = [leaf for _, leaf in paths]
        trainable_paths, trainable = tree.flatten_with_path(model.trainable_parameters())
        position = {path: i for i, (path, _) in enumerate(paths)}
        positions = [position[path] for path, _ in trainable_paths]
        chosen = [i for i in positions if dtypes.is_inexact(before[i].dtype)]

        def loss(inputs: list[Array]) -> tuple[Any, Any]:
            model.update(structure.unflatten(_replaced(before, chosen, inputs)))
            result = fn(*args, **kwargs)
            first = result[0] if isinstance(result, tuple | list) and result else result
            return first, (result, _changed(before, tree.leaves(model.parameters()), positions))

        changed: dict[int, Array] = {}
        try:
            (_, (result, changed)), found = differentiate(loss, has_aux=True)(
                [before[i] for i in chosen]
            )
        finally:
            kept = _replaced(before, list(changed), list(changed.values()))
            model.update(structure.unflatten(kept))
        gradients = dict(zip(chosen, found, strict=True))
        return result, trainable.unflatten([gradients.get(i) for i in positions])

    return wrapped


def _replaced(items: list[Array], positions: list[int], new: list[Array]) -> list[Array]:
    """A copy of `items` with `new` at `positions`."""
    copied = list(items)
    for i, item in zip(positions, new, strict=True):
        copied[i] = item
    return copied


def _changed(before: list[Array], after: list[Array], trainable: list[int]) -> dict[int, Array]:
    """What a call put in the place of arrays that are not trainable, by position."""
    skip = set(trainable)
    return {
        i: new
        for i, (old, new) in enumerate(zip(before, after, strict=True))
        if new is not old and i not in skip
    }

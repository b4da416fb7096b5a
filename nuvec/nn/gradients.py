"""value_and_grad with respect to a module's trainable parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.core.traceback import filtered
from nuvec.nn.contents import Snapshot
from nuvec.nn.module import Module
from nuvec.nn.writing import write
from nuvec.transforms.grad import value_and_grad as differentiate

__all__ = ["value_and_grad"]


@filtered
def value_and_grad(model: Module, fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns `fn`'s value and its gradient in `model`'s trainable parameters.

    fn -- uses `model`, which may be among its arguments, and returns the loss, or a tuple or list
          whose first item is the loss; the value comes back as it was returned

    The gradients are nested as `model.trainable_parameters()`: frozen arrays have none, and those
    of integer and boolean arrays are None. What else `fn` assigns to the model (running statistics,
    caches, underscore attributes too) stays there; the trainable parameters are afterwards what
    they were. When `fn` raises, all of the model is. Assign arrays as a whole, `self.mean = ...`.

    It may run inside of `nv.compile` and `nv.vmap`: then let the model be an argument of the
    function that they transform, and return it where the call changes it. A module in two places
    has its whole gradient in the last, and zeros in the first, as in MLX.

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
        before = Snapshot(model)
        trainable, structure = tree.flatten(model.trainable_parameters())
        chosen = [i for i, array in enumerate(trainable) if dtypes.is_inexact(array.dtype)]

        def loss(inputs: list[Array]) -> tuple[Any, Any]:
            write(model, structure.unflatten(_replaced(trainable, chosen, inputs)), Array, True)
            result = fn(*args, **kwargs)
            write(model, structure.unflatten(trainable), Array, True)
            first = result[0] if isinstance(result, tuple | list) and result else result
            return first, result

        try:
            (_, result), found = differentiate(loss, has_aux=True)([trainable[i] for i in chosen])
        except BaseException:
            before.restore()
            raise
        gradients = dict(zip(chosen, found, strict=True))
        return result, structure.unflatten([gradients.get(i) for i in range(len(trainable))])

    return wrapped


def _replaced(items: list[Array], positions: list[int], new: list[Array]) -> list[Array]:
    """A copy of `items` with `new` at `positions`."""
    copied = list(items)
    for i, item in zip(positions, new, strict=True):
        copied[i] = item
    return copied

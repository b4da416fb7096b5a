"""What the workloads share: making inputs, and running a function in each framework.

`inputs` is a function's arguments, trees of NumPy arrays.  A task calls the compiled function on
them and returns its results, evaluated but not converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _worker import Task

Function = Callable[..., Any]


class Draw:
    """Random float32 arrays and class labels from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self._random.standard_normal(shape) * scale).astype(np.float32)

    def uniform(self, *shape: int, low: float, high: float) -> np.ndarray:
        return self._random.uniform(low, high, shape).astype(np.float32)

    def labels(self, count: int, classes: int) -> np.ndarray:
        return self._random.integers(classes, size=count).astype(np.int32)


def as_is(function: Function) -> Function:
    return function


def in_nuvec(function: Function, inputs: Any) -> Task:
    import nuvec as nv

    compiled = nv.compile(function)
    arrays = nv.tree.map(nv.array, inputs)
    return lambda: compiled(*arrays)


def in_jax(function: Function, inputs: Any) -> Task:
    import jax

    compiled = jax.jit(function)
    arrays = jax.tree.map(jax.numpy.asarray, inputs)
    return lambda: jax.block_until_ready(compiled(*arrays))


def in_mlx(function: Function, inputs: Any) -> Task:
    import mlx.core as mx

    compiled = mx.compile(function)
    arrays = mapped(mx.array, inputs)

    def task() -> Any:
        results = compiled(*arrays)
        mx.eval(results)
        return results

    return task


def in_torch(function: Function, inputs: Any) -> Task:
    """For a function that needs no gradients, or takes them itself."""
    tensors = mapped(tensor, inputs)
    return lambda: function(*tensors)


def gradient_in_torch(loss: Function, inputs: Any) -> Task:
    """The value and the gradient of a loss of (parameters, *data), for a tuple of parameters."""
    import torch

    parameters, *data = mapped(tensor, inputs)
    for parameter in parameters:
        parameter.requires_grad_()

    def task() -> Any:
        value = loss(parameters, *data)
        return value.detach(), torch.autograd.grad(value, parameters)

    return task


def gradient_in_autograd(loss: Function, inputs: Any) -> Task:
    import autograd

    function = autograd.value_and_grad(loss)
    return lambda: function(*inputs)


def tensor(array: np.ndarray) -> Any:
    """torch's copy of an array; it indexes with int64 alone."""
    import torch

    made = torch.tensor(array)
    return made if made.is_floating_point() else made.long()


def mapped(function: Function, tree: Any) -> Any:
    """`function` of the arrays in nested tuples."""
    if isinstance(tree, tuple):
        return tuple(mapped(function, part) for part in tree)
    return function(tree)

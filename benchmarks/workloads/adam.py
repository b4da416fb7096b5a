"""A step of Adam over 10 million parameters, in place where the framework can.

As in training, a step begins with what the last one left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "a step of Adam, 10 M parameters"
TARGET = 1.5
UNIT = "ms"
SIZES = {"width": 1054}
SMALL = {"width": 3}
RATE, B1, B2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
DONE = 10  # steps before the first one here


def inputs(width: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Parameters, their gradients, and the moments after ten steps: about 9 width^2 each."""
    draw = common.Draw()
    shapes = [(width, width), (width, 4 * width), (4 * width, width), (4 * width,), (width,)]
    parameters, gradients = (tuple(draw.normal(*shape) for shape in shapes) for _ in range(2))
    return parameters, gradients, *moments(draw, parameters)


def moments(
    draw: common.Draw, parameters: tuple[np.ndarray, ...], scale: float = 1.0
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Adam's m and v in the midst of training, for gradients about as large as `scale`."""
    m = tuple(draw.normal(*p.shape, scale=0.3 * scale) for p in parameters)
    low, high = 0.005 * scale**2, 0.015 * scale**2
    return m, tuple(draw.uniform(*p.shape, low=low, high=high) for p in parameters)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    parameters, gradients, m, v = nv.tree.map(nv.array, inputs)
    optimizer = nn.optim.adam(RATE, B1, B2, EPSILON)
    state = state_nuvec(optimizer, parameters, m, v)
    del m, v

    def step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return nn.optim.apply_updates(parameters, updates), state

    compiled = nv.compile(step, donate_argnums=(0, 1))

    def task() -> Any:
        nonlocal parameters, state
        parameters, state = compiled(parameters, state, gradients)
        return parameters, state[0].mu, state[0].nu

    return task


def state_nuvec(optimizer: Any, parameters: Any, m: Any, v: Any) -> Any:
    """nuvec's state of Adam after ten steps."""
    import nuvec as nv

    adam, *rest = optimizer.init(parameters)
    return (adam._replace(count=nv.array(DONE, dtype=nv.int32), mu=m, nu=v), *rest)


def update(
    sqrt: Callable[[Any], Any], p: Any, g: Any, m: Any, v: Any, count: Any
) -> tuple[Any, Any, Any]:
    """The parameter and its moments after step `count`, for frameworks without an optimizer."""
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g * g
    step = RATE * (m / (1 - B1**count)) / (sqrt(v / (1 - B2**count)) + EPSILON)
    return p - step, m, v


def update_all(
    sqrt: Callable[[Any], Any], parameters: Any, gradients: Any, m: Any, v: Any, count: Any
) -> tuple[Any, Any, Any, Any]:
    """The same for tuples of arrays; the new count comes last."""
    count = count + 1
    rows = [update(sqrt, *row, count) for row in zip(parameters, gradients, m, v, strict=True)]
    parameters, m, v = zip(*rows, strict=True)
    return parameters, m, v, count


def jax(inputs: Any) -> Task:
    import jax
    import jax.numpy as jnp

    parameters, gradients, m, v = jax.tree.map(jnp.asarray, inputs)
    count = jnp.float32(DONE)

    def step(parameters: Any, m: Any, v: Any, count: Any, gradients: Any) -> Any:
        return update_all(jnp.sqrt, parameters, gradients, m, v, count)

    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3))

    def task() -> Any:
        nonlocal parameters, m, v, count
        parameters, m, v, count = compiled(parameters, m, v, count, gradients)
        return jax.block_until_ready((parameters, m, v))

    return task


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    """One fused kernel as it is: there is nothing for `jit` to do."""
    parameters, gradients, m, v = common.mapped(common.tensor, inputs)
    optimizer = optimizer_torch(parameters, m, v)
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g

    def task() -> Any:
        optimizer.step()
        return [p.detach() for p in parameters], m, v

    return task


def optimizer_torch(parameters: Any, m: Any, v: Any) -> Any:
    """torch's Adam, its moments the tensors given, which it changes."""
    import torch

    optimizer = torch.optim.Adam(parameters, RATE, (B1, B2), EPSILON, fused=True)
    for p, mean, square in zip(parameters, m, v, strict=True):
        step = torch.tensor(float(DONE))
        optimizer.state[p] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    return optimizer


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    parameters, gradients, m, v = common.mapped(mx.array, inputs)
    count = mx.array(float(DONE))

    @mx.compile
    def step(parameters: Any, m: Any, v: Any, count: Any, gradients: Any) -> Any:
        return update_all(mx.sqrt, parameters, gradients, m, v, count)

    def task() -> Any:
        nonlocal parameters, m, v, count
        parameters, m, v, count = step(parameters, m, v, count, gradients)
        mx.eval(parameters, m, v, count)
        return parameters, m, v

    return task

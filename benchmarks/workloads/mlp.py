"""Training a 784-512-512-10 perceptron: a whole step with Adam, on a batch of 128.

A step begins with what the last one left.  The time to the first step and the memory of a run are
measured with this one too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import adam, common
from workloads.softmax import cross_entropy_autograd, cross_entropy_jax

TEXT = "MLP 784-512-512-10, batch 128, a step with Adam"
TARGET = 1.1
UNIT = "ms"
SIZES = {"features": 784, "hidden": 512, "classes": 10, "batch": 128}
SMALL = {"features": 12, "hidden": 8, "classes": 3, "batch": 9}


def inputs(features: int, hidden: int, classes: int, batch: int) -> tuple[Any, ...]:
    """Parameters (weight, bias, weight, ...), their moments after ten steps, x and labels."""
    draw = common.Draw()
    parameters = perceptron(draw, features, hidden, classes)
    m, v = adam.moments(draw, parameters, scale=0.01)
    return parameters, m, v, draw.normal(batch, features), draw.labels(batch, classes)


def perceptron(draw: common.Draw, *widths: int) -> tuple[np.ndarray, ...]:
    """Weights [inputs, outputs] and biases; the middle width is that of two hidden layers."""
    features, hidden, classes = widths
    parameters = []
    for before, after in ((features, hidden), (hidden, hidden), (hidden, classes)):
        parameters.append(draw.normal(before, after, scale=(2 / before) ** 0.5))
        parameters.append(draw.normal(after, scale=0.1))
    return tuple(parameters)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    parameters, m, v, x, labels = nv.tree.map(nv.array, inputs)
    optimizer = nn.optim.adam(adam.RATE, adam.B1, adam.B2, adam.EPSILON)
    state = adam.state_nuvec(optimizer, parameters, m, v)
    del m, v

    def step(parameters: Any, state: Any, x: Any, labels: Any) -> Any:
        loss, gradients = nv.value_and_grad(loss_nuvec)(parameters, x, labels)
        updates, state = optimizer.update(gradients, state, parameters)
        return nn.optim.apply_updates(parameters, updates), state, loss

    compiled = nv.compile(step, donate_argnums=(0, 1))

    def task() -> Any:
        nonlocal parameters, state
        parameters, state, loss = compiled(parameters, state, x, labels)
        return loss, parameters, state[0].mu, state[0].nu

    return task


def loss_nuvec(parameters: Any, x: Any, labels: Any) -> Any:
    import nuvec.nn as nn

    logits = forward(nn.relu, parameters, x)
    return nn.losses.cross_entropy(logits, labels, reduction="mean")


def forward(relu: common.Function, parameters: Any, x: Any) -> Any:
    """The logits."""
    w1, b1, w2, b2, w3, b3 = parameters
    x = relu(x @ w1 + b1)
    x = relu(x @ w2 + b2)
    return x @ w3 + b3


def jax(inputs: Any) -> Task:
    import jax
    import jax.numpy as jnp

    parameters, m, v, x, labels = jax.tree.map(jnp.asarray, inputs)
    count = jnp.float32(adam.DONE)

    def step(parameters: Any, m: Any, v: Any, count: Any, x: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_jax)(parameters, x, labels)
        return loss, *adam.update_all(jnp.sqrt, parameters, gradients, m, v, count)

    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3))

    def task() -> Any:
        nonlocal parameters, m, v, count
        loss, parameters, m, v, count = compiled(parameters, m, v, count, x, labels)
        return jax.block_until_ready((loss, parameters, m, v))

    return task


def loss_jax(parameters: Any, x: Any, labels: Any) -> Any:
    import jax

    return cross_entropy_jax(forward(jax.nn.relu, parameters, x), labels)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    parameters, m, v, x, labels = common.mapped(common.tensor, inputs)
    for parameter in parameters:
        parameter.requires_grad_()
    optimizer = adam.optimizer_torch(parameters, m, v)

    @jit
    def loss_of(parameters: Any, x: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(forward(torch.relu, parameters, x), labels)

    def task() -> Any:
        optimizer.zero_grad()
        loss = loss_of(parameters, x, labels)
        loss.backward()
        optimizer.step()
        return loss.detach(), [p.detach() for p in parameters], m, v

    return task


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    parameters, m, v, x, labels = common.mapped(mx.array, inputs)
    count = mx.array(float(adam.DONE))

    @mx.compile
    def step(parameters: Any, m: Any, v: Any, count: Any, x: Any, labels: Any) -> Any:
        loss, gradients = mx.value_and_grad(loss_mlx)(parameters, x, labels)
        return loss, *adam.update_all(mx.sqrt, parameters, gradients, m, v, count)

    def task() -> Any:
        nonlocal parameters, m, v, count
        loss, parameters, m, v, count = step(parameters, m, v, count, x, labels)
        mx.eval(loss, parameters, m, v, count)
        return loss, parameters, m, v

    return task


def loss_mlx(parameters: Any, x: Any, labels: Any) -> Any:
    import mlx.nn as nn

    logits = forward(nn.relu, parameters, x)
    return nn.losses.cross_entropy(logits, labels, reduction="mean")


def autograd(inputs: Any) -> Task:
    import autograd
    import autograd.numpy as anp

    parameters, m, v, x, labels = inputs
    count = adam.DONE

    def loss_of(parameters: Any) -> Any:
        logits = forward(lambda x: anp.maximum(x, 0), parameters, x)
        return cross_entropy_autograd(logits, labels)

    gradient = autograd.value_and_grad(loss_of)

    def task() -> Any:
        nonlocal parameters, m, v, count
        loss, gradients = gradient(parameters)
        parameters, m, v, count = adam.update_all(np.sqrt, parameters, gradients, m, v, count)
        return loss, parameters, m, v

    return task

"""A recurrent network as a scan: 100 steps of tanh(x @ W + h @ U + b), batch 32, width 128.

The loss is the mean square of all hidden states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "RNN, a scan, value and gradient, T 100, B 32, H 128"
TARGET = 1.3
UNIT = "ms"
SIZES = {"steps": 100, "batch": 32, "width": 128}
SMALL = {"steps": 5, "batch": 3, "width": 4}


def inputs(
    steps: int, batch: int, width: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """(W, U, b), the first hidden state and xs."""
    draw = common.Draw()
    w, u = (draw.normal(width, width, scale=width**-0.5) for _ in range(2))
    h = np.zeros((batch, width), np.float32)
    return (w, u, draw.normal(width, scale=0.1)), h, draw.normal(steps, batch, width)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv

    def loss(parameters: Any, h: Any, xs: Any) -> Any:
        w, u, b = parameters

        def step(h: Any, x: Any) -> Any:
            h = nv.tanh(x @ w + h @ u + b)
            return h, h

        return (nv.scan(step, h, xs)[1] ** 2).mean()

    return common.in_nuvec(nv.value_and_grad(loss), inputs)


def jax(inputs: Any) -> Task:
    import jax

    def loss(parameters: Any, h: Any, xs: Any) -> Any:
        w, u, b = parameters

        def step(h: Any, x: Any) -> Any:
            h = jax.numpy.tanh(x @ w + h @ u + b)
            return h, h

        return (jax.lax.scan(step, h, xs)[1] ** 2).mean()

    return common.in_jax(jax.value_and_grad(loss), inputs)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    def loss(parameters: Any, h: Any, xs: Any) -> Any:
        return (torch.stack(_states(torch.tanh, parameters, h, xs)) ** 2).mean()

    return common.gradient_in_torch(jit(loss), inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    def loss(parameters: Any, h: Any, xs: Any) -> Any:
        return (mx.stack(_states(mx.tanh, parameters, h, xs)) ** 2).mean()

    return common.in_mlx(mx.value_and_grad(loss), inputs)


def autograd(inputs: Any) -> Task:
    import autograd.numpy as anp

    def loss(parameters: Any, h: Any, xs: Any) -> Any:
        return anp.mean(anp.stack(_states(anp.tanh, parameters, h, xs)) ** 2)

    return common.gradient_in_autograd(loss, inputs)


def _states(tanh: common.Function, parameters: Any, h: Any, xs: Any) -> list[Any]:
    """The hidden states by a Python loop, for frameworks without a scan."""
    w, u, b = parameters
    states = []
    for x in xs:
        h = tanh(x @ w + h @ u + b)
        states.append(h)
    return states

"""Logistic regression of 8 samples of 16 features: what a compiled call costs by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "logistic regression, value and gradient, 8 x 16 (dispatch)"
TARGET = 2.0
UNIT = "us"
SIZES = {"samples": 8, "features": 16}
SMALL = {"samples": 8, "features": 16}


def inputs(samples: int, features: int) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """(weight, bias), x and the signs y: the loss is the mean of log(1 + exp(-y (x w + b)))."""
    draw = common.Draw()
    parameters = draw.normal(features), draw.normal()
    y = (2 * draw.labels(samples, 2) - 1).astype(np.float32)
    return parameters, draw.normal(samples, features), y


def nuvec(inputs: Any) -> Task:
    import nuvec as nv

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        weight, bias = parameters
        return nv.logaddexp(0, -y * (x @ weight + bias)).mean()

    return common.in_nuvec(nv.value_and_grad(loss), inputs)


def jax(inputs: Any) -> Task:
    import jax
    import jax.numpy as jnp

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        weight, bias = parameters
        return jnp.logaddexp(0, -y * (x @ weight + bias)).mean()

    return common.in_jax(jax.value_and_grad(loss), inputs)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        weight, bias = parameters
        return torch.nn.functional.softplus(-y * (x @ weight + bias)).mean()

    return common.gradient_in_torch(jit(loss), inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        weight, bias = parameters
        return mx.logaddexp(0, -y * (x @ weight + bias)).mean()

    return common.in_mlx(mx.value_and_grad(loss), inputs)


def autograd(inputs: Any) -> Task:
    import autograd.numpy as anp

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        weight, bias = parameters
        return anp.mean(anp.logaddexp(0, -y * (anp.dot(x, weight) + bias)))

    return common.gradient_in_autograd(loss, inputs)

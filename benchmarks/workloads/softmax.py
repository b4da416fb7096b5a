"""The mean cross-entropy of 4096 rows of 1000 logits, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "softmax cross-entropy, value and gradient, 4096 x 1000"
TARGET = 0.9
UNIT = "ms"
SIZES = {"rows": 4096, "classes": 1000}
SMALL = {"rows": 20, "classes": 7}


def inputs(rows: int, classes: int) -> tuple[tuple[np.ndarray], np.ndarray]:
    """(logits,) and labels."""
    draw = common.Draw()
    return (draw.normal(rows, classes),), draw.labels(rows, classes)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    def loss(parameters: Any, labels: Any) -> Any:
        return nn.losses.cross_entropy(*parameters, labels, reduction="mean")

    return common.in_nuvec(nv.value_and_grad(loss), inputs)


def jax(inputs: Any) -> Task:
    import jax

    def loss(parameters: Any, labels: Any) -> Any:
        return cross_entropy_jax(*parameters, labels)

    return common.in_jax(jax.value_and_grad(loss), inputs)


def cross_entropy_jax(logits: Any, labels: Any) -> Any:
    """JAX alone has no loss functions."""
    import jax

    scores = jax.nn.log_softmax(logits)
    return -jax.numpy.take_along_axis(scores, labels[:, None], 1).mean()


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    def loss(parameters: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(*parameters, labels)

    return common.gradient_in_torch(jit(loss), inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx
    import mlx.nn as nn

    def loss(parameters: Any, labels: Any) -> Any:
        return nn.losses.cross_entropy(*parameters, labels, reduction="mean")

    return common.in_mlx(mx.value_and_grad(loss), inputs)


def autograd(inputs: Any) -> Task:
    def loss(parameters: Any, labels: Any) -> Any:
        return cross_entropy_autograd(*parameters, labels)

    return common.gradient_in_autograd(loss, inputs)


def cross_entropy_autograd(logits: Any, labels: Any) -> Any:
    import autograd.numpy as anp

    shifted = logits - anp.max(logits, axis=-1, keepdims=True)
    picked = shifted[np.arange(len(labels)), labels]
    return anp.mean(anp.log(anp.sum(anp.exp(shifted), axis=-1)) - picked)

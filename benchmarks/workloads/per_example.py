"""The norm of each sample's own gradient, for the perceptron of `mlp` and a batch of 64."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common, mlp

TEXT = "per-example gradient norms of the MLP, batch 64"
TARGET = 0.7
UNIT = "ms"
SIZES = {"features": 784, "hidden": 512, "classes": 10, "batch": 64}
SMALL = {"features": 12, "hidden": 8, "classes": 3, "batch": 5}


def inputs(
    features: int, hidden: int, classes: int, batch: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Parameters, x and labels."""
    draw = common.Draw()
    parameters = mlp.perceptron(draw, features, hidden, classes)
    return parameters, draw.normal(batch, features), draw.labels(batch, classes)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv

    def norm(parameters: Any, x: Any, label: Any) -> Any:
        gradients = nv.grad(mlp.loss_nuvec)(parameters, x[None], label[None])
        return nv.sqrt(sum((g**2).sum() for g in gradients))

    return common.in_nuvec(nv.vmap(norm, in_axes=(None, 0, 0)), inputs)


def jax(inputs: Any) -> Task:
    import jax

    def norm(parameters: Any, x: Any, label: Any) -> Any:
        gradients = jax.grad(mlp.loss_jax)(parameters, x[None], label[None])
        return jax.numpy.sqrt(sum((g**2).sum() for g in gradients))

    return common.in_jax(jax.vmap(norm, in_axes=(None, 0, 0)), inputs)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        logits = mlp.forward(torch.relu, parameters, x)
        return torch.nn.functional.cross_entropy(logits, labels)

    def norm(parameters: Any, x: Any, label: Any) -> Any:
        gradients = torch.func.grad(loss)(parameters, x[None], label[None])
        return torch.sqrt(sum((g**2).sum() for g in gradients))

    return common.in_torch(jit(torch.func.vmap(norm, in_dims=(None, 0, 0))), inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    def norm(parameters: Any, x: Any, label: Any) -> Any:
        gradients = mx.grad(mlp.loss_mlx)(parameters, x[None], label[None])
        return mx.sqrt(sum((g**2).sum() for g in gradients))

    return common.in_mlx(mx.vmap(norm, in_axes=(None, 0, 0)), inputs)

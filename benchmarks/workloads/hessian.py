"""The Hessian of sum(tanh(A x)^2) for 50 variables: transforms nested, and small arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "Hessian of sum(tanh(A x)^2), n = 50"
TARGET = 2.5
UNIT = "us"
SIZES = {"size": 50}
SMALL = {"size": 5}


def inputs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """x and A."""
    draw = common.Draw()
    return draw.normal(size), draw.normal(size, size, scale=size**-0.5)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv

    return common.in_nuvec(nv.hessian(lambda x, a: (nv.tanh(a @ x) ** 2).sum()), inputs)


def jax(inputs: Any) -> Task:
    import jax
    import jax.numpy as jnp

    return common.in_jax(jax.hessian(lambda x, a: (jnp.tanh(a @ x) ** 2).sum()), inputs)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    hessian = torch.func.hessian(lambda x, a: (torch.tanh(a @ x) ** 2).sum())
    return common.in_torch(jit(hessian), inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    gradient = mx.grad(lambda x, a: (mx.tanh(a @ x) ** 2).sum())

    def hessian(x: Any, a: Any) -> Any:
        def row(direction: Any) -> Any:
            return mx.grad(lambda x: (gradient(x, a) * direction).sum())(x)

        return mx.vmap(row)(mx.eye(x.size))

    return common.in_mlx(hessian, inputs)


def autograd(inputs: Any) -> Task:
    import autograd
    import autograd.numpy as anp

    hessian = autograd.hessian(lambda x, a: anp.sum(anp.tanh(anp.dot(a, x)) ** 2))
    return lambda: hessian(*inputs)

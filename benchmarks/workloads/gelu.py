"""gelu's tanh form, forward and backward: one chain of elementwise operations on 4 Mi floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "gelu (tanh), forward and backward, 4 Mi float32"
TARGET = 0.5
UNIT = "ms"
SIZES = {"size": 4 * 2**20}
SMALL = {"size": 1000}


def inputs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """x, and the cotangent of gelu(x)."""
    draw = common.Draw()
    return draw.normal(size), draw.normal(size)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    def both(x: Any, cotangent: Any) -> Any:
        y, pull = nv.vjp(nn.gelu_approx, x)
        return y, pull(cotangent)[0]

    return common.in_nuvec(both, inputs)


def jax(inputs: Any, approximate: bool = True) -> Task:
    import jax

    def both(x: Any, cotangent: Any) -> Any:
        y, pull = jax.vjp(lambda x: jax.nn.gelu(x, approximate=approximate), x)
        return y, pull(cotangent)[0]

    return common.in_jax(both, inputs)


def torch(inputs: Any, jit: Any = common.as_is, approximate: str = "tanh") -> Task:
    import torch

    gelu = jit(lambda x: torch.nn.functional.gelu(x, approximate=approximate))

    def both(x: Any, cotangent: Any) -> Any:
        y = gelu(x.requires_grad_())
        return y.detach(), torch.autograd.grad(y, x, cotangent)[0]

    return common.in_torch(both, inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx
    import mlx.nn as nn

    def both(x: Any, cotangent: Any) -> Any:
        return mx.vjp(nn.gelu_approx, [x], [cotangent])

    return common.in_mlx(both, inputs)


def autograd(inputs: Any) -> Task:
    import autograd
    import autograd.numpy as anp

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + anp.tanh(np.sqrt(2 / np.pi).item() * (x + 0.044715 * x * x * x)))

    def both() -> Any:
        pull, y = autograd.make_vjp(gelu)(inputs[0])
        return y, pull(inputs[1])

    return both

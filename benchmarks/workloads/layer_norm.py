"""Layer normalisation of 4096 rows of 1024, and the gradients of x, weight and bias."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "layer norm, forward and backward, 4096 x 1024"
TARGET = 0.45
UNIT = "ms"
SIZES = {"rows": 4096, "width": 1024}
SMALL = {"rows": 6, "width": 12}
EPSILON = 1e-5


def inputs(rows: int, width: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """(x, weight, bias), and the cotangent of the result."""
    draw = common.Draw()
    parameters = draw.normal(rows, width), 1 + draw.normal(width, scale=0.1), draw.normal(width)
    return parameters, draw.normal(rows, width)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv

    def both(parameters: Any, cotangent: Any) -> Any:
        y, pull = nv.vjp(layer_norm_nuvec, *parameters)
        return y, pull(cotangent)

    return common.in_nuvec(both, inputs)


def layer_norm_nuvec(x: Any, weight: Any, bias: Any) -> Any:
    import nuvec as nv

    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * nv.rsqrt(variance + EPSILON) * weight + bias


def jax(inputs: Any) -> Task:
    import jax

    def both(parameters: Any, cotangent: Any) -> Any:
        y, pull = jax.vjp(layer_norm_jax, *parameters)
        return y, pull(cotangent)

    return common.in_jax(both, inputs)


def layer_norm_jax(x: Any, weight: Any, bias: Any) -> Any:
    import jax

    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * weight + bias


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    @jit
    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, EPSILON)

    def both(parameters: Any, cotangent: Any) -> Any:
        y = layer_norm(*[p.requires_grad_() for p in parameters])
        return y.detach(), torch.autograd.grad(y, parameters, cotangent)

    return common.in_torch(both, inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return mx.fast.layer_norm(x, weight, bias, EPSILON)

    def both(parameters: Any, cotangent: Any) -> Any:
        return mx.vjp(layer_norm, list(parameters), [cotangent])

    return common.in_mlx(both, inputs)


def autograd(inputs: Any) -> Task:
    import autograd

    def both() -> Any:
        pull, y = autograd.make_vjp(lambda p: layer_norm_autograd(*p))(inputs[0])
        return y, pull(inputs[1])

    return both


def layer_norm_autograd(x: Any, weight: Any, bias: Any) -> Any:
    import autograd.numpy as anp

    centred = x - anp.mean(x, axis=-1, keepdims=True)
    variance = anp.mean(centred**2, axis=-1, keepdims=True)
    return centred / anp.sqrt(variance + EPSILON) * weight + bias

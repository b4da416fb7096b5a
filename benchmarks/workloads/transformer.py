"""A transformer block: 8 sequences of 128 tokens, width 256, 8 heads; normalised before each part.

The loss is the mean square of what comes out; the gradient is that of the parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common
from workloads.layer_norm import EPSILON, layer_norm_jax, layer_norm_nuvec

TEXT = "transformer block, value and gradient, B 8, T 128, D 256, H 8"
TARGET = 0.6
UNIT = "ms"
SIZES = {"batch": 8, "length": 128, "width": 256, "heads": 8}
SMALL = {"batch": 2, "length": 5, "width": 8, "heads": 2}


def inputs(
    batch: int, length: int, width: int, heads: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Parameters and x.

    The parameters, each a weight and a bias: of the first normalisation, of queries, keys and
    values side by side (a bias [3, heads, depth]), of the projection; of the second normalisation
    and of the two layers after it.
    """
    draw = common.Draw()

    def norm() -> tuple[np.ndarray, np.ndarray]:
        return 1 + draw.normal(width, scale=0.1), draw.normal(width, scale=0.1)

    def linear(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.normal(before, after, scale=before**-0.5), draw.normal(after, scale=0.1)

    w_in, b_in = linear(width, 3 * width)
    parameters = (
        *norm(), w_in, b_in.reshape(3, heads, width // heads), *linear(width, width),
        *norm(), *linear(width, 4 * width), *linear(4 * width, width),
    )  # fmt: skip
    return parameters, draw.normal(batch, length, width)


def block(
    layer_norm: common.Function, attention: common.Function, gelu: common.Function,
    parameters: Any, x: Any,
) -> Any:  # fmt: skip
    """The block of every framework; attention takes and returns [batch, heads, length, depth]."""
    n1, c1, w_in, b_in, w_out, b_out, n2, c2, w1, b1, w2, b2 = parameters
    batch, length, width = x.shape
    y = (layer_norm(x, n1, c1) @ w_in).reshape(batch, length, *b_in.shape) + b_in
    q, k, v = (y[:, :, i].swapaxes(1, 2) for i in range(3))
    y = attention(q, k, v).swapaxes(1, 2).reshape(batch, length, width)
    x = x + y @ w_out + b_out
    return x + gelu(layer_norm(x, n2, c2) @ w1 + b1) @ w2 + b2


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        return nv.softmax(scores) @ v

    def loss(parameters: Any, x: Any) -> Any:
        return (block(layer_norm_nuvec, attention, nn.gelu, parameters, x) ** 2).mean()

    return common.in_nuvec(nv.value_and_grad(loss), inputs)


def jax(inputs: Any) -> Task:
    import jax

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        return jax.nn.softmax(scores) @ v

    def gelu(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def loss(parameters: Any, x: Any) -> Any:
        return (block(layer_norm_jax, attention, gelu, parameters, x) ** 2).mean()

    return common.in_jax(jax.value_and_grad(loss), inputs)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch.nn.functional as F

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(x, weight.shape, weight, bias, EPSILON)

    attention = F.scaled_dot_product_attention

    def loss(parameters: Any, x: Any) -> Any:
        return (block(layer_norm, attention, F.gelu, parameters, x) ** 2).mean()

    return common.gradient_in_torch(jit(loss), inputs)


def mlx(inputs: Any) -> Task:
    import mlx.core as mx
    import mlx.nn as nn

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return mx.fast.layer_norm(x, weight, bias, EPSILON)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5)

    def loss(parameters: Any, x: Any) -> Any:
        return (block(layer_norm, attention, nn.gelu, parameters, x) ** 2).mean()

    return common.in_mlx(mx.value_and_grad(loss), inputs)

"""A small convolutional network on 64 images of 28 x 28, and the gradient of its parameters.

3x3 convolution, relu, 2x2 max pooling, twice; then a linear layer and the mean cross-entropy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common
from workloads.softmax import cross_entropy_jax

TEXT = "ConvNet, 16 and 32 channels, value and gradient, 64 x 28 x 28"
TARGET = 0.7
UNIT = "ms"
SIZES = {"batch": 64, "size": 28, "channels": 16, "classes": 10}
SMALL = {"batch": 3, "size": 8, "channels": 2, "classes": 3}


def inputs(
    batch: int, size: int, channels: int, classes: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Parameters, images [batch, size, size, 1] and labels; weights are [out, height, width, in].

    The linear layer takes the last images flattened with their channels last.
    """
    draw = common.Draw()
    parameters: list[np.ndarray] = []
    for before, after in ((1, channels), (channels, 2 * channels)):
        parameters.append(draw.normal(after, 3, 3, before, scale=(2 / (9 * before)) ** 0.5))
        parameters.append(draw.normal(after, scale=0.1))
    features = (size // 4) ** 2 * 2 * channels
    parameters.append(draw.normal(features, classes, scale=features**-0.5))
    parameters.append(draw.normal(classes, scale=0.1))
    images = draw.normal(batch, size, size, 1)
    return tuple(parameters), images, draw.labels(batch, classes)


def forward(
    convolve: common.Function, relu: common.Function, pool: common.Function,
    parameters: Any, x: Any,
) -> Any:  # fmt: skip
    """The logits, for frameworks with channels last."""
    w1, b1, w2, b2, w3, b3 = parameters
    x = pool(relu(convolve(x, w1) + b1))
    x = pool(relu(convolve(x, w2) + b2))
    return x.reshape(x.shape[0], -1) @ w3 + b3


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    def convolve(x: Any, weight: Any) -> Any:
        return nv.conv2d(x, weight, padding=1)

    def pool(x: Any) -> Any:
        return nv.max_pool(x, 2)

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        logits = forward(convolve, nn.relu, pool, parameters, x)
        return nn.losses.cross_entropy(logits, labels, reduction="mean")

    return common.in_nuvec(nv.value_and_grad(loss), inputs)


def jax(inputs: Any) -> Task:
    import jax
    from jax import lax

    def convolve(x: Any, weight: Any) -> Any:
        return lax.conv_general_dilated(
            x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "OHWI", "NHWC")
        )

    def pool(x: Any) -> Any:
        window = (1, 2, 2, 1)
        return lax.reduce_window(x, -jax.numpy.inf, lax.max, window, window, "VALID")

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        return cross_entropy_jax(forward(convolve, jax.nn.relu, pool, parameters, x), labels)

    return common.in_jax(jax.value_and_grad(loss), inputs)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    """In torch's own layout, channels first; its gradients are turned as the others' are."""
    import torch
    import torch.nn.functional as F

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = parameters
        x = F.max_pool2d(torch.relu(F.conv2d(x, w1, b1, padding=1)), 2)
        x = F.max_pool2d(torch.relu(F.conv2d(x, w2, b2, padding=1)), 2)
        return F.cross_entropy(x.permute(0, 2, 3, 1).flatten(1) @ w3 + b3, labels)

    def channels_first(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(array, 3, 1)) if array.ndim == 4 else array

    task = common.gradient_in_torch(jit(loss), common.mapped(channels_first, inputs))

    def turned() -> Any:
        value, gradients = task()
        return value, [g.permute(0, 2, 3, 1) if g.ndim == 4 else g for g in gradients]

    return turned


def mlx(inputs: Any) -> Task:
    import mlx.core as mx
    import mlx.nn as nn

    pool = nn.MaxPool2d(2)

    def convolve(x: Any, weight: Any) -> Any:
        return mx.conv2d(x, weight, padding=1)

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        logits = forward(convolve, nn.relu, pool, parameters, x)
        return nn.losses.cross_entropy(logits, labels, reduction="mean")

    return common.in_mlx(mx.value_and_grad(loss), inputs)

"""The Gaussian kernel between two sets of 2000 points with 16 coordinates, as one writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from _worker import Task

from workloads import common

TEXT = "pairwise RBF, 2000 x 2000 x 16"
TARGET = 1.3
UNIT = "ms"
SIZES = {"points": 2000, "features": 16}
SMALL = {"points": 30, "features": 5}


def inputs(points: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y."""
    draw = common.Draw()
    return draw.normal(points, features, scale=0.3), draw.normal(points, features, scale=0.3)


def nuvec(inputs: Any) -> Task:
    import nuvec as nv

    return common.in_nuvec(
        lambda x, y: nv.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2),
        inputs,
    )


def jax(inputs: Any) -> Task:
    import jax.numpy as jnp

    return common.in_jax(
        lambda x, y: jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2),
        inputs,
    )


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    import torch

    return common.in_torch(
        jit(lambda x, y: torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2)),
        inputs,
    )


def mlx(inputs: Any) -> Task:
    import mlx.core as mx

    return common.in_mlx(
        lambda x, y: mx.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2),
        inputs,
    )

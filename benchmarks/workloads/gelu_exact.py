"""gelu itself, with the error function: the same as `gelu`, without a target."""

from __future__ import annotations

from typing import Any

from _worker import Task

from workloads import common, gelu

TEXT = "gelu (erf), forward and backward, 4 Mi float32"
TARGET = None
UNIT = "ms"
SIZES = gelu.SIZES
SMALL = gelu.SMALL
inputs = gelu.inputs


def nuvec(inputs: Any) -> Task:
    import nuvec as nv
    import nuvec.nn as nn

    def both(x: Any, cotangent: Any) -> Any:
        y, pull = nv.vjp(nn.gelu, x)
        return y, pull(cotangent)[0]

    return common.in_nuvec(both, inputs)


def jax(inputs: Any) -> Task:
    return gelu.jax(inputs, approximate=False)


def torch(inputs: Any, jit: Any = common.as_is) -> Task:
    return gelu.torch(inputs, jit, approximate="none")


def mlx(inputs: Any) -> Task:
    import mlx.core as mx
    import mlx.nn as nn

    def both(x: Any, cotangent: Any) -> Any:
        return mx.vjp(nn.gelu, [x], [cotangent])

    return common.in_mlx(both, inputs)

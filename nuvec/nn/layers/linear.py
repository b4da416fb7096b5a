"""Linear and Identity."""

from __future__ import annotations

import math
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.nn.arguments import check_size
from nuvec.nn.init import uniform
from nuvec.nn.layers.quantized import QuantizedLinear
from nuvec.nn.module import Module
from nuvec.nn.structure import leaves_text

__all__ = ["Identity", "Linear", "affine", "is_matrix", "project"]


class Identity(Module):
    """Returns its input; the arguments of `__init__` are accepted and ignored.

    >>> import nuvec.nn as nn
    >>> nn.Identity()(3.0)
    3.0
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, x: Any) -> Any:
        """`x`, of any shape and dtype."""
        return x


class Linear(Module):
    """An affine map of the last axis: `y = x @ weight.T + bias`.

    weight -- [output_dims, input_dims], drawn from U(-k, k) with k = 1 / sqrt(input_dims)
    bias   -- [output_dims], drawn from the same; absent with `bias=False`

    Maps x[..., input_dims] to y[..., output_dims]; a ShapeError tells when the last axis differs.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> layer = nn.Linear(4, 2)
    >>> layer
    Linear(input_dims=4, output_dims=2, bias=True)  # 10 parameters
    >>> layer(nv.ones((3, 4))).shape
    (3, 2)
    """

    weight: Array
    bias: Array

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        input_dims = check_size("Linear", "input_dims", input_dims)
        output_dims = check_size("Linear", "output_dims", output_dims)
        draw = uniform(-1 / math.sqrt(input_dims), 1 / math.sqrt(input_dims))
        self.weight = draw((output_dims, input_dims))
        if bias:
            self.bias = draw((output_dims,))

    def __call__(self, x: Array) -> Array:
        """x[..., input_dims] -> [..., output_dims]"""
        return affine(self, x)

    def to_quantized(
        self, group_size: int = 64, bits: int = 4, mode: str = "affine"
    ) -> QuantizedLinear:
        """This layer with its weight in `bits` bits an element: `QuantizedLinear.from_linear`.

        Raises ShapeError unless group_size divides input_dims."""
        return QuantizedLinear.from_linear(self, group_size, bits, mode)

    def _extra_repr(self) -> str:
        if not is_matrix(self.weight):
            return leaves_text(self)
        outputs, inputs = self.weight.shape
        return f"input_dims={inputs}, output_dims={outputs}, bias={'bias' in self}"


def is_matrix(weight: Any) -> bool:
    """Whether a weight tells a layer's sizes; in a tree of gradients or norms it may not."""
    return isinstance(weight, Array) and weight.ndim == 2


def affine(layer: Module, x: Array) -> Array:
    """`x @ layer.weight.T`, plus `layer.bias` where there is one."""
    y = project(layer, x)
    return y + layer["bias"] if "bias" in layer else y


def project(layer: Module, x: Array) -> Array:
    """`x @ layer.weight.T`, with an error that names the layer when the sizes differ."""
    weight: Array = layer["weight"]
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"{type(layer).__name__} with weight {weight.aval} needs an input whose last axis has "
            f"size {weight.shape[1]}, got {x.aval}."
        )
    return x @ weight.T

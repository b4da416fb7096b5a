"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nuvec.nn.module import Module

__all__ = ["Sequential"]


class Sequential(Module):
    """Calls its layers one after the other: modules, or functions of one array.

    layers -- the list of them; its parameters are named "layers.0.weight" and so on

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))
    >>> model(nv.ones((3, 4))).shape
    (3, 2)
    >>> model
    Sequential(
      (layers.0): Linear(input_dims=4, output_dims=8, bias=True)  # 40 parameters
      (layers.2): Linear(input_dims=8, output_dims=2, bias=True)  # 18 parameters
    )  # 58 parameters
    """

    layers: list[Callable[..., Any]]

    def __init__(self, *layers: Callable[..., Any]) -> None:
        super().__init__()
        for i, layer in enumerate(layers):
            if not callable(layer):
                raise TypeError(f"Sequential: layer {i} is a {type(layer).__name__}, not callable.")
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

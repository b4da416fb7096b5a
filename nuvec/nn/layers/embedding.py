"""Embedding."""

from __future__ import annotations

import math
from typing import Any

from nuvec.core.array import Array
from nuvec.nn.arguments import check_size
from nuvec.nn.init import normal
from nuvec.nn.layers.linear import is_matrix, project
from nuvec.nn.layers.quantized import QuantizedEmbedding, as_indices
from nuvec.nn.module import Module
from nuvec.nn.structure import leaves_text

__all__ = ["Embedding"]


class Embedding(Module):
    """A vector for each of num_embeddings integers, tokens for instance.

    weight -- [num_embeddings, dims], drawn from N(0, 1 / dims)

    Maps integers x[...] from 0 to num_embeddings - 1 to [..., dims]; negative ones count from the
    end, others raise OutOfBoundsError (an IndexError). Raises DtypeError for what is no integer.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> layer = nn.Embedding(10, 4)
    >>> layer
    Embedding(10, 4)  # 40 parameters
    >>> layer(nv.array([[1, 2, 1]])).shape
    (1, 3, 4)
    >>> layer.as_linear(nv.ones((3, 4))).shape
    (3, 10)
    """

    weight: Array

    def __init__(self, num_embeddings: int, dims: int) -> None:
        super().__init__()
        num_embeddings = check_size("Embedding", "num_embeddings", num_embeddings)
        dims = check_size("Embedding", "dims", dims)
        self.weight = normal(0.0, 1 / math.sqrt(dims))((num_embeddings, dims))

    def __call__(self, x: Any) -> Array:
        """integers x[...] -> [..., dims]"""
        return self.weight[as_indices(type(self).__name__, x)]

    def as_linear(self, x: Array) -> Array:
        """x[..., dims] -> [..., num_embeddings]: `x @ weight.T`, for tied embeddings."""
        return project(self, x)

    def to_quantized(
        self, group_size: int = 64, bits: int = 4, mode: str = "affine"
    ) -> QuantizedEmbedding:
        """This layer with its weight in `bits` bits an element.

        Raises ShapeError unless group_size divides dims."""
        return QuantizedEmbedding.from_embedding(self, group_size, bits, mode)

    def _extra_repr(self) -> str:
        if not is_matrix(self.weight):
            return leaves_text(self)
        count, dims = self.weight.shape
        return f"{count}, {dims}"

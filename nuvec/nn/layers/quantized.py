"""Layers whose weight matrix is quantised: a few bits an element, packed (`nv.quantize`).

The packed weight, its scales and its biases are never trained: they are frozen, also after
`unfreeze`. The derivative for the input goes through them, so layers below can be trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.creation import asarray
from nuvec.core.functions.filled import zeros
from nuvec.core.functions.quantization import dequantize, quantize, quantized_matmul
from nuvec.nn.arguments import check_size
from nuvec.nn.init import normal, uniform
from nuvec.nn.module import Module
from nuvec.nn.structure import leaves_text

__all__ = ["PACKED", "Quantized", "QuantizedEmbedding", "QuantizedLinear", "as_indices"]

PACKED = ("weight", "scales", "biases")

Self = TypeVar("Self", bound="Quantized")


class Quantized(Module):
    """What quantised layers share: the packed weight, and that it stays frozen."""

    weight: Array
    scales: Array
    biases: Array
    group_size: int
    bits: int

    def _hold(self: Self, weight: Array, group_size: int, bits: int, mode: str) -> Self:
        """Have the quantised form of a weight [rows, columns]."""
        self.weight, self.scales, self.biases = quantize(weight, group_size, bits, mode)
        self.group_size, self.bits = int(group_size), int(bits)
        return self.freeze(recurse=False, keys=PACKED)

    @classmethod
    def _from(cls: type[Self], layer: Module, group_size: int, bits: int, mode: str) -> Self:
        """A layer in the place of another one, with its weight quantised."""
        made = cls.__new__(cls)  # `__init__` would draw a weight
        Module.__init__(made)
        return made._hold(layer["weight"], group_size, bits, mode).train(layer.training)

    def unfreeze(
        self: Self,
        *,
        recurse: bool = True,
        keys: str | Iterable[str] | None = None,
        strict: bool = False,
    ) -> Self:
        """As every module's, except that the weight, scales and biases stay frozen."""
        super().unfreeze(recurse=recurse, keys=keys, strict=strict)
        return self.freeze(recurse=False, keys=PACKED)

    def _times(self, x: Array) -> Array:
        """x[..., columns] @ weight.T, with an error that names the layer when sizes differ."""
        rows, columns = self._sizes()
        if x.ndim == 0 or x.shape[-1] != columns:
            raise ShapeError(
                f"{type(self).__name__} with a quantized weight of {rows} x {columns} needs an "
                f"input whose last axis has size {columns}, got {x.aval}."
            )
        return quantized_matmul(
            x, self.weight, self.scales, self.biases, True, self.group_size, self.bits
        )

    def _sizes(self) -> tuple[int, int]:
        rows, groups = self.scales.shape
        return rows, groups * self.group_size

    def _is_whole(self) -> bool:
        """Whether the arrays tell the sizes; in a tree of gradients or norms they may not."""
        return isinstance(self.scales, Array) and self.scales.ndim == 2


class QuantizedLinear(Quantized):
    """A `Linear` with a quantised weight: `y = x @ weight.T + bias`.

    weight -- uint32[output_dims, input_dims * bits / 32], packed as `nv.quantize` does; drawn as
              Linear's
    scales, biases -- [output_dims, input_dims / group_size]
    bias   -- [output_dims], zeros; absent with `bias=False`

    Maps x[..., input_dims] to [..., output_dims]. Weight, scales and biases are never trained;
    bias is frozen at first, and `unfreeze` frees it. In a layer made of a `Linear`
    (`from_linear`) the bias is that one's, frozen if it was. `mode` is "affine".

    Raises ShapeError unless group_size (32, 64 or 128) divides input_dims, ArgumentError for other
    group sizes or bits (2, 3, 4, 5, 6 or 8).

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> layer = nn.QuantizedLinear(64, 2)
    >>> layer
    QuantizedLinear(input_dims=64, output_dims=2, bias=True, group_size=64, bits=4)  # 22 parameters, frozen
    >>> layer(nv.ones((3, 64))).shape
    (3, 2)
    """  # noqa: E501 (a repr)

    bias: Array

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
    ) -> None:
        super().__init__()
        input_dims = check_size("QuantizedLinear", "input_dims", input_dims)
        output_dims = check_size("QuantizedLinear", "output_dims", output_dims)
        draw = uniform(-1 / math.sqrt(input_dims), 1 / math.sqrt(input_dims))
        self._hold(draw((output_dims, input_dims)), group_size, bits, mode)
        if bias:
            self.bias = zeros((output_dims,))
        self.freeze()

    @classmethod
    def from_linear(
        cls, linear_layer: Module, group_size: int = 64, bits: int = 4, mode: str = "affine"
    ) -> QuantizedLinear:
        """A `Linear` with its weight quantised; nothing is drawn.

        >>> import nuvec.nn as nn
        >>> layer = nn.QuantizedLinear.from_linear(nn.Linear(64, 2), bits=8)
        >>> list(layer.trainable_parameters())
        ['bias']
        """
        made = cls._from(linear_layer, group_size, bits, mode)
        if "bias" in linear_layer:
            made.bias = linear_layer["bias"]
            if "bias" not in linear_layer.trainable_parameters():
                made.freeze(recurse=False, keys="bias")
        return made

    def __call__(self, x: Array) -> Array:
        """x[..., input_dims] -> [..., output_dims]"""
        y = self._times(x)
        return y + self.bias if "bias" in self else y

    def _extra_repr(self) -> str:
        if not self._is_whole():
            return leaves_text(self)
        outputs, inputs = self._sizes()
        return (
            f"input_dims={inputs}, output_dims={outputs}, bias={'bias' in self}, "
            f"group_size={self.group_size}, bits={self.bits}"
        )


class QuantizedEmbedding(Quantized):
    """An `Embedding` with a quantised weight: only the rows that are asked for are dequantised.

    weight -- uint32[num_embeddings, dims * bits / 32], packed as `nv.quantize` does; drawn as
              Embedding's
    scales, biases -- [num_embeddings, dims / group_size]

    Maps integers x[...] from 0 to num_embeddings - 1 to [..., dims]; negative ones count from the
    end, others raise OutOfBoundsError (an IndexError). All arrays are frozen, and stay so.

    Raises ShapeError unless group_size (32, 64 or 128) divides dims, ArgumentError for other group
    sizes or bits (2, 3, 4, 5, 6 or 8). `mode` is "affine".

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> layer = nn.QuantizedEmbedding(10, 64)
    >>> layer(nv.array([[1, 2, 1]])).shape
    (1, 3, 64)
    >>> layer.as_linear(nv.ones((3, 64))).shape
    (3, 10)
    """

    def __init__(
        self,
        num_embeddings: int,
        dims: int,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
    ) -> None:
        super().__init__()
        num_embeddings = check_size("QuantizedEmbedding", "num_embeddings", num_embeddings)
        dims = check_size("QuantizedEmbedding", "dims", dims)
        draw = normal(0.0, 1 / math.sqrt(dims))
        self._hold(draw((num_embeddings, dims)), group_size, bits, mode)

    @classmethod
    def from_embedding(
        cls, embedding_layer: Module, group_size: int = 64, bits: int = 4, mode: str = "affine"
    ) -> QuantizedEmbedding:
        """An `Embedding` with its weight quantised; nothing is drawn."""
        return cls._from(embedding_layer, group_size, bits, mode)

    def __call__(self, x: Any) -> Array:
        """integers x[...] -> [..., dims]"""
        x = as_indices(type(self).__name__, x)
        rows = (self.weight[x], self.scales[x], self.biases[x])
        return dequantize(*rows, self.group_size, self.bits)

    def as_linear(self, x: Array) -> Array:
        """x[..., dims] -> [..., num_embeddings]: `x @ weight.T`, for tied embeddings."""
        return self._times(x)

    def _extra_repr(self) -> str:
        if not self._is_whole():
            return leaves_text(self)
        count, dims = self._sizes()
        return f"{count}, {dims}, group_size={self.group_size}, bits={self.bits}"


def as_indices(layer: str, x: Any) -> Array:
    """What selects rows of an embedding: integers; DtypeError for others, which would be masks, or
    be rounded."""
    x = asarray(x)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError(
            f"{layer} takes integers, the rows to look up, got {x.aval}; for the product with the "
            "weight call as_linear"
        )
    return x

"""Quantised layers whose packed weights are divided among the ranks of a group.

They are to `QuantizedLinear` what the layers of sharding.py are to `Linear`: the weight stays as it
is, packed and frozen, and the derivative for the input is the one of the whole layer. Cuts run
between the groups of the quantisation, so every rank's part has the numbers that the whole has.
"""

from __future__ import annotations

from typing import TypeVar

from nuvec.core.array import Array
from nuvec.distributed.collectives.replicated import sum_gradients, sum_partials
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group
from nuvec.nn.layers.quantized import PACKED, Quantized, QuantizedLinear
from nuvec.nn.module import Module
from nuvec.nn.segments import Segments, own_part
from nuvec.nn.sharded import Sharded
from nuvec.nn.structure import leaves_text

__all__ = ["QuantizedAllToShardedLinear", "QuantizedShardedToAllLinear"]

Self = TypeVar("Self", bound="_QuantizedSharded")


class _QuantizedSharded(Quantized, Sharded):
    """What the two share: this rank's part of a quantised layer, and the group."""

    bias: Array
    axis: int  # the axis of the weight that is divided

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
        group: Group | None = None,
    ) -> None:
        super().__init__()
        whole = QuantizedLinear(input_dims, output_dims, bias, group_size, bits, mode)
        self._fill(whole, 1, group)
        self.freeze()

    @classmethod
    def from_quantized_linear(
        cls: type[Self],
        quantized_linear_layer: Module,
        *,
        segments: Segments = 1,
        group: Group | None = None,
    ) -> Self:
        """This rank's part of a `QuantizedLinear`; its bias is frozen where that one's is.

        segments -- as in `AllToShardedLinear.from_linear`, of the axis that is divided
        """
        name = cls.__name__
        if not isinstance(quantized_linear_layer, QuantizedLinear):
            raise TypeError(
                f"{name}.from_quantized_linear needs a QuantizedLinear, got "
                f"{type(quantized_linear_layer).__name__}. Linear.to_quantized makes one."
            )
        made = object.__new__(cls)
        Module.__init__(made)
        made._fill(quantized_linear_layer, segments, group)
        made.freeze(recurse=False, keys=PACKED)
        if "bias" in made and "bias" not in quantized_linear_layer.trainable_parameters():
            made.freeze(recurse=False, keys="bias")
        return made.train(quantized_linear_layer.training)

    def _fill(self, layer: QuantizedLinear, segments: Segments, group: Group | None) -> None:
        self.group = as_group(group, type(self).__name__)
        self.group_size, self.bits = layer.group_size, layer.bits
        self.scales = self._part(layer.scales, segments)
        # The elements of a group are in words of their own.
        words = self._part(layer.weight.reshape(*layer.scales.shape, -1), segments)
        self.weight = words.reshape(self.scales.shape[0], -1)
        self.biases = self._part(layer.biases, segments)
        if "bias" in layer:
            self.bias = self._part(layer.bias, segments) if self.axis == 0 else layer.bias

    def _part(self, x: Array, segments: Segments) -> Array:
        what = ("output_dims", "input_dims / group_size")[self.axis]
        return own_part(type(self).__name__, what, x, segments, self.group, self.axis)

    def _extra_repr(self) -> str:
        if not self._is_whole():
            return leaves_text(self)
        sizes = list(self._sizes())
        sizes[self.axis] *= self.group.size()
        return (
            f"input_dims={sizes[1]}, output_dims={sizes[0]}, bias={'bias' in self}, "
            f"group_size={self.group_size}, bits={self.bits}, ranks={self.group.size()}"
        )


class QuantizedAllToShardedLinear(_QuantizedSharded):
    """A `QuantizedLinear` whose outputs are divided among the N ranks of a group.

    weight, scales, biases -- this rank's rows of the whole layer's: output_dims / N of them
    bias -- [output_dims / N], zeros; absent with `bias=False`

    Maps x[..., input_dims], the same on every rank, to [..., output_dims / N]. Weight, scales and
    biases are frozen, and stay so. Built directly it holds its slice of the draw that
    `QuantizedLinear` would make. ValueError when N does not divide output_dims; the other errors
    are QuantizedLinear's.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def block(group):
    ...     first = nn.QuantizedAllToShardedLinear(64, 128, group=group)
    ...     last = nn.QuantizedShardedToAllLinear(128, 3, group=group)
    ...     return last(nn.relu(first(nv.ones((2, 64)))))
    >>> [y.shape for y in nv.distributed.run_local(block, 2)]
    [(2, 3), (2, 3)]
    """

    axis = 0

    def __call__(self, x: Array) -> Array:
        """x[..., input_dims], replicated -> [..., output_dims / N]"""
        y = self._times(sum_gradients(x, self.group))
        return y + self.bias if "bias" in self else y


class QuantizedShardedToAllLinear(_QuantizedSharded):
    """A `QuantizedLinear` whose inputs are divided among the N ranks of a group.

    weight, scales, biases -- this rank's columns of the whole layer's, input_dims / N of them
    bias -- [output_dims], zeros, the same on every rank, added once; absent with `bias=False`

    Maps x[..., input_dims / N], this rank's part, to [..., output_dims], the same on every rank.
    Weight, scales and biases are frozen, and stay so. ValueError when N does not divide the number
    of groups, input_dims / group_size. `QuantizedAllToShardedLinear` shows the two at work.
    """

    axis = 1

    def __call__(self, x: Array) -> Array:
        """x[..., input_dims / N], this rank's part -> [..., output_dims], replicated"""
        y = sum_partials(self._times(x), self.group)
        return y + self.bias if "bias" in self else y

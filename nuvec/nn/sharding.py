"""Layers whose weights are divided among the ranks of a group (tensor parallelism).

A pair of them makes a block with one communication each way: `AllToShardedLinear` divides the
outputs among the ranks and `ShardedToAllLinear` the inputs, so what is between the two stays on
its rank. Every rank computes the same loss from the same input. Then outputs, gradients and
Hessian-vector products are those of the dense layers, on every rank, because

- the replicated input x of a divided computation goes through `sum_gradients`: the identity,
  whose transpose sums over the ranks, since each rank sees only its part of dL/dx;
- the partial sums of a divided contraction go through `sum_partials`: the sum over the ranks,
  whose transpose is the identity, since every rank has the whole dL/dy already.

A model with such layers pickles on each rank with that rank's slices, over the default group
(another group's connections cannot be saved), and is read by the same rank of as many. To be free
of that, save `model.parameters()`, a file for each rank, and `update` a model that was made anew.

(Megatron-LM's f and g, https://arxiv.org/abs/1909.08053; MLX's layers of the same names.)
"""

from __future__ import annotations

from typing import Any

from nuvec.core.array import Array
from nuvec.distributed.collectives.replicated import sum_gradients, sum_partials
from nuvec.distributed.group import Group
from nuvec.nn.arguments import as_group
from nuvec.nn.layers.linear import Linear, affine, is_matrix, project
from nuvec.nn.layers.quantized import QuantizedLinear
from nuvec.nn.module import Module
from nuvec.nn.quantized_sharding import QuantizedAllToShardedLinear, QuantizedShardedToAllLinear
from nuvec.nn.segments import Segments, own_part
from nuvec.nn.sharded import Sharded
from nuvec.nn.structure import leaves_text

__all__ = ["AllToShardedLinear", "ShardedToAllLinear", "shard_linear"]


class _ShardedLinear(Sharded):
    """What the two layers share: a slice of a dense layer's weights, and the group."""

    weight: Array
    bias: Array

    def _take(self, layer: Any, segments: Segments, group: Group | None, axis: int) -> None:
        """Hold this rank's slice of a dense layer's weight, along `axis`."""
        self.group = as_group(group, type(self).__name__)
        self.weight = self._part(layer.weight, segments, axis)

    def _part(self, x: Array, segments: Segments, axis: int) -> Array:
        what = ("output_dims", "input_dims")[axis]
        return own_part(type(self).__name__, what, x, segments, self.group, axis)

    def _repr(self, input_dims: int, output_dims: int) -> str:
        return (
            f"input_dims={input_dims}, output_dims={output_dims}, bias={'bias' in self}, "
            f"ranks={self.group.size()}"
        )


class AllToShardedLinear(_ShardedLinear):
    """A `Linear` whose outputs are divided among the N ranks of a group.

    weight -- [output_dims / N, input_dims]: this rank's rows of the dense layer's weight
    bias   -- [output_dims / N]: this rank's part; absent with `bias=False`

    Maps x[..., input_dims], the same on every rank, to y[..., output_dims / N], this rank's part
    of the dense layer's output. Built directly it holds its slice of the draw that
    `Linear(input_dims, output_dims)` would make. ValueError when N does not divide output_dims.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> def block(group):
    ...     first = nn.AllToShardedLinear(4, 8, group=group)
    ...     last = nn.ShardedToAllLinear(8, 3, group=group)
    ...     return last(nn.relu(first(nv.ones((2, 4)))))
    >>> [y.shape for y in nv.distributed.run_local(block, 2)]
    [(2, 3), (2, 3)]
    """

    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, group: Group | None = None
    ) -> None:
        super().__init__()
        self._fill(Linear(input_dims, output_dims, bias), 1, group)

    @classmethod
    def from_linear(
        cls, layer: Module, *, segments: Segments = 1, group: Group | None = None
    ) -> AllToShardedLinear:
        """This rank's part of a `Linear`, or of a layer with `weight` and `bias` like its: frozen
        where that is frozen, and in training mode or not as that is.

        segments -- for a layer that computes several outputs at once (3 for fused queries, keys
                    and values): how many, or the fractions of output_dims where one ends and
                    the next begins; each is divided among the ranks by itself
        """
        made = object.__new__(cls)
        Module.__init__(made)
        made._fill(_dense(cls.__name__, layer), segments, group)
        made._training, made._no_grad = layer._training, layer._no_grad
        return made

    def _fill(self, layer: Any, segments: Segments, group: Group | None) -> None:
        self._take(layer, segments, group, axis=0)
        if "bias" in layer:
            self.bias = self._part(layer.bias, segments, axis=0)

    def __call__(self, x: Array) -> Array:
        """x[..., input_dims], replicated -> [..., output_dims / N]"""
        return affine(self, sum_gradients(x, self.group))

    def _extra_repr(self) -> str:
        if not is_matrix(self.weight):
            return leaves_text(self)
        outputs, inputs = self.weight.shape
        return self._repr(inputs, outputs * self.group.size())


class ShardedToAllLinear(_ShardedLinear):
    """A `Linear` whose inputs are divided among the N ranks of a group.

    weight -- [output_dims, input_dims / N]: this rank's columns of the dense layer's weight
    bias   -- [output_dims], the same on every rank, added once, after the sum over the ranks

    Maps x[..., input_dims / N], this rank's part, to y[..., output_dims], the dense layer's
    output, the same on every rank. Built directly it holds its slice of the draw that
    `Linear(input_dims, output_dims)` would make. ValueError when N does not divide input_dims.
    `AllToShardedLinear` shows the two at work.
    """

    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, group: Group | None = None
    ) -> None:
        super().__init__()
        self._fill(Linear(input_dims, output_dims, bias), 1, group)

    @classmethod
    def from_linear(
        cls, layer: Module, *, segments: Segments = 1, group: Group | None = None
    ) -> ShardedToAllLinear:
        """This rank's part of a `Linear`; `segments` concerns input_dims, as in
        `AllToShardedLinear.from_linear`."""
        made = object.__new__(cls)
        Module.__init__(made)
        made._fill(_dense(cls.__name__, layer), segments, group)
        made._training, made._no_grad = layer._training, layer._no_grad
        return made

    def _fill(self, layer: Any, segments: Segments, group: Group | None) -> None:
        self._take(layer, segments, group, axis=1)
        if "bias" in layer:
            self.bias = layer.bias

    def __call__(self, x: Array) -> Array:
        """x[..., input_dims / N], this rank's part -> [..., output_dims], replicated"""
        y = sum_partials(project(self, x), self.group)
        return y + self.bias if "bias" in self else y

    def _extra_repr(self) -> str:
        if not is_matrix(self.weight):
            return leaves_text(self)
        outputs, inputs = self.weight.shape
        return self._repr(inputs * self.group.size(), outputs)


_KINDS: dict[str, type[AllToShardedLinear] | type[ShardedToAllLinear]] = {
    "all-to-sharded": AllToShardedLinear,
    "sharded-to-all": ShardedToAllLinear,
}
_QUANTIZED: dict[str, type[QuantizedAllToShardedLinear] | type[QuantizedShardedToAllLinear]] = {
    "all-to-sharded": QuantizedAllToShardedLinear,
    "sharded-to-all": QuantizedShardedToAllLinear,
}


def shard_linear(
    module: Module, sharding: str, *, segments: Segments = 1, group: Group | None = None
) -> Sharded:
    """This rank's part of a `Linear`, or of a `QuantizedLinear`.

    sharding -- "all-to-sharded" (outputs divided) or "sharded-to-all" (inputs divided)
    segments, group -- as in the layers' `from_linear`

    >>> import nuvec.nn as nn
    >>> nn.shard_linear(nn.Linear(4, 2), "all-to-sharded")
    AllToShardedLinear(input_dims=4, output_dims=2, bias=True, ranks=1)  # 10 parameters
    """
    if sharding not in _KINDS:
        raise ValueError(f"sharding must be one of {sorted(_KINDS)}, got {sharding!r}.")
    if isinstance(module, QuantizedLinear):
        return _QUANTIZED[sharding].from_quantized_linear(module, segments=segments, group=group)
    return _KINDS[sharding].from_linear(module, segments=segments, group=group)


def _dense(name: str, layer: Module) -> Module:
    if isinstance(layer, Sharded):
        raise TypeError(f"{name}.from_linear: the {type(layer).__name__} is sharded already.")
    weight = layer["weight"] if isinstance(layer, Module) and "weight" in layer else None
    if not isinstance(weight, Array) or weight.ndim != 2:
        raise TypeError(
            f"{name}.from_linear needs a layer with a weight [output_dims, input_dims], got "
            f"{type(layer).__name__}."
        )
    return layer

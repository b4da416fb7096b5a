"""Dropout."""

from __future__ import annotations

from nuvec.core.array import Array
from nuvec.core.ops.selection import where
from nuvec.nn.arguments import number
from nuvec.nn.module import Module
from nuvec.random import bernoulli

__all__ = ["Dropout"]


class Dropout(Module):
    """Zeroes each element with probability p and scales the others by 1 / (1 - p).

    In evaluation mode, and with p = 0, it returns its input. Each call draws anew from the
    default random stream, or from `key` when one is given.

    - A run that was interrupted goes on with the masks it would have had, from
      `nv.random.get_state()` and `set_state`, saved and restored with parameters and optimizer.
    - A compiled or checkpointed step draws the masks of the same step without.
    - The default streams of all ranks are alike: the ranks of a group drop the same places of
      their parts of the batch, and the layers of a sharded model agree. For masks that differ,
      pass a key with the rank folded in: `nv.random.fold_in(key, group.rank())`.

    (Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html)

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> layer = nn.Dropout(0.5)
    >>> sorted(set(layer(nv.ones(100)).tolist()))
    [0.0, 2.0]
    >>> layer.eval()(nv.ones(3))
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = float(number(p, "Dropout: p", 0, 1))

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """x of any shape and floating dtype -> the same"""
        if not self.training or self.p == 0:
            return x
        keep = bernoulli(key, 1 - self.p, x.shape)
        # A selection, not a product: an infinity that is dropped leaves 0, not NaN.
        return where(keep, x * (1 / (1 - self.p)), 0)

    def _extra_repr(self) -> str:
        return f"p={self.p}"

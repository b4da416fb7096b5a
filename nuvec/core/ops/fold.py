"""fold_sum: the sum over axis 0 in order, ((x0 + x1) + x2) + ..., the bits of a sum over ranks.

`sum` is free to add in an order that is faster and more accurate.  A reduction over ranks is not,
and this is what one becomes when the ranks are the elements of a mapped axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.shape import broadcast_to_p, move_axis
from nuvec.core.primitive import Primitive

SHORT = 512  # elements a row has where one call for all rows is faster than one a row


def left_fold(x: np.ndarray) -> np.ndarray:
    """The rows of `x` added in order; float16 and bfloat16 in float32, rounded once."""
    dtype = x.dtype
    wide = dtypes.accumulation(dtype)
    if not len(x):
        return np.zeros(x.shape[1:], dtype)
    if len(x) > 8 and x[0].size <= SHORT:
        # The running sums in order are what `accumulate` is defined to be.
        total = np.add.accumulate(x.astype(wide, copy=False), axis=0)[-1]
        return np.array(total, dtype)
    total = np.array(x[0], wide)
    for row in x[1:]:
        np.add(total, row.astype(wide), out=total)
    return total.astype(dtype, copy=False)


def _rule(x: Aval) -> Aval:
    if not x.shape:
        raise ShapeError("fold_sum: a scalar has no axis 0 to add along")
    return aval(x.shape[1:], x.dtype)


def _vmap(size: int, axes: Sequence[int | None], x: Array) -> tuple[Array, int]:
    assert axes[0] is not None
    return fold_sum_p.bind(move_axis(x, axes[0], 1)), 0


fold_sum_p: Primitive = Primitive(
    "fold_sum", left_fold, _rule, "reduction",
    # <c, x0 + x1 + ...> = <[c, c, ...], x>
    transpose=lambda i, c, out, x: broadcast_to_p.bind(c, shape=x.shape),
    vmap=_vmap,
)  # fmt: skip

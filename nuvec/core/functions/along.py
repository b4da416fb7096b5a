"""take_along_axis and put_along_axis: an index of its own for every line along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.indexing import setitem_value
from nuvec.core.functions.structure import ravel
from nuvec.core.ops.along import lines, take_along_p
from nuvec.core.ops.bounds import check_bounds
from nuvec.core.ops.build import normalize_axis
from nuvec.core.ops.shape import broadcast_to
from nuvec.core.traceback import filtered


def _index_along(x: Array, indices: Any, axis: int, name: str) -> Any:
    """The indices, an Array or NumPy's, once it is known that they go with `x`."""
    indices = indices if isinstance(indices, Array) else np.asarray(indices)
    if not dtypes.is_integer(dtypes.as_dtype(indices.dtype)):
        raise DtypeError(f"{name}: indices must be integers, got {indices.dtype}")
    fits = indices.ndim == x.ndim and all(
        m == n or 1 in (m, n) or a == axis
        for a, (m, n) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"{name}: indices of shape {indices.shape} do not go with an array of shape {x.shape} "
            f"along axis {axis}: they need the same number of axes, and the same sizes (or 1) but "
            "for that axis; nv.expand_dims adds an axis"
        )
    return indices


@filtered
def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Array:
    """`x[..., indices[..., k, ...], ...]`: as `np.take_along_axis`; flattened without an axis.

    `indices` has as many axes as `x` and broadcasts with it but for `axis`.  Raises ShapeError
    when it does not, OutOfBoundsError as indexing does.

    >>> import nuvec as nv
    >>> x = nv.array([[3, 1, 2], [6, 5, 4]])
    >>> nv.take_along_axis(x, nv.array([[1], [2]]), axis=1)
    array([[1],
           [4]], dtype=int32)
    """
    x = operand(x, "take_along_axis's operand")
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis(axis, x.ndim, "take_along_axis")
    indices = _index_along(x, indices, axis, "take_along_axis")
    if not isinstance(indices, Array):
        check_bounds(indices, axis, x.shape[axis], x.shape)
        indices = from_numpy(indices)
    sizes = list(np.broadcast_shapes(
        x.shape[:axis] + x.shape[axis + 1 :], indices.shape[:axis] + indices.shape[axis + 1 :]
    ))  # fmt: skip
    sizes.insert(axis, x.shape[axis])
    return take_along_p.bind(
        broadcast_to(x, tuple(sizes)), indices, axis=axis - x.ndim, mode="raise"
    )


@filtered
def put_along_axis(x: Any, indices: Any, values: Any, axis: int | None) -> Array:
    """A new array: `x` with `values` where `take_along_axis` would read.  (NumPy's writes to its
    argument instead.)

    >>> import nuvec as nv
    >>> nv.put_along_axis(nv.zeros((2, 2)), nv.array([[1], [0]]), 5.0, axis=1)
    array([[0., 5.],
           [5., 0.]], dtype=float32)
    """
    x = operand(x, "put_along_axis's operand")
    if axis is None:
        return put_along_axis(ravel(x), indices, values, 0).reshape(x.shape)
    axis = normalize_axis(axis, x.ndim, "put_along_axis")
    indices = _index_along(x, indices, axis, "put_along_axis")
    return setitem_value(x, lines(x.shape, indices, axis - x.ndim), values)

"""Bounds of indices: which are within, the error where one is not, and whose error it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, OutOfBoundsError, ShapeError
from nuvec.core.ir import Aval
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.comparison import logical_and
from nuvec.core.ops.reduction import any as any_of
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import NOT_DIFFERENTIABLE, Primitive

Ints = tuple[int, ...]
_LARGEST = np.uint64(np.iinfo(np.intp).max)

# On NumPy values


def as_intp(index: Any, mode: str = "drop") -> Any:
    """An index in the dtype NumPy indexes with.  Numbers beyond it, which no axis has, are an
    error with mode "raise", and else become its largest."""
    if index.dtype == np.intp:
        return index
    if index.dtype == np.uint64 and np.any(index > _LARGEST):
        if mode == "raise":
            raise OutOfBoundsError(f"index {np.max(index)} is out of bounds")
        index = np.minimum(index, _LARGEST)
    return index.astype(np.intp)


def is_inside(index: Any, size: int) -> bool:
    """Whether all of an index is within the bounds of its axis."""
    return not index.size or bool(index.min() >= -size and index.max() < size)


def check_bounds(index: Any, axis: int, size: int, shape: Ints, wanted: Any = True) -> None:
    """Raise OutOfBoundsError for the first value of an index that is outside its axis; of those
    that are `wanted`, which has some of the index's leading axes."""
    wide = as_intp(index)
    if is_inside(wide, size):
        return
    outside = np.logical_or(wide < -size, wide >= size)
    outside &= np.reshape(wanted, np.shape(wanted) + (1,) * (outside.ndim - np.ndim(wanted)))
    if np.any(outside):
        raise OutOfBoundsError(
            f"index {np.asarray(index)[outside].ravel()[0]} is out of bounds for axis {axis} with "
            f"size {size}, of an array of shape {shape}. x.at[i].get(mode='clip') and "
            "x.at[i].set(v, mode='drop') allow such indices"
        )


def check_all(shape: Ints, axes: Ints, indices: Sequence[Any]) -> None:
    for a, i in zip(axes, indices, strict=True):
        check_bounds(i, a, shape[a], shape)


def all_inside(shape: Ints, axes: Ints, indices: Sequence[Any]) -> bool:
    return all(is_inside(i, shape[a]) for a, i in zip(axes, indices, strict=True))


def valid_elements(shape: Ints, axes: Ints, indices: Sequence[Any]) -> Any:
    """Which elements of the (broadcast) index are within bounds."""
    valid = np.asarray(True)
    for a, i in zip(axes, indices, strict=True):
        valid = valid & (i >= -shape[a]) & (i < shape[a])
    return valid


# checked_index(index, wanted) is index, and an error at evaluation where it is out of bounds and
# wanted, which has some of the index's leading axes


def _rule(index: Aval, wanted: Aval, axis: int, shape: Ints) -> Aval:
    if not dtypes.is_integer(index.dtype) or not dtypes.is_bool(wanted.dtype):
        raise DtypeError(f"checked_index takes integers and booleans, got {index} and {wanted}")
    if wanted.shape != index.shape[: wanted.ndim]:
        raise ShapeError(f"checked_index: {wanted} must have leading axes of {index}")
    return index


def _lower(index: Any, wanted: Any, axis: int, shape: Ints) -> Any:
    check_bounds(index, axis, shape[axis], shape, wanted)
    return index


def _vmap(
    size: int, axes: Sequence[int | None], index: Array, wanted: Array, **where_to: Any
) -> tuple[Array, int | None]:
    if axes[0] is None:  # it is one for all elements: an error where any of them wants it
        assert axes[1] is not None
        return checked_index_p.bind(index, any_of(wanted, axes[1]), **where_to), None
    index, wanted = move_axis(index, axes[0], 0), batch_first(wanted, axes[1], size)
    return checked_index_p.bind(index, wanted, **where_to), 0


def _guard(
    wanted: Array, index: Array, before: Array, **where_to: Any
) -> tuple[Sequence[Array], dict[str, Any]]:
    return (index, logical_and(wanted, before)), where_to


checked_index_p: Primitive = Primitive(
    "checked_index", _lower, _rule, "other", jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE,
    vmap=_vmap, guard=_guard,
)  # fmt: skip


def index_guard(first: int) -> Callable[..., tuple[Sequence[Array], dict[str, Any]]]:
    """The guard of a primitive whose operands from `first` on index its operand 0: only wanted
    indices are checked, and then it drops those out of bounds."""

    def guard(
        wanted: Array, *operands: Array, axes: Ints, mode: str, **params: Any
    ) -> tuple[Sequence[Array], dict[str, Any]]:
        shape = operands[0].shape
        unsure = [
            mode == "raise" and not is_known_inside(i, shape[a])
            for a, i in zip(axes, operands[first:], strict=True)
        ]
        checked = [
            checked_index_p.bind(i, wanted, axis=a, shape=shape) if check else i
            for a, i, check in zip(axes, operands[first:], unsure, strict=True)
        ]
        mode = "drop" if any(unsure) else mode
        return (*operands[:first], *checked), {"axes": axes, "mode": mode, **params}

    return guard


def is_known_inside(index: Array, size: int) -> bool:
    value = index._node.value
    return isinstance(value, np.ndarray | np.generic) and is_inside(as_intp(value), size)

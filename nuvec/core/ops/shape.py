"""Reshape and transpose; sum and broadcast, which are each other's transpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import AxisError, ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops.build import (
    as_operand,
    checked_cast,
    converted,
    normalize_axes,
    normalize_axis,
    sizes_of,
)
from nuvec.core.ops.summation import reduced_sum
from nuvec.core.primitive import Primitive
from nuvec.core.tiling import Role, Rows, Tile, aligned_roles, has_rows
from nuvec.core.traceback import filtered

# reshape: the transpose is the reshape back


def _reshape_rule(x: Aval, shape: tuple[int, ...]) -> Aval:
    if math.prod(shape) != x.size:
        raise ShapeError(
            f"reshape: an array of shape {x.shape} has {x.size} elements, and shape {shape} "
            f"has room for {math.prod(shape)}"
        )
    return aval(shape, x.dtype, x.weak)


def _reshape_vmap(
    size: int, axes: Sequence[int | None], x: Array, shape: tuple[int, ...]
) -> tuple[Array, int]:
    assert axes[0] is not None
    return reshape_p.bind(move_axis(x, axes[0], 0), shape=(size, *shape)), 0


def _reshape_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    shape = eqn.params["shape"]
    if not has_rows(eqn.inputs[0].aval, rows) or shape[: len(rows)] != rows:
        return None
    return Tile({"shape": (count, *shape[len(rows) :])}, (Role.CUT,))


reshape_p: Primitive = Primitive(
    "reshape",
    lambda x, shape: np.reshape(x, shape),
    _reshape_rule,
    "view",
    transpose=lambda i, c, out, x, shape: reshape_p.bind(c, shape=x.shape),
    vmap=_reshape_vmap,
    tile=_reshape_tile,
)


def row_by_row(name: str, order: str) -> None:
    """Refuse every order of elements but NumPy's usual one."""
    if order != "C":
        raise ValueError(
            f'{name}: elements are taken row by row, order="C", not {order!r}; for Fortran\'s '
            "order work on the transpose, x.T"
        )


@filtered
def reshape(x: Any, shape: int | Sequence[int], order: str = "C") -> Array:
    """`x` with the same elements, row by row, in another shape; one size may be -1.

    Raises ShapeError when the sizes do not fit, ValueError for an `order` other than "C".

    >>> import nuvec as nv
    >>> nv.reshape(nv.arange(6), (2, -1)).shape
    (2, 3)
    """
    x = operand(x, "reshape's operand")
    row_by_row("reshape", order)
    sizes = sizes_of(shape, "reshape")
    if sizes.count(-1) > 1 or any(n < -1 for n in sizes):
        raise ShapeError(f"reshape: shape {sizes} may hold one -1 and no other negative size")
    if -1 in sizes:
        known = -math.prod(sizes)
        if known == 0 or x.size % known:
            raise ShapeError(
                f"reshape: no size for -1 makes shape {sizes} hold the {x.size} elements of an "
                f"array of shape {x.shape}"
            )
        sizes = tuple(x.size // known if n == -1 else n for n in sizes)
    return x if sizes == x.shape else reshape_p.bind(x, shape=sizes)


# transpose: permutes axes; the transpose permutes them back


def _transpose_rule(x: Aval, permutation: tuple[int, ...]) -> Aval:
    if sorted(permutation) != list(range(x.ndim)):
        raise AxisError(f"transpose: {permutation} is no permutation of the axes of {x.shape}")
    return aval(tuple(x.shape[p] for p in permutation), x.dtype, x.weak)


def _transpose_vmap(
    size: int, axes: Sequence[int | None], x: Array, permutation: tuple[int, ...]
) -> tuple[Array, int]:
    assert axes[0] is not None
    x = move_axis(x, axes[0], 0)
    return transpose_p.bind(x, permutation=(0, *(p + 1 for p in permutation))), 0


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def _transpose_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    permutation, lead = eqn.params["permutation"], len(rows)
    if not has_rows(eqn.inputs[0].aval, rows) or permutation[:lead] != tuple(range(lead)):
        return None
    return Tile({"permutation": (0, *[p - lead + 1 for p in permutation[lead:]])}, (Role.CUT,))


transpose_p: Primitive = Primitive(
    "transpose",
    lambda x, permutation: np.transpose(x, permutation),
    _transpose_rule,
    "view",
    transpose=lambda i, c, out, x, permutation: transpose_p.bind(
        c, permutation=_inverse(permutation)
    ),
    vmap=_transpose_vmap,
    tile=_transpose_tile,
)


@filtered
def transpose(x: Any, axes: Sequence[int] | None = None) -> Array:
    """`x` with its axes permuted: axis i of the result is axis `axes[i]` of `x`; reversed when
    `axes` is None.  Raises AxisError when `axes` is no permutation of `x`'s axes.

    >>> import nuvec as nv
    >>> nv.transpose(nv.zeros((2, 3, 4)), (0, 2, 1)).shape
    (2, 4, 3)
    """
    x = operand(x, "transpose's operand")
    if axes is None:
        permutation = tuple(reversed(range(x.ndim)))
    else:
        permutation = tuple(normalize_axis(a, x.ndim, "transpose") for a in axes)
        if sorted(permutation) != list(range(x.ndim)):
            raise AxisError(
                f"transpose: axes {tuple(axes)} do not name each axis of an array of shape "
                f"{x.shape} once"
            )
    if permutation == tuple(range(x.ndim)):
        return x
    return transpose_p.bind(x, permutation=permutation)


def move_axis(x: Array, source: int, destination: int) -> Array:
    """`x` with one axis moved; itself when it is there already."""
    if source == destination:
        return x
    order = [a for a in range(x.ndim) if a != source]
    order.insert(destination, source)
    return transpose_p.bind(x, permutation=tuple(order))


# broadcast_to: repeats along axes of size 1 and new leading axes; its transpose sums them


def _broadcast_rule(x: Aval, shape: tuple[int, ...]) -> Aval:
    aligned = shape[len(shape) - x.ndim :]
    fits = len(shape) >= x.ndim and all(n in (1, m) for n, m in zip(x.shape, aligned, strict=True))
    if not fits or any(n < 0 for n in shape):
        raise ShapeError(
            f"broadcast_to: an array of shape {x.shape} does not broadcast to {shape}: each of "
            "its sizes, aligned from the right, must be 1 or equal, and none may be negative"
        )
    return aval(shape, x.dtype, x.weak)


def _broadcast_vmap(
    size: int, axes: Sequence[int | None], x: Array, shape: tuple[int, ...]
) -> tuple[Array, int]:
    assert axes[0] is not None
    x = move_axis(x, axes[0], 0)
    aligned = (size, *(1,) * (len(shape) + 1 - x.ndim), *x.shape[1:])
    if aligned != x.shape:
        x = reshape_p.bind(x, shape=aligned)
    return broadcast_to_p.bind(x, shape=(size, *shape)), 0


def _broadcast_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    shape = eqn.params["shape"]
    roles = aligned_roles([eqn.inputs[0].aval], len(shape), rows)
    if roles is None or shape[: len(rows)] != rows:
        return None
    return Tile({"shape": (count, *shape[len(rows) :])}, roles)


broadcast_to_p = Primitive(
    "broadcast_to",
    lambda x, shape: np.broadcast_to(x, shape),
    _broadcast_rule,
    "view",
    transpose=lambda i, c, out, x, shape: unbroadcast(c, x.shape),
    vmap=_broadcast_vmap,
    tile=_broadcast_tile,
)


@filtered
def broadcast_to(x: Any, shape: int | Sequence[int]) -> Array:
    """`x` repeated to `shape`, by NumPy's rules.  Raises ShapeError when it does not fit.

    >>> import nuvec as nv
    >>> nv.broadcast_to(nv.array([1, 2]), (2, 2))
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x = operand(x, "broadcast_to's operand")
    shape = sizes_of(shape, "broadcast_to")
    return x if x.shape == shape else broadcast_to_p.bind(x, shape=shape)


def unbroadcast(c: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of broadcasting from `shape` to `c.shape`: sums what was repeated."""
    if c.shape == shape:
        return c
    new = c.ndim - len(shape)
    repeated = tuple(
        a for a in range(c.ndim) if a < new or (shape[a - new] == 1 and c.shape[a] != 1)
    )
    summed = sum_p.bind(c, axes=repeated) if repeated else c
    return summed if summed.shape == shape else reshape_p.bind(summed, shape=shape)


# sum: its transpose broadcasts


def reduced_rule(x: Aval, axes: tuple[int, ...]) -> Aval:
    """The shape rule of a reduction that keeps the dtype."""
    return aval(reduced_shape(x.shape, axes), x.dtype, x.weak)


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(axes)) < len(axes) or not set(axes) <= set(range(len(shape))):
        raise AxisError(f"the axes {axes} are not axes of an array of shape {shape}, once each")
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def restore_axes(c: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """A reduction's result with its reduced axes back, of size 1."""
    kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
    return c if c.shape == kept else reshape_p.bind(c, shape=kept)


def reduction_vmap(primitive: Callable[[], Primitive]) -> Any:
    """The batching rule of every reduction over `axes`: batch first, the axes one further."""

    def vmap(
        size: int, axes_in: Sequence[int | None], x: Array, axes: tuple[int, ...]
    ) -> tuple[Array, int]:
        assert axes_in[0] is not None
        x = move_axis(x, axes_in[0], 0)
        return primitive().bind(x, axes=tuple(a + 1 for a in axes)), 0

    return vmap


def rowwise_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    """A reduction over the last axes: the elements of each row are taken in the same order."""
    axes, x, lead = eqn.params["axes"], eqn.inputs[0].aval, len(rows)
    last = tuple(range(x.ndim - len(axes), x.ndim))
    if not axes or axes != last or axes[0] < lead or not has_rows(x, rows):
        return None
    return Tile({"axes": tuple([a - lead + 1 for a in axes])}, (Role.CUT,))


def _sum_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    """Over the last axes alone, or over the rows: then the tiles' sums are summed."""
    axes, x, lead = eqn.params["axes"], eqn.inputs[0].aval, len(rows)
    if dtypes.accumulation(x.dtype) is not x.dtype:
        return None  # it is rounded once, at the end
    over = tuple([a for a in axes if a < lead])
    if not over:
        return rowwise_tile(eqn, rows, count)
    if over != tuple(range(rows.outer, lead)) or not has_rows(x, rows):
        return None
    rest = tuple([a - lead + 1 for a in axes[len(over) :]])
    return Tile({"axes": (0, *rest)}, (Role.CUT,), partial=True)


def _sum_memory(eqn: Eqn) -> tuple[int, int]:
    """What is summed in a wider dtype is converted first."""
    x, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    wider = dtypes.accumulation(x.dtype)
    return out.nbytes, 0 if wider == x.dtype else x.size * wider.itemsize


sum_p: Primitive = Primitive(
    "sum",
    reduced_sum,
    reduced_rule,
    "reduction",
    # <c, sum(x)> = <broadcast(c), x>
    transpose=lambda i, c, out, x, axes: broadcast_to_p.bind(
        restore_axes(c, x.shape, axes), shape=x.shape
    ),
    vmap=reduction_vmap(lambda: sum_p),
    tile=_sum_tile,
    memory=_sum_memory,
)


@filtered
def sum(
    x: Any, axis: int | Sequence[int] | None = None, *, dtype: Any = None, keepdims: bool = False
) -> Array:
    """The sum over `axis`, as the public `sum` in reduction.py, which can leave elements out."""
    x = operand(x, "sum's operand")
    return reduce_with(sum_p, summand("sum", x, dtype), axis, keepdims)


def summand(name: str, x: Array, dtype: Any) -> Array:
    """The operand of a sum or product in the dtype it works in."""
    if dtype is None:
        return as_operand(x, sum_dtype(x.dtype), x.aval.weak)
    return checked_cast(name, x, dtypes.as_dtype(dtype))


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype sums and products of `dtype` have."""
    if dtypes.is_bool(dtype):
        return dtypes.int32
    if dtypes.is_integer(dtype) and dtype.itemsize < 4:
        return dtypes.int32 if dtypes.is_signed(dtype) else dtypes.uint32
    return dtype


def reduce_with(primitive: Primitive, x: Array, axis: Any, keepdims: bool) -> Array:
    """Bind a reduction over normalised axes; put size-1 axes back where asked for."""
    axes = normalize_axes(axis, x.ndim, primitive.name)
    if x.aval.weak:  # a reduction's result is strong, as in JAX
        x = converted(x, x.dtype)
    out = primitive.bind(x, axes=axes)
    return restore_axes(out, x.shape, axes) if keepdims else out

"""Reductions: sum, max, min, prod, any, all, argmax, argmin.  (The primitive `sum` is in shape.py,
beside broadcast, its transpose.)"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops import selection
from nuvec.core.ops.arithmetic import add, divide, multiply
from nuvec.core.ops.build import (
    as_operand,
    normalize_axes,
    normalize_axis,
    ordered,
    promote_operands,
)
from nuvec.core.ops.comparison import as_condition, equal
from nuvec.core.ops.selection import maximum, minimum, where
from nuvec.core.ops.shape import (
    broadcast_to,
    move_axis,
    reduce_with,
    reduced_rule,
    reduced_shape,
    reduction_vmap,
    reshape,
    restore_axes,
    rowwise_tile,
    sum_p,
    summand,
    transpose,
)
from nuvec.core.ops.shape import sum as plain_sum
from nuvec.core.ops.structure import concatenate, slice_axis
from nuvec.core.primitive import NOT_DIFFERENTIABLE, Primitive
from nuvec.core.tiling import Role, Rows, Tile, has_rows
from nuvec.core.traceback import filtered

Axis = int | Sequence[int] | None
Axes = tuple[int, ...]


# max, min: the extreme takes the cotangent; equal ones share it


def _extreme(name: str, lower: Callable[..., Any]) -> Primitive:
    """The primitive `max` or `min`."""

    def shape_rule(x: Aval, axes: Axes) -> Aval:
        out = reduced_rule(x, axes)
        if x.size == 0 and out.size != 0:
            raise ShapeError(
                f"{name}: an array of shape {x.shape} has no element along axis {axes}, and the "
                f"{name} of nothing is undefined; check its size first, or join a lowest value"
            )
        return out

    def winners(out: Array, x: Array, axes: Axes) -> tuple[Array, Array]:
        """Which elements are the extreme, and how many there are, in `x`'s dtype."""
        hit = equal(x, restore_axes(out, x.shape, axes))
        return hit, sum_p.bind(as_operand(hit, x.dtype), axes=axes)

    def jvp(tangents: Sequence[Array], out: Array, x: Array, axes: Axes) -> Array:
        hit, count = winners(out, x, axes)
        return divide(sum_p.bind(where(hit, tangents[0], 0), axes=axes), count)

    def vjp(i: int, c: Array, out: Array, x: Array, axes: Axes) -> Array:
        hit, count = winners(out, x, axes)
        return where(hit, restore_axes(divide(c, count), x.shape, axes), 0)

    return Primitive(
        name, lower, shape_rule, "reduction", jvp=jvp, vjp=vjp,
        vmap=reduction_vmap(lambda: primitive_of[name]), selects=True, tile=rowwise_tile,
    )  # fmt: skip


max_p = _extreme("max", lambda x, axes: np.max(x, axis=axes))
min_p = _extreme("min", lambda x, axes: np.min(x, axis=axes))
primitive_of = {"max": max_p, "min": min_p}


def _extreme_of(
    primitive: Primitive, combine: Callable[[Any, Any], Array], x: Any, axis: Axis,
    keepdims: bool, initial: Any, mask: Any,
) -> Array:  # fmt: skip
    name = primitive.name
    (x,) = promote_operands(name, (x,), ordered)
    if initial is None:
        if mask is not None:
            raise ValueError(
                f"{name}: where= may leave nothing, whose {name} is undefined: pass initial= too"
            )
        return reduce_with(primitive, x, axis, keepdims)
    if mask is not None:
        x = selection.where(mask, x, initial)
    axes = normalize_axes(axis, x.ndim, name)
    if 0 in [x.shape[a] for a in axes]:
        x, least = promote_operands(name, (x, initial), ordered)
        shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
        return broadcast_to(least, shape)
    return combine(reduce_with(primitive, x, axis, keepdims), initial)


@filtered
def max(
    x: Any, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """The largest element along `axis` (of all by default), in `x`'s dtype; NaN if one is NaN.

    Equal largest elements share the gradient.  `initial` counts as one more element, and with
    `where` (a mask that broadcasts with `x`) it stands for those that are left out.  Raises
    ShapeError (a ValueError) when there is no element, DtypeError for complex numbers, AxisError
    for an axis `x` does not have.

    >>> import nuvec as nv
    >>> nv.max(nv.array([[1, 5], [4, 2]]), axis=0)
    array([4, 5], dtype=int32)
    """
    return _extreme_of(max_p, maximum, x, axis, keepdims, initial, where)


@filtered
def min(
    x: Any, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """The smallest element along `axis` (of all by default), in `x`'s dtype; NaN if one is NaN.

    Equal smallest elements share the gradient.  `initial` counts as one more element, and with
    `where` (a mask that broadcasts with `x`) it stands for those that are left out.  Raises
    ShapeError (a ValueError) when there is no element, DtypeError for complex numbers, AxisError
    for an axis `x` does not have.

    >>> import nuvec as nv
    >>> nv.min(nv.array([[1, 5], [4, 2]]), axis=0)
    array([1, 2], dtype=int32)
    """
    return _extreme_of(min_p, minimum, x, axis, keepdims, initial, where)


amax = max
amin = min


# prod: d(x1 x2 ... xn)/dxi is the product of the others.  Dividing the product by xi fails at 0,
# so it is built from products alone, which makes every order of derivative right


def _others(x: Array) -> Array:
    """The product of the other elements of the last axis, at each element.

    Pairs are multiplied, the products of the other pairs are found the same way, and each element
    gets that of its pair times its partner: O(n) products in O(log n) equations."""
    last = x.ndim - 1
    n = x.shape[last]
    if n == 0:
        return x
    if n == 1:
        return broadcast_to(literal(1, x.dtype), x.shape)
    half = n // 2
    a, b = slice_axis(x, last, 0, half), slice_axis(x, last, half, 2 * half)
    pairs = multiply(a, b)
    if n % 2 == 0:
        outside = _others(pairs)
        return concatenate([multiply(outside, b), multiply(outside, a)], axis=last)
    others = _others(concatenate([pairs, slice_axis(x, last, n - 1, n)], axis=last))
    outside = slice_axis(others, last, 0, half)
    single = slice_axis(others, last, half, half + 1)
    return concatenate([multiply(outside, b), multiply(outside, a), single], axis=last)


def _others_along(x: Array, axes: Axes) -> Array:
    """The product of the other elements along `axes`, at each element."""
    order = (*(a for a in range(x.ndim) if a not in axes), *axes)
    moved = transpose(x, order)
    kept = moved.shape[: x.ndim - len(axes)]
    folded = reshape(moved, (*kept, math.prod(moved.shape[len(kept) :])))
    others = reshape(_others(folded), moved.shape)
    return transpose(others, sorted(range(x.ndim), key=order.__getitem__))


def _prod_lower(x: Any, axes: Axes) -> Any:
    accumulation = dtypes.accumulation(x.dtype)
    product = np.prod(x, axis=axes, dtype=accumulation)
    return product if accumulation is x.dtype else np.asarray(product).astype(x.dtype)


def _prod_jvp(tangents: Sequence[Array], out: Array, x: Array, axes: Axes) -> Array:
    return sum_p.bind(multiply(tangents[0], _others_along(x, axes)), axes=axes)


def _prod_vjp(i: int, c: Array, out: Array, x: Array, axes: Axes) -> Array:
    return multiply(restore_axes(c, x.shape, axes), _others_along(x, axes))


prod_p: Primitive = Primitive(
    "prod", _prod_lower, reduced_rule, "reduction", jvp=_prod_jvp, vjp=_prod_vjp,
    vmap=reduction_vmap(lambda: prod_p),
)  # fmt: skip


@filtered
def prod(
    x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False,
    initial: Any = None, where: Any = None,
) -> Array:  # fmt: skip
    """The product along `axis` (of all elements by default), times `initial`; dtypes, and
    `where`, as for `sum`.

    float16 and bfloat16 accumulate in float32.  An empty product is 1.  The gradient is right
    where elements are 0, to every order.

    >>> import nuvec as nv
    >>> nv.prod(nv.array([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    array([ 2., 12.], dtype=float32)
    """
    x = operand(x, "prod's operand")
    if where is not None:
        x = selection.where(where, x, 1)
    out = reduce_with(prod_p, summand("prod", x, dtype), axis, keepdims)
    return out if initial is None else multiply(out, initial)


@filtered
def sum(
    x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False,
    initial: Any = None, where: Any = None,
) -> Array:  # fmt: skip
    """The sum over `axis` (all axes by default), plus `initial`; booleans are counted in int32,
    narrower integers than int32 are summed in int32 (uint32 when unsigned), other dtypes keep
    theirs.

    float16 and bfloat16 accumulate in float32.  Elements where `where` (a mask that broadcasts
    with `x`) is false are left out.  An empty sum is 0.  Raises AxisError for an axis `x` does
    not have, DtypeError for a `dtype` that would drop an imaginary part.

    >>> import nuvec as nv
    >>> nv.sum(nv.ones((2, 3)), axis=0)
    array([2., 2., 2.], dtype=float32)
    """
    x = operand(x, "sum's operand")
    if where is not None:
        x = selection.where(where, x, False if dtypes.is_bool(x.dtype) else 0)
    out = plain_sum(x, axis, dtype=dtype, keepdims=keepdims)
    return out if initial is None else add(out, initial)


# any, all


any_p: Primitive = Primitive("any", lambda x, axes: np.any(x, axis=axes), reduced_rule, "reduction",
                  jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE,
                  vmap=reduction_vmap(lambda: any_p), tile=rowwise_tile)  # fmt: skip
all_p: Primitive = Primitive("all", lambda x, axes: np.all(x, axis=axes), reduced_rule, "reduction",
                  jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE,
                  vmap=reduction_vmap(lambda: all_p), tile=rowwise_tile)  # fmt: skip


@filtered
def any(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether an element along `axis` (anywhere by default) is true; nonzero values are true.

    False when there is no element.

    >>> import nuvec as nv
    >>> nv.any(nv.array([[0, 1], [0, 0]]), axis=1)
    array([ True, False], dtype=bool)
    """
    return reduce_with(any_p, as_condition("any", x), axis, keepdims)


@filtered
def all(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether every element along `axis` (everywhere by default) is true; nonzero values are.

    True when there is no element.

    >>> import nuvec as nv
    >>> nv.all(nv.array([[0, 1], [1, 1]]), axis=1)
    array([False,  True], dtype=bool)
    """
    return reduce_with(all_p, as_condition("all", x), axis, keepdims)


# argmax, argmin


def _arg_rule(name: str) -> Callable[..., Aval]:
    def shape_rule(x: Aval, axis: int) -> Aval:
        shape = reduced_shape(x.shape, (axis,))
        if x.shape[axis] == 0 and math.prod(shape) != 0:
            raise ShapeError(
                f"{name}: an array of shape {x.shape} has no element along axis {axis} to point "
                "at; check its size first"
            )
        return aval(shape, dtypes.int32)

    return shape_rule


def _arg_vmap(primitive: Callable[[], Primitive]) -> Any:
    def vmap(size: int, axes: Sequence[int | None], x: Array, axis: int) -> tuple[Array, int]:
        assert axes[0] is not None
        return primitive().bind(move_axis(x, axes[0], 0), axis=axis + 1), 0

    return vmap


def _arg_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    axis, lead = eqn.params["axis"], len(rows)
    if axis < lead or not has_rows(eqn.inputs[0].aval, rows):
        return None
    return Tile({"axis": axis - lead + 1}, (Role.CUT,))


def _arg_memory(eqn: Eqn) -> tuple[int, int]:
    """NumPy looks at a copy with the axis last, and points with intp."""
    x, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    copied = eqn.params["axis"] != x.ndim - 1
    return out.nbytes, 8 * out.size + copied * x.nbytes


argmax_p: Primitive = Primitive(
    "argmax", lambda x, axis: np.asarray(np.argmax(x, axis=axis)).astype(np.int32),
    _arg_rule("argmax"), "reduction", jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE,
    vmap=_arg_vmap(lambda: argmax_p), tile=_arg_tile, memory=_arg_memory,
)  # fmt: skip
argmin_p: Primitive = Primitive(
    "argmin", lambda x, axis: np.asarray(np.argmin(x, axis=axis)).astype(np.int32),
    _arg_rule("argmin"), "reduction", jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE,
    vmap=_arg_vmap(lambda: argmin_p), tile=_arg_tile, memory=_arg_memory,
)  # fmt: skip


def _point(primitive: Primitive, x: Any, axis: int | None, keepdims: bool) -> Array:
    (x,) = promote_operands(primitive.name, (x,), ordered)
    if axis is None:
        out = primitive.bind(reshape(x, -1) if x.size else reshape(x, 0), axis=0)
        return reshape(out, (1,) * x.ndim) if keepdims else out
    axis = normalize_axis(axis, x.ndim, primitive.name)
    out = primitive.bind(x, axis=axis)
    return restore_axes(out, x.shape, (axis,)) if keepdims else out


@filtered
def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The int32 index of the (first) largest element along `axis`; of the first NaN if there is
    one.  By default the index into the flattened array.

    Raises ShapeError (a ValueError) when there is no element, DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.argmax(nv.array([[1, 5], [4, 2]]), axis=1)
    array([1, 0], dtype=int32)
    """
    return _point(argmax_p, x, axis, keepdims)


@filtered
def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The int32 index of the (first) smallest element along `axis`; of the first NaN if there is
    one.  By default the index into the flattened array.

    Raises ShapeError (a ValueError) when there is no element, DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.argmin(nv.array([[1, 5], [4, 2]]), axis=1)
    array([0, 1], dtype=int32)
    """
    return _point(argmin_p, x, axis, keepdims)

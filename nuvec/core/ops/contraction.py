"""dot_general, the one primitive that sums products, and matrix products made of it.

`dot_general` contracts some axes of `x` with as many of `y`, and lines up others (the batch axes).
The axes of its result are the batch axes, then the free axes of `x`, then those of `y`.  Every
matrix product, `tensordot` and `einsum` is one, with reshapes and transposes around it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import blas, dtypes
from nuvec.core.array import Array
from nuvec.core.errors import AxisError, DtypeError, ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops.arithmetic import multiply
from nuvec.core.ops.build import as_operand, normalize_axis, promote_operands
from nuvec.core.ops.shape import reduced_shape, reshape_p, transpose_p
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered

Axes = tuple[int, ...]
Pairs = tuple[Axes, Axes]  # axes of x, and the axes of y that go with them
NO_BATCH: Pairs = ((), ())
_MATRICES: Pairs = ((1,), (0,))
_FAST = frozenset((dtypes.float32, dtypes.float64))


def free_axes(ndim: int, contract: Axes, batch: Axes) -> Axes:
    """The axes of an operand that are neither contracted nor batch axes."""
    return tuple(a for a in range(ndim) if a not in contract and a not in batch)


def _dot_rule(x: Aval, y: Aval, contract: Pairs, batch: Pairs) -> Aval:
    if x.dtype != y.dtype:
        raise DtypeError(f"dot_general: the primitive takes one dtype, got {x} and {y}")
    for what, (xs, ys) in (("contracts", contract), ("batches", batch)):
        for a, b in zip(xs, ys, strict=True):
            if x.shape[a] != y.shape[b]:
                raise ShapeError(
                    f"dot_general of shapes {x.shape} and {y.shape} {what} axis {a} of the first "
                    f"(size {x.shape[a]}) with axis {b} of the second (size {y.shape[b]}): the "
                    "sizes must be equal; transpose or reshape one of them"
                )
    shape = [x.shape[a] for a in batch[0]]
    shape += reduced_shape(x.shape, (*contract[0], *batch[0]))
    shape += reduced_shape(y.shape, (*contract[1], *batch[1]))
    return aval(tuple(shape), x.dtype, x.weak and y.weak)


# Lowering: one BLAS call on views where there is no batch axis, else one per batch element


def _dot_lower(x: Any, y: Any, contract: Pairs, batch: Pairs, out: Any = None) -> Any:
    dtype = x.dtype
    if (
        dtype in _FAST and contract == _MATRICES and batch == NO_BATCH
        and x.ndim == y.ndim == 2 and x.shape[1] != 1
    ):  # fmt: skip
        # The same BLAS call as matmul's, in less time around it.
        if out is None or out.flags.c_contiguous:
            return blas.dot(x, y, out)
        np.copyto(out, blas.dot(x, y))
        return out
    accumulation = dtypes.accumulation(dtype)
    if accumulation is not dtype:
        x, y = np.asarray(x).astype(accumulation), np.asarray(y).astype(accumulation)
    a_view, b_view, product, inner, shape = _strategy(x.shape, y.shape, contract, batch)
    if out is not None and accumulation is dtype and out.flags.c_contiguous:
        product(a_view(x), b_view(y), out=out.reshape(inner))
        return out
    if product is blas.dot or not inner:
        result = product(a_view(x), b_view(y))
    else:  # left to NumPy, the order of the result's axes in memory would follow the operands'
        result = product(a_view(x), b_view(y), out=np.empty(inner, accumulation))
    if inner != shape:
        result = result.reshape(shape)
    if out is not None:
        np.copyto(out, result, casting="unsafe")
        return out
    return result if result.dtype == dtype else np.asarray(result).astype(dtype)


View = Callable[[Any], Any]


@functools.lru_cache(maxsize=1024)
def _strategy(
    xs: Axes, ys: Axes, contract: Pairs, batch: Pairs
) -> tuple[View, View, Any, Axes, Axes]:
    """How operands of these shapes are multiplied: what makes the two operands of a NumPy product
    of each, the product, the shape it gives, and the shape of the result."""
    rows = free_axes(len(xs), contract[0], batch[0])
    columns = free_axes(len(ys), contract[1], batch[1])
    many = tuple(xs[a] for a in batch[0])
    shape = many + tuple(xs[a] for a in rows) + tuple(ys[a] for a in columns)
    # The larger operand says in which order the contracted axes are folded: it can stay a view.
    order = 0 if math.prod(xs) >= math.prod(ys) else 1
    pairs = sorted(zip(*contract, strict=True), key=lambda pair: pair[order])
    xc, yc = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    if all(xs[a] == 1 for a in xc):  # nothing to sum: no need for a BLAS call a batch element
        wide = many + tuple(xs[a] for a in rows) + (1,) * len(columns)
        x_order = batch[0] + rows + xc
        y_order = batch[1] + columns + yc
        tall = many + (1,) * len(rows) + tuple(ys[a] for a in columns)
        return _view(xs, x_order, wide), _view(ys, y_order, tall), np.multiply, shape, shape
    m, n = (math.prod(s[a] for a in axes) for s, axes in ((xs, rows), (ys, columns)))
    k = math.prod(xs[a] for a in xc)
    if batch[0]:
        a_view = _view(xs, batch[0] + rows + xc, (*many, m, k))
        b_view = _view(ys, batch[1] + yc + columns, (*many, k, n))
        return a_view, b_view, blas.matmul, (*many, m, n), shape
    a_view = _matrix_view(xs, rows, xc) if rows else _view(xs, xc, (k,))
    b_view = _matrix_view(ys, yc, columns) if columns else _view(ys, yc, (k,))
    return a_view, b_view, blas.dot, (m,) * bool(rows) + (n,) * bool(columns), shape


def _view(shape: Axes, order: Axes, folded: Axes) -> View:
    """What transposes and reshapes an operand of this shape."""
    if order == tuple(range(len(order))):
        return (lambda x: x) if folded == shape else (lambda x: np.reshape(x, folded))
    if folded == tuple(shape[a] for a in order):
        return lambda x: x.transpose(order)
    return lambda x: x.transpose(order).reshape(folded)


def _matrix_view(shape: Axes, left: Axes, right: Axes) -> View:
    """What makes an operand a matrix with the axes `left` as rows, `right` as columns."""
    m, n = math.prod(shape[a] for a in left), math.prod(shape[a] for a in right)
    if right + left == tuple(range(len(shape))) and left:
        # BLAS reads a transposed matrix in place, where reshaping to (m, n) would copy.
        return (lambda x: x.T) if len(shape) == 2 else (lambda x: x.reshape(n, m).T)
    return _view(shape, left + right, (m, n))


# Derivatives: with X and Y the operands as matrices, the cotangent of X is C Y^T, of Y is X^T C


def _dot_transpose(
    i: int, c: Array, out: Array, x: Array, y: Array, contract: Pairs, batch: Pairs
) -> Array:
    (xc, yc), (xb, yb) = contract, batch
    x_free, y_free = free_axes(x.ndim, xc, xb), free_axes(y.ndim, yc, yb)
    many = tuple(range(len(xb)))
    c_rows = tuple(range(len(xb), len(xb) + len(x_free)))
    c_columns = tuple(range(len(xb) + len(x_free), c.ndim))
    if i == 0:
        result = dot_general_p.bind(c, y, contract=(c_columns, y_free), batch=(many, yb))
        # What is left of y are its contracted axes, in y's order; each stands for one of x.
        kept = tuple(xc[yc.index(a)] for a in sorted(yc))
        return _place(result, xb + x_free + kept)
    result = dot_general_p.bind(x, c, contract=(x_free, c_rows), batch=(xb, many))
    kept = tuple(yc[xc.index(a)] for a in sorted(xc))
    return _place(result, yb + kept + y_free)


def _place(x: Array, axes: Axes) -> Array:
    """The transpose of `x` whose axis `axes[i]` is axis i of `x`."""
    if axes == tuple(range(len(axes))):
        return x
    return transpose_p.bind(x, permutation=tuple(map(axes.index, range(len(axes)))))


def _dot_vmap(
    size: int, axes: Sequence[int | None], x: Array, y: Array, contract: Pairs, batch: Pairs
) -> tuple[Array, int]:
    """Batched on both sides it is one more batch axis; on one side, one more free axis."""
    (xc, yc), (xb, yb) = contract, batch
    ax, ay = axes
    if ax is not None:
        xc, xb = _skip(xc, ax), _skip(xb, ax)
    if ay is not None:
        yc, yb = _skip(yc, ay), _skip(yb, ay)
    if ax is not None and ay is not None:
        xb, yb = (ax, *xb), (ay, *yb)
        return dot_general_p.bind(x, y, contract=(xc, yc), batch=(xb, yb)), 0
    out = dot_general_p.bind(x, y, contract=(xc, yc), batch=(xb, yb))
    if ax is not None:
        return out, len(xb) + free_axes(x.ndim, xc, xb).index(ax)
    x_free = len(free_axes(x.ndim, xc, xb))
    return out, len(xb) + x_free + free_axes(y.ndim, yc, yb).index(ay)  # type: ignore[arg-type]


def _skip(axes: Axes, inserted: int) -> Axes:
    """Axes of an unbatched operand as axes of the batched one."""
    return tuple(a + (a >= inserted) for a in axes)


def _dot_memory(eqn: Eqn) -> tuple[int, int]:
    """Operands and products of 16-bit floats are in float32 meanwhile."""
    x, y, out = (a.aval for a in (*eqn.inputs, *eqn.outputs))
    wider = dtypes.accumulation(x.dtype)
    return out.nbytes, 0 if wider is x.dtype else (x.size + y.size + out.size) * wider.itemsize


dot_general_p = Primitive(
    "dot_general", _dot_lower, _dot_rule, "contraction", transpose=_dot_transpose, linear="each",
    vmap=_dot_vmap, out=True, memory=_dot_memory,
)  # fmt: skip


@filtered
def dot_general(
    x: Any,
    y: Any,
    contract: Any = None,
    batch: tuple[Sequence[int], Sequence[int]] = NO_BATCH,
    *,
    dimension_numbers: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Sums of products over axes: axis `contract[0][i]` of `x` with axis `contract[1][i]` of `y`.

    Axes in `batch` are lined up instead of summed.  The result's axes are the batch axes, the
    other axes of `x`, the other axes of `y`.  JAX's form, one pair `(contract, batch)` in the
    place of `contract` or as `dimension_numbers`, is taken too.  float16 and bfloat16 accumulate
    in float32; `preferred_element_type` converts the operands first, so that int8 can be summed
    in int32.  There is no conjugation.  Raises ShapeError when sizes differ, AxisError for axes
    that do not exist or are named twice.

    >>> import nuvec as nv
    >>> x, y = nv.ones((8, 2, 3)), nv.ones((8, 3, 4))
    >>> nv.dot_general(x, y, contract=((2,), (1,)), batch=((0,), (0,))).shape
    (8, 2, 4)
    """
    if dimension_numbers is not None:
        if contract is not None:
            raise TypeError("dot_general: contract and dimension_numbers say the same; pass one")
        contract, batch = dimension_numbers
    elif contract is None:
        raise TypeError("dot_general needs contract=, the pair of what axes are summed over")
    elif any(isinstance(a, list | tuple) for a in contract[0]):
        if batch != NO_BATCH:
            raise TypeError("dot_general: contract holds the batch axes, and so does batch")
        contract, batch = contract
    x, y = _pair("dot_general", x, y, preferred_element_type)
    pairs = []
    for what, axes in (("contract", contract), ("batch", batch)):
        xs = tuple(normalize_axis(a, x.ndim, f"dot_general's {what}[0]") for a in axes[0])
        ys = tuple(normalize_axis(a, y.ndim, f"dot_general's {what}[1]") for a in axes[1])
        if len(xs) != len(ys):
            raise ShapeError(f"dot_general: {what} pairs {len(xs)} axes with {len(ys)}: {axes}")
        pairs.append((xs, ys))
    for k, array in enumerate((x, y)):
        named = pairs[0][k] + pairs[1][k]
        if len(set(named)) != len(named):
            raise AxisError(
                f"dot_general: contract {contract} and batch {batch} name an axis of operand {k}, "
                f"of shape {array.shape}, twice"
            )
    return dot_general_p.bind(x, y, contract=pairs[0], batch=pairs[1])


# matmul


@functools.lru_cache(maxsize=1024)
def _matmul_plan(xs: Axes, ys: Axes) -> tuple[Axes, Axes, Pairs, Pairs, Axes | None, Axes]:
    """How `matmul` of these shapes is a dot_general: the operands' shapes without broadcast axes
    of size 1, its axes, the permutation of its result, and the result's shape."""
    x_core, y_core = min(len(xs), 2), min(len(ys), 2)
    x_batch, y_batch = xs[:-x_core], ys[:-y_core]
    if xs[-1] != ys[-y_core]:
        raise ShapeError(_matmul_message(xs, ys))
    rank = max(len(x_batch), len(y_batch))
    x_batch = (1,) * (rank - len(x_batch)) + x_batch
    y_batch = (1,) * (rank - len(y_batch)) + y_batch
    x_keep: list[int] = []
    y_keep: list[int] = []
    shape: list[int] = []
    both, x_only, y_only = [], [], []
    for d, (m, n) in enumerate(zip(x_batch, y_batch, strict=True)):
        if m != n and 1 not in (m, n):
            raise ShapeError(
                f"matmul: the leading axes of shapes {xs} and {ys} do not broadcast ({m} against "
                f"{n}). Matrices are the last two axes; insert an axis with x[:, None] or "
                "transpose"
            )
        shape.append(n if m == 1 else m)
        if m == n:
            both.append((d, len(x_keep), len(y_keep)))
        elif n == 1:  # an axis that only x has is a free axis of x: no batch needed
            x_only.append((d, len(x_keep)))
        else:
            y_only.append((d, len(y_keep)))
        if m == n or n == 1:
            x_keep.append(m)
        if m == n or m == 1:
            y_keep.append(n)
    batch = (tuple(b[1] for b in both), tuple(b[2] for b in both))
    contract = ((len(x_keep) + x_core - 1,), (len(y_keep),))
    # The axes of dot_general's result: shared, x's own, x's rows, y's own, y's columns.
    rows, columns = (rank,) * (x_core - 1), (rank + x_core - 1,) * (y_core - 1)
    order = [b[0] for b in both] + [b[0] for b in x_only] + list(rows)
    order += [b[0] for b in y_only] + list(columns)
    permutation = tuple(order.index(d) for d in range(len(order)))
    return (
        (*x_keep, *xs[-x_core:]), (*y_keep, *ys[-y_core:]), contract, batch,
        None if permutation == tuple(range(len(order))) else permutation,
        (*shape, *xs[-x_core:][:-1], *ys[-y_core:][1:]),
    )  # fmt: skip


def _matmul_message(xs: Axes, ys: Axes) -> str:
    axis = "first" if len(ys) == 1 else "second last"
    message = (
        f"matmul: shapes {xs} and {ys} do not fit: the last axis of the first has size {xs[-1]}, "
        f"the {axis} axis of the second {ys[0] if len(ys) == 1 else ys[-2]}. "
    )
    if len(ys) > 1 and ys[-1] == xs[-1]:
        return (
            message + "Transpose the second: x @ y.T"
            if len(ys) == 2
            else (message + "Swap the last axes of the second: x @ nv.swapaxes(y, -1, -2)")
        )
    if len(xs) > 1 and len(ys) > 1 and xs[-2] == ys[-2]:
        return message + "Swap the last axes of the first: nv.swapaxes(x, -1, -2) @ y"
    if len(xs) > 1 and len(ys) > 1 and xs[-2] == ys[-1]:
        return message + "The operands may be in the wrong order: y @ x fits"
    return message + "They must be equal; transpose or reshape one of them"


@filtered
def matmul(x: Any, y: Any, /, *, preferred_element_type: Any = None) -> Array:
    """The matrix product over the last axis of `x` and the second last of `y`, as `np.matmul`.

    (..., M, K) and (..., K, N) give (..., M, N), leading axes broadcast.  A 1-D operand counts as
    a row (first) or column (second) whose axis is dropped from the result.  float16 and bfloat16
    accumulate in float32; `preferred_element_type` converts the operands first, so that int8 can
    be summed in int32.  Raises ShapeError when sizes differ and for 0-d operands.

    >>> import nuvec as nv
    >>> nv.matmul(nv.ones((2, 3)), nv.ones((3, 4))).shape
    (2, 4)
    """
    x, y = _pair("matmul", x, y, preferred_element_type)
    xs, ys = x.shape, y.shape
    if not xs or not ys:
        raise ShapeError(
            f"matmul takes arrays of at least one dimension, got shapes {xs} and {ys}; "
            "multiply by a scalar with x * y"
        )
    x_shape, y_shape, contract, batch, permutation, shape = _matmul_plan(xs, ys)
    if x_shape != xs:
        x = reshape_p.bind(x, shape=x_shape)
    if y_shape != ys:
        y = reshape_p.bind(y, shape=y_shape)
    out = dot_general_p.bind(x, y, contract=contract, batch=batch)
    if permutation is not None:
        out = transpose_p.bind(out, permutation=permutation)
    return out if out.shape == shape else reshape_p.bind(out, shape=shape)


def _pair(name: str, x: Any, y: Any, preferred: Any) -> list[Array] | tuple[Array, Array]:
    """The operands in one dtype: their promoted one, or the preferred one if it holds that."""
    if preferred is None:
        if type(x) is Array and type(y) is Array and x.dtype is y.dtype:
            return x, y
        return promote_operands(name, (x, y))
    x, y = promote_operands(name, (x, y))
    dtype = dtypes.as_dtype(preferred)
    if not dtypes.can_cast(x.dtype, dtype):
        raise DtypeError(
            f"{name}: preferred_element_type {dtypes.name(dtype)} cannot hold products of "
            f"{dtypes.name(x.dtype)}; convert the result with .astype instead"
        )
    return as_operand(x, dtype), as_operand(y, dtype)


# What else is a dot_general


@filtered
def dot(x: Any, y: Any) -> Array:
    """The product as `np.dot`: of scalars, x * y; else over the last axis of `x` and the second
    last of `y` (its only one if it is 1-D), with no axes lined up.

    >>> import nuvec as nv
    >>> nv.dot(nv.ones((2, 3)), nv.ones((5, 3, 4))).shape
    (2, 5, 4)
    """
    x, y = promote_operands("dot", (x, y))
    if not x.ndim or not y.ndim:
        return multiply(x, y)
    axis = max(y.ndim - 2, 0)
    if x.shape[-1] != y.shape[axis]:
        raise ShapeError(_matmul_message(x.shape, y.shape).replace("matmul", "dot", 1))
    return dot_general_p.bind(x, y, contract=((x.ndim - 1,), (axis,)), batch=NO_BATCH)

"""Ranges, grids and triangular masks: constants that follow a rule."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.creation import asarray, cast, on_cpu
from nuvec.core.functions.filled import as_shape, zeros_like
from nuvec.core.ir import aval
from nuvec.core.node import constant
from nuvec.core.ops.build import normalize_axis, promote_operands, to_inexact
from nuvec.core.ops.rounding import floor
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import broadcast_to_p, move_axis, reshape_p
from nuvec.core.traceback import filtered


def constant_of(value: np.ndarray) -> Array:
    """The constant whose value is a fresh NumPy array of a nuvec dtype."""
    return Array(constant(value, aval(value.shape, value.dtype)))


# arange and linspace


def _bound(x: Any, name: str) -> Any:
    """A bound of a range as a number; a traced Array raises ConcretizationError."""
    if isinstance(x, Array | np.ndarray):
        if x.size != 1:
            raise ShapeError(f"{name}: a bound is a single number, got an array of shape {x.shape}")
        return x.dtype.type(x.item())
    if not isinstance(x, bool | int | float | np.generic):
        raise DtypeError(f"{name}: a bound is a real number, got {x!r}")
    return x


def _range_dtype(bounds: list[Any], name: str) -> np.dtype:
    weak = (bool, int, float)
    items = [(dtypes.scalar_dtype(b), type(b) in weak) for b in bounds]
    dtype = dtypes.promote(*items)[0]
    if dtypes.is_complex(dtype):
        raise DtypeError(f"{name}: complex numbers have no order")
    return dtypes.default_int if dtypes.is_bool(dtype) else dtype


@filtered
def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None
) -> Array:
    """The numbers from `start` (0 when only one bound is given) to before `stop`, by `step`.

    int32 when every bound is an int, float32 when one is a float; NumPy scalars bring their own
    dtype.  Floating ranges are computed in float64 and rounded once.  Raises DtypeError when the
    numbers do not fit the integer dtype, ValueError when `step` is 0.

    >>> import nuvec as nv
    >>> nv.arange(3), nv.arange(1, 2, 0.5)
    (array([0, 1, 2], dtype=int32), array([1. , 1.5], dtype=float32))
    """
    on_cpu(device, "arange")
    if stop is None:
        start, stop = 0, start
    bounds = [_bound(b, "arange") for b in (start, stop, step)]
    dtype = _range_dtype(bounds, "arange") if dtype is None else dtypes.as_dtype(dtype)
    if all(dtypes.scalar_dtype(b).kind in "biu" for b in bounds):
        numbers = [int(b) for b in bounds]
        if numbers[2] == 0:
            raise ValueError("arange: step is 0, which never gets from start to stop")
        return _integer_range(range(*numbers), dtype)
    first, last, by = (float(b) for b in bounds)
    if by == 0:
        raise ValueError("arange: step is 0, which never gets from start to stop")
    count = (last - first) / by
    if not math.isfinite(count):
        raise ValueError(f"arange: from {first} to {last} by {by} is no finite range")
    values = first + by * np.arange(max(0, math.ceil(count)), dtype=np.float64)
    return constant_of(values.astype(dtype))


def _integer_range(numbers: range, dtype: np.dtype) -> Array:
    if not dtypes.is_integer(dtype):
        return constant_of(np.array(numbers, np.float64).astype(dtype))
    limits = np.iinfo(dtype)
    if numbers and not (
        limits.min <= min(numbers[0], numbers[-1]) and max(numbers[0], numbers[-1]) <= limits.max
    ):
        raise DtypeError(
            f"arange: {numbers[0]} to {numbers[-1]} does not fit {dtypes.name(dtype)}, which "
            f"holds {limits.min} to {limits.max}; pass a wider dtype, for instance dtype=nv.int64"
        )
    if not numbers:
        return constant_of(np.zeros(0, dtype))
    # Modulo 2^64 the numbers are what they are, whatever passes its range in between.
    count = np.arange(len(numbers), dtype=np.uint64)
    with np.errstate(over="ignore"):
        values = count * np.uint64(numbers.step % 2**64) + np.uint64(numbers.start % 2**64)
    return constant_of(values.astype(dtype))


@filtered
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False,
    dtype: Any = None, axis: int = 0, *, device: Any = None,
) -> Any:  # fmt: skip
    """`num` evenly spaced numbers from `start` to `stop`, both exact (`stop` only with
    `endpoint`).

    The bounds may be arrays that broadcast to one shape S: the result has shape (num, *S), with
    the new axis at `axis`.  It is differentiable in both.  float32 by default.  With `retstep`
    it returns (numbers, step).  Raises ValueError when `num` is negative.

    >>> import nuvec as nv
    >>> nv.linspace(0, 1, 5)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    on_cpu(device, "linspace")
    if not hasattr(type(num), "__index__"):
        raise TypeError(f"linspace: num counts the numbers wanted and is an integer, got {num!r}")
    num = operator.index(num)
    if num < 0:
        raise ValueError(f"linspace: num is {num}; it counts the numbers wanted")
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    intervals = num - 1 if endpoint else num
    for bound in (start, stop):
        if not isinstance(bound, Array):
            operand(bound, "a bound of linspace")  # refuses lists
    if not isinstance(start, Array) and not isinstance(stop, Array):
        values, step = _constant_linspace(start, stop, num, endpoint, wanted, axis)
        return (values, step) if retstep else values
    start, stop = promote_operands("linspace", (start, stop), to_inexact)
    ndim = max(start.ndim, stop.ndim) + 1
    axis = normalize_axis(axis, ndim, "linspace")
    # start * (1 - t) + stop * t is exact at both ends, which start + t * (stop - start) is not
    t = np.arange(num, dtype=np.float64) / max(intervals, 1)
    t = t.reshape(num, *(1,) * (ndim - 1))
    real = dtypes.real_part(start.dtype)
    out = start * constant_of((1 - t).astype(real)) + stop * constant_of(t.astype(real))
    if wanted is not None and wanted != out.dtype:
        # Integers are rounded down, as NumPy's are.
        out = cast(floor(out) if dtypes.is_integer(wanted) else out, wanted)
    out = move_axis(out, 0, axis)
    return (out, (stop - start) / max(intervals, 1)) if retstep else out


def _constant_linspace(
    start: Any, stop: Any, num: int, endpoint: bool, dtype: np.dtype | None, axis: int
) -> tuple[Array, Array]:
    avals = [asarray(b).aval if not _is_number(b) else None for b in (start, stop)]
    items = [
        (a.dtype, False) if a is not None else (dtypes.scalar_dtype(b), not _is_numpy(b))
        for a, b in zip(avals, (start, stop), strict=True)
    ]
    own = dtypes.inexact(dtypes.promote(*items)[0])
    target = own if dtype is None else dtype
    values, step = np.linspace(start, stop, num, endpoint=endpoint, retstep=True, axis=axis)
    if dtypes.is_integer(target):
        values = np.floor(values)
    return constant_of(values.astype(target)), constant_of(np.asarray(step).astype(own))


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex | np.generic)


def _is_numpy(x: Any) -> bool:
    return isinstance(x, np.generic)


# Identity and triangles


@filtered
def eye(
    n: int, m: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None
) -> Array:
    """The n by m matrix with ones on diagonal `k` and zeros elsewhere; float32 by default."""
    on_cpu(device, "eye")
    rows, columns = as_shape((n, n if m is None else m), "eye")
    dtype = dtypes.default_float if dtype is None else dtypes.as_dtype(dtype)
    return constant_of(np.eye(rows, columns, operator.index(k), dtype=dtype))


@filtered
def identity(n: int, dtype: Any = None, *, device: Any = None) -> Array:
    """The n by n identity matrix; float32 by default."""
    return eye(n, dtype=dtype, device=device)


@filtered
def tri(
    n: int, m: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None
) -> Array:
    """The n by m matrix with ones at and below diagonal `k`; float32 by default."""
    on_cpu(device, "tri")
    rows, columns = as_shape((n, n if m is None else m), "tri")
    dtype = dtypes.default_float if dtype is None else dtypes.as_dtype(dtype)
    return constant_of(np.tri(rows, columns, operator.index(k), dtype=bool).astype(dtype))


def _triangle(x: Any, k: int, name: str, lower: bool) -> Array:
    x = operand(x, f"{name}'s operand")
    if x.ndim < 2:
        raise ShapeError(f"{name}: it takes matrices [..., n, m], got shape {x.shape}")
    rows, columns = x.shape[-2:]
    mask = np.tri(rows, columns, k if lower else k - 1, dtype=bool)
    return where(constant_of(mask if lower else ~mask), x, zeros_like(x, shape=()))


@filtered
def tril(x: Any, k: int = 0) -> Array:
    """The matrices `x` [..., n, m] with zeros above diagonal `k`.

    >>> import nuvec as nv
    >>> nv.tril(nv.ones((2, 2)))
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    return _triangle(x, operator.index(k), "tril", lower=True)


@filtered
def triu(x: Any, k: int = 0) -> Array:
    """The matrices `x` [..., n, m] with zeros below diagonal `k`."""
    return _triangle(x, operator.index(k), "triu", lower=False)


@filtered
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False) -> list[Array]:
    """The coordinates of a grid from its axes: one array a 1-d argument, each of the grid's shape
    (or of size 1 along the other axes with `sparse`).

    With "ij" the i-th argument runs along axis i; with "xy" the first two axes are exchanged.

    >>> import nuvec as nv
    >>> x, y = nv.meshgrid(nv.arange(3), nv.arange(2))
    >>> x.shape, y
    ((2, 3), array([[0, 0, 0],
           [1, 1, 1]], dtype=int32))
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing is "xy" or "ij", got {indexing!r}')
    axes = [operand(a, f"argument {i} of meshgrid") for i, a in enumerate(arrays)]
    for i, a in enumerate(axes):
        if a.ndim > 1:
            raise ShapeError(f"meshgrid: argument {i} has shape {a.shape}; it takes 1-d arrays")
    order = list(range(len(axes)))
    if indexing == "xy" and len(axes) > 1:
        order[:2] = [1, 0]
    shape = tuple(axes[i].size for i in order)
    grids = []
    for i, a in enumerate(axes):
        place = order.index(i)
        own = tuple(n if j == place else 1 for j, n in enumerate(shape))
        grid = reshape_p.bind(a, shape=own)
        grids.append(grid if sparse else broadcast_to_p.bind(grid, shape=shape))
    return grids


__all__ = [
    "arange",
    "constant_of",
    "eye",
    "identity",
    "linspace",
    "meshgrid",
    "tri",
    "tril",
    "triu",
]

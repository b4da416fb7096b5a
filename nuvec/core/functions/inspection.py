"""Questions about arrays: their common dtype and shape, and whether they agree."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.functions.creation import asarray
from nuvec.core.ops.build import broadcast_shapes, promote_operands, to_inexact
from nuvec.core.ops.comparison import equal, isfinite, isnan, less_equal, logical_and, logical_or
from nuvec.core.ops.reduction import all
from nuvec.core.ops.shape import broadcast_to
from nuvec.core.ops.signs import abs
from nuvec.core.traceback import filtered

_KINDS = {
    "bool": dtypes.is_bool,
    "signed integer": lambda d: dtypes.is_integer(d) and dtypes.is_signed(d),
    "unsigned integer": lambda d: dtypes.is_integer(d) and not dtypes.is_signed(d),
    "integral": dtypes.is_integer,
    "real floating": dtypes.is_floating,
    "complex floating": dtypes.is_complex,
    "numeric": lambda d: not dtypes.is_bool(d),
}


@filtered
def result_type(*arrays_and_dtypes: Any) -> dtypes.Dtype:
    """The dtype that an operation on these arrays, dtypes and Python scalars has.

    >>> import nuvec as nv
    >>> nv.result_type(nv.ones(2, nv.float16), nv.int32, 2.0)
    dtype('float16')
    """
    items = []
    for x in arrays_and_dtypes:
        if isinstance(x, np.ndarray | np.generic):
            items.append((dtypes.as_dtype(x.dtype), False))
        elif isinstance(x, bool | int | float | complex | Array):
            a = operand(x).aval
            items.append((a.dtype, a.weak))
        else:
            items.append((dtypes.as_dtype(x), False))
    return dtypes.promote(*items)[0]


@filtered
def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a dtype, a tuple of kinds, or one of "bool", "signed integer",
    "unsigned integer", "integral", "real floating", "complex floating", "numeric".

    >>> import nuvec as nv
    >>> nv.isdtype(nv.bfloat16, "real floating")
    True
    """
    if isinstance(kind, tuple):
        return True in [isdtype(dtype, k) for k in kind]
    dtype = dtypes.as_dtype(dtype)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"isdtype: kind is one of {', '.join(_KINDS)}, got {kind!r}")
        return _KINDS[kind](dtype)
    return dtype == dtypes.as_dtype(kind)


@filtered
def broadcast_arrays(*arrays: Any) -> list[Array]:
    """The arrays, each broadcast to their common shape.  Raises ShapeError when there is none."""
    made = [operand(a, f"argument {i} of broadcast_arrays") for i, a in enumerate(arrays)]
    if not made:
        return []
    shape = broadcast_shapes("broadcast_arrays", *[a.shape for a in made])
    return [broadcast_to(a, shape) for a in made]


@filtered
def isclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """|x - y| <= atol + rtol |y| at each element, as bool; infinities are close to their equals,
    and NaN to NaN with `equal_nan`.

    >>> import nuvec as nv
    >>> nv.isclose(nv.array([1.0, 2.0]), nv.array([1.000001, 3.0]))
    array([ True, False], dtype=bool)
    """
    return _close("isclose", x, y, rtol, atol, equal_nan)


def _close(name: str, x: Any, y: Any, rtol: float, atol: float, equal_nan: bool) -> Array:
    x, y = promote_operands(name, (x, y), to_inexact)
    broadcast_shapes(name, x.shape, y.shape)
    near = logical_and(less_equal(abs(x - y), atol + rtol * abs(y)), isfinite(y))
    close = logical_or(near, equal(x, y))
    return logical_or(close, logical_and(isnan(x), isnan(y))) if equal_nan else close


@filtered
def allclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether all elements are close, as `isclose` says: bool []."""
    return all(_close("allclose", x, y, rtol, atol, equal_nan))


@filtered
def array_equal(x: Any, y: Any, equal_nan: bool = False) -> Array:
    """Whether both have one shape and equal elements: bool [].

    >>> import nuvec as nv
    >>> nv.array_equal(nv.array([1, 2]), nv.array([1.0, 2.0]))
    array(True, dtype=bool)
    """
    x, y = (operand(a, f"operand {i} of array_equal") for i, a in enumerate((x, y)))
    if x.shape != y.shape:
        return asarray(False)
    same = equal(x, y)
    if equal_nan and dtypes.is_inexact(x.dtype) and dtypes.is_inexact(y.dtype):
        same = logical_or(same, logical_and(isnan(x), isnan(y)))
    return all(same)


__all__ = ["allclose", "array_equal", "broadcast_arrays", "isclose", "isdtype", "result_type"]

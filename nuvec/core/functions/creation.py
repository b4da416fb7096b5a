"""Arrays from values: NumPy arrays, numbers, nested lists, and the usual constants.

What is made from Python and NumPy values alone is a constant, also inside a traced function; only
values that are Arrays themselves (traced ones among them) are recorded.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import aval
from nuvec.core.node import constant, context
from nuvec.core.ops.build import as_operand
from nuvec.core.ops.conversion import astype as cast
from nuvec.core.ops.shape import broadcast_to_p, reshape_p
from nuvec.core.ops.structure import concatenate
from nuvec.core.primitive import IDENTITY
from nuvec.core.traceback import filtered

_PYTHON_SCALARS = frozenset((bool, int, float, complex))
_SEQUENCES = frozenset((list, tuple))
_LARGE = 4096  # elements from which zeros, ones and full keep one element and strides of 0


# Values


@filtered
def array(obj: Any, dtype: Any = None) -> Array:
    """An Array of `obj`: a number, a NumPy array, an Array, or nested lists and tuples of them.

    Python ints become int32, floats float32, complex numbers complex64; NumPy values keep their
    dtype; lists promote what they hold.  NumPy data is copied.  Lists that hold Arrays, traced
    ones included, are stacked, so that derivatives flow through.

    Raises ShapeError for ragged lists, and DtypeError for an int that its dtype cannot hold and
    for objects that are no numbers.

    >>> import nuvec as nv
    >>> nv.array([[1, 2], [3, 4]])
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    dtype = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Array):
        return _copy(obj) if dtype is None or dtype == obj.dtype else cast(obj, dtype)
    return _from_object(obj, dtype, copied=True)


@filtered
def asarray(obj: Any, dtype: Any = None, copy: bool | None = None) -> Array:
    """As `array`, but an Array of the right dtype is returned as it is.

    A NumPy array that nobody can write to is used without a copy; one that somebody can write to
    is copied, unless `copy=False` promises that nobody will.  `copy=False` raises ValueError
    where a copy cannot be avoided.

    >>> import nuvec as nv
    >>> x = nv.ones(2)
    >>> nv.asarray(x) is x
    True
    """
    dtype = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Array):
        if dtype is None or dtype == obj.dtype:
            return _copy(obj) if copy else obj
        if copy is False:
            raise ValueError(
                f"asarray: {obj.aval} to {dtypes.name(dtype)} needs a copy; copy=False"
            )
        return cast(obj, dtype)
    if copy is False:
        if not isinstance(obj, np.ndarray) or dtypes.as_dtype(obj.dtype) != obj.dtype:
            raise ValueError(f"asarray: a {type(obj).__name__} needs a copy, and copy=False")
        if dtype is not None and dtype != obj.dtype:
            raise ValueError(f"asarray: {obj.dtype} to {dtypes.name(dtype)} needs a copy")
    return _from_object(obj, dtype, copied=copy is not False and (copy or _writable(obj)))


@filtered
def copy(x: Any) -> Array:
    """A new Array of the same value: assignments to one (`x[i] = v`) never show in the other."""
    return _copy(operand(x, "copy's operand"))


def _copy(x: Array) -> Array:
    node = x._node
    if node.value is not None and node.marks is None and context.scope is None:
        return Array(constant(node.value, aval(x.shape, x.dtype)))  # values are immutable
    return cast(x, x.dtype) if x.aval.weak else IDENTITY.bind(x)


@filtered
def astype(x: Any, dtype: Any, *, copy: bool = True) -> Array:
    """`x` in another dtype; a new Array, unless `copy=False` and the dtype is the present one.

    Floating numbers are cut off towards zero when they become integers; nonzero values (NaN among
    them) are true.  Raises DtypeError for complex to real, which would drop a part.

    >>> import nuvec as nv
    >>> nv.astype(nv.array([1.7, -1.7]), nv.int32)
    array([ 1, -1], dtype=int32)
    """
    x = operand(x, "astype's operand")
    out = cast(x, dtypes.as_dtype(dtype))
    return _copy(x) if out is x and copy else out


@filtered
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An Array of any object that speaks DLPack; its buffer is copied unless `copy=False`."""
    if device not in (None, "cpu"):
        raise ValueError(f"from_dlpack: nuvec arrays live on 'cpu', not on {device!r}")
    if isinstance(x, Array):
        return _copy(x) if copy else x
    return from_numpy(np.from_dlpack(x), copy=copy is not False)


def _writable(obj: Any) -> bool:
    """Whether somebody could still write to the buffer of a NumPy array, through any view."""
    while isinstance(obj, np.ndarray):
        if obj.flags.writeable:
            return True
        obj = obj.base
    return obj is not None and type(obj) is not bytes


def _from_object(obj: Any, dtype: np.dtype | None, copied: bool) -> Array:
    kind = type(obj)
    if kind in _PYTHON_SCALARS:
        return _from_numbers(obj, dtype or dtypes.scalar_dtype(obj))
    if isinstance(obj, np.ndarray | np.generic):
        own = dtypes.as_dtype(obj.dtype)
        if dtype is None or dtype == own:
            return from_numpy(obj, copy=copied)
        return from_numpy(_convert(obj, dtype), copy=False)
    if isinstance(obj, bool | int | float | complex):
        return _from_numbers(obj, dtype or dtypes.scalar_dtype(obj))
    if isinstance(obj, range):
        obj = list(obj)
    if isinstance(obj, list | tuple):
        return _from_sequence(obj, dtype)
    if hasattr(obj, "__nuvec_array__"):
        return array(obj.__nuvec_array__(), dtype)
    if not isinstance(obj, str | bytes) and (
        hasattr(obj, "__array__") or hasattr(obj, "__array_interface__") or _is_buffer(obj)
    ):
        return _from_object(np.array(obj), dtype, copied=False)
    raise DtypeError(
        f"nv.array: a {kind.__name__} is no array: it takes numbers, NumPy arrays, Arrays and "
        "nested lists of them"
    )


def _is_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def _convert(value: Any, dtype: np.dtype) -> np.ndarray:
    """A NumPy value in an explicitly requested dtype; complex to real would drop a part."""
    own = dtypes.as_dtype(value.dtype)
    if dtypes.is_complex(own) and not (dtypes.is_complex(dtype) or dtypes.is_bool(dtype)):
        raise DtypeError(
            f"nv.array: {dtypes.name(own)} values in {dtypes.name(dtype)} would lose their "
            "imaginary part; use nv.real(x), nv.imag(x) or nv.abs(x)"
        )
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _from_numbers(obj: Any, dtype: np.dtype) -> Array:
    """Python numbers, alone or in nested lists, in `dtype`."""
    try:
        with np.errstate(all="ignore"):
            value = np.array(obj, dtype=dtype)
    except OverflowError:
        raise DtypeError(
            f"nv.array: an int does not fit {dtypes.name(dtype)}, which holds "
            f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}; pass a wider dtype, for instance "
            "dtype=nv.int64"
        ) from None
    except TypeError:  # a complex number in a real dtype
        value = _convert(np.array(obj), dtype)
    return Array(constant(value, aval(value.shape, dtype)))


class _Found:
    """What a nested list holds: the dtypes of its leaves, and whether any of them is an Array."""

    def __init__(self) -> None:
        self.items: set[tuple[np.dtype, bool]] = set()
        self.arrays = False

    def visit(self, obj: Any) -> None:
        kinds = set(map(type, obj))
        for kind in kinds & _PYTHON_SCALARS:
            self.items.add((dtypes.scalar_dtype(kind(0)), kind is not bool))
        if kinds <= _PYTHON_SCALARS:
            return
        for element in obj:
            kind = type(element)
            if kind in _PYTHON_SCALARS:
                continue
            if isinstance(element, Array):
                self.arrays = True
                self.items.add((element.dtype, element.aval.weak))
            elif isinstance(element, np.ndarray | np.generic):
                self.items.add((dtypes.as_dtype(element.dtype), False))
            elif isinstance(element, list | tuple):
                self.visit(element)
            else:
                # Whatever else is an array by a protocol; anything else raises here.
                self.arrays = True
                self.items.add((_from_object(element, None, copied=False).dtype, False))


def _from_sequence(obj: Any, dtype: np.dtype | None) -> Array:
    found = _Found()
    found.visit(obj)
    if dtype is None:
        dtype = dtypes.promote(*found.items)[0] if found.items else dtypes.default_float
    if found.arrays:
        return _stack(obj, dtype)
    try:
        if any(not weak for _, weak in found.items):
            return _from_numbers(_plain(obj, dtype), dtype)
        return _from_numbers(obj, dtype)
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(_ragged(obj)) from None


def _plain(obj: Any, dtype: np.dtype) -> Any:
    """A nested list whose NumPy members are in `dtype`, so that NumPy's own promotion (which
    knows neither nuvec's lattice nor bfloat16) has nothing to decide."""
    if isinstance(obj, list | tuple):
        return [_plain(e, dtype) for e in obj]
    return _convert(obj, dtype) if isinstance(obj, np.ndarray | np.generic) else obj


def _ragged(obj: Any) -> str:
    shapes = [np.shape(e) if not isinstance(e, list | tuple) else _list_shape(e) for e in obj]
    return (
        f"nv.array: a ragged list: its elements have shapes {', '.join(map(str, shapes[:8]))}"
        f"{', ...' if len(shapes) > 8 else ''}, and an array needs them all equal; pad the "
        "shorter ones, or keep a list of arrays"
    )


def _list_shape(obj: Any) -> tuple[Any, ...]:
    """The shape of a nested list; "ragged" where it has none."""
    if isinstance(obj, Array | np.ndarray | np.generic):
        return obj.shape
    if not isinstance(obj, list | tuple):
        return ()
    inner = {_list_shape(e) for e in obj}
    if len(inner) > 1:
        return (len(obj), "ragged")
    return (len(obj), *(inner.pop() if inner else ()))


def _stack(obj: Any, dtype: np.dtype) -> Array:
    """A list that holds Arrays somewhere: each element an Array, joined along a new axis."""
    parts = [
        as_operand(e, dtype) if isinstance(e, Array) else _from_object(e, dtype, copied=True)
        for e in obj
    ]
    shape = parts[0].shape
    if any(p.shape != shape for p in parts):
        raise ShapeError(_ragged(parts))
    return concatenate([reshape_p.bind(p, shape=(1, *shape)) for p in parts])


# Constants


def as_shape(shape: Any, name: str) -> tuple[int, ...]:
    """A shape from an integer or a sequence of integers; ShapeError for a negative size."""
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        if isinstance(shape, list | tuple):
            raise TypeError(f"{name}: a shape holds integers, got {shape!r}") from None
        sizes = (operator.index(shape),)
    if any(n < 0 for n in sizes):
        raise ShapeError(f"{name}: shape {sizes} has a negative size")
    return sizes


def _fill(shape: tuple[int, ...], value: np.ndarray) -> Array:
    """A constant with `value` everywhere.  A large one keeps a single element: nothing writes to
    the value of an array, so strides of 0 cost neither memory nor time."""
    if math.prod(shape) < _LARGE:
        whole = np.full(shape, value, value.dtype)
    else:
        whole = np.broadcast_to(value, shape)
    return Array(constant(whole, aval(shape, value.dtype)))


@filtered
def zeros(shape: Any, dtype: Any = None) -> Array:
    """An array of zeros; float32 by default.

    >>> import nuvec as nv
    >>> nv.zeros((2, 2), nv.int32)
    array([[0, 0],
           [0, 0]], dtype=int32)
    """
    dtype = dtypes.default_float if dtype is None else dtypes.as_dtype(dtype)
    return _fill(as_shape(shape, "zeros"), np.zeros((), dtype))


@filtered
def ones(shape: Any, dtype: Any = None) -> Array:
    """An array of ones; float32 by default.

    >>> import nuvec as nv
    >>> nv.ones(2)
    array([1., 1.], dtype=float32)
    """
    dtype = dtypes.default_float if dtype is None else dtypes.as_dtype(dtype)
    return _fill(as_shape(shape, "ones"), np.ones((), dtype))


def empty(shape: Any, dtype: Any = None) -> Array:
    """An array to be filled later; it holds zeros, for values here are never undefined."""
    return zeros(shape, dtype)


@filtered
def full(shape: Any, fill_value: Any, dtype: Any = None) -> Array:
    """An array with `fill_value` everywhere; an Array (broadcast to `shape`) keeps its derivative.

    The dtype is the fill value's by default (int32 for an int, float32 for a float).

    >>> import nuvec as nv
    >>> nv.full(3, 7)
    array([7, 7, 7], dtype=int32)
    """
    sizes = as_shape(shape, "full")
    value = asarray(fill_value, dtype)
    if value.shape == () and value._node.primitive is None:
        return _fill(sizes, np.asarray(value._node.value))
    return broadcast_to_p.bind(value, shape=sizes)


def _like(x: Any, dtype: Any, shape: Any, name: str) -> tuple[tuple[int, ...], np.dtype]:
    x = operand(x, f"{name}'s operand")
    return (
        x.shape if shape is None else as_shape(shape, name),
        x.dtype if dtype is None else dtypes.as_dtype(dtype),
    )


@filtered
def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None) -> Array:
    """Zeros of the shape and dtype of `x`."""
    sizes, dtype = _like(x, dtype, shape, "zeros_like")
    return _fill(sizes, np.zeros((), dtype))


@filtered
def ones_like(x: Any, dtype: Any = None, *, shape: Any = None) -> Array:
    """Ones of the shape and dtype of `x`."""
    sizes, dtype = _like(x, dtype, shape, "ones_like")
    return _fill(sizes, np.ones((), dtype))


@filtered
def empty_like(x: Any, dtype: Any = None, *, shape: Any = None) -> Array:
    """Zeros of the shape and dtype of `x`: values here are never undefined."""
    return zeros_like(x, dtype, shape=shape)


@filtered
def full_like(x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None) -> Array:
    """`fill_value` everywhere, in the shape and dtype of `x`."""
    sizes, dtype = _like(x, dtype, shape, "full_like")
    return full(sizes, fill_value, dtype)


__all__ = [
    "array",
    "as_shape",
    "asarray",
    "astype",
    "cast",
    "copy",
    "empty",
    "empty_like",
    "from_dlpack",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

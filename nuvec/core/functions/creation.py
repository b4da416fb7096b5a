"""Arrays from values: NumPy arrays, numbers and nested lists of them.

What is made from Python and NumPy values alone is a constant, also inside a traced function; only
values that are Arrays themselves (traced ones among them) are recorded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, operand, refuse_mask
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import aval
from nuvec.core.node import constant, context
from nuvec.core.ops.build import as_operand
from nuvec.core.ops.conversion import astype as cast
from nuvec.core.ops.shape import reshape_p
from nuvec.core.ops.structure import concatenate
from nuvec.core.primitive import IDENTITY
from nuvec.core.traceback import filtered

_PYTHON_SCALARS = frozenset((bool, int, float, complex))
_SEQUENCES = frozenset((list, tuple))


def on_cpu(device: Any, name: str) -> None:
    """Refuse every device but the one there is."""
    if device not in (None, "cpu"):
        raise ValueError(f"{name}: nuvec arrays live on 'cpu'; there is no device {device!r}")


# Values


@filtered
def array(obj: Any, dtype: Any = None, *, device: Any = None) -> Array:
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
    on_cpu(device, "array")
    dtype = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Array):
        return _copy(obj) if dtype is None or dtype == obj.dtype else cast(obj, dtype)
    return _from_object(obj, dtype, copied=True)


@filtered
def asarray(obj: Any, dtype: Any = None, copy: bool | None = None, *, device: Any = None) -> Array:
    """As `array`, but an Array of the right dtype is returned as it is.

    A NumPy array that nobody can write to is used without a copy; one that somebody can write to
    is copied, unless `copy=False` promises that nobody will.  `copy=False` raises ValueError
    where a copy cannot be avoided.

    >>> import nuvec as nv
    >>> x = nv.ones(2)
    >>> nv.asarray(x) is x
    True
    """
    on_cpu(device, "asarray")
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
def astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Array:
    """`x` in another dtype; a new Array, unless `copy=False` and the dtype is the present one.

    Floating numbers are cut off towards zero when they become integers; nonzero values (NaN among
    them) are true.  Raises DtypeError for complex to real, which would drop a part.

    >>> import nuvec as nv
    >>> nv.astype(nv.array([1.7, -1.7]), nv.int32)
    array([ 1, -1], dtype=int32)
    """
    on_cpu(device, "astype")
    x = operand(x, "astype's operand")
    out = cast(x, dtypes.as_dtype(dtype))
    return _copy(x) if out is x and copy else out


@filtered
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An Array of any object that speaks DLPack; its buffer is copied unless `copy=False`."""
    on_cpu(device, "from_dlpack")
    if isinstance(x, Array):
        return _copy(x) if copy else x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(
            f"from_dlpack: a {type(x).__name__} does not speak DLPack; nv.array takes numbers, "
            "NumPy arrays and nested lists of them"
        )
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
        refuse_mask(obj)
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
        number = _outside(obj, dtype)
        if isinstance(number, float) and math.isinf(number):
            raise DtypeError(_no_place(number, dtype)) from None
        raise DtypeError(
            f"nv.array: {number} does not fit {dtypes.name(dtype)}, which holds "
            f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}; pass a wider dtype, for instance "
            "dtype=nv.int64"
        ) from None
    except ValueError as error:
        if "NaN" not in str(error):
            raise
        raise DtypeError(_no_place(math.nan, dtype)) from None
    except TypeError:  # a complex number in a real dtype
        value = _convert(np.array(obj), dtype)
    return Array(constant(value, aval(value.shape, dtype)))


def _no_place(number: float, dtype: np.dtype) -> str:
    return (
        f"nv.array: {number} has no place in {dtypes.name(dtype)}; pass a floating dtype, or "
        "replace it first, as with np.nan_to_num"
    )


def _outside(obj: Any, dtype: np.dtype) -> Any:
    """The first number in nested lists that an integer dtype does not hold."""
    if isinstance(obj, list | tuple):
        return next((n for n in (_outside(e, dtype) for e in obj) if n is not None), None)
    limits = np.iinfo(dtype)
    return None if limits.min <= obj <= limits.max else obj


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


__all__ = ["array", "asarray", "astype", "cast", "copy", "from_dlpack", "on_cpu"]

"""Dtypes, promotion, and what a Python scalar becomes.

The dtypes are NumPy's own dtype objects in native byte order, plus bfloat16 from ml_dtypes, so
`x.dtype == np.float32`, `x.dtype == "float32"` and `x.dtype.itemsize` mean what they mean in
NumPy, and comparing one with a foreign object is False, never an error. (NumPy's one surprise
stays: `np.dtype("float64") == None` is True, because None names float64 there. Test for an
absent dtype with `is None`.)

Promotion is JAX's lattice: the result is the least upper bound of its operands in

    bool -> i* -> uint8 -> uint16 -> uint32 -> uint64 -> f*
            i* -> int8  -> int16  -> int32  -> int64  -> f*      (uint8 -> int16, ... -> int64)
            f* -> bfloat16, float16 -> float32 -> float64;   f* -> c* -> complex64
            float32 -> complex64 -> complex128;   float64 -> complex128

where `i*`, `f*` and `c*` are the weak nodes of Python's int, float and complex: they take the
width of whatever they meet. (https://docs.jax.dev/en/latest/type_promotion.html)
"""

from __future__ import annotations

import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core.errors import DtypeError

__all__ = [
    "ALL", "accumulation", "as_dtype", "bfloat16", "bool_", "can_cast", "complex64",
    "complex128", "complex_of", "default_complex", "default_float", "default_int", "finfo",
    "float16", "float32", "float64", "iinfo", "inexact", "int8", "int16", "int32", "int64",
    "is_bool", "is_complex", "is_floating", "is_inexact", "is_integer", "is_signed", "name",
    "promote", "python_scalar", "real_part", "scalar_dtype", "uint8", "uint16", "uint32",
    "uint64",
]  # fmt: skip

Dtype = np.dtype[Any]

bool_: Dtype = np.dtype(np.bool_)
int8: Dtype = np.dtype(np.int8)
int16: Dtype = np.dtype(np.int16)
int32: Dtype = np.dtype(np.int32)
int64: Dtype = np.dtype(np.int64)
uint8: Dtype = np.dtype(np.uint8)
uint16: Dtype = np.dtype(np.uint16)
uint32: Dtype = np.dtype(np.uint32)
uint64: Dtype = np.dtype(np.uint64)
float16: Dtype = np.dtype(np.float16)
bfloat16: Dtype = np.dtype(ml_dtypes.bfloat16)
float32: Dtype = np.dtype(np.float32)
float64: Dtype = np.dtype(np.float64)
complex64: Dtype = np.dtype(np.complex64)
complex128: Dtype = np.dtype(np.complex128)

ALL: tuple[Dtype, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip

default_int = int32
default_float = float32
default_complex = complex64

_SIGNED = frozenset({int8, int16, int32, int64})
_UNSIGNED = frozenset({uint8, uint16, uint32, uint64})
_INTEGER = _SIGNED | _UNSIGNED
_FLOATING = frozenset({float16, bfloat16, float32, float64})
_COMPLEX = frozenset({complex64, complex128})
_INEXACT = _FLOATING | _COMPLEX

# Kind and size identify a dtype whatever its byte order, C name ("longlong") or metadata.
# bfloat16 stays out: NumPy gives it the kind of structured types, so only its type tells.
_BY_KIND: dict[tuple[str, int], Dtype] = {
    (dtype.kind, dtype.itemsize): dtype for dtype in ALL if dtype is not bfloat16
}
# Python's own types and their names mean nuvec's defaults, not NumPy's 64-bit ones.
_BY_NAME: dict[Any, Dtype] = {
    **{dtype.name: dtype for dtype in ALL},
    **{dtype.type: dtype for dtype in ALL},
    **dict.fromkeys((bool, "bool_"), bool_),
    **dict.fromkeys((int, "int"), default_int),
    **dict.fromkeys((float, "float"), default_float),
    **dict.fromkeys((complex, "complex"), default_complex),
}


@functools.lru_cache(maxsize=256)
def _canonical(dtype: Dtype) -> Dtype | None:
    """The member of `ALL` that holds the same numbers as a NumPy dtype, if there is one."""
    if dtype.type is ml_dtypes.bfloat16:
        return bfloat16
    if dtype.kind not in "biufc":
        return None
    return _BY_KIND.get((dtype.kind, dtype.itemsize))


def as_dtype(spec: Any) -> Dtype:
    """The nuvec dtype that `spec` names: a dtype, a NumPy or Python type, or a string.

    Python's `bool`, `int`, `float` and `complex` mean bool, int32, float32 and complex64; a
    byte-swapped dtype becomes the native one. Anything nuvec has no arrays of (object,
    strings, dates, structured types, long double) raises DtypeError.

    >>> as_dtype(float), as_dtype("bfloat16"), as_dtype(">f8")
    (dtype('float32'), dtype(bfloat16), dtype('float64'))
    """
    if isinstance(spec, np.dtype):
        known = _canonical(spec)
    else:
        try:
            known = _BY_NAME.get(spec)
        except TypeError:  # unhashable, so surely not a type or a name
            known = None
        if known is None and isinstance(spec, (str, type)):
            try:
                known = _canonical(np.dtype(spec))
            except (TypeError, ValueError, SyntaxError):  # NumPy raises all of these
                known = None
    if known is None:
        raise DtypeError(
            f"{spec!r} is not a dtype nuvec supports. Supported: "
            f"{', '.join(dtype.name for dtype in ALL)} (and Python's bool, int, float, complex)."
        )
    return known


def name(dtype: Dtype) -> str:
    """The dtype's name, which `as_dtype` reads back.

    >>> name(bfloat16), name(bool_)
    ('bfloat16', 'bool')
    """
    return str(dtype.name)


# --- Predicates and relatives of a dtype


def is_bool(dtype: Dtype) -> bool:
    """Whether the dtype is bool."""
    return dtype == bool_


def is_integer(dtype: Dtype) -> bool:
    """Whether the dtype is a signed or unsigned integer (bool is not).

    >>> is_integer(uint8), is_integer(bool_)
    (True, False)
    """
    return dtype in _INTEGER


def is_floating(dtype: Dtype) -> bool:
    """Whether the dtype is a real floating-point type, bfloat16 included."""
    return dtype in _FLOATING


def is_complex(dtype: Dtype) -> bool:
    """Whether the dtype is complex."""
    return dtype in _COMPLEX


def is_inexact(dtype: Dtype) -> bool:
    """Whether the dtype is real floating or complex: the dtypes that have derivatives."""
    return dtype in _INEXACT


def is_signed(dtype: Dtype) -> bool:
    """Whether the dtype holds negative numbers: all but bool and the unsigned integers."""
    return dtype in _SIGNED or dtype in _INEXACT


def inexact(dtype: Dtype) -> Dtype:
    """What an inexact function (exp, mean, ...) computes in: float32 for integers and bool.

    >>> inexact(int64), inexact(float16)
    (dtype('float32'), dtype('float16'))
    """
    return dtype if dtype in _INEXACT else default_float


def accumulation(dtype: Dtype) -> Dtype:
    """What sums over the dtype are kept in: float32 for the 16-bit floats, else itself."""
    return float32 if dtype in (float16, bfloat16) else dtype


def real_part(dtype: Dtype) -> Dtype:
    """The dtype of the real part: float32 for complex64, float64 for complex128, else itself."""
    if dtype == complex64:
        return float32
    return float64 if dtype == complex128 else dtype


def complex_of(dtype: Dtype) -> Dtype:
    """The complex dtype whose parts hold the dtype: complex128 for float64, else complex64.

    >>> complex_of(float64), complex_of(bfloat16), complex_of(complex128)
    (dtype('complex128'), dtype('complex64'), dtype('complex128'))
    """
    return complex128 if dtype in (float64, complex128) else complex64


def finfo(dtype: Any) -> Any:
    """Machine limits of an inexact dtype, bfloat16 included (`eps`, `max`, `tiny`, ...).

    >>> float(finfo(bfloat16).eps), float(finfo(float32).max) == float(np.finfo("f4").max)
    (0.0078125, True)
    """
    dtype = as_dtype(dtype)
    if dtype not in _INEXACT:
        raise DtypeError(f"finfo needs a floating or complex dtype, got {name(dtype)}; use iinfo.")
    return (ml_dtypes.finfo if dtype == bfloat16 else np.finfo)(dtype)


def iinfo(dtype: Any) -> np.iinfo[Any]:
    """Limits of an integer dtype (`min`, `max`, `bits`).

    >>> iinfo("int8").max
    127
    """
    dtype = as_dtype(dtype)
    if dtype not in _INTEGER:
        raise DtypeError(f"iinfo needs an integer dtype, got {name(dtype)}; use finfo.")
    return np.iinfo(dtype)


# --- Promotion

# A node of the lattice is a dtype or, weak, the Python type that stands for its category.
_Node = Any
_LATTICE: dict[_Node, tuple[_Node, ...]] = {
    bool_: (int,),
    int: (uint8, int8),
    uint8: (uint16, int16),
    uint16: (uint32, int32),
    uint32: (uint64, int64),
    uint64: (float,),
    int8: (int16,),
    int16: (int32,),
    int32: (int64,),
    int64: (float,),
    float: (bfloat16, float16, complex),
    bfloat16: (float32,),
    float16: (float32,),
    float32: (float64, complex64),
    float64: (complex128,),
    complex: (complex64,),
    complex64: (complex128,),
    complex128: (),
}


def _upper_bounds(node: _Node) -> frozenset[_Node]:
    """The node and everything it promotes to."""
    return frozenset({node}).union(*(_upper_bounds(above) for above in _LATTICE[node]))


_UPPER_BOUNDS: dict[_Node, frozenset[_Node]] = {node: _upper_bounds(node) for node in _LATTICE}


def _lattice_node(dtype: Dtype, weak: bool) -> _Node:
    if not weak or dtype == bool_:  # a Python bool has no width to be weak about
        return dtype
    if dtype in _INTEGER:
        return int
    return complex if dtype in _COMPLEX else float


def _least_upper_bound(nodes: set[_Node]) -> _Node:
    common = frozenset.intersection(*(_UPPER_BOUNDS[node] for node in nodes))
    # The least of the common bounds is the one that promotes to all the others.
    return next(node for node in common if common == _UPPER_BOUNDS[node])


@functools.lru_cache(maxsize=4096)
def promote(*items: tuple[Dtype, bool]) -> tuple[Dtype, bool]:
    """The dtype and weakness of an operation on items given as `(dtype, weak)`.

    A weak item (a Python scalar, or what was computed from nothing else) counts with its
    category only. Arguments must be dtypes of `ALL`; results are cached.

    >>> promote((int64, False), (bfloat16, False))
    (dtype(bfloat16), False)
    >>> promote((bfloat16, False), (float16, False))
    (dtype('float32'), False)
    >>> promote((int8, False), (int32, True)), promote((int32, False), (float32, True))
    ((dtype('int8'), False), (dtype('float32'), True))
    """
    if not items:
        raise DtypeError("promote needs at least one (dtype, weak) pair.")
    if all(weak for _, weak in items):
        # All weak: bound their present dtypes, so that a weak value never changes its width.
        bound = _least_upper_bound({dtype for dtype, _ in items})
        weak = True
    else:
        bound = _least_upper_bound({_lattice_node(dtype, weak) for dtype, weak in items})
        weak = isinstance(bound, type)
    dtype = _BY_NAME[bound] if isinstance(bound, type) else bound
    return dtype, weak and dtype != bool_


def can_cast(source: Any, target: Any) -> bool:
    """Whether promotion takes `source` to `target` (as the array API defines can_cast).

    >>> can_cast(int32, float16), can_cast(float32, int32)
    (True, False)
    """
    target = as_dtype(target)
    return promote((as_dtype(source), False), (target, False))[0] is target


# --- Python scalars


_SCALARS: dict[type, Dtype] = {
    bool: bool_,
    int: default_int,
    float: default_float,
    complex: default_complex,
}


def scalar_dtype(value: Any) -> Dtype:
    """The dtype a scalar has by itself: the default of its category, or a NumPy scalar's own.

    >>> scalar_dtype(True), scalar_dtype(3), scalar_dtype(3.0), scalar_dtype(3j)
    (dtype('bool'), dtype('int32'), dtype('float32'), dtype('complex64'))
    """
    known = _SCALARS.get(type(value))
    if known is not None:
        return known
    if isinstance(value, np.generic):  # before float and complex: np.float64 is a float too
        return as_dtype(value.dtype)
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return default_int
    if isinstance(value, float):
        return default_float
    if isinstance(value, complex):
        return default_complex
    raise DtypeError(f"expected a scalar (bool, int, float or complex), got {type(value)!r}.")


_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}  # "V" is bfloat16
_ALWAYS_FITS = 65504  # the largest float16: up to here no floating dtype overflows


def python_scalar(value: Any, dtype: Dtype) -> np.generic:
    """A scalar as a NumPy scalar of exactly `dtype`, or DtypeError if it does not belong there.

    Raises for an int outside an integer dtype's range, a float in an integer dtype, a complex
    in a real one, and anything but a bool in bool. A number too large for a floating dtype is
    rounded to infinity, as in NumPy.

    >>> python_scalar(3, float16)
    np.float16(3.0)
    """
    kind = _RANK[scalar_dtype(value).kind]
    if kind > _RANK[dtype.kind]:
        raise DtypeError(
            f"the {type(value).__name__} {value!r} cannot become {name(dtype)} without losing "
            f"what it is; convert one of the two first, for instance with x.astype(...)."
        )
    if dtype in _INTEGER:
        value = int(value)  # NumPy would wrap its own integers around silently
    try:
        if kind < 3 and -_ALWAYS_FITS <= value <= _ALWAYS_FITS:
            scalar = dtype.type(value)
        else:
            if isinstance(value, int) and dtype not in _INTEGER:
                value = float(value)  # too large a one overflows here, for every dtype alike
            with np.errstate(over="ignore"):
                scalar = dtype.type(value)
    except OverflowError:
        if dtype in _INTEGER:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            raise DtypeError(
                f"the int {value} is out of range for {name(dtype)}, which holds {low} to {high}; "
                "convert the array to a wider dtype first, for instance with .astype(nv.int64)."
            ) from None
        scalar = dtype.type(math.inf if value > 0 else -math.inf)
    return scalar  # type: ignore[no-any-return]

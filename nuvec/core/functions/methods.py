"""The operators and methods of Array, attached to the class.

A method is the public function of the same name: `x.sum(axis=0)` is `nv.sum(x, axis=0)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.functions import protocols
from nuvec.core.functions.at import At
from nuvec.core.functions.creation import astype, copy
from nuvec.core.functions.indexing import getitem, take
from nuvec.core.functions.rebind import in_place, setitem
from nuvec.core.functions.statistics import mean, std, var
from nuvec.core.functions.structure import diagonal, matrix_transpose, ravel, repeat, swapaxes
from nuvec.core.ops.arithmetic import (
    add,
    divide,
    floor_divide,
    multiply,
    negative,
    remainder,
    sqrt,
    subtract,
)  # fmt: skip
from nuvec.core.ops.build import binary, is_operand
from nuvec.core.ops.comparison import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    not_equal,
    right_shift,
)  # fmt: skip
from nuvec.core.ops.contraction import dot, matmul
from nuvec.core.ops.conversion import conj, imag, real
from nuvec.core.ops.exponential import exp, log
from nuvec.core.ops.power import power, square
from nuvec.core.ops.reduction import all, any, argmax, argmin, max, min, prod, sum
from nuvec.core.ops.rounding import round
from nuvec.core.ops.selection import clip
from nuvec.core.ops.shape import reshape, transpose
from nuvec.core.ops.signs import abs, positive
from nuvec.core.ops.structure import squeeze
from nuvec.core.traceback import filtered

Operation = Callable[[Any, Any], Array]


# Operators


def _operator(operation: Operation) -> Operation:
    """The method `x.__add__(y)`: NotImplemented for what is no array, so that Python asks `y`.

    An operation made by `binary` is made once more for this, without a call in between."""
    primitive = getattr(operation, "primitive", None)
    if primitive is not None:
        return binary(
            primitive, operation.convert, operation.__doc__,  # type: ignore[attr-defined]
            operator=True, special=operation.special,  # type: ignore[attr-defined]
        )  # fmt: skip

    def method(x: Any, y: Any, /) -> Array:
        return operation(x, y) if is_operand(y) else NotImplemented

    return method


def _reflected(operation: Operation) -> Operation:
    """The method `y.__radd__(x)`."""

    def method(y: Any, x: Any, /) -> Array:
        return operation(x, y) if is_operand(x) else NotImplemented

    return method


def _divmod(x: Any, y: Any, /) -> Any:
    return (floor_divide(x, y), remainder(x, y)) if is_operand(y) else NotImplemented


def _reflected_divmod(y: Any, x: Any, /) -> Any:
    return (floor_divide(x, y), remainder(x, y)) if is_operand(x) else NotImplemented


def _positive(x: Array) -> Array:
    return copy(positive(x))  # a new handle, for `y = +x; y += 1` must leave x alone


ARITHMETIC: dict[str, tuple[str, Operation]] = {
    "add": ("+", add),
    "sub": ("-", subtract),
    "mul": ("*", multiply),
    "truediv": ("/", divide),
    "floordiv": ("//", floor_divide),
    "mod": ("%", remainder),
    "pow": ("**", power),
    "matmul": ("@", matmul),
    "and": ("&", bitwise_and),
    "or": ("|", bitwise_or),
    "xor": ("^", bitwise_xor),
    "lshift": ("<<", left_shift),
    "rshift": (">>", right_shift),
}

OPERATORS: dict[str, Callable[..., Any]] = {
    "__eq__": _operator(equal),
    "__ne__": _operator(not_equal),
    "__lt__": _operator(less),
    "__le__": _operator(less_equal),
    "__gt__": _operator(greater),
    "__ge__": _operator(greater_equal),
    "__neg__": negative,
    "__pos__": _positive,
    "__abs__": abs,
    "__invert__": invert,
    "__divmod__": _divmod,
    "__rdivmod__": _reflected_divmod,
}
for _name, (_symbol, _operation) in ARITHMETIC.items():
    OPERATORS[f"__{_name}__"] = _operator(_operation)
    OPERATORS[f"__r{_name}__"] = _reflected(_operation)
    OPERATORS[f"__i{_name}__"] = in_place(_operation, _symbol)


# Containers


@filtered
def _iterate(x: Array) -> Iterator[Array]:
    if not x.shape:
        raise TypeError("iteration over a 0-d array; x.item() is its value")
    return (getitem(x, i) for i in range(x.shape[0]))


@filtered
def _contains(x: Array, value: Any) -> bool:
    return bool(any(equal(x, value)))


# Methods


def _sizes(sizes: tuple[Any, ...]) -> Any:
    """The argument of `reshape(2, 3)` or `reshape((2, 3))`."""
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes


@filtered
def _reshape(x: Array, *shape: Any, order: str = "C") -> Array:
    """As `nv.reshape`; the sizes may be given one by one."""
    return reshape(x, _sizes(shape), order)


@filtered
def _transpose(x: Array, *axes: Any) -> Array:
    """As `nv.transpose`; the axes may be given one by one."""
    if axes in ((), (None,)):
        return transpose(x)
    return transpose(x, _sizes(axes))


@filtered
def _flatten(x: Array, order: str = "C") -> Array:
    """The elements row by row, in one dimension; a new Array."""
    flat = reshape(x, x.size, order)
    return copy(flat) if flat is x else flat


def _numpy(x: Array) -> np.ndarray:
    """The value as a NumPy array: a read-only view, without a copy."""
    return np.asarray(x)


@filtered
def _tobytes(x: Array) -> bytes:
    """The value's bytes, row by row."""
    return np.asarray(x).tobytes()


@filtered
def _to_device(x: Array, device: Any, /, *, stream: Any = None) -> Array:
    """`x` itself: arrays live on "cpu", and there is no other device."""
    if device != "cpu":
        raise ValueError(f"nuvec arrays live on 'cpu'; there is no device {device!r}")
    return x


METHODS: dict[str, Callable[..., Any]] = {
    "__getitem__": getitem,
    "__setitem__": setitem,
    "__iter__": _iterate,
    "__contains__": _contains,
    "__copy__": copy,
    "__deepcopy__": lambda x, memo: copy(x),
    "__array_ufunc__": protocols.array_ufunc,
    "__array_function__": protocols.array_function,
    "__array_namespace__": protocols.namespace,
    "__trunc__": lambda x: math.trunc(x.item()),
    "__round__": lambda x, ndigits=None: round(x, ndigits or 0),
    "abs": abs,
    "all": all,
    "any": any,
    "argmax": argmax,
    "argmin": argmin,
    "astype": astype,
    "clip": clip,
    "conj": conj,
    "conjugate": conj,
    "copy": copy,
    "diagonal": diagonal,
    "dot": dot,
    "exp": exp,
    "flatten": _flatten,
    "log": log,
    "max": max,
    "mean": mean,
    "min": min,
    "numpy": _numpy,
    "prod": prod,
    "ravel": ravel,
    "repeat": repeat,
    "reshape": _reshape,
    "round": round,
    "sqrt": sqrt,
    "square": square,
    "squeeze": squeeze,
    "std": std,
    "sum": sum,
    "swapaxes": swapaxes,
    "take": take,
    "to_device": _to_device,
    "tobytes": _tobytes,
    "transpose": _transpose,
    "var": var,
}

PROPERTIES: dict[str, Callable[[Array], Any]] = {
    "T": transpose,
    "at": At,
    "imag": imag,
    "mT": matrix_transpose,
    "real": real,
}

for _name, _function in {**OPERATORS, **METHODS}.items():
    setattr(Array, _name, _function)
for _name, _function in PROPERTIES.items():
    setattr(Array, _name, property(_function))

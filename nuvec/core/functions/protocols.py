"""NumPy's protocols: `np.add(x, y)` and `np.mean(x)` on Arrays are nuvec's functions.

So code written for NumPy stays lazy and differentiable.  What nuvec has no function for raises
and says so, for it could only work on the values, and would drop a derivative in silence.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.functions.numpy_names import asks_for_nothing, translated, unsupported
from nuvec.core.ops.shape import reshape_p
from nuvec.core.traceback import filtered

# NumPy's other names of functions, where nuvec has only one of them.
_ALIASES = {
    "absolute": "abs", "fabs": "abs", "conjugate": "conj", "amax": "max", "amin": "min",
    "around": "round", "rint": "round", "true_divide": "divide", "mod": "remainder",
    "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctan2": "atan2", "arccosh": "acosh",
    "arcsinh": "asinh", "arctanh": "atanh", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "concat": "concatenate", "permute_dims": "transpose",
    # SciPy's ufuncs
    "expit": "sigmoid", "psi": "digamma", "gammaln": "lgamma",
}  # fmt: skip
_SCIPY_UFUNCS = frozenset((
    "expit", "erf", "erfc", "erfinv", "gammaln", "psi", "xlogy", "xlog1py", "log_ndtr", "ndtr",
))  # fmt: skip
_REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip
_ACCUMULATIONS = {
    "add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin",
}  # fmt: skip

# Functions that ask for no derivative: they show or store values, or look at dtypes.
_BY_VALUE = frozenset((
    "array2string", "array_repr", "array_str", "save", "savez", "savez_compressed", "savetxt",
    "may_share_memory", "shares_memory", "isrealobj", "iscomplexobj", "array_equal",
    "array_equiv", "allclose",
))  # fmt: skip
# Functions that write into an argument, which an Array cannot be.
_WRITING = {
    "put_along_axis": "x = nv.put_along_axis(x, indices, values, axis)",
    "put": "x[indices] = values", "place": "x[mask] = values", "putmask": "x[mask] = values",
    "copyto": "x[...] = values", "fill_diagonal": "x[i, i] = values",
}  # fmt: skip


def namespace(x: Array, api_version: str | None = None) -> Any:
    """`x.__array_namespace__()`: the module with the functions of the Python Array API."""
    if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", "2024.12",
                                                       "2025.12"):  # fmt: skip
        raise ValueError(f"nuvec knows no version {api_version!r} of the Python Array API")
    return importlib.import_module("nuvec")


def _find(module: str, name: str) -> Any:
    """nuvec's function for a NumPy one; None when there is none."""
    parts = module.split(".")
    if parts[0] != "numpy" or len(parts) > 2:
        return None
    room: Any = importlib.import_module("nuvec")
    if len(parts) == 2 and not parts[1].startswith("_") and parts[1] != "lib":
        room = getattr(room, parts[1], None)
    for candidate in (name, _ALIASES.get(name)):
        if candidate is not None and candidate in getattr(room, "__all__", ()):
            return getattr(room, candidate)
    return None


def _unknown(call: str) -> TypeError:
    return TypeError(
        f"nuvec has no function for {call}: compose it of nuvec's own, or, where no derivative "
        f"is needed, call it on the values, np.asarray(x)"
    )


@filtered
def array_function(
    x: Array, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`func(*args, **kwargs)` of NumPy, some of whose arguments are Arrays."""
    name = func.__name__
    call = f"{func.__module__}.{name}".replace("numpy", "np", 1)
    asked = (*args, *kwargs.values())
    if name in ("shape", "ndim", "size") and len(asked) == 1 and isinstance(asked[0], Array):
        return getattr(asked[0], name)
    if name == "where" and len(args) == 1:
        raise TypeError(
            "np.where(condition) alone gives as many positions as are true, a shape that depends "
            "on values: use nv.where(condition, x, y), or np.nonzero(np.asarray(condition))"
        )
    if name in ("result_type", "can_cast"):
        return func(*[a.dtype if isinstance(a, Array) else a for a in args], **kwargs)
    if name in _WRITING:
        raise TypeError(f"{call} cannot write into a nuvec Array: use {_WRITING[name]}")
    own = _find(func.__module__, name)
    if own is not None:
        positional, named = translated(call, func, own, args, kwargs)
        return own(*positional, **named)
    if name in _BY_VALUE:
        return func(*_values(args), **_values(kwargs))
    raise _unknown(call)


def _values(arguments: Any) -> Any:
    """Arguments with the values of the Arrays among them."""
    if isinstance(arguments, Array):
        return np.asarray(arguments)
    if type(arguments) in (list, tuple):
        return type(arguments)(_values(a) for a in arguments)
    if type(arguments) is dict:
        return {key: _values(a) for key, a in arguments.items()}
    return arguments


@filtered
def array_ufunc(x: Array, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """A NumPy ufunc, some of whose operands are Arrays."""
    name = ufunc.__name__
    call = f"np.{name}" + ("" if method == "__call__" else f".{method}")
    for i in inputs:
        protocol = getattr(type(i), "__array_ufunc__", None)
        if protocol not in (None, np.ndarray.__array_ufunc__) and not isinstance(
            i, Array | np.ndarray | np.generic
        ):
            return NotImplemented
    given = {k: v for k, v in kwargs.items() if not asks_for_nothing(k, v)}
    if getattr(np, name, None) is not ufunc and name not in _SCIPY_UFUNCS:
        raise _unknown(call)
    if method == "__call__":
        own = _find("numpy", name)
        if own is None:
            raise _unknown(call)
        dtype = given.pop("dtype", None)
        for key, value in given.items():
            raise unsupported(call, key, value)
        out = own(*inputs)
        return out if dtype is None else out.astype(dtype)
    if method == "outer" and len(inputs) == 2 and not given:
        own = _find("numpy", name)
        if own is not None:
            return _outer(own, *inputs)
    table = {"reduce": _REDUCTIONS, "accumulate": _ACCUMULATIONS}.get(method, {})
    own = _find("numpy", table.get(name, ""))
    if own is None or len(inputs) != 1:
        raise _unknown(call)
    given.setdefault("axis", 0)
    allowed = inspect.signature(own).parameters
    for key, value in given.items():
        if key not in allowed:
            raise unsupported(call, key, value)
    return own(*inputs, **given)


def _outer(operation: Callable[[Any, Any], Array], x: Any, y: Any) -> Array:
    """Every element of `x` with every element of `y`: shape (*x.shape, *y.shape)."""
    own = importlib.import_module("nuvec").asarray
    x, y = own(x), own(y)
    return operation(reshape_p.bind(x, shape=(*x.shape, *(1,) * y.ndim)), y)


__all__ = ["array_function", "array_ufunc", "namespace"]

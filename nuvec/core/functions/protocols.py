"""NumPy's protocols: `np.add(x, y)` and `np.mean(x)` on Arrays are nuvec's functions.

So code written for NumPy stays lazy and differentiable.  What nuvec has no function for raises
and says so, for it could only work on the values, and would drop a derivative in silence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core.array import Array
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
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "out": (None,), "where": (True, np._NoValue), "keepdims": (np._NoValue,),
    "order": (None, "C", "K", "A"), "casting": ("same_kind",), "subok": (True,),
    "initial": (None, np._NoValue), "dtype": (None,), "device": (None, "cpu"), "like": (None,),
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


def _given(call: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords that ask for something; `out=` and `where=` are refused."""
    given = {}
    for key, value in kwargs.items():
        if key == "out" and type(value) is tuple and all(v is None for v in value):
            continue
        plain = isinstance(value, str | bool)
        if any(value is d or (plain and value == d) for d in _DEFAULTS.get(key, ())):
            continue
        if key == "out":
            raise TypeError(
                f"{call} with a nuvec Array cannot write into out=: use the result it returns "
                "(`a += x` with a NumPy array a and an Array x: write a = a + x, or "
                "a += np.asarray(x))"
            )
        if key == "where":
            raise TypeError(f"{call} with a nuvec Array has no where=: select with nv.where")
        given[key] = value
    return given


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
    if name in ("shape", "ndim", "size") and isinstance(args[0], Array) and len(args) == 1:
        return getattr(args[0], name)
    if name in ("result_type", "can_cast"):
        return func(*[a.dtype if isinstance(a, Array) else a for a in args], **kwargs)
    own = _find(func.__module__, name)
    if own is not None:
        return own(*args, **_given(call, kwargs))
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
    given = _given(call, kwargs)
    if getattr(np, name, None) is not ufunc and name not in _SCIPY_UFUNCS:
        raise _unknown(call)
    if method == "__call__":
        own = _find("numpy", name)
        if own is None:
            raise _unknown(call)
        dtype = given.pop("dtype", None)
        if given:
            raise TypeError(f"{call} with a nuvec Array does not take {', '.join(given)}")
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
    return own(*inputs, **given)


def _outer(operation: Callable[[Any, Any], Array], x: Any, y: Any) -> Array:
    """Every element of `x` with every element of `y`: shape (*x.shape, *y.shape)."""
    own = importlib.import_module("nuvec").asarray
    x, y = own(x), own(y)
    return operation(reshape_p.bind(x, shape=(*x.shape, *(1,) * y.ndim)), y)


__all__ = ["array_function", "array_ufunc", "namespace"]

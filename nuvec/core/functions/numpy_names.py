"""A call of a NumPy function as a call of nuvec's: NumPy's argument names and order, translated.

`np.sum(a=x, axis=0)` binds to NumPy's signature; each argument then goes to the parameter of
nuvec's function that means the same.  An argument that asks for what nuvec does not do raises.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

# NumPy's parameters that stand elsewhere, or under another name, in nuvec's function.
_NAMES: dict[str, dict[str, str]] = {"clip": {"a_min": "min", "a_max": "max"}}

# Values that ask for nothing: NumPy's defaults, and what is so of every Array.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "out": (None,), "where": (True, np._NoValue), "keepdims": (np._NoValue,),
    "order": (None, "C", "K", "A"), "casting": ("same_kind", "unsafe"), "subok": (True, False),
    "initial": (None, np._NoValue), "dtype": (None,), "device": (None, "cpu"), "like": (None,),
    "copy": (None, True),
}  # fmt: skip

_REMEDIES = {
    "out": "use the result it returns (`a += x` with a NumPy array a and an Array x: write "
    "a = a + x, or a += np.asarray(x))",
    "where": "select with nv.where",
    "initial": "combine the result with it",
    "order": "elements are taken row by row; transpose first for another order",
    "casting": "convert with .astype",
    "mean": "leave it out",
    "device": 'arrays live on "cpu"',
}

Kind = inspect.Parameter


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether an argument is one that may as well be left out."""
    if name == "out" and type(value) is tuple and all(v is None for v in value):
        return True
    plain = isinstance(value, str | bool)
    return any(value is d or (plain and value == d) for d in HARMLESS.get(name, ()))


def unsupported(call: str, name: str, value: Any, taken: str = "") -> TypeError:
    """The error for an argument that nuvec's function does not have."""
    given = f"={value!r}" if isinstance(value, str | bool | int | float) else "="
    remedy = _REMEDIES.get(name, f"nuvec's function takes {taken}" if taken else "leave it out")
    if name == "out":
        return TypeError(f"{call} with a nuvec Array cannot write into out=: {remedy}")
    return TypeError(f"{call} with a nuvec Array does not take {name}{given}: {remedy}")


@functools.cache
def _correspondence(
    func: Callable[..., Any], own: Callable[..., Any]
) -> tuple[inspect.Signature, dict[str, str], list[Kind]] | None:
    """NumPy's signature, nuvec's name for each of its parameters, and nuvec's parameters; None
    where NumPy does not tell its signature."""
    try:
        signature = inspect.signature(func)
    except ValueError:
        return None
    theirs = [p for p in signature.parameters.values() if p.kind is not Kind.VAR_KEYWORD]
    ours = list(inspect.signature(own).parameters.values())
    our_names = {p.name for p in ours}
    special = _NAMES.get(func.__name__, {})
    names = {}
    for i, p in enumerate(theirs):
        if p.name in special:
            names[p.name] = special[p.name]
        elif p.name in our_names:
            names[p.name] = p.name
        elif p.kind is not Kind.KEYWORD_ONLY and i < len(ours):
            # The same place under another name (a, m, arr, ary: x), unless it is taken.
            here = ours[i]
            if here.kind is not Kind.KEYWORD_ONLY and here.name not in signature.parameters:
                names[p.name] = here.name
    return signature, names, ours


def translated(
    call: str, func: Callable[..., Any], own: Callable[..., Any], args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
    """The arguments for `own` of a call `func(*args, **kwargs)`.  Raises TypeError, with NumPy's
    name of the function and of the argument, for what `own` does not take."""
    found = _correspondence(func, own)
    if found is None:
        return list(args), {k: v for k, v in kwargs.items() if not asks_for_nothing(k, v)}
    signature, names, ours = found
    taken = ", ".join(p.name for p in ours)
    positional: list[Any] = []
    values: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is Kind.VAR_POSITIONAL:
            positional.extend(value)
            continue
        items = value if kind is Kind.VAR_KEYWORD else {name: value}
        for key, v in items.items():
            target = names.get(key, key if any(p.name == key for p in ours) else None)
            if asks_for_nothing(key, v) or v is np._NoValue:
                continue
            if target is None or key == "order":
                known = signature.parameters.get(key)
                if known is not None and v is known.default:
                    continue
                raise unsupported(call, key, v, taken)
            if target in values:
                raise TypeError(f"{call}: {key}= gives what another argument gave already")
            values[target] = v
    if not positional:
        for p in ours:
            if p.kind is Kind.KEYWORD_ONLY or p.name not in values:
                break
            positional.append(values.pop(p.name))
    return positional, values


__all__ = ["asks_for_nothing", "translated", "unsupported"]

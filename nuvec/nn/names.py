"""Arrays by their dotted names, "layers.0.weight", and what differs between two sets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, TreeError

__all__ = ["differences", "dotted", "named_leaves"]

Named = Mapping[str, Any]


def dotted(path: Iterable[Any]) -> str:
    """A path in nested dicts and lists as a name: "layers.0.weight"."""
    return ".".join(str(getattr(key, "key", getattr(key, "index", key))) for key in path)


def named_leaves(nested: Any) -> list[tuple[str, Any]]:
    """The leaves of nested dicts and lists, None included, each with its name: the keys of the way
    to it, joined by dots, as in MLX. TreeError where two have the same name."""
    found: dict[str, Any] = {}
    for path, leaf in tree.flatten_with_path(nested, is_leaf=lambda x: x is None)[0]:
        name = dotted(path)
        if name in found:
            raise TreeError(
                f"two arrays have the name {name!r}: rename an attribute, or a key of a dict, so "
                "that names joined by dots tell them apart"
            )
        found[name] = leaf
    return list(found.items())


def differences(own: Named, given: Named, *, complete: bool, same_dtype: bool) -> str:
    """What is wrong with the arrays `given` in place of a model's `own`, a line for each kind and
    each array concerned; empty when they fit.

    complete -- they must be all of the model's
    same_dtype -- their dtypes must be the model's
    """
    lines = []
    missing = [name for name in own if name not in given]
    if missing and complete:
        lines.append(f"  missing ({len(missing)}): {', '.join(missing)}")
    unexpected = [name for name in given if name not in own]
    if unexpected:
        lines.append(f"  unexpected ({len(unexpected)}): {', '.join(unexpected)}")
    for name, value in given.items():
        if name in own:
            wrong = _difference(own[name], value, same_dtype)
            if wrong:
                lines.append(f"  {wrong}: {name} is {_text(own[name])} here, got {_text(value)}")
    return "\n".join(lines)


def _difference(own: Array, value: Any, same_dtype: bool) -> str:
    if not isinstance(value, Array | np.ndarray | np.generic):
        return "no array"
    if value.shape != own.shape:
        return "another shape"
    try:
        dtype = dtypes.as_dtype(value.dtype)
    except DtypeError:
        return "no dtype of nuvec's"
    return "another dtype" if same_dtype and dtype != own.dtype else ""


def _text(value: Any) -> str:
    if isinstance(value, Array | np.ndarray | np.generic):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return f"a {type(value).__name__}"

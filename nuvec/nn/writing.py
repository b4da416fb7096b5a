"""Writing nested dicts and lists into a module: `Module.update` and `Module.update_modules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nuvec.core.array import Array, from_numpy
from nuvec.nn.structure import Structured

__all__ = ["is_kept", "write"]


def is_kept(item: Any) -> bool:
    """Whether an item stands for something: `{}` in a list stands for what was left out."""
    return not (isinstance(item, dict) and not item)


def write(module: Structured, new: Any, kind: type, strict: bool, where: str = "") -> None:
    """Put the values of `new` (nested dicts and lists) in the place of the module's own of `kind`,
    Array or Module. What `new` does not mention, and None, stays.

    With `strict`, a name the module does not have, or another kind of value in its place, is a
    ValueError; otherwise it is passed over.
    """
    if not isinstance(new, Mapping):
        raise TypeError(f"update takes nested dicts, got {type(new).__name__} at {where or 'top'}.")
    for name, value in new.items():
        path = f"{where}.{name}" if where else str(name)
        if name in vars(module):
            old = vars(module)[name]
            now = _updated(old, value, path, kind, strict)
            if now is not old:
                setattr(module, name, now)
        elif strict and is_kept(value) and value is not None:
            raise ValueError(f"{type(module).__name__} has no {path!r} to update.")


def _updated(old: Any, new: Any, path: str, kind: type, strict: bool) -> Any:
    """What takes the place of `old`: itself where it is changed in place."""
    if new is None or not is_kept(new):
        return old
    if kind is Array and isinstance(new, np.ndarray | np.generic):
        new = from_numpy(new)
    if isinstance(new, kind) and isinstance(old, kind):
        return new
    if isinstance(old, Structured) and isinstance(new, Mapping):
        write(old, new, kind, strict, path)
        return old
    if isinstance(old, dict) and isinstance(new, Mapping):
        unknown = [key for key in new if key not in old]
        if unknown and strict:
            raise ValueError(f"{path!r} has no keys {unknown} to update.")
        for key in new:
            if key in old:
                old[key] = _updated(old[key], new[key], f"{path}.{key}", kind, strict)
        return old
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        if len(new) > len(old) and strict:
            raise ValueError(f"{path!r} has {len(old)} items, and the update has {len(new)}.")
        items = [
            _updated(item, new[i], f"{path}.{i}", kind, strict) if i < len(new) else item
            for i, item in enumerate(old)
        ]
        if isinstance(old, list):
            old[:] = items
            return old
        return type(old)(*items) if hasattr(old, "_fields") else tuple(items)
    if strict:
        raise ValueError(
            f"{path!r} is a {type(old).__name__} and cannot be updated with a "
            f"{type(new).__name__}; pass the structure of parameters()."
        )
    return old

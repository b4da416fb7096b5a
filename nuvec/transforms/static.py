"""Static arguments of compiled functions: when two of them are the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.errors import ArgumentError


class Static:
    """A static argument of one call, as a part of the call's signature.

    place -- its position, or its name when it was passed by keyword

    Raises ArgumentError for a value that cannot be part of a signature; `name` is what the error
    says it is an argument of."""

    __slots__ = ("key", "place", "value")

    def __init__(self, name: str, place: int | str, value: Any) -> None:
        self.place = place
        self.value = value
        try:
            hash(value)
            self.key = (place, key_of(value))
        except ArgumentError as error:
            raise ArgumentError(f"{name}: the static argument {place!r} {error}") from None
        except TypeError:
            raise ArgumentError(
                f"{name}: static arguments are part of the signature and must be hashable, and "
                f"argument {place!r} is a {type(value).__name__}{_inside(value)}; pass a hashable "
                "value (a tuple for a list), or an array that is not static"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{self.place}={self.value!r}"


def key_of(value: Any) -> Any:
    """What two static values have in common exactly when a program may serve both: 1, 1.0 and True
    are equal and not the same, nor are 0.0 and -0.0; all NaNs of the same bits are.

    So it holds at every depth of tuples, frozensets, slices and dataclasses (the fields that take
    part in their comparison).  Other objects are the same when their type is and they are equal."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return kind, value
    if isinstance(value, Array):
        raise ArgumentError(
            f"is or holds an Array, {value.aval}: a program cannot depend on its value. Pass it as "
            "an argument that is not static, or a Python number (x.item()) or tuple"
        )
    if kind is float or kind is complex:
        return kind, np.array(value).tobytes()
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    # Subclasses likewise, unless they say themselves what is equal.
    if kind.__eq__ is tuple.__eq__:
        return kind, tuple([key_of(v) for v in value])
    if kind.__eq__ is frozenset.__eq__:
        return kind, frozenset([key_of(v) for v in value])
    if kind is slice:
        return kind, key_of((value.start, value.stop, value.step))
    if _compares_fields(kind):
        return kind, tuple([
            key_of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare
        ])  # fmt: skip
    return kind, value


_AS_THEY_ARE = frozenset({int, bool, str, bytes, type(None)})


def _compares_fields(kind: type) -> bool:
    """Whether instances are compared by the `__eq__` that dataclasses write, which has no file."""
    code = getattr(kind.__eq__, "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename == "<string>"


def _inside(value: Any) -> str:
    """Where in a tuple, at any depth, the first thing is that cannot be hashed."""
    if isinstance(value, tuple):
        for i, v in enumerate(value):
            try:
                hash(v)
            except TypeError:
                return f", in which [{i}] is a {type(v).__name__}{_inside(v)}"
    return ""

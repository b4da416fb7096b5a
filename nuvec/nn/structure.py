"""How a module comes apart as a pytree: which attributes are children, which are structure.

- An attribute that holds Arrays or modules (itself, or in lists, tuples and dicts) is a child, and
  so is None, an empty subtree. Attributes are taken in the order of their sorted names.
- Every other attribute, and every one that starts with an underscore, is part of the structure:
  two modules have the same structure only if these are equal. Numbers, strings, functions, groups
  and containers of them are compared by value; what has no hash (and NumPy arrays, which are
  constants here) by identity.

The structure is a snapshot: a list that is changed later does not change it.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.core.pytree import find_container

__all__ = ["Structured", "contains", "is_filled", "leaves_text"]

# Attributes that a transform filled with something other than Arrays (shapes, masks, None): they
# stay children for as long as they hold that very object.
_FILLED = "_filled"


class Structured:
    """An object whose attributes make it a pytree, as the module's docstring tells.

    Subclasses are pytrees too. Putting one together again makes an object of the same class
    without calling `__init__`.
    """


# --- Children


def is_dynamic(value: Any) -> bool:
    """Whether a value is, or contains, an Array or a module."""
    if isinstance(value, Array | Structured):
        return True
    container = find_container(type(value))
    if container is None:
        return False
    # A dict is looked at as it is: its keys need not have an order when nothing in it is a leaf.
    children = value.values() if isinstance(value, dict) else container.flatten(value)[0]
    return any(is_dynamic(child) for child in children)


def leaves_text(module: Structured) -> str:
    """The attributes that are leaves, of whatever kind: what a module shows of itself when they
    are not the parameters it was made with (their shapes, norms, gradients, None)."""
    attributes = vars(module)
    filled = attributes.get(_FILLED, {})
    shown = []
    for name, value in attributes.items():
        leaf = value is None or isinstance(value, Array) or filled.get(name, attributes) is value
        if leaf and not name.startswith("_"):
            if isinstance(value, Array | np.ndarray):
                text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
            else:
                text = repr(value)
            shown.append(f"{name}={text}")
    return ", ".join(shown)


def contains(value: Any, module: Structured) -> bool:
    """Whether a module is `value`, or a child somewhere in it."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if item is module:
            return True
        if isinstance(item, list | tuple):
            inside: Iterable[Any] = item
        elif isinstance(item, dict):
            inside = item.values()
        elif isinstance(item, Structured):
            inside = [v for name, v in vars(item).items() if not name.startswith("_")]
        else:
            continue
        if id(item) not in seen:
            seen.add(id(item))
            stack.extend(inside)
    return False


def is_filled(module: Structured) -> bool:
    """Whether a transform filled attributes of a module with something other than Arrays."""
    return _FILLED in vars(module)


class Static:
    """A part of a child container that is not a leaf: an empty subtree that keeps its value."""

    __slots__ = ("frozen",)

    def __init__(self, frozen: Any) -> None:
        self.frozen = frozen


tree.register(Static, lambda static: ((), static.frozen), lambda frozen, children: Static(frozen))


def _wrap(value: Any) -> Any:
    """A child container with `Static` around what in it is neither an Array nor a module."""
    if value is None or isinstance(value, Array | Structured):
        return value
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([_wrap(item) for item in value])
    if kind is dict or kind is OrderedDict:
        return kind((key, _wrap(item)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[_wrap(item) for item in value])
    return value if is_dynamic(value) else Static(_freeze(value))


def _unwrap(value: Any) -> Any:
    kind = type(value)
    if kind is Static:
        return _thaw(value.frozen)
    if kind is list or kind is tuple:
        return kind([_unwrap(item) for item in value])
    if kind is dict or kind is OrderedDict:
        return kind((key, _unwrap(item)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[_unwrap(item) for item in value])
    return value


# --- What is structure: frozen into something hashable, thawed into an equal value


class _ByIdentity:
    """A static value that is equal only to itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"


_PLAIN = frozenset({int, float, bool, str, type(None)})


def _freeze(value: Any) -> Any:
    """`(type, value)`, with the contents frozen where the value is a container.

    The type is part of it because 1 == 1.0 == True, and a module may compute differently."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is list or kind is tuple:
        return kind, tuple([_freeze(item) for item in value])
    if kind is dict or kind is OrderedDict:
        return kind, tuple([(key, _freeze(item)) for key, item in value.items()])
    if kind is set:
        return kind, frozenset(value)
    if not isinstance(value, Array):  # an Array is hashable, but == does not answer with a bool
        try:
            hash(value)
            return kind, value
        except TypeError:
            pass
    return _ByIdentity(value)


def _thaw(frozen: Any) -> Any:
    if type(frozen) is _ByIdentity:
        return frozen.value
    kind, value = frozen
    if kind is list or kind is tuple:
        return kind([_thaw(item) for item in value])
    if kind is dict or kind is OrderedDict:
        return kind((key, _thaw(item)) for key, item in value)
    return set(value) if kind is set else value


class _Aux:
    """What remains of a module without its children."""

    __slots__ = ("children", "cls", "mixed", "static")
    cls: type
    children: tuple[str, ...]  # the attributes that are children, sorted
    mixed: tuple[str, ...]  # those whose containers hold static parts
    static: tuple[tuple[str, Any], ...]  # (attribute, frozen value), sorted

    def __init__(
        self,
        cls: type,
        children: tuple[str, ...],
        mixed: tuple[str, ...],
        static: tuple[tuple[str, Any], ...],
    ) -> None:
        self.cls = cls
        self.children = children
        self.mixed = mixed
        self.static = static

    def _key(self) -> tuple[Any, ...]:
        return self.cls, self.children, self.mixed, self.static

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Aux) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        static = ", ".join(f"{name}={_thaw(value)!r}" for name, value in self.static)
        return f"{self.cls.__name__}: {static}" if static else self.cls.__name__


def _flatten(module: Structured) -> tuple[Sequence[Any], _Aux]:
    attributes = vars(module)
    filled = attributes.get(_FILLED, {})
    names: list[str] = []
    children: list[Any] = []
    mixed: list[str] = []
    static: list[tuple[str, Any]] = []
    for name in sorted(attributes):
        value = attributes[name]
        kind = type(value)
        if name.startswith("_"):
            if name != _FILLED:
                static.append((name, _freeze(value)))
        elif kind is Array or value is None or isinstance(value, Structured):
            names.append(name)
            children.append(value)
        elif kind in _PLAIN and not filled:
            static.append((name, (kind, value)))
        elif name in filled and filled[name] is value:
            names.append(name)
            children.append(value)
        elif is_dynamic(value):
            child = _wrap(value)
            if _has_static(child):
                mixed.append(name)
            names.append(name)
            children.append(child)
        else:
            static.append((name, _freeze(value)))
    return children, _Aux(type(module), tuple(names), tuple(mixed), tuple(static))


def _has_static(value: Any) -> bool:
    if type(value) is Static:
        return True
    if isinstance(value, dict):
        return any(map(_has_static, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_static, value))


def _unflatten(aux: _Aux, children: Sequence[Any]) -> Structured:
    module: Structured = object.__new__(aux.cls)
    attributes = vars(module)
    for name, frozen in aux.static:
        attributes[name] = _thaw(frozen)
    filled = {}
    for name, child in zip(aux.children, children, strict=True):
        if name in aux.mixed:
            child = _unwrap(child)
        attributes[name] = child
        if type(child) is not Array and child is not None and not is_dynamic(child):
            filled[name] = child
    if filled:
        attributes[_FILLED] = filled
    return module


tree.register(
    Structured,
    _flatten,
    _unflatten,
    keys=operator.attrgetter("children"),
    subclasses=True,
)

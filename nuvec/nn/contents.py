"""Everything a module holds, underscore attributes included: copied, restored, replaced.

What is looked into are modules, lists, tuples and dicts, each once however often it is found, so
what is shared stays shared and a reference to a module above does no harm. Everything else
(functions, groups, NumPy arrays) is taken as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from nuvec.core.array import Array
from nuvec.nn.structure import Structured

__all__ = ["Snapshot", "arrays", "copied", "replace"]

S = TypeVar("S", bound=Structured)


def copied(module: S) -> S:
    """A copy that shares nothing that can be written to but the arrays."""
    made: dict[int, Any] = {}

    def visit(value: Any) -> Any:
        if not isinstance(value, Structured | list | tuple | dict):
            return value
        if id(value) in made:
            return made[id(value)]
        if isinstance(value, tuple):
            return _tuple_like(value, map(visit, value))
        new = object.__new__(type(value)) if isinstance(value, Structured) else copy.copy(value)
        made[id(value)] = new  # before its contents, which may refer to it
        for key, item in _items(value):
            _body(new)[key] = visit(item)
        return new

    return visit(module)


def arrays(module: Structured) -> list[Array]:
    """The arrays held anywhere, each once."""
    found = {id(leaf): leaf for holder in _holders(module) for leaf in _leaves(holder)}
    return list(found.values())


def replace(module: Structured, new: Mapping[int, Array]) -> None:
    """Put `new[id(array)]` in the place of each array, where there is such an entry."""

    def visit(value: Any) -> Any:
        if isinstance(value, Array):
            return new.get(id(value), value)
        if isinstance(value, tuple):
            items = [visit(item) for item in value]
            same = all(a is b for a, b in zip(items, value, strict=True))
            return value if same else _tuple_like(value, items)
        return value

    for holder in _holders(module):
        body = _body(holder)
        for key, item in _items(holder):
            body[key] = visit(item)


class Snapshot:
    """What a module held at one time, to go back to."""

    def __init__(self, module: Structured) -> None:
        self._held = [(holder, copy.copy(_body(holder))) for holder in _holders(module)]

    def restore(self) -> None:
        """Let every module, list and dict hold again what it held."""
        for holder, before in self._held:
            body = _body(holder)
            body.clear()
            body.extend(before) if isinstance(body, list) else body.update(before)


def _holders(module: Structured) -> list[Any]:
    """The module and the modules, lists and dicts below, each once."""
    found: dict[int, Any] = {}
    stack: list[Any] = [module]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack.extend(value)
        elif isinstance(value, Structured | list | dict) and id(value) not in found:
            found[id(value)] = value
            stack.extend(item for _, item in _items(value))
    return list(found.values())


def _leaves(value: Any) -> Iterator[Array]:
    """The arrays in a holder, those in its tuples too, but not those of other holders."""
    for _, item in _items(value):
        if isinstance(item, Array):
            yield item
        elif isinstance(item, tuple):
            yield from _leaves(item)


def _body(holder: Any) -> Any:
    return vars(holder) if isinstance(holder, Structured) else holder


def _items(holder: Any) -> list[tuple[Any, Any]]:
    body = _body(holder)
    return list(body.items() if isinstance(body, dict) else enumerate(body))


def _tuple_like(old: Any, items: Iterable[Any]) -> Any:
    return type(old)(*items) if hasattr(old, "_fields") else tuple(items)

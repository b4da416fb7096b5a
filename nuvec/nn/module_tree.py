"""The tree that a module's attributes make: walks over it that select, map and name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.core.errors import TreeError
from nuvec.nn.structure import Structured
from nuvec.nn.writing import is_kept

__all__ = ["CONTAINERS", "Filter", "count", "filter_and_map", "holds", "own_keys", "walk"]

# (module, key, value) -> bool, the key with the path inside of containers: "layers.0"
Filter = Callable[[Any, str, Any], bool]

CONTAINERS = (list, tuple, dict)


def filter_and_map(
    module: Structured,
    filter_fn: Filter,
    map_fn: Callable[[Any], Any] | None = None,
    is_leaf_fn: Filter | None = None,
) -> dict[str, Any]:
    """`Module.filter_and_map`, which says what it does."""
    is_leaf = is_leaf_fn or _is_leaf
    above: tuple[Structured, ...] = ()

    def visit(module: Structured, key: str, value: Any) -> Any:
        if is_leaf(module, key, value):
            return value if map_fn is None else map_fn(value)
        if isinstance(value, Structured):
            return fields(value)
        if isinstance(value, dict):
            paths = {name: f"{key}.{name}" for name in value}
            return {
                name: visit(module, paths[name], item)
                for name, item in value.items()
                if filter_fn(module, paths[name], item)
            }
        if isinstance(value, list | tuple):
            found = []
            for i, item in enumerate(value):
                path = f"{key}.{i}"
                kept = filter_fn(module, path, item)
                found.append(visit(module, path, item) if kept else {})
            return found if any(is_kept(item) for item in found) else {}
        raise TypeError(f"{key} of {type(module).__name__} is neither a leaf nor a container.")

    def fields(module: Structured) -> dict[str, Any]:
        nonlocal above
        outside, above = above, _below(above, module)
        found = {
            name: visit(module, name, value)
            for name, value in vars(module).items()
            if filter_fn(module, name, value)
            and (not isinstance(value, CONTAINERS) or holds(value))
        }
        above = outside
        return found

    return fields(module)


def walk(module: Any, children: Callable[[Any], dict[str, Any]]) -> list[tuple[str, Any]]:
    """The module, named "", and all below it with their dotted names, outer first; `children`
    gives the sub-modules of one, by attribute."""
    found: list[tuple[str, Any]] = []

    def visit(name: str, value: Any, above: tuple[Structured, ...]) -> None:
        if isinstance(value, Structured):
            found.append((name, value))
            above = _below(above, value)
            items: Iterator[tuple[Any, Any]] = iter(children(value).items())
        elif isinstance(value, dict):
            items = iter(value.items())
        elif isinstance(value, list):
            items = iter(enumerate(value))
        else:
            return
        for key, item in items:
            visit(f"{name}.{key}" if name else str(key), item, above)

    visit("", module, ())
    return found


def own_keys(module: Structured) -> dict[str, Any]:
    """What of a module can be frozen, those below it aside: keys, with the path inside of
    containers, and the array, module or container that is there."""
    found: dict[str, Any] = {}

    def keep(owner: Structured, key: str, value: Any) -> bool:
        if key.startswith("_") or not holds(value):
            return False
        found[key] = value
        return not isinstance(value, Structured)

    filter_and_map(module, keep)
    return found


def count(parameters: Any) -> int:
    """How many numbers there are; an array found in two places counts once."""
    arrays = {id(leaf): leaf for leaf in tree.leaves(parameters) if isinstance(leaf, Array)}
    return sum(leaf.size for leaf in arrays.values())


def holds(value: Any) -> bool:
    """Whether an attribute has something of a module in it; a list of numbers has not."""
    if isinstance(value, dict):
        return any(map(holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds, value))
    return isinstance(value, Array | Structured)


def _is_leaf(module: Structured, key: str, value: Any) -> bool:
    return not isinstance(value, (Structured, *CONTAINERS))


def _below(above: tuple[Structured, ...], module: Structured) -> tuple[Structured, ...]:
    """The modules above what is in `module`; TreeError where it is in itself, as a list that was
    changed after its assignment can bring about."""
    if any(module is other for other in above):
        raise TreeError(f"{type(module).__name__}: a module cannot contain itself.")
    return (*above, module)

"""Pytrees: nested containers of leaves, taken apart and put together again.

Lists, tuples, namedtuples, dicts (in the order of their sorted keys), OrderedDicts (in their own
order), defaultdicts, None (an empty subtree) and the classes given to `register` are containers;
everything else is a leaf. `flatten` returns the leaves and a `PyTree`, the structure without
them:

>>> leaves, structure = flatten({"b": [1, 2], "a": 3})
>>> leaves, structure
([3, 1, 2], PyTree({'a': *, 'b': [*, *]}))
>>> structure.unflatten([leaf * 10 for leaf in leaves])
{'a': 30, 'b': [10, 20]}

Leaves are only passed on: they are never compared, hashed or asked for their truth value.
"""

from __future__ import annotations

import functools
from builtins import map as _map
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from nuvec.core.errors import TreeError
from nuvec.core.pytree import (
    CACHE_SIZE,
    LEAF,
    LEAF_TYPES,
    AttributeKey,
    Container,
    DictKey,
    Path,
    PyTree,
    SequenceKey,
    find_container,
    keystr,
    register,
)

__all__ = [
    "AttributeKey",
    "DictKey",
    "PyTree",
    "SequenceKey",
    "all_leaves",
    "broadcast_prefix",
    "flatten",
    "flatten_up_to",
    "flatten_with_path",
    "keystr",
    "leaves",
    "map",
    "map_with_path",
    "reduce",
    "register",
    "structure",
    "unflatten",
]

IsLeaf = Callable[[Any], bool]


# --- Taking apart


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], PyTree]:
    """The leaves of a tree, in order, and its structure.

    Where `is_leaf` answers True the subtree counts as a leaf; it is asked of every subtree,
    containers first.

    >>> flatten([1, None, (2,)])
    ([1, 2], PyTree([*, None, (*,)]))
    >>> flatten([1, None, (2,)], is_leaf=lambda x: x is None)[0]
    [1, None, 2]
    """
    if is_leaf is None and type(tree) in LEAF_TYPES:
        return [tree], LEAF
    found: list[Any] = []
    return found, _flatten(tree, found, is_leaf)


def _flatten(tree: Any, found: list[Any], is_leaf: IsLeaf | None) -> PyTree:
    """Append the tree's leaves to `found` and return its structure."""
    if is_leaf is not None and is_leaf(tree):
        found.append(tree)
        return LEAF
    cls = type(tree)
    container = find_container(cls)
    if container is None:
        found.append(tree)
        return LEAF
    children: Iterable[Any]
    aux = flat = None
    if cls is dict and tree:
        # The sorted order of string keys is remembered. A string subclass (an Enum) equals its
        # plain twin and would come back as it, hence the check of the keys' types.
        known = _DICTS.get(tuple(tree))
        if known is not None and _STRING.issuperset(_map(type, tree)):
            take, flat = known
            children, aux = take(tree), flat.aux
        else:
            children, aux = container.flatten(tree)
            flat = _remember_dict(container, tuple(tree), aux)
    elif cls is tuple or cls is list:
        children, flat = tree, _SEQUENCES.get((cls, len(tree)))
        if flat is None:
            flat = _remember_sequence(container, len(tree))
    else:
        children, aux = container.flatten(tree)
    if is_leaf is None and flat is not None and LEAF_TYPES.issuperset(_map(type, children)):
        found += children
        return flat
    return PyTree(container, aux, tuple([_flatten(child, found, is_leaf) for child in children]))


# Structures whose children are all leaves: by the string keys of a dict, in order of insertion,
# with what takes the values out in sorted order; and by class and length.
_DICTS: dict[tuple[str, ...], tuple[Callable[[Any], tuple[Any, ...]], PyTree]] = {}
_SEQUENCES: dict[tuple[type, int], PyTree] = {}
_STRING = frozenset({str})


def _remember_dict(
    container: Container, inserted: tuple[Any, ...], ordered: tuple[Any, ...]
) -> PyTree | None:
    if not _STRING.issuperset(_map(type, inserted)):
        return None
    if len(_DICTS) >= CACHE_SIZE:
        _DICTS.clear()
    take: Callable[[Any], tuple[Any, ...]] = itemgetter(*ordered)
    if len(ordered) == 1:  # itemgetter of one key returns the value itself
        key = ordered[0]
        take = lambda tree: (tree[key],)  # noqa: E731
    flat = PyTree(container, ordered, (LEAF,) * len(ordered))
    # setdefault: equal keys keep one structure, and a twin of another class is never put in.
    return _DICTS.setdefault(inserted, (take, flat))[1]


def _remember_sequence(container: Container, count: int) -> PyTree:
    flat = PyTree(container, None, (LEAF,) * count)
    if len(_SEQUENCES) >= CACHE_SIZE:
        _SEQUENCES.clear()
    return _SEQUENCES.setdefault((container.cls, count), flat)


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of a tree, in order."""
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf | None = None) -> PyTree:
    """The structure of a tree."""
    return flatten(tree, is_leaf)[1]


def unflatten(structure: PyTree, leaves: Iterable[Any]) -> Any:
    """The tree of a structure with the given leaves; the inverse of `flatten`."""
    return structure.unflatten(leaves)


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf | None = None
) -> tuple[list[tuple[Path, Any]], PyTree]:
    """The (path, leaf) pairs of a tree and its structure; `keystr` makes a path readable."""
    found, structure = flatten(tree, is_leaf)
    return list(zip(structure.paths(), found, strict=True)), structure


def all_leaves(items: Iterable[Any], is_leaf: IsLeaf | None = None) -> bool:
    """Whether every item is a leaf.

    >>> all_leaves([1, 2.0]), all_leaves([1, [2]]), all_leaves([None])
    (True, False, False)
    """
    return all(
        (is_leaf is not None and is_leaf(item)) or find_container(type(item)) is None
        for item in items
    )


# --- Working on leaves


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """The tree with `f` applied to each leaf, and to what the other trees have in its place.

    The other trees have the structure of the first, or whole subtrees where it has a leaf.

    >>> map(lambda x, y: x + y, {"a": 1, "b": 2}, {"a": 10, "b": 20})
    {'a': 11, 'b': 22}
    """
    found, structure = flatten(tree, is_leaf)
    if not rest:
        return structure.unflatten([f(leaf) for leaf in found])
    columns = [flatten_up_to(structure, other) for other in rest]
    return structure.unflatten([f(*row) for row in zip(found, *columns, strict=True)])


def map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """Like `map`, with the path of the leaf as the first argument of `f`.

    >>> map_with_path(lambda path, leaf: f"{keystr(path)}={leaf}", {"a": [1, 2]})
    {'a': ["['a'][0]=1", "['a'][1]=2"]}
    """
    found, structure = flatten(tree, is_leaf)
    columns = [flatten_up_to(structure, other) for other in rest]
    rows = zip(structure.paths(), found, *columns, strict=True)
    return structure.unflatten([f(*row) for row in rows])


_NOT_GIVEN: Any = object()


def reduce(
    f: Callable[[Any, Any], Any],
    tree: Any,
    initial: Any = _NOT_GIVEN,
    is_leaf: IsLeaf | None = None,
) -> Any:
    """Fold the leaves with `f`, from the left.

    >>> reduce(lambda total, leaf: total + leaf, {"a": 1, "b": [2, 3]}, 0)
    6
    """
    if initial is _NOT_GIVEN:
        found = leaves(tree, is_leaf)
        if not found:
            raise TreeError("reduce of a tree without leaves needs an initial value.")
        return functools.reduce(f, found)
    return functools.reduce(f, leaves(tree, is_leaf), initial)


# --- Two trees of one shape


def flatten_up_to(structure: PyTree, tree: Any) -> list[Any]:
    """What `tree` has at each leaf of `structure`: leaves, or subtrees where it goes deeper.

    >>> flatten_up_to(structure([0, 0]), [1, (2, 3)])
    [1, (2, 3)]
    """
    found, other = flatten(tree)
    if other == structure:
        return found
    found = []
    _flatten_up_to(structure, tree, found, ())
    return found


def _flatten_up_to(expected: PyTree, tree: Any, found: list[Any], path: Path) -> None:
    if expected.container is None:
        found.append(tree)
        return
    children = _matching_children(expected, tree, path, "expected")
    for key, child, subtree in zip(expected.child_keys(), expected.children, children, strict=True):
        _flatten_up_to(child, subtree, found, (*path, key))


def broadcast_prefix(prefix: Any, structure: PyTree) -> list[Any]:
    """A value per leaf of `structure`, from a tree that may end earlier (as vmap's in_axes).

    Each leaf of the prefix, None included, stands for the whole subtree in its place.

    >>> broadcast_prefix((0, None), structure(([1, 2], {"w": 3})))
    [0, 0, None]
    """
    found: list[Any] = []
    _broadcast_prefix(prefix, structure, found, ())
    return found


def _broadcast_prefix(prefix: Any, expected: PyTree, found: list[Any], path: Path) -> None:
    if prefix is None or find_container(type(prefix)) is None:
        found += [prefix] * expected.num_leaves
        return
    children = _matching_children(expected, prefix, path, "a prefix of")
    for key, child, subtree in zip(expected.child_keys(), expected.children, children, strict=True):
        _broadcast_prefix(subtree, child, found, (*path, key))


def _matching_children(expected: PyTree, tree: Any, path: Path, relation: str) -> list[Any]:
    """The children of `tree`, which must be the same node as the root of `expected`."""
    container = find_container(type(tree))
    if container is not None:
        children, aux = container.flatten(tree)
        children = list(children)
        if PyTree(container, aux, (LEAF,) * len(children)).same_node(expected):
            return children
    place = f"at {keystr(path)}" if path else "at the top"
    raise TreeError(
        f"pytrees do not match {place}: {relation} {_describe(expected)}, "
        f"got {_describe(structure(tree))}." + _differing_keys(expected, tree)
    )


def _describe(structure: PyTree) -> str:
    """A structure as a noun: "a list of 2: [*, *]"."""
    container = structure.container
    if container is None:
        return "a leaf"
    if container.cls is type(None):
        return "None"
    return f"a {container.cls.__name__} of {len(structure.children)}: {structure.format()}"


def _differing_keys(expected: PyTree, tree: Any) -> str:
    if expected.container is None or not issubclass(expected.container.cls, dict):
        return ""
    if not isinstance(tree, dict):
        return ""
    wanted = [key.key for key in expected.child_keys()]
    missing = [key for key in wanted if key not in tree]
    extra = [key for key in tree if key not in wanted]
    return "".join(
        f" {label} keys: {', '.join(_map(repr, keys))}."
        for label, keys in (("Missing", missing), ("Unexpected", extra))
        if keys
    )

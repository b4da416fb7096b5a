"""What pytrees are made of: the classes that are containers, paths, and structures.

`tree.py` has the functions on trees and is what to read first; this file has the table of
container classes behind them, one record per class, and `PyTree`, a tree without its leaves.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nuvec.core.errors import TreeError

__all__ = [
    "CACHE_SIZE",
    "LEAF",
    "LEAF_TYPES",
    "AttributeKey",
    "Container",
    "DictKey",
    "Path",
    "PyTree",
    "SequenceKey",
    "find_container",
    "keystr",
    "register",
]


# --- Paths


@dataclass(frozen=True, slots=True)
class DictKey:
    """A step into a dict: `['w']`."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """A step into a list or tuple, or to the n-th child of a class without names: `[0]`."""

    index: int

    def __str__(self) -> str:
        return f"[{self.index}]"


@dataclass(frozen=True, slots=True)
class AttributeKey:
    """A step into a namedtuple or an object: `.bias`."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


Path = tuple[Any, ...]


def keystr(path: Iterable[Any]) -> str:
    """A path as the expression that, after the tree's name, reaches the place.

    >>> keystr((DictKey("w"), SequenceKey(0), AttributeKey("bias")))
    "['w'][0].bias"
    """
    return "".join(str(key) for key in path)


# --- Containers: how each class comes apart


class Container(NamedTuple):
    """What is known of one container class. `aux` is what remains of it without children."""

    cls: type
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]  # tree -> (children, aux)
    unflatten: Callable[[Any, Iterable[Any]], Any]
    keys: Callable[[Any, int], Sequence[Any]]  # (aux, number of children) -> a key per child
    format: Callable[[Any, list[str]], str]  # (aux, the children's texts) -> text


def _sorted_keys(tree: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError:
        raise TreeError(
            f"the keys of a dict in a pytree are sorted, and these cannot be: {list(tree)!r}. "
            "Use keys of one type, or an OrderedDict, which keeps its own order."
        ) from None


def _flatten_dict(tree: dict[Any, Any]) -> tuple[Iterable[Any], Any]:
    keys = _sorted_keys(tree)
    return [tree[key] for key in keys], keys


def _flatten_defaultdict(tree: defaultdict[Any, Any]) -> tuple[Iterable[Any], Any]:
    keys = _sorted_keys(tree)
    return [tree[key] for key in keys], (tree.default_factory, keys)


def _index_keys(aux: Any, count: int) -> Sequence[Any]:
    return [SequenceKey(i) for i in range(count)]


def _dict_keys(aux: Any, count: int) -> Sequence[Any]:
    return [DictKey(key) for key in aux]


def _format_dict(keys: Any, children: list[str]) -> str:
    items = (f"{key!r}: {child}" for key, child in zip(keys, children, strict=True))
    return f"{{{', '.join(items)}}}"


def _namedtuple(cls: Any) -> Container:
    def text(aux: Any, children: list[str]) -> str:
        fields = (f"{name}={child}" for name, child in zip(cls._fields, children, strict=True))
        return f"{cls.__name__}({', '.join(fields)})"

    return Container(
        cls,
        lambda tree: (tree, None),
        lambda aux, children: cls(*children),
        lambda aux, count: [AttributeKey(name) for name in cls._fields],
        text,
    )


_BUILT_IN = (
    Container(
        type(None),
        lambda tree: ((), None),
        lambda aux, children: None,
        _index_keys,
        lambda aux, children: "None",
    ),
    Container(
        list,
        lambda tree: (tree, None),
        lambda aux, children: list(children),
        _index_keys,
        lambda aux, children: f"[{', '.join(children)}]",
    ),
    Container(
        tuple,
        lambda tree: (tree, None),
        lambda aux, children: tuple(children),
        _index_keys,
        lambda aux, children: f"({', '.join(children)}{',' if len(children) == 1 else ''})",
    ),
    Container(
        dict,
        _flatten_dict,
        lambda keys, children: dict(zip(keys, children, strict=True)),
        _dict_keys,
        _format_dict,
    ),
    Container(
        OrderedDict,
        lambda tree: (list(tree.values()), tuple(tree)),
        lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
        _dict_keys,
        lambda keys, children: f"OrderedDict({_format_dict(keys, children)})",
    ),
    Container(
        defaultdict,
        _flatten_defaultdict,
        lambda aux, children: defaultdict(aux[0], zip(aux[1], children, strict=True)),
        lambda aux, count: _dict_keys(aux[1], count),
        lambda aux, children: (
            f"defaultdict({getattr(aux[0], '__name__', aux[0])}, {_format_dict(aux[1], children)})"
        ),
    ),
)

# What `register` was told; the two below it are caches of what `find_container` found out.
_REGISTERED: dict[type, Container] = {container.cls: container for container in _BUILT_IN}
_WITH_SUBCLASSES: set[type] = set()
_CONTAINERS: dict[type, Container] = dict(_REGISTERED)
LEAF_TYPES: set[type] = set()
CACHE_SIZE = 4096  # of each cache: a program that makes classes or keys without end stays small


def register(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten_fn: Callable[[Any, Sequence[Any]], Any],
    *,
    keys: Callable[[Any], Sequence[Any]] | None = None,
    subclasses: bool = False,
) -> None:
    """Make a class a container.

    `flatten_fn(tree)` returns the children and what else makes up the object (`aux`: hashable
    and comparable); `unflatten_fn(aux, children)` puts it together again, from children of any
    kind. `keys(aux)` names the children for paths: a string is an attribute, an int an index.
    With `subclasses`, classes derived from it are containers too; `aux` must then tell them.

    >>> class Interval:
    ...     def __init__(self, low, high):
    ...         self.low, self.high = low, high
    >>> register(
    ...     Interval,
    ...     lambda tree: ((tree.low, tree.high), None),
    ...     lambda aux, children: Interval(*children),
    ...     keys=lambda aux: ("low", "high"),
    ... )
    >>> from nuvec.core import tree
    >>> [keystr(path) for path, leaf in tree.flatten_with_path({"x": Interval(1, 2)})[0]]
    ["['x'].low", "['x'].high"]
    """
    if cls in _REGISTERED:
        raise TreeError(f"{cls.__qualname__} is registered as a pytree already.")

    def child_keys(aux: Any, count: int) -> Sequence[Any]:
        if keys is None:
            return _index_keys(aux, count)
        steps = {str: AttributeKey, int: SequenceKey}
        return [steps[type(key)](key) if type(key) in steps else key for key in keys(aux)]

    def text(aux: Any, children: list[str]) -> str:
        label = f"{cls.__name__}" if aux is None else f"{cls.__name__}[{aux!r}]"
        return f"{label}({', '.join(children)})"

    _REGISTERED[cls] = Container(
        cls, flatten_fn, lambda aux, children: unflatten_fn(aux, tuple(children)), child_keys, text
    )
    if subclasses:
        _WITH_SUBCLASSES.add(cls)
    _CONTAINERS.clear()
    _CONTAINERS.update(_REGISTERED)
    LEAF_TYPES.clear()


def find_container(cls: type) -> Container | None:
    """The container record of a class, None if its instances are leaves; remembers either."""
    found = _CONTAINERS.get(cls)
    if found is not None or cls in LEAF_TYPES:
        return found
    for base in cls.__mro__:
        if base in _WITH_SUBCLASSES:
            found = _REGISTERED[base]._replace(cls=cls)
            break
    else:
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            found = _namedtuple(cls)
    if len(_CONTAINERS) + len(LEAF_TYPES) > CACHE_SIZE:
        LEAF_TYPES.clear()
        _CONTAINERS.clear()
        _CONTAINERS.update(_REGISTERED)
    if found is None:
        LEAF_TYPES.add(cls)
    else:
        _CONTAINERS[cls] = found
    return found


# --- Structures


class PyTree:
    """The structure of a pytree, without its leaves: immutable, hashable, comparable.

    >>> from nuvec.core.tree import structure
    >>> structure((1, [2])) == structure((3, [4])), structure((1, [2])).num_leaves
    (True, 2)
    """

    __slots__ = ("_hash", "aux", "children", "container", "flat", "num_leaves")
    container: Container | None  # None: a leaf
    aux: Any
    children: tuple[PyTree, ...]
    flat: bool  # whether every child is a leaf
    num_leaves: int
    _hash: int | None

    def __init__(self, container: Container | None, aux: Any, children: tuple[PyTree, ...]) -> None:
        count = 1 if container is None else 0
        flat = container is not None
        for child in children:
            count += child.num_leaves
            flat = flat and child.container is None
        _set(self, "container", container)
        _set(self, "aux", aux)
        _set(self, "children", children)
        _set(self, "flat", flat)
        _set(self, "num_leaves", count)
        _set(self, "_hash", None)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """A tree of this structure with the given leaves."""
        if type(leaves) is not list and type(leaves) is not tuple:
            leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise TreeError(f"{self} has {self.num_leaves} leaves, but {len(leaves)} were given.")
        if self.flat:
            return self.container.unflatten(self.aux, leaves)  # type: ignore[union-attr]
        return self._unflatten(iter(leaves))

    def _unflatten(self, leaves: Iterator[Any]) -> Any:
        if self.container is None:
            return next(leaves)
        children = [child._unflatten(leaves) for child in self.children]
        return self.container.unflatten(self.aux, children)

    def child_keys(self) -> Sequence[Any]:
        """A path key for each child."""
        if self.container is None:
            return ()
        return self.container.keys(self.aux, len(self.children))

    def paths(self) -> list[Path]:
        """The path of each leaf, in order.

        >>> from nuvec.core.tree import structure
        >>> [keystr(path) for path in structure({"w": [0, 0], "b": 0}).paths()]
        ["['b']", "['w'][0]", "['w'][1]"]
        """
        if self.container is None:
            return [()]
        pairs = zip(self.child_keys(), self.children, strict=True)
        return [(key, *path) for key, child in pairs for path in child.paths()]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PyTree):
            return NotImplemented
        return self.same_node(other) and self.children == other.children

    def same_node(self, other: PyTree) -> bool:
        """Whether the two agree in all but their children."""
        if self.container is None or other.container is None:
            return self.container is other.container
        return (
            self.container.cls is other.container.cls
            and len(self.children) == len(other.children)
            and bool(self.aux == other.aux)
        )

    def __hash__(self) -> int:
        value = self._hash
        if value is None:
            cls = None if self.container is None else self.container.cls
            try:
                value = hash((cls, self.aux, self.children))
            except TypeError:
                raise TreeError(
                    f"the auxiliary data of {cls!r} is not hashable: {self.aux!r}. Its flatten_fn "
                    "must return (children, aux) with a hashable aux."
                ) from None
            _set(self, "_hash", value)
        return value

    def format(self) -> str:
        if self.container is None:
            return "*"
        return self.container.format(self.aux, [child.format() for child in self.children])

    def __repr__(self) -> str:
        return f"PyTree({self.format()})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a PyTree structure is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        cls = None if self.container is None else self.container.cls
        return _restore, (cls, self.aux, self.children)


_set = object.__setattr__
LEAF = PyTree(None, None, ())


def _restore(cls: type | None, aux: Any, children: tuple[PyTree, ...]) -> PyTree:
    return LEAF if cls is None else PyTree(find_container(cls), aux, children)

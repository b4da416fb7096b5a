"""Module: parameters and sub-modules in attributes, and the functions that work on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.core.errors import TreeError
from nuvec.nn.structure import Structured, contains, is_filled, leaves_text
from nuvec.nn.writing import is_kept, write

__all__ = ["Module"]

Self = TypeVar("Self", bound="Module")
Filter = Callable[["Module", str, Any], bool]

_CONTAINERS = (list, tuple, dict)


class Module(Structured):
    """The base class of layers and models.

    Assign arrays, sub-modules, and lists, tuples and dicts of them to attributes in `__init__`,
    and define `__call__`. Names, methods and parameter shapes follow MLX.

    A module is a pytree. Its leaves are the arrays in its attributes, in the order of the sorted
    attribute names, frozen ones and buffers included; all else (numbers, functions, groups, the
    training flag, what is frozen) is structure, so `nv.value_and_grad(loss)(model, x)`,
    `nv.tree.map(f, model)` and `nv.compile` take a model whole, and a compiled function retraces
    when such an attribute changes. A transform works on a copy that it puts together without
    calling `__init__`. Pass a model to a compiled function as an argument: one that it closes
    over keeps the arrays it had when it was traced.

    Arrays found in two places are two leaves: `nv.grad` of a model with tied weights gives each
    place its own part of the gradient, and after `apply_updates` they are two arrays with other
    values. To keep weights tied, hold them in one attribute and use it in both places, as in
    `self.embedding @ x` and `y @ self.embedding.T`.

    Attributes that start with an underscore are no parameters and no children, and NumPy arrays
    are constants: make a parameter of one with `nv.array`. A module cannot contain itself; a
    reference to a module above goes into an underscore attribute.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> class Scale(nn.Module):
    ...     def __init__(self, size):
    ...         super().__init__()
    ...         self.factor = nv.ones(size)
    ...
    ...     def __call__(self, x):
    ...         return x * self.factor
    >>> model = Scale(3)
    >>> model
    Scale()  # 3 parameters
    >>> grads = nv.grad(lambda model, x: model(x).sum())(model, nv.array([1.0, 2.0, 3.0]))
    >>> grads.factor
    array([1., 2., 3.], dtype=float32)
    """

    # Class-level defaults, so that a module works whether or not `super().__init__()` was called.
    _training: bool = True
    _no_grad: frozenset[str] = frozenset()

    # Read by nv.value_and_grad: integer and boolean leaves of a module get None for a gradient.
    integer_leaves_have_no_gradient = True

    def __init__(self) -> None:
        self._training = True
        self._no_grad = frozenset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes: each subclass defines it.  Raises NotImplementedError where
        one has not, as a container of parameters that is never called need not."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say what it computes: define "
            "`def __call__(self, x): ...` in it"
        )

    # --- Attributes by name

    def __getitem__(self, name: str) -> Any:
        """`m["weight"]` is `m.weight`; KeyError when there is no such attribute."""
        return vars(self)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if (
            isinstance(value, (Structured, *_CONTAINERS))
            and not name.startswith("_")
            and contains(value, self)
        ):
            raise TreeError(
                f"{type(self).__name__}.{name}: a module cannot contain itself, and the "
                f"{type(value).__name__} assigned is, or contains, the module. Name the attribute "
                f"_{name}: one with an underscore is no child."
            )
        object.__setattr__(self, name, value)

    __iter__ = None  # without it, `for x in module` would try module[0]

    # --- Selecting

    @staticmethod
    def valid_child_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an attribute may hold sub-modules: a filter for `filter_and_map`."""
        return isinstance(value, (Module, *_CONTAINERS)) and not key.startswith("_")

    @staticmethod
    def valid_parameter_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an attribute may hold parameters: a filter for `filter_and_map`."""
        return isinstance(value, (Array, Module, *_CONTAINERS)) and not key.startswith("_")

    @staticmethod
    def trainable_parameter_filter(module: Module, key: str, value: Any) -> bool:
        """`valid_parameter_filter` without what is frozen."""
        return Module.valid_parameter_filter(module, key, value) and key not in module._no_grad

    def filter_and_map(
        self,
        filter_fn: Filter,
        map_fn: Callable[[Any], Any] | None = None,
        is_leaf_fn: Filter | None = None,
    ) -> dict[str, Any]:
        """Nested dicts and lists of what `filter_fn(module, key, value)` keeps, mapped.

        The key of an item in a list or dict has the path to it appended: "weights.0".
        `is_leaf_fn` says where to stop (else at everything but modules and containers). Items of
        a list that are not kept leave `{}` in their place.
        """
        is_leaf = is_leaf_fn or _is_leaf
        above: tuple[Module, ...] = ()

        def visit(module: Module, key: str, value: Any) -> Any:
            if is_leaf(module, key, value):
                return value if map_fn is None else map_fn(value)
            if isinstance(value, Module):
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

        def fields(module: Module) -> dict[str, Any]:
            nonlocal above
            outside, above = above, _below(above, module)
            found = {
                name: visit(module, name, value)
                for name, value in vars(module).items()
                if filter_fn(module, name, value)
                and (not isinstance(value, _CONTAINERS) or _holds(value))
            }
            above = outside
            return found

        return fields(self)

    def parameters(self) -> dict[str, Any]:
        """All arrays, frozen ones and buffers too, as nested dicts and lists.

        >>> import nuvec.nn as nn
        >>> nn.Sequential(nn.Linear(2, 3), nn.relu).parameters()["layers"][0]["weight"].shape
        (3, 2)
        """
        return self.filter_and_map(self.valid_parameter_filter)

    def trainable_parameters(self) -> dict[str, Any]:
        """The arrays that are not frozen, as nested dicts and lists."""
        return self.filter_and_map(self.trainable_parameter_filter)

    @property
    def state(self) -> dict[str, Any]:
        """Every array, those in underscore attributes too, as nested dicts and lists."""
        return self.filter_and_map(
            lambda module, key, value: (
                isinstance(value, (Array, Module, *_CONTAINERS)) and key != "_filled"
            )
        )

    def children(self) -> dict[str, Any]:
        """The direct sub-modules by attribute; lists and dicts of them as such."""
        found = self.filter_and_map(
            self.valid_child_filter, is_leaf_fn=lambda module, key, value: _is_module(value)
        )
        return {name: value for name, value in found.items() if _any_module(value)}

    def leaf_modules(self) -> dict[str, Any]:
        """The sub-modules that have no sub-modules, as nested dicts and lists."""

        def is_leaf(module: Module, key: str, value: Any) -> bool:
            return isinstance(value, Module) and not value.children()

        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=is_leaf)

    def named_modules(self) -> list[tuple[str, Module]]:
        """This module, named "", and all modules below it with their dotted names, outer first.

        >>> import nuvec.nn as nn
        >>> [name for name, _ in nn.Sequential(nn.Linear(2, 3), nn.ReLU()).named_modules()]
        ['', 'layers.0', 'layers.1']
        """
        found: list[tuple[str, Module]] = []

        def visit(name: str, value: Any, above: tuple[Module, ...]) -> None:
            if isinstance(value, Module):
                found.append((name, value))
                above = _below(above, value)
                items: Iterator[tuple[Any, Any]] = iter(value.children().items())
            elif isinstance(value, dict):
                items = iter(value.items())
            elif isinstance(value, list):
                items = iter(enumerate(value))
            else:
                return
            for key, item in items:
                visit(f"{name}.{key}" if name else str(key), item, above)

        visit("", self, ())
        return found

    def modules(self) -> list[Module]:
        """This module and all modules below it, outer first."""
        return [module for _, module in self.named_modules()]

    # --- Changing

    def update(self: Self, parameters: Any, strict: bool = True) -> Self:
        """Replace arrays by those of `parameters`; returns the module.

        `parameters` is nested as `parameters()` returns it, or is a module of the same make. What
        it does not mention, and what is None in it, stays. With `strict`, a name the module does
        not have, or another kind of value in its place, is a ValueError.

        >>> import nuvec as nv
        >>> import nuvec.nn as nn
        >>> layer = nn.Linear(2, 1).update({"bias": nv.zeros(1)})
        >>> layer.bias
        array([0.], dtype=float32)
        """
        if isinstance(parameters, Module):
            parameters = parameters.parameters()
        write(self, parameters, Array, strict)
        return self

    def update_modules(self: Self, modules: Mapping[str, Any], strict: bool = True) -> Self:
        """Replace sub-modules by those of `modules`, nested as `children()` or `leaf_modules()`."""
        write(self, modules, Module, strict)
        return self

    def apply(
        self: Self, map_fn: Callable[[Array], Array], filter_fn: Filter | None = None
    ) -> Self:
        """Replace every array, or those `filter_fn` keeps, by `map_fn` of it; returns the module.

        >>> import nuvec.nn as nn
        >>> nn.Linear(2, 1).apply(lambda x: x.astype("float16")).weight.dtype
        dtype('float16')
        """
        return self.update(self.filter_and_map(filter_fn or self.valid_parameter_filter, map_fn))

    def apply_to_modules(self: Self, apply_fn: Callable[[str, Module], Any]) -> Self:
        """Call `apply_fn(name, module)` for this module and all below; returns the module."""
        for name, module in self.named_modules():
            apply_fn(name, module)
        return self

    def set_dtype(
        self: Self, dtype: Any, predicate: Callable[[np.dtype[Any]], bool] = dtypes.is_floating
    ) -> Self:
        """Convert the arrays whose dtype `predicate` accepts (the floating ones)."""
        dtype = dtypes.as_dtype(dtype)
        return self.apply(lambda x: x.astype(dtype) if predicate(x.dtype) else x)

    def train(self: Self, mode: bool = True) -> Self:
        """Put this module and all below it into training mode, or, with False, out of it."""
        for module in self.modules():
            module._training = bool(mode)
        return self

    def eval(self: Self) -> Self:
        """Put this module and all below it into evaluation mode: `train(False)`."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """Whether the module is in training mode, as modules are at first."""
        return self._training

    def freeze(
        self: Self,
        *,
        recurse: bool = True,
        keys: str | list[str] | None = None,
        strict: bool = False,
    ) -> Self:
        """Take parameters out of `trainable_parameters()`; returns the module.

        keys -- the attributes to freeze; None freezes every array.
        recurse -- also in the modules below.
        strict -- raise KeyError when a module concerned has no such attribute.

        Freezing concerns `nn.value_and_grad` and `trainable_parameters`. `nv.value_and_grad` of a
        function of a module differentiates all its leaves.

        >>> import nuvec.nn as nn
        >>> layer = nn.Linear(2, 3).freeze(keys="bias")
        >>> list(layer.trainable_parameters())
        ['weight']
        """

        def freeze(module: Module) -> None:
            names = _parameter_names(module) if keys is None else _known(module, keys, strict)
            module._no_grad = module._no_grad | frozenset(names)

        return self._each(freeze, recurse)

    def unfreeze(
        self: Self,
        *,
        recurse: bool = True,
        keys: str | list[str] | None = None,
        strict: bool = False,
    ) -> Self:
        """Undo `freeze`, for `keys` or, with None, for everything; returns the module."""

        def unfreeze(module: Module) -> None:
            thawed = module._no_grad if keys is None else frozenset(_known(module, keys, strict))
            module._no_grad = module._no_grad - thawed

        return self._each(unfreeze, recurse)

    def _each(self: Self, change: Callable[[Module], None], recurse: bool) -> Self:
        for module in self.modules() if recurse else [self]:
            change(module)
        return self

    # --- Display

    def _extra_repr(self) -> str:
        """What a subclass shows between its parentheses: "input_dims=2, bias=True"."""
        return ""

    def __repr__(self) -> str:
        total, trainable = _count(self.parameters()), _count(self.trainable_parameters())
        extra = leaves_text(self) if is_filled(self) else self._extra_repr()
        lines = [f"{type(self).__name__}({extra}"]
        for name, child in _named_children(self):
            lines += [f"  {line}" for line in f"({name}): {child!r}".split("\n")]
        closed = "\n".join(lines) + (")" if len(lines) == 1 else "\n)")
        if not total:
            return closed
        note = f"{total:,} parameter{'s' * (total != 1)}"
        if trainable != total:
            note += f", {trainable:,} trainable" if trainable else ", frozen"
        return f"{closed}  # {note}"


def _below(above: tuple[Module, ...], module: Module) -> tuple[Module, ...]:
    """The modules above what is in `module`; TreeError where it is in itself, as a list that was
    changed after its assignment can bring about."""
    if any(module is other for other in above):
        raise TreeError(f"{type(module).__name__}: a module cannot contain itself.")
    return (*above, module)


def _is_module(value: Any) -> bool:
    return isinstance(value, Module)


def _is_leaf(module: Module, key: str, value: Any) -> bool:
    return not isinstance(value, (Module, *_CONTAINERS))


def _holds(value: Any) -> bool:
    """Whether an attribute has something of a module in it; a list of numbers has not."""
    if isinstance(value, dict):
        return any(map(_holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds, value))
    return isinstance(value, Array | Module)


def _any_module(value: Any) -> bool:
    return any(map(_is_module, tree.leaves(value, is_leaf=_is_module)))


def _named_children(module: Module) -> list[tuple[str, Module]]:
    return [
        (".".join(str(getattr(key, "key", getattr(key, "index", key))) for key in path), child)
        for path, child in tree.flatten_with_path(module.children(), is_leaf=_is_module)[0]
    ]


def _count(parameters: Any) -> int:
    """How many numbers there are; an array found in two places counts once."""
    arrays = {id(leaf): leaf for leaf in tree.leaves(parameters) if isinstance(leaf, Array)}
    return sum(leaf.size for leaf in arrays.values())


def _parameter_names(module: Module) -> list[str]:
    """The module's own arrays: names of attributes, with a path inside of containers."""
    names: list[str] = []

    def keep(owner: Module, key: str, value: Any) -> bool:
        if isinstance(value, Array) and not key.startswith("_"):
            names.append(key)
        return isinstance(value, _CONTAINERS) and not key.startswith("_")

    module.filter_and_map(keep)
    return names


def _known(module: Module, keys: str | list[str], strict: bool) -> list[str]:
    wanted = [keys] if isinstance(keys, str) else list(keys)
    if strict:
        for key in wanted:
            if key.split(".")[0] not in module:
                raise KeyError(f"{type(module).__name__} has no attribute {key!r} to (un)freeze.")
    return wanted

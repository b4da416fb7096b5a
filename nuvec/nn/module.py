"""Module: parameters and sub-modules in attributes, and the functions that work on all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.core.errors import TreeError
from nuvec.core.traceback import filtered
from nuvec.nn import weight_files
from nuvec.nn.contents import Snapshot, copied
from nuvec.nn.module_tree import (
    CONTAINERS,
    Filter,
    count,
    filter_and_map,
    own_keys,
    walk,
)
from nuvec.nn.names import dotted, named_leaves
from nuvec.nn.saving import refuse_conflicts, weights_for
from nuvec.nn.structure import Structured, contains, is_filled, leaves_text
from nuvec.nn.writing import write

__all__ = ["Module"]

Self = TypeVar("Self", bound="Module")


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

    Freezing is part of the structure: a compiled function retraces after `freeze`, and a frozen
    module and one that is not are trees of two kinds. `trainable_parameters` and
    `nn.value_and_grad` leave frozen arrays out. To `nv.grad` and the other transforms of a function
    of a module they are leaves like all others, with gradients that an optimizer would apply: pass
    them `trainable_parameters()` instead, and call the model by `nn.functional_call`.

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
            isinstance(value, (Structured, *CONTAINERS))
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
    def is_module(value: Any) -> bool:
        """Whether a value is a module."""
        return isinstance(value, Module)

    @staticmethod
    def valid_child_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an attribute may hold sub-modules: a filter for `filter_and_map`."""
        return isinstance(value, (Module, *CONTAINERS)) and not key.startswith("_")

    @staticmethod
    def valid_parameter_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an attribute may hold parameters: a filter for `filter_and_map`."""
        return isinstance(value, (Array, Module, *CONTAINERS)) and not key.startswith("_")

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
        return filter_and_map(self, filter_fn, map_fn, is_leaf_fn)

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
        """Every array, those in underscore attributes too, as nested dicts and lists: what
        `update` puts back. (In MLX it is the module itself.)"""

        def keep(module: Module, key: str, value: Any) -> bool:
            if key.startswith("_") and (key == "_filled" or contains(value, module)):
                return False  # a reference to a module above is no part of this one
            return isinstance(value, (Array, Module, *CONTAINERS))

        return self.filter_and_map(keep)

    def children(self) -> dict[str, Any]:
        """The direct sub-modules by attribute; lists and dicts of them as such."""
        found = self.filter_and_map(
            self.valid_child_filter, is_leaf_fn=lambda module, key, value: isinstance(value, Module)
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
        return walk(self, Module.children)

    def modules(self) -> list[Module]:
        """This module and all modules below it, outer first."""
        return [module for _, module in self.named_modules()]

    # --- Changing

    def update(self: Self, parameters: Any, strict: bool = True) -> Self:
        """Replace arrays by those of `parameters`; returns the module.

        `parameters` is nested as `parameters()` returns it, or is a module of the same make. What
        it does not mention, and what is None in it, stays. With `strict`, a name the module does
        not have, or another kind of value in its place, is a ValueError, after which the module is
        what it was; without it they are passed over. Shapes and dtypes may differ.

        >>> import nuvec as nv
        >>> import nuvec.nn as nn
        >>> layer = nn.Linear(2, 1).update({"bias": nv.zeros(1)})
        >>> layer.bias
        array([0.], dtype=float32)
        """
        if isinstance(parameters, Module):
            parameters = parameters.parameters()
        return self._written(parameters, Array, strict)

    def update_modules(self: Self, modules: Mapping[str, Any], strict: bool = True) -> Self:
        """Replace sub-modules by those of `modules`, nested as `children()` or `leaf_modules()`.

        What it does not mention stays. `strict` is that of `update`.

        >>> import nuvec.nn as nn
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> model.update_modules({"layers": [{}, nn.Tanh()]}).layers[1]
        Tanh()
        """
        return self._written(modules, Module, strict)

    def _written(self: Self, new: Any, kind: type, strict: bool) -> Self:
        before = Snapshot(self)
        try:
            write(self, new, kind, strict)
        except BaseException:
            before.restore()
            raise
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
        self: Self,
        dtype: Any,
        predicate: Callable[[np.dtype[Any]], bool] | None = dtypes.is_floating,
    ) -> Self:
        """Convert the parameters whose dtype `predicate` accepts: the floating ones, or, with
        None, all; returns the module.

        >>> import nuvec.nn as nn
        >>> nn.Linear(2, 1).set_dtype("bfloat16").weight.dtype
        dtype(bfloat16)
        """
        dtype = dtypes.as_dtype(dtype)
        return self.apply(
            lambda x: x.astype(dtype) if predicate is None or predicate(x.dtype) else x
        )

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
        keys: str | Iterable[str] | None = None,
        strict: bool = False,
    ) -> Self:
        """Take parameters out of `trainable_parameters()`; returns the module.

        keys -- the attributes to freeze, with the path in a list or dict ("weights.0"); None
                freezes every array there is now
        recurse -- also in the modules below
        strict -- raise KeyError for keys that this module, or with `recurse` no module, has

        >>> import nuvec.nn as nn
        >>> layer = nn.Linear(2, 3).freeze(keys="bias")
        >>> list(layer.trainable_parameters())
        ['weight']
        """
        names = self._names(keys, recurse, strict)
        for module in self.modules()[1:] if recurse else []:
            module.freeze(recurse=False, keys=names)
        if names is None:
            names = [key for key, value in own_keys(self).items() if isinstance(value, Array)]
        self._no_grad = self._no_grad | frozenset(names)
        return self

    def unfreeze(
        self: Self,
        *,
        recurse: bool = True,
        keys: str | Iterable[str] | None = None,
        strict: bool = False,
    ) -> Self:
        """Undo `freeze`, for `keys` or, with None, for everything; returns the module.

        A layer with arrays that are never to be trained overrides it, to freeze these again. The
        modules below are asked by their own `unfreeze(recurse=False, keys=keys)`, so that holds
        wherever the layer is. (In MLX it holds only where it is unfrozen itself.)

        >>> import nuvec.nn as nn
        >>> layer = nn.Linear(2, 3).freeze().unfreeze(keys="bias")
        >>> list(layer.trainable_parameters())
        ['bias']
        """
        names = self._names(keys, recurse, strict)
        for module in self.modules()[1:] if recurse else []:
            module.unfreeze(recurse=False, keys=names)
        self._no_grad = frozenset() if names is None else self._no_grad - frozenset(names)
        return self

    def _names(
        self, keys: str | Iterable[str] | None, recurse: bool, strict: bool
    ) -> list[str] | None:
        if keys is None:
            return None
        names = [keys] if isinstance(keys, str) else list(keys)
        if strict:
            known = {key for module in (self.modules() if recurse else [self])
                     for key in own_keys(module)}  # fmt: skip
            unknown = [name for name in names if name not in known]
            if unknown:
                raise KeyError(
                    f"{type(self).__name__} has no parameter {', '.join(map(repr, unknown))} to "
                    f"freeze or unfreeze; it has {', '.join(map(repr, sorted(known)))}."
                )
        return names

    # --- Weights in files

    @filtered
    def save_weights(self, file: str | os.PathLike[str]) -> None:
        """Write all parameters, frozen ones too, to a .npz or .safetensors file, as MLX does.

        Their names are those of `parameters()`, joined by dots: "layers.0.weight". Arrays in
        underscore attributes are not saved. What is found in two places is saved under both names.
        A .safetensors file needs the extra `io`. The file is replaced as a whole, or not at all.

        Raises ArgumentError for another kind of file, or for a dtype the format does not know.

        >>> import os, tempfile
        >>> import nuvec.nn as nn
        >>> model, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_weights(os.path.join(folder, "weights.npz"))
        ...     _ = other.load_weights(os.path.join(folder, "weights.npz"))
        >>> bool((other.weight == model.weight).all())
        True
        """
        weight_files.write(file, dict(named_leaves(self.parameters())))

    @filtered
    def load_weights(self: Self, file_or_weights: Any, strict: bool = True) -> Self:
        """Read all parameters from a .npz or .safetensors file; returns the module.

        file_or_weights -- its path, or pairs (name, array) or a dict of such
        strict -- names, shapes and dtypes must be the model's: TreeError (a ValueError) says
                  what is missing, unexpected, or has another shape or dtype, all of it at once,
                  and the model is what it was. Without it, as in MLX, parameters the file does
                  not have stay, what the model does not have is passed over, and arrays are
                  taken as they are: the parameters then have the shapes and dtypes of the file

        MLX's files are read, and MLX reads these. Nothing is unpickled. What is frozen, and the
        training mode, stays as it is.

        >>> import nuvec as nv
        >>> import nuvec.nn as nn
        >>> nn.Linear(1, 1).load_weights([("bias", nv.array([2.0]))], strict=False).bias
        array([2.], dtype=float32)
        """
        new = weights_for(self.parameters(), file_or_weights, strict, type(self).__name__)
        if strict:
            refuse_conflicts(new, copied(self).update(new).parameters())
        return self.update(new)

    # --- Display

    def _extra_repr(self) -> str:
        """What a subclass shows between its parentheses: "input_dims=2, bias=True"."""
        return ""

    def __repr__(self) -> str:
        total, trainable = count(self.parameters()), count(self.trainable_parameters())
        extra = leaves_text(self) if is_filled(self) else self._extra_repr()
        lines = [f"{type(self).__name__}({extra}"]
        children = tree.flatten_with_path(self.children(), is_leaf=self.is_module)[0]
        for path, child in children:
            name = dotted(path)
            lines += [f"  {line}" for line in f"({name}): {child!r}".split("\n")]
        closed = "\n".join(lines) + (")" if len(lines) == 1 else "\n)")
        if not total:
            return closed
        note = f"{total:,} parameter{'s' * (total != 1)}"
        if trainable != total:
            note += f", {trainable:,} trainable" if trainable else ", frozen"
        return f"{closed}  # {note}"


def _any_module(value: Any) -> bool:
    return any(map(Module.is_module, tree.leaves(value, is_leaf=Module.is_module)))

"""The convention of the optimizers, and what they are put together from.

As in optax (https://optax.readthedocs.io), a `GradientTransformation` is a pair of functions:

    state = optimizer.init(params)
    updates, state = optimizer.update(grads, state, params)
    params = apply_updates(params, updates)

Gradients, state and parameters are trees of one structure with the same shapes: nothing is
broadcast. The parameters are any pytree of arrays: `model.trainable_parameters()`, or a `Module`
itself. The state is a pytree of arrays too, and all an optimizer remembers: saved and loaded,
training goes on with the same bits. A gradient of None leaves its parameter alone, and so do the
integer and boolean leaves of the parameters, for which the state holds None.

Hyperparameters are Python or NumPy numbers, or scalar Arrays, and change no dtype. State and
updates of float16 and bfloat16 parameters are float32, other dtypes stay their own;
`apply_updates` rounds each parameter once, to the dtype it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError, TreeError
from nuvec.core.functions.filled import zeros

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "Schedule",
    "apply_updates",
    "as_update",
    "chain",
    "check_shapes",
    "expect_state",
    "identity",
    "map_arrays",
    "moment_like",
    "stateless",
    "zero_count",
]

Schedule = Callable[[Array], Any]


class GradientTransformation(NamedTuple):
    """A pair of functions, `init(params) -> state` and
    `update(updates, state, params=None) -> (updates, state)`."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


# --- Trees


def map_arrays(f: Callable[..., Any], main: Any, *rest: Any) -> Any:
    """A tree like `main` of `f(leaf, *others)`; where `main` has None, None.

    The other trees have their leaf, or None, in the same places as `main`. Modules among them may
    differ in what is structure, such as the training flag. Raises TreeError where the places
    differ, and ShapeError where the shapes of arrays do, which names the place.
    """
    leaves, structure = tree.flatten(main, is_leaf=_is_none)
    columns = [_leaves_like(structure, other) for other in rest]
    for column in columns:
        for i, (leaf, other) in enumerate(zip(leaves, column, strict=True)):
            shape, found = _shape(leaf), _shape(other)
            if found != shape and found is not None and shape is not None:
                path = tree.keystr(structure.paths()[i]) or "the top"
                raise ShapeError(
                    "gradients, optimizer state and parameters must have the same shapes, and at "
                    f"{path} there are {operand(leaf).aval} and {operand(other).aval}; nothing "
                    "is broadcast."
                )
    return structure.unflatten(
        [
            None if leaf is None else f(leaf, *others)
            for leaf, *others in zip(leaves, *columns, strict=True)
        ]
    )


def check_shapes(main: Any, *rest: Any) -> None:
    """Raise what `map_arrays` raises for these trees."""
    map_arrays(lambda leaf, *others: leaf, main, *rest)


def _is_none(x: Any) -> bool:
    return x is None


def _shape(x: Any) -> tuple[int, ...] | None:
    """The shape of an array or a number; None for what has none, such as the bools of a mask."""
    if isinstance(x, Array | np.ndarray):
        return x.shape
    return () if isinstance(x, int | float | complex) and not isinstance(x, bool) else None


def _leaves_like(structure: tree.PyTree, other: Any) -> list[Any]:
    leaves, found = tree.flatten(other, is_leaf=_is_none)
    if found == structure:
        return leaves
    here, there = structure.paths(), found.paths()
    if here == there:
        return leaves
    missing = [tree.keystr(path) or "the top" for path in here if path not in set(there)]
    extra = [tree.keystr(path) or "the top" for path in there if path not in set(here)]
    raise TreeError(
        "gradients, optimizer state and parameters must be trees of one structure; "
        + "; ".join(
            f"{label} {', '.join(paths[:5])}{' and more' * (len(paths) > 5)}"
            for label, paths in (("without a counterpart:", missing), ("not expected:", extra))
            if paths
        )
    )


# --- Leaves


def moment_like(parameter: Any) -> Array | None:
    """Zeros in the shape of a parameter and the dtype of its state; None where it has none."""
    parameter = operand(parameter, "a parameter")
    if not dtypes.is_inexact(parameter.dtype):
        return None
    return zeros(parameter.shape, dtype=dtypes.accumulation(parameter.dtype))


def as_update(gradient: Any) -> Array:
    """A gradient in the dtype that updates have."""
    gradient = operand(gradient, "a gradient")
    if not dtypes.is_inexact(gradient.dtype):
        raise DtypeError(f"a gradient is a floating array, got {gradient.aval}.")
    return gradient.astype(dtypes.accumulation(gradient.dtype))


def zero_count() -> Array:
    """The count of steps done: int32, shape ()."""
    return zeros((), dtype=dtypes.int32)


def expect_state(state: Any, kind: type, name: str) -> None:
    """Raise TypeError unless `state` is of the kind that the transformation's `init` makes."""
    if not isinstance(state, kind):
        raise TypeError(
            f"{name}: the state is the {kind.__name__} that init(params) or the last update "
            f"returned, got {state!r:.60}."
        )


# --- Putting together


def apply_updates(params: Any, updates: Any) -> Any:
    """`params + updates`: each parameter keeps its dtype, and stays where its update is None.

    Raises ShapeError when an update has not the shape of its parameter.

    >>> import nuvec as nv
    >>> from nuvec.nn import optim
    >>> optim.apply_updates({"w": nv.array([1.0, 2.0])}, {"w": nv.array([0.5, 0.5])})["w"]
    array([1.5, 2.5], dtype=float32)
    """

    def apply(parameter: Any, update: Any) -> Any:
        if update is None:
            return parameter
        parameter, update = operand(parameter, "a parameter"), operand(update, "an update")
        return (parameter + update).astype(parameter.dtype)

    return map_arrays(apply, params, updates)


def stateless(update: Callable[[Any, Any], Any]) -> GradientTransformation:
    """The transformation of a function `(updates, params) -> updates`.

    >>> import nuvec as nv
    >>> from nuvec.nn import optim
    >>> negate = optim.stateless(lambda updates, params: nv.tree.map(lambda u: -u, updates))
    >>> negate.update([nv.array(2.0)], negate.init(None))[0]
    [array(-2., dtype=float32)]
    """
    return GradientTransformation(
        lambda params: EmptyState(),
        lambda updates, state, params=None: (update(updates, params), state),
    )


def identity() -> GradientTransformation:
    """Returns the gradients as they are."""
    return stateless(lambda updates, params: updates)


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Applies transformations one after the other; the state is the tuple of their states.

    Raises TypeError for an argument that is no pair of functions `init` and `update`.

    >>> from nuvec.nn import optim
    >>> optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-3))
    """
    for i, part in enumerate(transformations):
        if not (callable(getattr(part, "init", None)) and callable(getattr(part, "update", None))):
            name = getattr(part, "__name__", None)
            hint = f"; call it: {name}(...)" if name else ""
            raise TypeError(
                f"chain: argument {i} is no GradientTransformation but {part!r:.60}{hint}."
            )

    def init(params: Any) -> tuple[Any, ...]:
        return tuple(transformation.init(params) for transformation in transformations)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, tuple | list):
            raise TypeError(
                "the state of a chain is the tuple that init(params) or the last update "
                f"returned, got {state!r:.60}."
            )
        if len(state) != len(transformations):
            raise TreeError(
                f"a chain of {len(transformations)} transformations got a state of {len(state)}."
            )
        after = []
        for transformation, part in zip(transformations, state, strict=True):
            updates, part = transformation.update(updates, part, params)
            after.append(part)
        return updates, tuple(after)

    return GradientTransformation(init, update)

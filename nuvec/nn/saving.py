"""Weights for a model, from a file or by name: what `Module.load_weights` checks and puts in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ArgumentError, TreeError
from nuvec.nn import weight_files
from nuvec.nn.names import differences, named_leaves

__all__ = ["refuse_conflicts", "weights_for"]


def weights_for(parameters: Any, source: Any, strict: bool, owner: str) -> Any:
    """Arrays nested as `parameters`: those of a source where it has them, else the same.

    source -- a file, pairs (name, array) or a dict
    strict -- TreeError unless names, shapes and dtypes are those of the parameters
    owner -- what messages call the model
    """
    label, weights = _named_weights(source)
    own = dict(named_leaves(parameters))
    wrong = differences(own, weights, complete=True, same_dtype=True) if strict else ""
    if wrong:
        raise TreeError(
            f"load_weights: {label} does not fit this {owner}:\n{wrong}\nCall set_dtype first to "
            "load another dtype, or pass strict=False to take what there is as it is."
        )
    new = {name: _array(name, value) for name, value in weights.items() if name in own}
    leaves = [new.get(name, array) for name, array in own.items()]
    return tree.structure(parameters).unflatten(leaves)


def refuse_conflicts(given: Any, written: Any) -> None:
    """TreeError where weights that were written to a model are not what it then holds: two names
    mean one parameter, that of a module in two places, and the weights for them differ."""
    pairs = zip(named_leaves(given), named_leaves(written), strict=True)
    lost = [
        name
        for (name, wanted), (_, held) in pairs
        if held is not wanted and np.asarray(held).tobytes() != np.asarray(wanted).tobytes()
    ]
    if lost:
        raise TreeError(
            f"load_weights: {', '.join(lost)} belong to a module that is found in two places, and "
            "the weights for its other place differ. Use two modules, or pass strict=False to "
            "take the last."
        )


def _named_weights(source: Any) -> tuple[str, dict[str, Any]]:
    """Weights by name, and what messages call them: from a file, a dict, or pairs (name, array).
    ArgumentError for anything else, and where a name occurs twice."""
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source)), dict(weight_files.read(source))
    if isinstance(source, Mapping):
        source = source.items()
    elif not isinstance(source, Iterable):
        raise _not_weights(type(source).__name__)
    found: dict[str, Any] = {}
    for pair in source:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise _not_weights(f"one with {pair!r} in it")
        if pair[0] in found:
            raise ArgumentError(f"load_weights: the weight {pair[0]!r} occurs twice.")
        found[pair[0]] = pair[1]
    return "what was given", found


def _not_weights(got: str) -> ArgumentError:
    return ArgumentError(
        'load_weights takes the path of a file, or pairs ("layers.0.weight", array), or a dict of '
        f"such names; got {got}."
    )


def _array(name: str, value: Any) -> Array:
    if isinstance(value, Array):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return from_numpy(value)
    raise ArgumentError(f"load_weights: {name} is a {type(value).__name__}, not an array.")

"""quantize: a model's layers, replaced by quantised ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nuvec.core import tree
from nuvec.core.errors import ArgumentError, ShapeError
from nuvec.core.traceback import filtered
from nuvec.nn.module import Module
from nuvec.nn.names import dotted

__all__ = ["quantize"]

Predicate = Callable[[str, Module], Any]


@filtered
def quantize(
    model: Module,
    group_size: int = 64,
    bits: int = 4,
    class_predicate: Predicate | None = None,
    *,
    mode: str = "affine",
) -> None:
    """Replace the layers of a model that have `to_quantized` by what it returns, in place.

    class_predicate -- `class_predicate(path, module)` for each layer without layers in it, its
        path as in "layers.0": True for the group_size and bits given here, a dict of arguments
        for `to_quantized` for others, False to leave it as it is. By default every layer that can
        be is quantised: `Linear` and `Embedding`.

    A layer found in two places stays one. Raises ShapeError, naming the layer, where group_size
    does not divide its input dimension, and ArgumentError for a predicate that selects a layer
    without `to_quantized` or returns something else, and for a model that is itself such a layer;
    the model is then what it was.

    >>> import nuvec.nn as nn
    >>> model = nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 64), nn.Linear(64, 3))
    >>> nn.quantize(model, class_predicate=lambda path, m: path != "layers.2" or {"bits": 8})
    >>> [(type(layer).__name__, layer.bits) for layer in model.layers]
    [('QuantizedEmbedding', 4), ('QuantizedLinear', 4), ('QuantizedLinear', 8)]
    """
    if not model.children() and hasattr(model, "to_quantized"):
        raise ArgumentError(
            f"nn.quantize changes the layers of a model, and {type(model).__name__} is itself a "
            "layer: write layer = layer.to_quantized(group_size=..., bits=...)"
        )
    given = {"group_size": group_size, "bits": bits, "mode": mode}
    predicate = class_predicate or (lambda path, module: hasattr(module, "to_quantized"))
    found, structure = tree.flatten_with_path(model.leaf_modules(), is_leaf=Module.is_module)
    made: dict[Any, Module] = {}  # of a layer in several places, one
    layers = []
    for place, module in found:
        path = dotted(place)
        arguments = _arguments(path, module, predicate(path, module), given)
        if arguments is not None:
            key = (id(module), tuple(sorted(arguments.items())))
            if key not in made:
                made[key] = _quantized(path, module, arguments)
            module = made[key]
        layers.append(module)
    model.update_modules(tree.unflatten(structure, layers))


def _arguments(
    path: str, module: Module, answer: Any, given: dict[str, Any]
) -> dict[str, Any] | None:
    """What `to_quantized` is called with; None for a layer that stays."""
    if not isinstance(answer, bool | dict):
        raise ArgumentError(
            "nn.quantize: class_predicate must return True, False, or a dict of arguments for "
            f"to_quantized; for {path!r} it returned {answer!r:.60}"
        )
    if answer is False:
        return None
    if not hasattr(module, "to_quantized"):
        raise ArgumentError(
            f"nn.quantize: {path!r} is a {type(module).__name__}, which has no to_quantized; "
            "class_predicate must return False for it"
        )
    return given if answer is True else answer


def _quantized(path: str, module: Module, arguments: dict[str, Any]) -> Module:
    try:
        return module.to_quantized(**arguments)  # type: ignore[attr-defined]
    except ShapeError as error:
        raise ShapeError(
            f"nn.quantize: {path!r}, {type(module).__name__}({module._extra_repr()}): {error}; or "
            "return False for it from class_predicate"
        ) from error

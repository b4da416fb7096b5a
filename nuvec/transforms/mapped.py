"""Which axes a vmap maps: in_axes against the arguments, out_axes against the outputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.core.errors import ArgumentError, AxisError, ShapeError, TreeError
from nuvec.core.ops.build import normalize_axis
from nuvec.core.ops.shape import broadcast_to, move_axis


def argument_axes(
    in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any], labels: list[str],
    positional: int, name: str,
) -> list[Any]:  # fmt: skip
    """An axis or None for every leaf of (args, kwargs).  `positional` of the arguments were
    passed by position."""
    everything = {**dict(zip(labels, args, strict=True)), **kwargs}
    if isinstance(in_axes, dict):
        unknown = sorted(map(repr, set(in_axes) - set(everything)))
        if unknown:
            raise TreeError(
                f"{name}: in_axes names {', '.join(unknown)}, and the arguments are "
                f"{list(everything)}"
            )
        prefixes = [in_axes.get(k) for k in labels]
        named = {k: in_axes.get(k) for k in kwargs}
    elif isinstance(in_axes, tuple | list):
        if len(in_axes) not in (len(args), positional):
            raise TreeError(
                f"{name}: in_axes has {len(in_axes)} entries for {len(args)} positional arguments "
                f"({', '.join(labels)}); give one an argument, or a dict by name"
            )
        prefixes = [*in_axes, *(0,) * (len(args) - len(in_axes))]
        named = dict.fromkeys(kwargs, 0)
    else:
        prefixes = [in_axes] * len(args)
        named = dict.fromkeys(kwargs, in_axes)
    found: list[Any] = []
    pairs = [*zip(labels, prefixes, args, strict=True)]
    pairs += [(k, named[k], kwargs[k]) for k in sorted(kwargs)]  # the order of a tree's keys
    for label, prefix, argument in pairs:
        found += _prefix(
            f"{name}: in_axes for argument {label!r}", prefix, tree.structure(argument)
        )
    return found


def _prefix(what: str, prefix: Any, structure: Any) -> list[Any]:
    try:
        axes = tree.broadcast_prefix(prefix, structure)
    except TreeError as error:
        raise TreeError(f"{what} does not fit it: {error}") from None
    for axis in axes:
        if axis is not None and (isinstance(axis, bool) or not hasattr(axis, "__index__")):
            raise ArgumentError(f"{what} must be an integer or None, got {axis!r}")
    return axes


def size_of(
    name: str, arrays: Sequence[Any], axes: Sequence[int | None], where: Sequence[str],
    axis_size: int | None,
) -> int:  # fmt: skip
    """How many elements are mapped; every mapped axis and `axis_size` must say the same."""
    listed = [
        (f"{label}: axis {axis}, size {a.shape[axis]}", a.shape[axis])
        for a, axis, label in zip(arrays, axes, where, strict=True)
        if axis is not None
    ]
    if axis_size is not None:
        try:
            if isinstance(axis_size, bool):
                raise TypeError
            size = operator.index(axis_size)
        except TypeError:
            raise ArgumentError(
                f"{name}: axis_size must be an integer, got {axis_size!r}"
            ) from None
        if size < 0:
            raise ShapeError(f"{name}: axis_size must not be negative, got {size}")
        listed.append((f"axis_size: {size}", size))
    if not listed:
        raise ShapeError(
            f"{name}: nothing is mapped; give an argument an axis in in_axes, or say how many "
            "elements there are with axis_size="
        )
    if len({n for _, n in listed}) > 1:
        raise ShapeError(
            f"{name}: mapped axes must have one size, and they have: "
            + "; ".join(text for text, _ in listed)
        )
    return listed[0][1]


def place_outputs(
    pairs: Sequence[tuple[Array, int | None]], structure: Any, out_axes: Any, size: int, name: str
) -> Any:
    """The outputs with the mapped axis where `out_axes` says, as a tree."""
    if isinstance(out_axes, list) and structure.container is not None:
        out_axes = _like(out_axes, structure)
    spec = _prefix(f"{name}: out_axes", out_axes, structure)
    outs = []
    for (out, axis), target, path in zip(pairs, spec, structure.paths(), strict=True):
        what = f"output{tree.keystr(path)}"
        if target is None:
            if axis is not None:
                raise ShapeError(
                    f"{name}: out_axes is None for {what}, which differs between the mapped "
                    "elements; give it an axis"
                )
            outs.append(out)
            continue
        rank = out.ndim + (axis is None)
        try:
            target = normalize_axis(target, rank, f"{name}: out_axes for {what}")
        except AxisError as error:
            element = out.shape if axis is None else (*out.shape[:axis], *out.shape[axis + 1 :])
            raise AxisError(f"{error} ({size} elements of shape {element})") from None
        if axis is None:
            out, axis = broadcast_to(out, (size, *out.shape)), 0
        outs.append(move_axis(out, axis, target))
    return tree.unflatten(structure, outs)


def _like(out_axes: list[Any], structure: Any) -> Any:
    """A list of axes stands for a tuple where the function returns a tuple."""
    return tuple(out_axes) if structure.container.cls is tuple else out_axes

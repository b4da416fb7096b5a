"""Check of batching rules: vmap against a Python loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ArgumentError, TreeError
from nuvec.core.ops.build import normalize_axis
from nuvec.testing.compare import (
    call_of,
    compare_trees,
    natural,
    numpy_leaves,
    program_of,
    rules_run,
    run_plain,
)  # fmt: skip
from nuvec.transforms.arguments import bind_arguments
from nuvec.transforms.mapped import argument_axes
from nuvec.transforms.vmap import vmap

SIZE = 3  # of the batches: differs from most axes of test arrays, and is not 1 or 2


def check_vmap(
    fn: Callable[..., Any], args: Sequence[Any], in_axes: Any = None, out_axes: Any = None, *,
    rtol: float = 1e-5, atol: float = 1e-6, vary: bool = True, limit: int = 40,
) -> None:  # fmt: skip
    """Check that `vmap(fn)` equals a loop over the batch.

    fn       -- takes `args` as Arrays, returns an Array or a tree of them
    args     -- arrays for ONE element; batches are made of them: elements are shifted between the
                positions, so that every element of a batch is within the function's domain
    in_axes  -- as `nv.vmap` takes it: an integer, a tuple with an entry an argument, or a dict by
                argument name; it says where the batches have the axis, in the given arguments'
                shapes with it put in.  None (the default) tries every combination of batched and
                unbatched leaves and every position of the batch axis, or, where there are more
                than `limit`, an even selection of them
    out_axes -- likewise, for the outputs; None tries the first and the last axis
    vary     -- False batches copies of `args` (for functions with a narrow domain)

    Raises AssertionError with the program, the inputs and the two values, or the error that a rule
    raised (its cause); ArgumentError, AxisError or TreeError (each a ValueError) when it is itself
    called with something else.

    >>> import nuvec as nv
    >>> nv.testing.check_vmap(nv.matmul, (nv.ones((2, 3)), nv.ones(3)))
    >>> nv.testing.check_vmap(nv.matmul, (nv.ones((2, 3)), nv.ones(3)), in_axes=(-1, None))
    """
    arrays = call_of("check_vmap", fn, args)
    limit = natural("check_vmap: limit", limit, 1)
    leaves, structure = tree.flatten(arrays)
    values = [np.asarray(x) for x in leaves]

    def flat(*inputs: Array) -> Any:
        return fn(*tree.unflatten(structure, inputs))

    if in_axes is not None:
        axes = _axes_given(fn, arrays, values, in_axes)
        subject = _Subject(flat, values, lambda xs: (fn, tree.unflatten(structure, xs)), in_axes)
        subjects = [(subject, axes)]
    else:
        subjects = [
            (_Subject(flat, values, lambda xs: (flat, xs), axes), axes)
            for axes in _every_axes([x.ndim for x in values], limit)
        ]
    run_plain("check_vmap", flat, leaves)
    for number, (subject, axes) in enumerate(subjects):
        both = (0, -1) if number == 0 else (0,)
        for place in both if out_axes is None else (out_axes,):
            subject.check(axes, place, rtol, atol, vary)


def _axes_given(
    fn: Callable[..., Any], arrays: tuple[Any, ...], values: list[np.ndarray], in_axes: Any
) -> tuple[int | None, ...]:
    """What `in_axes` says of each leaf."""
    name = "check_vmap"
    _, _, labels = bind_arguments(fn, arrays, {}, name)
    spec = argument_axes(in_axes, arrays, {}, labels, len(arrays), name)
    if all(axis is None for axis in spec):
        raise ArgumentError(f"{name}: in_axes={in_axes!r} maps nothing; give an argument an axis")
    return tuple([
        None if axis is None else normalize_axis(axis, v.ndim + 1, f"{name}: in_axes")
        for axis, v in zip(spec, values, strict=True)
    ])  # fmt: skip


def _every_axes(ranks: list[int], limit: int) -> Iterator[tuple[int | None, ...]]:
    """Every combination of axes with at least one batched, the fully batched first."""
    options = [[*range(rank + 1), -1, None] for rank in ranks]
    combinations = [c for c in itertools.product(*options) if any(a is not None for a in c)]
    stride = max(1, -(-len(combinations) // limit))
    # An even stride could keep to one option of the last leaf; an odd one meets them all.
    return iter(combinations[:: stride + (stride > 1 and stride % 2 == 0)])


def varied(x: np.ndarray, k: int) -> np.ndarray:
    """Element k of a batch made of `x`: its numbers at other positions and, where they are
    floating, a little smaller, so that the elements differ also in their sums and extremes."""
    if k == 0:
        return x
    moved = np.roll(x.reshape(-1), k).reshape(x.shape)
    if dtypes.is_inexact(x.dtype):
        return np.asarray(moved * (1 - k / 64)).astype(x.dtype)
    return moved


@dataclass(frozen=True)
class _Subject:
    """What is mapped, over which axes, and how it is called with batches."""

    flat: Callable[..., Any]  # of the leaves
    values: list[np.ndarray]  # the leaves, of one element
    call: Callable[[list[Array]], tuple[Callable[..., Any], Any]]  # (function, arguments)
    in_axes: Any  # of that function

    def check(
        self, axes: tuple[int | None, ...], out_axes: Any, rtol: float, atol: float, vary: bool
    ) -> None:
        flat = self.flat
        elements = [
            [
                varied(v, k) if vary and axis is not None else v
                for v, axis in zip(self.values, axes, strict=True)
            ]
            for k in range(SIZE)
        ]
        batched = [
            v if axis is None else np.stack([e[i] for e in elements], axis)
            for i, (v, axis) in enumerate(zip(self.values, axes, strict=True))
        ]
        with rules_run("the function itself", "the shape rule and the lowering", flat, elements[0]):
            outs = [flat(*[from_numpy(v) for v in e]) for e in elements]
            each = [numpy_leaves(o) for o in outs]
        places = _places(outs[0], each[0], out_axes)
        expected = [
            found[0] if axis is None else np.stack(found, axis)
            for found, axis in zip(zip(*each, strict=True), places, strict=True)
        ]
        inputs = [from_numpy(b) for b in batched]
        where = f"in_axes={self.in_axes}, out_axes={out_axes}"
        with rules_run(f"vmap with {where}", "the vmap rule", flat, elements[0]):
            function, given = self.call(inputs)
            found = vmap(function, in_axes=self.in_axes, out_axes=out_axes)(*given)
            compare_trees(
                f"vmap with {where} differs from a loop", "the vmap rule",
                lambda: program_of(flat, elements[0]), inputs, ("vmap", tree.leaves(found)),
                ("loop", expected), rtol, atol,
            )  # fmt: skip


def _places(out: Any, leaves: list[np.ndarray], out_axes: Any) -> list[int | None]:
    """Where the batch is in each output; None where the output has none."""
    try:
        axes = tree.broadcast_prefix(out_axes, tree.structure(out))
    except TreeError as error:
        raise TreeError(f"check_vmap: out_axes does not fit the output: {error}") from None
    for axis in axes:
        if axis is not None and (isinstance(axis, bool) or not hasattr(axis, "__index__")):
            raise ArgumentError(f"check_vmap: out_axes must be integers or None, got {axis!r}")
    return [
        None if axis is None else normalize_axis(axis, x.ndim + 1, "check_vmap: out_axes")
        for axis, x in zip(axes, leaves, strict=True)
    ]

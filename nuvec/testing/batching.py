"""Check of batching rules: vmap against a Python loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy
from nuvec.testing.compare import arrays_of, compare_trees, numpy_leaves, program_of
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
    in_axes  -- a tuple with an axis or None a leaf; None (the default) tries every combination of
                batched and unbatched leaves and every position of the batch axis, or, where there
                are more than `limit`, an even selection of them
    out_axes -- likewise an axis for the outputs; None tries the first and the last
    vary     -- False batches copies of `args` (for functions with a narrow domain)

    Raises AssertionError with the program, the inputs and the two values.

    >>> import nuvec as nv
    >>> nv.testing.check_vmap(nv.matmul, (nv.ones((2, 3)), nv.ones(3)))
    """
    leaves, structure = tree.flatten(arrays_of(args))
    values = [np.asarray(x) for x in leaves]
    if in_axes is None:
        choices = list(_every_axes([x.ndim for x in values], limit))
    else:
        choices = [tuple(in_axes)]
    for number, axes in enumerate(choices):
        _check(fn, structure, values, axes, 0 if out_axes is None else out_axes, rtol, atol, vary)
        if number == 0 and out_axes is None:
            _check(fn, structure, values, axes, -1, rtol, atol, vary)


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


def _check(
    fn: Callable[..., Any], structure: Any, values: list[np.ndarray], axes: tuple[int | None, ...],
    out_axis: int, rtol: float, atol: float, vary: bool,
) -> None:  # fmt: skip
    elements = [
        [
            varied(v, k) if vary and axis is not None else v
            for v, axis in zip(values, axes, strict=True)
        ]
        for k in range(SIZE)
    ]
    batched = [
        v if axis is None else np.stack([e[i] for e in elements], axis)
        for i, (v, axis) in enumerate(zip(values, axes, strict=True))
    ]

    def flat(*leaves: Array) -> Any:
        return fn(*tree.unflatten(structure, leaves))

    inputs = [from_numpy(b) for b in batched]
    found = vmap(flat, in_axes=axes, out_axes=out_axis)(*inputs)
    each = [numpy_leaves(flat(*[from_numpy(v) for v in e])) for e in elements]
    expected = [np.stack(outs, out_axis) for outs in zip(*each, strict=True)]
    compare_trees(
        f"vmap with in_axes={axes}, out_axes={out_axis} differs from a loop", "the vmap rule",
        lambda: program_of(flat, elements[0]), inputs, ("vmap", tree.leaves(found)),
        ("loop", expected), rtol, atol,
    )  # fmt: skip

"""cond and switch: run one of several branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ops.build import converted
from nuvec.core.ops.selection import clip
from nuvec.core.traceback import filtered
from nuvec.transforms.bodies import (
    Body,
    common_avals,
    interned,
    read_captures,
    same_structure,
    share_captures,
    strengthen,
)  # fmt: skip
from nuvec.transforms.branches import cond_p


@filtered
def cond(
    predicate: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where `predicate` holds, else `false_fun(*operands)`.

    Only the branch taken runs (under vmap with a mapped predicate, both do, and each element
    selects).  Both must return trees of one structure, with equal shapes and dtypes; TreeError,
    ShapeError or DtypeError otherwise.

    predicate -- a boolean scalar: an Array of shape () and dtype bool, or a Python bool

    >>> import nuvec as nv
    >>> nv.cond(nv.array(3.0) > 2, lambda x: x + 1, lambda x: -x, 1.0)
    array(2., dtype=float32)
    """
    test = operand(predicate, "cond's predicate")
    if test.shape != () or not dtypes.is_bool(test.dtype):
        kind = ShapeError if test.shape else DtypeError
        raise kind(
            f"cond: the predicate must be a boolean scalar, got {test.aval}; compare it, as in "
            "x > 0, or use nv.where for arrays"
        )
    return _choose("cond", test, [false_fun, true_fun], operands, ["false", "true"])


@filtered
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`; an index outside the branches is clamped to the nearest.

    Only the branch taken runs (under vmap with a mapped index all do, and each element selects).
    All must return trees of one structure, with equal shapes and dtypes; TreeError, ShapeError or
    DtypeError otherwise.

    index    -- an integer scalar: an Array of shape (), or a Python int
    branches -- a sequence of at least one function

    >>> import nuvec as nv
    >>> nv.switch(1, [lambda x: x, lambda x: x * x, lambda x: -x], 3.0)
    array(9., dtype=float32)
    """
    functions = list(branches)
    if not functions or not all(callable(f) for f in functions):
        raise TypeError(
            f"switch takes a sequence of at least one function, got {len(functions)} branches"
            if not functions else "switch takes functions as branches, got "
            + ", ".join(type(f).__name__ for f in functions)
        )  # fmt: skip
    chosen = operand(index, "switch's index")
    if chosen.shape != () or not dtypes.is_integer(chosen.dtype):
        kind = ShapeError if chosen.shape else DtypeError
        raise kind(
            f"switch: the index must be an integer scalar, got {chosen.aval}; use nv.cond for a "
            "boolean, and nv.vmap for an array of indices"
        )
    last = len(functions) - 1
    if last == 0:
        out = functions[0](*tree.map(lambda x: operand(x, "an operand of switch"), operands))
        return tree.map(lambda x: operand(x, "an output of switch"), out)
    if chosen.dtype != dtypes.int32:  # clamped first: a wide index may not fit
        chosen = clip(chosen, 0, last)
    if chosen.dtype != dtypes.int32 or chosen.aval.weak:
        chosen = converted(chosen, dtypes.int32)
    return _choose("switch", chosen, functions, operands, [str(k) for k in range(last + 1)])


def _choose(
    what: str, index: Array, functions: Sequence[Callable[..., Any]], operands: Sequence[Any],
    names: Sequence[str],
) -> Any:  # fmt: skip
    leaves, structure = tree.flatten(tuple(operands))
    arrays = [operand(x, f"an operand of {what}") for x in leaves]
    avals = [a.aval for a in arrays]
    labels = [f"the {n} branch" if what == "cond" else f"branch {n}" for n in names]
    bodies = [
        Body(f, structure, avals, f"{label} of {what}")
        for f, label in zip(functions, labels, strict=True)
    ]
    first = bodies[0]
    expected: Sequence[Any] = first.out_avals
    for body, label in zip(bodies[1:], labels[1:], strict=True):
        same_structure(what, first.structure, body.structure, (labels[0], label))
        expected = common_avals(what, expected, body.out_avals, first.structure, (labels[0], label))
    irs, sources = share_captures(bodies)
    outs = cond_p.bind(
        index, *read_captures(sources), *arrays,
        branches=tuple([interned(strengthen(ir, expected)) for ir in irs]),
    )  # fmt: skip
    return tree.unflatten(first.structure, outs[: len(expected)])

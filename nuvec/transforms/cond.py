"""cond and switch: run one of several branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError
from nuvec.core.functions.stream import read_sources
from nuvec.core.ops.build import converted
from nuvec.core.ops.selection import clip
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import arrays_of, call, require_function
from nuvec.transforms.bodies import (
    Body,
    Names,
    common_avals,
    interned,
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
    selects; what goes wrong in a branch is an error of the elements that take it alone).  Both
    must return trees of one structure, with equal shapes and dtypes; TreeError, ShapeError or
    DtypeError otherwise.

    predicate -- a boolean scalar: an Array of shape () and dtype bool, or a Python bool

    The default random stream moves on by what the branch that draws most draws.

    >>> import nuvec as nv
    >>> nv.cond(nv.array(3.0) > 2, lambda x: x + 1, lambda x: -x, 1.0)
    array(2., dtype=float32)
    """
    require_function("cond", true_fun, "true_fun")
    require_function("cond", false_fun, "false_fun")
    test = operand(predicate, "cond's predicate")
    if test.shape != () or not dtypes.is_bool(test.dtype):
        kind = ShapeError if test.shape else DtypeError
        raise kind(
            f"cond: the predicate must be a boolean scalar, got {test.aval}; compare it, as in "
            "x > 0, or use nv.where for arrays"
        )
    return choose(_COND, test, [false_fun, true_fun], operands, _TRUTH)


_COND = Names("cond", (((), "operand"),), (((), "output"),))
_SWITCH = Names("switch", (((), "operand"),), (((), "output"),))
_TRUTH = ("the false branch", "the true branch")


@filtered
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`; an index outside the branches is clamped to the nearest.

    Only the branch taken runs (under vmap with a mapped index all do, and each element selects;
    what goes wrong in a branch is an error of the elements that take it alone).  All must return
    trees of one structure, with equal shapes and dtypes; TreeError, ShapeError or DtypeError
    otherwise.

    index    -- an integer scalar: an Array of shape (), or a Python int
    branches -- a sequence of at least one function

    >>> import nuvec as nv
    >>> nv.switch(1, [lambda x: x, lambda x: x * x, lambda x: -x], 3.0)
    array(9., dtype=float32)
    """
    if not isinstance(branches, Sequence) or not branches:
        got = "an empty one" if isinstance(branches, Sequence) else type(branches).__name__
        raise ArgumentError(f"switch takes a sequence of at least one function, got {got}")
    functions = list(branches)
    for k, f in enumerate(functions):
        require_function("switch", f, f"branch {k}")
    chosen = operand(index, "switch's index")
    if chosen.shape != () or not dtypes.is_integer(chosen.dtype):
        kind = ShapeError if chosen.shape else DtypeError
        raise kind(
            f"switch: the index must be an integer scalar, got {chosen.aval}; use nv.cond for a "
            "boolean, and nv.vmap for an array of indices"
        )
    last = len(functions) - 1
    if last == 0:
        arrays, structure = _operands(_SWITCH, operands)
        out = _calling(_SWITCH, "branch 0", functions[0])(*tree.unflatten(structure, arrays))
        leaves, out_structure = tree.flatten(out)
        return tree.unflatten(out_structure, arrays_of(leaves, out_structure, _SWITCH.result))
    if chosen.dtype != dtypes.int32:  # clamped first: a wide index may not fit
        chosen = clip(chosen, 0, last)
    if chosen.dtype != dtypes.int32 or chosen.aval.weak:
        chosen = converted(chosen, dtypes.int32)
    labels = [f"branch {k}" for k in range(last + 1)]
    return choose(_SWITCH, chosen, functions, operands, labels)


def _operands(names: Names, operands: Sequence[Any]) -> tuple[list[Array], Any]:
    leaves, structure = tree.flatten(tuple(operands))
    arrays = arrays_of(leaves, structure, lambda p: f"{names.function}: {names.argument(p)}")
    return arrays, structure


def _calling(names: Names, label: str, f: Callable[..., Any]) -> Callable[..., Any]:
    def branch(*operands: Any) -> Any:
        return call(f, operands, f"{names.function} calls {label} with {len(operands)} operand(s)")

    return branch


def choose(
    names: Names, index: Array, functions: Sequence[Callable[..., Any]], operands: Sequence[Any],
    labels: Sequence[str],
) -> Any:  # fmt: skip
    """The result of the function that `index` says, of cond or of what is made of it.  `labels`
    are what messages call the functions."""
    what = names.function
    arrays, structure = _operands(names, operands)
    avals = [a.aval for a in arrays]
    bodies = [
        Body(_calling(names, label, f), structure, avals, f"{label} of {what}", names.argument,
             names.result)
        for f, label in zip(functions, labels, strict=True)
    ]  # fmt: skip
    first = bodies[0]
    expected: Sequence[Any] = first.out_avals
    for body, label in zip(bodies[1:], labels[1:], strict=True):
        both = (labels[0], label)
        same_structure(what, first.structure, body.structure, both)
        expected = common_avals(names.result, expected, body.out_avals, first.structure, both)
    irs, sources = share_captures(bodies)
    outs = cond_p.bind(
        index, *read_sources(sources), *arrays,
        branches=tuple([interned(strengthen(ir, expected)) for ir in irs]),
    )  # fmt: skip
    return tree.unflatten(first.structure, outs[: len(expected)])

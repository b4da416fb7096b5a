"""scan: a loop whose body is one recorded program, with carry, inputs and outputs per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ShapeError, TreeError
from nuvec.core.functions.stream import RANDOM_SOURCE, next_key
from nuvec.core.ir import IR, aval
from nuvec.core.ops.build import converted
from nuvec.core.ops.random import random_split_p
from nuvec.core.traceback import filtered
from nuvec.transforms.bodies import (
    Body,
    common_avals,
    interned,
    read_captures,
    same_structure,
    strengthen,
)  # fmt: skip
from nuvec.transforms.scan_rules import bind_scan


@filtered
def scan(
    f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None,
    reverse: bool = False, unroll: int | bool = 1,
) -> tuple[Any, Any]:  # fmt: skip
    """Loop `carry, y = f(carry, x)` over the leading axis of `xs`; returns (last carry, all ys).

    init    -- the first carry, a tree; `f` must return one of the same structure, shapes, dtypes
    xs      -- a tree of arrays with one leading size, or None with `length` given
    reverse -- from the last step to the first; `ys` keep their places
    unroll  -- as JAX's, an integer or a boolean.  A step is a call of one compiled program, so that
               there is nothing to gain from joining steps: nothing depends on it

    The body is recorded once.  Parts of it that need no carry are computed for all steps at once,
    before or after the loop, where that is cheaper.  Default random draws differ at every step.

    >>> import nuvec as nv
    >>> nv.scan(lambda c, x: (c + x, c * x), 0.0, nv.array([1.0, 2.0, 3.0]))
    (array(6., dtype=float32), array([0., 2., 9.], dtype=float32))
    """
    if not isinstance(unroll, int) or unroll < 0:
        raise TypeError(f"scan: unroll must be an integer >= 1 or a boolean, got {unroll!r}")
    carry_leaves, carry_structure = tree.flatten(init)
    carry = [operand(x, "a carry of scan") for x in carry_leaves]
    paths, xs_structure = tree.flatten_with_path(xs)
    inputs = [operand(leaf, f"scan: xs{tree.keystr(p)}") for p, leaf in paths]
    steps = _length([(tree.keystr(p), x) for (p, _), x in zip(paths, inputs, strict=True)], length)
    step_avals = [aval(x.shape[1:], x.dtype) for x in inputs]
    _, structure = tree.flatten(
        (tree.unflatten(carry_structure, carry), tree.unflatten(xs_structure, inputs))
    )
    avals = [x.aval for x in carry]
    while True:  # a weak carry takes the dtype the body gives it
        body = Body(_pair(f), structure, [*avals, *step_avals], "the body of scan")
        count = len(carry)
        out_carry, out_ys = body.structure.children
        labels = ("the carry", "its next value")
        same_structure("scan", carry_structure, out_carry, labels)
        following = body.out_avals[:count]
        expected = common_avals("scan", avals, following, carry_structure, labels)
        if all(a is b for a, b in zip(avals, expected, strict=True)):
            break
        avals = expected
    carry = [
        x if x.aval is a else converted(x, a.dtype, a.weak)
        for x, a in zip(carry, avals, strict=True)
    ]
    ir = strengthen(body.ir, [*avals, *body.out_avals[count:]])
    ir, fixed, keys = _random_inputs(ir, body.captures, steps)
    outs = bind_scan(fixed, carry, [*inputs, *keys], interned(ir), steps, bool(reverse))
    ys = outs[count : len(ir.outputs)]
    return tree.unflatten(carry_structure, outs[:count]), tree.unflatten(out_ys, ys)


def _pair(f: Callable[..., Any]) -> Callable[..., Any]:
    def body(carry: Any, x: Any) -> Any:
        result = f(carry, x)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                "scan: the body must return a pair (next carry, y), and it returned "
                f"{type(result).__name__}; write `return carry, None` when there is no y"
            )
        return result

    return body


def _length(inputs: list[tuple[str, Array]], length: int | None) -> int:
    sizes = {}
    for path, x in inputs:
        if not x.shape:
            raise ShapeError(f"scan: xs{path} is a scalar; it needs a leading axis to loop over")
        sizes[f"xs{path}"] = x.shape[0]
    if length is not None:
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 0:
            raise ShapeError(f"scan: length must be an integer, 0 or more, got {length!r}")
        sizes["length"] = int(length)
    if not sizes:
        raise ShapeError("scan: give xs, or length for a loop without inputs")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{k}: {n}" for k, n in sizes.items())
        raise ShapeError(f"scan: leading sizes differ: {listed}")
    return next(iter(sizes.values()))


def _random_inputs(
    ir: IR, captures: Sequence[Any], length: int
) -> tuple[IR, list[Array], list[Array]]:
    """Draws of the default stream must differ between steps: the scope's key becomes an input
    with one key a step."""
    if RANDOM_SOURCE not in captures:
        return ir, read_captures(captures), []
    place = list(captures).index(RANDOM_SOURCE)
    rest = [c for c in captures if c is not RANDOM_SOURCE]
    inputs = [v for i, v in enumerate(ir.inputs) if i != place]
    moved = IR((*inputs, ir.inputs[place]), ir.constants, ir.eqns, ir.outputs)
    return moved, read_captures(rest), [random_split_p.bind(next_key(), num=length)]

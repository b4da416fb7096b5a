"""scan: a loop whose body is one recorded program, with carry, inputs and outputs per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ArgumentError, ShapeError, TreeError
from nuvec.core.functions.stream import RANDOM_KEY, RandomPosition, drawn, take
from nuvec.core.ir import IR, aval
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.build import converted
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import arrays_of, call, require_function
from nuvec.transforms.bodies import (
    CARRIED,
    Body,
    Names,
    common_avals,
    interned,
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
    before or after the loop, where that is cheaper.  Default random draws are those of a Python
    loop: others at every step.

    >>> import nuvec as nv
    >>> nv.scan(lambda c, x: (c + x, c * x), 0.0, nv.array([1.0, 2.0, 3.0]))
    (array(6., dtype=float32), array([0., 2., 9.], dtype=float32))
    """
    return scan_as(_SCAN, f, init, xs, length, reverse, unroll)


_SCAN = Names(
    "scan", (((0,), "carry"), ((1,), "x")), (((0,), "the next carry"), ((1,), "y")), "(carry, x)"
)


def scan_as(
    names: Names, f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None,
    reverse: bool = False, unroll: int | bool = 1,
) -> tuple[Any, Any]:  # fmt: skip
    """scan, for itself and for what is made of it."""
    what = names.function
    if not isinstance(unroll, int) or (unroll < 1 and unroll is not False):
        raise ArgumentError(f"{what}: unroll must be an integer >= 1 or a boolean, got {unroll!r}")
    if not isinstance(reverse, bool | int | np.bool_):
        raise ArgumentError(f"{what}: reverse must be a boolean, got {reverse!r}")
    carry, carry_structure = names.init(init), tree.structure(init)
    leaves, xs_structure = tree.flatten(xs)
    inputs = arrays_of(leaves, xs_structure, lambda p: f"{what}: xs{tree.keystr(p)}")
    places = [tree.keystr(p) for p in xs_structure.paths()]
    steps = _length(what, list(zip(places, inputs, strict=True)), length)
    step_avals = [aval(x.shape[1:], x.dtype) for x in inputs]
    _, structure = tree.flatten(
        (tree.unflatten(carry_structure, carry), tree.unflatten(xs_structure, inputs))
    )
    avals = [x.aval for x in carry]
    while True:  # a weak carry takes the dtype the body gives it
        body = Body(
            _pair(names, f), structure, [*avals, *step_avals], f"the body of {what}",
            names.argument, names.result,
        )  # fmt: skip
        count = len(carry)
        out_carry, out_ys = body.structure.children
        same_structure(what, carry_structure, out_carry, CARRIED)
        following = body.out_avals[:count]
        expected = common_avals(names.carry, avals, following, carry_structure, CARRIED)
        if all(a is b for a, b in zip(avals, expected, strict=True)):
            break
        avals = expected
    carry = [
        x if x.aval is a else converted(x, a.dtype, a.weak)
        for x, a in zip(carry, avals, strict=True)
    ]
    ir = strengthen(body.ir, [*avals, *body.out_avals[count:]])
    ir, fixed, keys = _random_inputs(ir, body.captures, steps, reverse)
    outs = bind_scan(fixed, carry, [*inputs, *keys], interned(ir), steps, bool(reverse))
    ys = outs[count : len(ir.outputs)]
    return tree.unflatten(carry_structure, outs[:count]), tree.unflatten(out_ys, ys)


def _pair(names: Names, f: Callable[..., Any]) -> Callable[..., Any]:
    require_function(names.function, f, "its body")

    def body(carry: Any, x: Any) -> Any:
        result = call(f, (carry, x), f"{names.function} calls its body with {names.calls}")
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                "scan: the body must return a pair (next carry, y), and it returned "
                f"{type(result).__name__}; write `return carry, None` when there is no y"
            )
        return result

    return body


def _length(what: str, inputs: list[tuple[str, Array]], length: int | None) -> int:
    sizes = {}
    for path, x in inputs:
        if not x.shape:
            raise ShapeError(f"{what}: xs{path} is a scalar; it needs a leading axis to loop over")
        sizes[f"xs{path}"] = x.shape[0]
    if length is not None:
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 0:
            raise ShapeError(f"{what}: length must be an integer, 0 or more, got {length!r}")
        sizes["length"] = int(length)
    if not sizes:
        without = "; give length for a loop without inputs" if what == "scan" else ""
        raise ShapeError(f"{what}: xs has no arrays to loop over{without}")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{k}: {n}" for k, n in sizes.items())
        raise ShapeError(f"{what}: leading sizes differ: {listed}")
    return next(iter(sizes.values()))


def _random_inputs(
    ir: IR, captures: Sequence[Any], length: int, reverse: bool
) -> tuple[IR, list[Array], list[Array]]:
    """Draws of the default stream differ between steps, as those of a Python loop do: the body's
    position in the stream becomes an input with one position a step."""
    place = next((i for i, c in enumerate(captures) if isinstance(c, RandomPosition)), None)
    if place is None:
        return ir, list(captures), []
    count = drawn(captures)
    key, position = take(count * length)
    fixed = [key if c is RANDOM_KEY else c for i, c in enumerate(captures) if i != place]
    inputs = [v for i, v in enumerate(ir.inputs) if i != place]
    moved = IR((*inputs, ir.inputs[place]), ir.constants, ir.eqns, ir.outputs)
    offsets = np.arange(length, dtype=np.uint64) * np.uint64(count)
    return moved, fixed, [add(position, from_numpy(offsets[::-1] if reverse else offsets))]

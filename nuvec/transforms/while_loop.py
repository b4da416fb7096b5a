"""while_loop: as many steps as a condition asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import DtypeError, ShapeError, TreeError
from nuvec.core.functions.stream import RANDOM_SOURCE
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.build import converted
from nuvec.core.ops.random import random_fold_in_p
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.transforms.bodies import (
    KEY_AVAL,
    Body,
    common_avals,
    interned,
    read_captures,
    same_structure,
    share_captures,
    strengthen,
)  # fmt: skip
from nuvec.transforms.cond import cond
from nuvec.transforms.scan import scan
from nuvec.transforms.while_rules import finished_p, while_p


@filtered
def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any, *,
    max_steps: int | None = None,
) -> Any:  # fmt: skip
    """`carry = body_fun(carry)` as long as `cond_fun(carry)` holds, from `init`; the last carry.

    cond_fun  -- returns a boolean scalar
    body_fun  -- returns a carry of the structure, shapes and dtypes of `init`
    max_steps -- the most steps it can take.  With it the loop is differentiable in both modes
                 (memory grows with max_steps); an error is raised at evaluation when the
                 condition still holds after them.  Without it, forward mode alone

    Under vmap with a condition that is mapped, the body runs as long as it holds for any element,
    and elements that are done keep their carry.  Raises TreeError, ShapeError or DtypeError when
    `body_fun` changes the carry's structure or types.

    >>> import nuvec as nv
    >>> nv.while_loop(lambda x: x < 100, lambda x: x * 2, nv.array(3.0))
    array(192., dtype=float32)
    """
    if max_steps is not None:
        return _bounded(cond_fun, body_fun, init, max_steps)
    leaves, carry_structure = tree.flatten(init)
    carry = [operand(x, "a carry of while_loop") for x in leaves]
    if not carry:
        raise TreeError(
            "while_loop: the carry has no arrays, so its condition can never change; put what "
            "changes into init"
        )
    _, structure = tree.flatten((tree.unflatten(carry_structure, carry),))
    avals = [x.aval for x in carry]
    labels = ("the carry", "its next value")
    while True:  # a weak carry takes the dtype the body gives it
        body = Body(body_fun, structure, avals, "the body of while_loop")
        same_structure("while_loop", carry_structure, body.structure, labels)
        expected = common_avals("while_loop", avals, body.out_avals, carry_structure, labels)
        if all(a is b for a, b in zip(avals, expected, strict=True)):
            break
        avals = expected
    test = Body(_checked(cond_fun), structure, avals, "the condition of while_loop")
    carry = [
        x if x.aval is a else converted(x, a.dtype, a.weak)
        for x, a in zip(carry, avals, strict=True)
    ]
    (test_ir, body_ir), sources = share_captures([test, body])
    body_ir = strengthen(body_ir, avals)
    consts = len(sources)
    if RANDOM_SOURCE in sources:
        place = sources.index(RANDOM_SOURCE)
        test_ir = _drawing(test_ir, place, 1, False)
        body_ir = _drawing(body_ir, place, 0, True)
        carry.append(literal(0, dtypes.uint64))
    outs = while_p.bind(
        *read_captures(sources), *carry,
        cond=interned(test_ir), body=interned(body_ir), consts=consts,
    )  # fmt: skip
    return tree.unflatten(carry_structure, outs[: len(avals)])


def _drawing(ir: Any, place: int, offset: int, counts: bool) -> Any:
    """An IR that draws from the default stream, with a counter after its carry: each step's key
    is the loop's with 2 * step + offset folded in, so draws differ between steps, and between
    condition and body."""

    def function(*inputs: Array) -> list[Array]:
        *values, number = inputs
        salt = number if offset == 0 else add(number, literal(offset, dtypes.uint64))
        values[place] = random_fold_in_p.bind(values[place], salt)
        outs = replay(ir, values)
        return [*outs, add(number, literal(2, dtypes.uint64))] if counts else outs

    avals = [*ir.in_avals, literal(0, dtypes.uint64).aval]
    assert avals[place] is KEY_AVAL
    drawing, captures = trace_ir(function, avals, "a loop that draws")
    assert not captures
    return drawing


def _checked(cond_fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def test(carry: Any) -> Array:
        result = cond_fun(carry)
        leaves, structure = tree.flatten(result)
        if len(leaves) != 1 or structure != _LEAF:
            raise TreeError(
                f"while_loop: the condition must return a boolean scalar, and it returned "
                f"{structure}"
            )
        found = operand(result, "the condition of while_loop")
        if found.shape != () or not dtypes.is_bool(found.dtype):
            kind = ShapeError if found.shape else DtypeError
            raise kind(
                f"while_loop: the condition must return a boolean scalar, got {found.aval}; "
                "compare it, as in x > 0, and reduce it with nv.any or nv.all"
            )
        return found

    return test


_LEAF = tree.structure(0)


def _bounded(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any, max_steps: int
) -> Any:
    """A scan over max_steps steps; those after the last do nothing but pass on the carry."""
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 0:
        raise TypeError(f"while_loop: max_steps must be an integer >= 0, got {max_steps!r}")
    test = _checked(cond_fun)
    leaves, structure = tree.flatten(init)
    init = tree.unflatten(structure, [operand(x, "a carry of while_loop") for x in leaves])
    labels = ("the carry", "its next value")

    def advance(carry: Any) -> Any:
        following = body_fun(carry)
        same_structure("while_loop", structure, tree.structure(following), labels)
        return test(following), following

    def step(state: Any, _: Any) -> Any:
        going, carry = state
        return cond(going, advance, lambda c: (False, c), carry), None

    (going, carry), _ = scan(step, (test(init), init), length=max_steps)
    return tree.map(lambda x: finished_p.bind(x, going, steps=max_steps), carry)

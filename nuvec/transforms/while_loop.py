"""while_loop: as many steps as a condition asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError, TreeError
from nuvec.core.functions.stream import (
    RANDOM_KEY,
    Folded,
    RandomPosition,
    another_stream,
    drawn,
    take,
)
from nuvec.core.ir import IR
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.build import converted
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import arrays_of, call, require_function
from nuvec.transforms.bodies import (
    CARRIED,
    Body,
    Names,
    common_avals,
    interned,
    same_structure,
    share_captures,
    strengthen,
)  # fmt: skip
from nuvec.transforms.cond import choose
from nuvec.transforms.scan import scan_as
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

    With max_steps it draws from the default random stream as a Python loop does, and moves it on
    by what that many steps draw.  Without, how many steps there are is not known, and it has a
    stream of its own, which counts as one draw.

    Random draws without a key are from a stream of the loop's own, which is one draw of the stream
    around it: how many steps there are is not known.  So they are other numbers than a Python loop
    draws, and the same in each transform.  With max_steps they are the Python loop's.

    Under vmap with a condition that is mapped, the body runs as long as it holds for any element,
    and elements that are done keep their carry: what would go wrong in further steps of theirs is
    no error.  Raises TreeError, ShapeError or DtypeError when
    `body_fun` changes the carry's structure or types.

    >>> import nuvec as nv
    >>> nv.while_loop(lambda x: x < 100, lambda x: x * 2, nv.array(3.0))
    array(192., dtype=float32)
    """
    if max_steps is not None:
        return _bounded(cond_fun, body_fun, init, max_steps)
    return while_as(_WHILE, cond_fun, body_fun, init)


_WHILE = Names("while_loop", (((0,), "carry"),), (((), "the next carry"),))


def while_as(
    names: Names, cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any
) -> Any:
    """while_loop, for itself and for what is made of it."""
    what = names.function
    test_fun, body_fun = _checked(cond_fun), _called(body_fun)
    carry, carry_structure = names.init(init), tree.structure(init)
    if not carry:
        raise TreeError(
            f"{what}: the carry has no arrays, so its condition can never change; put what "
            "changes into init"
        )
    _, structure = tree.flatten((tree.unflatten(carry_structure, carry),))
    avals = [x.aval for x in carry]
    while True:  # a weak carry takes the dtype the body gives it
        body = Body(body_fun, structure, avals, f"the body of {what}", names.argument, names.result)
        same_structure(what, carry_structure, body.structure, CARRIED)
        expected = common_avals(names.carry, avals, body.out_avals, carry_structure, CARRIED)
        if all(a is b for a, b in zip(avals, expected, strict=True)):
            break
        avals = expected
    test = Body(
        test_fun, structure, avals, f"the condition of {what}", names.argument, names.result
    )
    carry = [
        x if x.aval is a else converted(x, a.dtype, a.weak)
        for x, a in zip(carry, avals, strict=True)
    ]
    (test_ir, body_ir), sources = share_captures([test, body])
    body_ir = strengthen(body_ir, avals)
    consts = len(sources)
    if RANDOM_KEY in sources:
        place = next(i for i, s in enumerate(sources) if isinstance(s, RandomPosition))
        tested, ran = drawn(test.captures), drawn(body.captures)
        test_ir = _drawing(test_ir, place, 0, 0)
        body_ir = _drawing(body_ir, place, tested, tested + ran)
        own, start = another_stream(*take(1), Folded.LOOP), literal(0, dtypes.uint64)
        captured = [own if s is RANDOM_KEY else s for s in sources]
        captured[place] = start
        carry.append(start)
    else:
        captured = sources
    outs = while_p.bind(
        *captured, *carry,
        cond=interned(test_ir), body=interned(body_ir), consts=consts,
    )  # fmt: skip
    return tree.unflatten(carry_structure, outs[: len(avals)])


def _drawing(ir: IR, place: int, offset: int, step: int) -> IR:
    """An IR that draws from the default stream, with a position after its carry: it draws from
    `offset` after it, and moves it on by `step` where that is not 0."""

    def function(*inputs: Array) -> list[Array]:
        *values, position = inputs
        values[place] = add(position, literal(offset, dtypes.uint64)) if offset else position
        outs = replay(ir, values)
        return [*outs, add(position, literal(step, dtypes.uint64))] if step else outs

    avals = [*ir.in_avals, literal(0, dtypes.uint64).aval]
    drawing, captures = trace_ir(function, avals, "a loop that draws")
    assert not captures
    return drawing


def _called(body_fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    require_function("while_loop", body_fun, "body_fun")
    return lambda carry: call(body_fun, (carry,), "while_loop calls body_fun with (carry)")


def _checked(cond_fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    require_function("while_loop", cond_fun, "cond_fun")

    def test(carry: Any) -> Array:
        result = call(cond_fun, (carry,), "while_loop calls cond_fun with (carry)")
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
        raise ArgumentError(f"while_loop: max_steps must be an integer >= 0, got {max_steps!r}")
    test, next_of = _checked(cond_fun), _called(body_fun)
    structure = tree.structure(init)
    init = tree.unflatten(structure, _WHILE.init(init))

    def advance(carry: Any) -> Any:
        leaves, following = tree.flatten(next_of(carry))
        same_structure("while_loop", structure, following, CARRIED)
        found = arrays_of(leaves, structure, _WHILE.result)
        now = [x.aval for x in tree.leaves(carry)]
        common_avals(_WHILE.carry, now, [x.aval for x in found], structure, CARRIED)
        after = tree.unflatten(structure, found)
        return test(after), after

    def step(state: Any, _: Any) -> Any:
        going, carry = state
        functions = [lambda c: (False, c), advance]
        return choose(_WHILE, going, functions, (carry,), ("the end", "the body")), None

    (going, carry), _ = scan_as(_BOUNDED, step, (test(init), init), length=max_steps)
    return tree.map(lambda x: finished_p.bind(x, going, steps=max_steps), carry)


# The carry of the scan it is: whether the loop goes on, and the user's carry.
_BOUNDED = Names("while_loop", (((0, 1), "carry"),), (((0, 1), "the next carry"),))

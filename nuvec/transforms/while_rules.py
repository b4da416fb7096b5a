"""while_p, the primitive of while_loop: a body runs as long as a condition holds.

Operands: constants, which condition and body both read, then the first carry.  `cond` takes
constants and carry and returns one boolean; `body` takes the same and returns the next carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.ir import IR, Aval, Var, or_token
from nuvec.core.lower import lower
from nuvec.core.node import Trace, traces_set
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.comparison import logical_and
from nuvec.core.ops.differentiation import stop_gradient_p, zeros_of
from nuvec.core.ops.reduction import any as any_of
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import move_axis, reshape
from nuvec.core.primitive import Primitive, detach
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import format_user_frame
from nuvec.transforms.axis import communicates
from nuvec.transforms.bodies import marked
from nuvec.transforms.derive import split_ir
from nuvec.transforms.guard import can_raise, guarded
from nuvec.transforms.vmap import batched_ir


def _lower(*values: Any, cond: IR, body: IR, consts: int) -> tuple[Any, ...]:
    arrays = [np.asarray(v) for v in values]
    fixed, state = arrays[:consts], arrays[consts:]
    holds, step = lower(cond).runner(), lower(body).runner()
    while holds(*fixed, *state)[0]:
        state = step(*fixed, *state)
    return or_token(state)


def _shape_rule(*avals: Aval, cond: IR, body: IR, consts: int) -> tuple[Aval, ...]:
    return or_token(body.out_avals) if body.outputs else _no_carry()


def _no_carry() -> tuple[Aval, ...]:
    raise NuvecError("while_loop: the carry has no arrays, so its condition can never change")


def _isolated(function: Callable[..., Sequence[Array]], avals: Sequence[Aval], name: str) -> IR:
    with traces_set(()):
        ir, captures = trace_ir(function, avals, name)
    assert not captures
    return ir


# Batching


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, cond: IR, body: IR, consts: int
) -> tuple[list[Array], list[int | None]]:
    fixed = tuple(0 if a is not None else None for a in axes[:consts])
    carried = [a is not None for a in axes[consts:]]
    while True:  # a carry is batched when its initial value is, or its next value becomes so
        in_axes = (*fixed, *(0 if c else None for c in carried))
        batched, which = batched_ir(body, size, in_axes, tuple(carried))
        if list(which) == carried:
            break
        carried = list(which)
    test, (mapped,) = batched_ir(cond, size, in_axes)
    constants = [
        x if a is None else move_axis(x, a, 0)
        for x, a in zip(operands[:consts], axes[:consts], strict=True)
    ]
    pairs = list(zip(operands[consts:], axes[consts:], strict=True))
    if not mapped:
        state = [batch_first(x, a, size) if c else x
                 for (x, a), c in zip(pairs, carried, strict=True)]  # fmt: skip
        outs = while_p.bind(*constants, *state, cond=test, body=batched, consts=consts)
        return outs, [0 if c else None for c in carried]
    if communicates(cond) or communicates(body):
        raise NuvecError(
            "vmap of while_loop with a condition that is mapped runs its body as long as it holds "
            "for any element, and the loop communicates: ranks with other elements would run it "
            "another number of times. Take the communication out of the loop, or loop a fixed "
            "number of times with nv.scan"
        )
    state = [batch_first(x, a, size) for x, a in pairs]
    masked, some = _masked(cond, body, size, fixed, [x.aval for x in (*constants, *state)])
    going = replay(some[0], [*constants, *state])[0]
    outs = while_p.bind(*constants, going, *state, cond=some[1], body=masked, consts=consts)
    return outs[1:], [0] * len(pairs)


def _masked(
    cond: IR, body: IR, size: int, fixed: tuple[int | None, ...], avals: Sequence[Aval]
) -> tuple[IR, tuple[IR, IR]]:
    """The body over a whole batch, its carry preceded by which elements still go on: those that
    are done keep their carry.  Also the condition of every element, and whether any goes on."""
    key = ("masked", cond, size, fixed)
    found = body.derived.get(key)
    if found is not None:
        return found
    consts = len(fixed)
    axes = (*fixed, *(0,) * (len(avals) - consts))
    every = batched_ir(cond, size, axes, (True,))[0]
    # What goes wrong in a step is an error of the elements that take it alone.
    guards = can_raise(body)
    everywhere = (True,) * len(body.outputs)
    step = (
        batched_ir(guarded(body), size, (0, *axes), everywhere)[0]
        if guards
        else batched_ir(body, size, axes, everywhere)[0]
    )

    def masked(*xs: Array) -> list[Array]:
        constants, going, state = xs[:consts], xs[consts], xs[consts + 1 :]
        inputs = [going, *constants, *state] if guards else [*constants, *state]
        following = [
            where(reshape(going, (size, *(1,) * (new.ndim - 1))), new, old)
            for new, old in zip(replay(step, inputs), state, strict=True)
        ]
        # Who is done stays done: the condition of a carry that is kept is false again (and raises
        # nothing, for it did not before).
        return [replay(every, [*constants, *following])[0], *following]

    inputs = [*avals[:consts], every.out_avals[0], *avals[consts:]]
    some = _isolated(lambda *xs: [any_of(xs[consts])], inputs, "a condition over a batch")
    return body.remember(key, (_isolated(masked, inputs, "a loop over a batch"), (every, some)))


# Differentiation


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    cond, body, consts = params["cond"], params["body"], params["consts"]
    detached = [detach(a, trace) for a in operands]
    active = [
        marked(a, trace) and dtypes.is_inexact(a.dtype) and a._node.primitive is not stop_gradient_p
        for a in operands
    ]
    effect = cond.effect or body.effect
    if effect:
        raise NuvecError(
            f"while_loop at {format_user_frame()} communicates inside a differentiated function: "
            "its derivative would run the loop, and the communication, a second time. Give "
            "max_steps=N, the most steps it can take, or use nv.scan or nv.fori_loop"
        )
    outs = while_p.bind(*detached, **params)
    if not any(active):
        return outs, None
    if trace.mode == "vjp":
        where_ = format_user_frame()

        def refuse(cs: Sequence[Array | None]) -> list[Array | None]:
            if all(c is None for c in cs):
                return [None] * len(operands)
            raise NuvecError(
                f"reverse mode through the while_loop at {where_}: it would have to keep every "
                "step, and their number is not known. Give max_steps=N, the most steps it can "
                "take; or use nv.scan or nv.fori_loop with Python integers as bounds, forward "
                "mode (nv.jvp, nv.jacfwd), or stop_gradient on what enters the loop"
            )

        return outs, refuse
    return outs, lambda moving: _push(cond, body, consts, tuple(active), detached, moving)


def _push(
    cond: IR, body: IR, consts: int, active: tuple[bool, ...], operands: Sequence[Array],
    moving: Sequence[Array | None],
) -> list[Array | None]:  # fmt: skip
    """Forward mode: one loop over primal and tangent together."""
    fixed = active[:consts]
    changing = tuple(dtypes.is_inexact(a.dtype) for a in body.out_avals)
    test, step = _dual(cond, body, consts, fixed, changing)
    tangents = [
        zeros_of(x.aval) if t is None else t
        for x, t, on in zip(operands, moving, (*fixed, *changing), strict=True)
        if on
    ]
    n = sum(fixed)
    outs = while_p.bind(
        *operands[:consts], *tangents[:n], *operands[consts:], *tangents[n:],
        cond=test, body=step, consts=consts + n,
    )  # fmt: skip
    results = iter(outs[len(changing) :])
    return [next(results) if c else None for c in changing]


def _dual(
    cond: IR, body: IR, consts: int, fixed: tuple[bool, ...], changing: tuple[bool, ...]
) -> tuple[IR, IR]:
    """Condition and body over (constants, their tangents, carry, its tangents)."""
    key = ("dual", cond, fixed, changing)
    found = body.derived.get(key)
    if found is not None:
        return found
    split = split_ir(body, "jvp", (*fixed, *changing))
    n, carry = sum(fixed), len(changing)

    def parts(xs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        middle = consts + n
        return (
            [*xs[:consts], *xs[middle : middle + carry]],
            [*xs[consts:middle], *xs[middle + carry :]],
        )

    def step(*xs: Array) -> list[Array]:
        primals, tangents = parts(xs)
        found = replay(split.forward, primals)
        results = split.spread(replay(split.linear, [*found[carry:], *tangents]))
        return [
            *found[:carry],
            *[zeros_of(a) if t is None else t
              for t, a, on in zip(results, body.out_avals, changing, strict=True) if on],
        ]  # fmt: skip

    avals = body.in_avals
    state = avals[consts:]
    inputs = [
        *avals[:consts], *[a for a, on in zip(avals, fixed, strict=False) if on],
        *state, *[a for a, on in zip(state, changing, strict=True) if on],
    ]  # fmt: skip
    both = (
        _isolated(lambda *xs: replay(cond, parts(xs)[0]), inputs, "the condition of a loop"),
        _isolated(step, inputs, "a loop and its tangents"),
    )
    return body.remember(key, both)


# Guarding


def _guard(
    wanted: Array, *operands: Array, cond: IR, body: IR, consts: int
) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """It takes no step where it is not wanted: it might never end."""
    test, step = _stopped(cond, body)
    return (wanted, *operands), {"cond": test, "body": step, "consts": consts + 1}


def _stopped(cond: IR, body: IR) -> tuple[IR, IR]:
    """Condition and body with one more constant, the first, without which no step is taken."""
    key = ("stopped", cond)
    found = body.derived.get(key)
    if found is not None:
        return found
    test = guarded(cond)
    wanted = test.inputs[0].aval

    def stopped(*xs: Array) -> list[Array]:
        return [logical_and(xs[0], *replay(test, xs))]

    both = (
        _isolated(stopped, test.in_avals, "a guarded condition"),
        IR((Var(wanted), *body.inputs), body.constants, body.eqns, body.outputs),
    )
    return body.remember(key, both)


while_p = Primitive(
    "while_loop", _lower, _shape_rule, "call", vmap=_vmap, multiple=True, higher_order=True,
    split=_split, guard=_guard,
)  # fmt: skip


# finished(x, done) is x, and an error at evaluation where the loop was not done


def _finished_lower(x: Any, going: Any, steps: int) -> Any:
    if np.any(going):
        raise NuvecError(
            f"while_loop: the condition still holds after max_steps={steps} steps. Give a larger "
            "max_steps, or check that the condition becomes false"
        )
    return x


def _finished_vmap(
    size: int, axes: Sequence[int | None], x: Array, going: Array, steps: int
) -> tuple[Array, int | None]:
    return finished_p.bind(x, going, steps=steps), axes[0]


finished_p: Primitive = Primitive(
    "finished", _finished_lower, lambda x, going, steps: x, "other",
    transpose=lambda i, c, out, x, going, steps: finished_p.bind(c, going, steps=steps),
    linear="joint", linear_operands=(0,), vmap=_finished_vmap,
    guard=lambda wanted, x, going, steps: ((x, logical_and(wanted, going)), {"steps": steps}),
)  # fmt: skip

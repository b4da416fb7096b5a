"""scan: a loop whose body is one recorded program, with carry, inputs and outputs per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ShapeError, TreeError
from nuvec.core.functions.stream import RANDOM_SOURCE, next_key
from nuvec.core.ir import IR, TOKEN, Aval, Var, aval, or_token
from nuvec.core.lower import lower
from nuvec.core.node import Trace, traces_set
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.build import converted
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.random import random_split_p
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import Primitive, detach
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.transforms.bodies import (
    Body,
    common_avals,
    marked,
    read_captures,
    same_structure,
    strengthen,
)  # fmt: skip
from nuvec.transforms.derive import Split, split_ir
from nuvec.transforms.vmap import batched_ir

# scan's operands: constants (the same at every step), the initial carry, inputs with a leading
# axis of `length`.  The body takes constants, carry and one step's inputs, and returns the next
# carry and one step's outputs.  Results: the last carry, outputs with a leading axis of `length`.


def _lower(
    *values: Any, body: IR, consts: int, carry: int, length: int, reverse: bool
) -> tuple[Any, ...]:
    fixed = [np.asarray(v) for v in values[:consts]]
    state = [np.asarray(v) for v in values[consts : consts + carry]]
    inputs = [np.asarray(v) for v in values[consts + carry :]]
    stacked = [np.empty((length, *a.shape), a.dtype) for a in body.out_avals[carry:]]
    run = lower(body).run
    for i in reversed(range(length)) if reverse else range(length):
        found = run(*fixed, *state, *[x[i] for x in inputs])
        state = [np.asarray(s) for s in found[:carry]]
        for whole, part in zip(stacked, found[carry:], strict=True):
            whole[i] = part
    return or_token((*state, *stacked))


def _shape_rule(
    *avals: Aval, body: IR, consts: int, carry: int, length: int, reverse: bool
) -> tuple[Aval, ...]:
    outs = body.out_avals
    return (*outs[:carry], *[_stacked(a, length) for a in outs[carry:]]) or (TOKEN,)


def _stacked(a: Aval, length: int) -> Aval:
    return aval((length, *a.shape), a.dtype)


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, body: IR, consts: int, carry: int,
    length: int, reverse: bool,
) -> tuple[list[Array], list[int | None]]:  # fmt: skip
    start = consts + carry
    carried = [a is not None for a in axes[consts:start]]
    fixed_axes = tuple(0 if a is not None else None for a in axes[:consts])
    step_axes = tuple(0 if a is not None else None for a in axes[start:])
    while True:  # a carry is batched when its initial value is, or its next value becomes so
        in_axes = (*fixed_axes, *(0 if c else None for c in carried), *step_axes)
        forced = (*carried, *(False,) * (len(body.outputs) - carry))
        batched, which = batched_ir(body, size, in_axes, forced)
        if list(which[:carry]) == carried:
            break
        carried = list(which[:carry])
    moved = [
        x if a is None else move_axis(x, a, 0)
        for x, a in zip(operands[:consts], axes[:consts], strict=True)
    ]
    for x, a, c in zip(operands[consts:start], axes[consts:start], carried, strict=True):
        moved.append(batch_first(x, a, size) if c else x)
    for x, a in zip(operands[start:], axes[start:], strict=True):
        moved.append(x if a is None else move_axis(x, a, 1))
    outs = scan_p.bind(
        *moved, body=batched, consts=consts, carry=carry, length=length, reverse=reverse
    )
    return outs, [(0 if i < carry else 1) if w else None for i, w in enumerate(which)] or [None]


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    body, consts, carry = params["body"], params["consts"], params["carry"]
    start = consts + carry
    active = [marked(a, trace) for a in operands]
    if not any(active) and not body.effect:
        return scan_p.bind(*operands, **params), None
    # A carry may become active at any step: each of them is taken to be.
    active[consts:start] = [True] * carry
    parts = _split_body(body, consts, carry, trace.mode, tuple(active))
    detached = [detach(a, trace) for a in operands]
    found = scan_p.bind(*detached, **{**params, "body": parts.forward})
    n_out = len(body.outputs)
    outs, stacked = found[:n_out], found[n_out : len(parts.forward.outputs)]
    fixed = [detached[i] for i in parts.fixed]
    mode = _push if trace.mode == "jvp" else _pull
    return outs, lambda moving: mode(parts, fixed, stacked, moving, operands, outs, params)


class _Parts:
    """A split body.  `forward` stacks the residuals that differ between steps after the body's
    outputs; residuals that are constants of the scan (`fixed`: their positions) are not stacked.
    `linear` takes (fixed residuals, moving..., stacked residuals) as `_push` and `_pull` say."""

    def __init__(self, split: Split, body: IR, consts: int) -> None:
        n_out = len(body.outputs)
        forward = split.forward
        constants = {v: i for i, v in enumerate(forward.inputs[:consts])}
        residuals = forward.outputs[n_out:]
        self.fixed = [constants[r] for r in residuals if type(r) is Var and r in constants]
        changing = [i for i, r in enumerate(residuals) if not (type(r) is Var and r in constants)]
        unchanging = [i for i, r in enumerate(residuals) if type(r) is Var and r in constants]
        self.forward = IR(
            forward.inputs, forward.constants, forward.eqns,
            (*forward.outputs[:n_out], *[residuals[i] for i in changing]),
        )  # fmt: skip
        self.order = [*unchanging, *changing]
        self.split = split
        self.linears: dict[Any, IR] = {}

    def residuals(self, fixed: Sequence[Array], changing: Sequence[Array]) -> list[Array]:
        """The residuals in the split's order."""
        found: list[Any] = [None] * len(self.order)
        for place, x in zip(self.order, [*fixed, *changing], strict=True):
            found[place] = x
        return found


def _split_body(body: IR, consts: int, carry: int, mode: str, active: tuple[bool, ...]) -> _Parts:
    key = ("split scan", consts, carry, mode, active)
    found = body.derived.get(key)
    if found is None:
        found = body.remember(key, _Parts(split_ir(body, mode, active), body, consts))
    return found


def _is_inexact(a: Aval) -> bool:
    return dtypes.is_inexact(a.dtype)


def _push(
    parts: _Parts, fixed: list[Array], stacked: list[Array], moving: Sequence[Array | None],
    operands: Sequence[Array], outs: Sequence[Array], params: dict[str, Any],
) -> list[Array | None]:  # fmt: skip
    """Forward mode: a scan over tangents.  Constants: fixed residuals, tangents of constants;
    carry: tangents of the carry; inputs: stacked residuals, tangents of the inputs."""
    body, consts, carry = params["body"], params["consts"], params["carry"]
    start = consts + carry
    split, avals = parts.split, body.in_avals
    on_consts = [i for i in range(consts) if split.moving[i]]
    on_carry = [i for i in range(consts, start) if split.moving[i]]
    on_inputs = [i for i in range(start, len(avals)) if split.moving[i]]
    given = {i: _filled(moving[i], operands[i].aval) for i in (*on_consts, *on_carry, *on_inputs)}
    n_fixed = len(fixed)
    linear = parts.linears.get("push")
    if linear is None:
        n_stacked = len(stacked)

        def function(*xs: Array) -> list[Array]:
            it = iter(xs)
            f = [next(it) for _ in range(n_fixed)]
            tc = {i: next(it) for i in (*on_consts, *on_carry)}
            s = [next(it) for _ in range(n_stacked)]
            tc |= {i: next(it) for i in on_inputs}
            tangents = [tc[i] for i in range(len(avals)) if split.moving[i]]
            results = split.spread(replay(split.linear, [*parts.residuals(f, s), *tangents]))
            moved = [
                zeros_of(a) if r is None else r
                for r, a in zip(results, body.out_avals, strict=True)
            ]
            return [m for m, a in zip(moved, body.out_avals, strict=True) if _is_inexact(a)]

        in_avals = [
            *[x.aval for x in fixed], *[avals[i] for i in (*on_consts, *on_carry)],
            *[aval(x.shape[1:], x.dtype) for x in stacked], *[avals[i] for i in on_inputs],
        ]  # fmt: skip
        linear = parts.linears["push"] = _isolated(function, in_avals, "the tangents of a scan")
    results = iter(
        scan_p.bind(
            *fixed, *[given[i] for i in on_consts], *[given[i] for i in on_carry], *stacked,
            *[given[i] for i in on_inputs], body=linear, consts=n_fixed + len(on_consts),
            carry=len(on_carry), length=params["length"], reverse=params["reverse"],
        )
    )  # fmt: skip
    return [next(results) if _is_inexact(o.aval) else None for o in outs]


def _pull(
    parts: _Parts, fixed: list[Array], stacked: list[Array], moving: Sequence[Array | None],
    operands: Sequence[Array], outs: Sequence[Array], params: dict[str, Any],
) -> list[Array | None]:  # fmt: skip
    """Reverse mode: the scan backward.  Constants: fixed residuals; carry: cotangents of the
    carry, then sums of those of the constants; inputs: stacked residuals, cotangents of the
    outputs; outputs: cotangents of the inputs."""
    body, consts, carry = params["body"], params["consts"], params["carry"]
    start = consts + carry
    split, in_avals, out_avals = parts.split, body.in_avals, body.out_avals
    c_carry = [i for i in range(carry) if _is_inexact(out_avals[i])]
    c_consts = [i for i in range(consts) if split.results[i]]
    c_outs = [i for i in range(carry, len(out_avals)) if split.moving[i]]
    c_inputs = [i for i in range(start, len(in_avals)) if split.results[i]]
    n_fixed = len(fixed)
    linear = parts.linears.get("pull")
    if linear is None:
        n_stacked = len(stacked)

        def function(*xs: Array) -> list[Array]:
            it = iter(xs)
            f = [next(it) for _ in range(n_fixed)]
            cs = {i: next(it) for i in c_carry}
            sums = [next(it) for _ in c_consts]
            s = [next(it) for _ in range(n_stacked)]
            cs |= {i: next(it) for i in c_outs}
            given = [cs[i] for i in range(len(out_avals)) if split.moving[i]]
            results = split.spread(replay(split.linear, [*parts.residuals(f, s), *given]))
            following = []
            for i in c_carry:
                r = results[consts + i]
                # A carry that the body only passes on has no derivative through it of its own.
                following.append(zeros_of(in_avals[consts + i]) if r is None else r)
            added = [add(t, results[i]) for t, i in zip(sums, c_consts, strict=True)]
            return [*following, *added, *[_present(results[i]) for i in c_inputs]]

        avals = [
            *[x.aval for x in fixed], *[out_avals[i] for i in c_carry],
            *[in_avals[i] for i in c_consts], *[aval(x.shape[1:], x.dtype) for x in stacked],
            *[out_avals[i] for i in c_outs],
        ]  # fmt: skip
        linear = parts.linears["pull"] = _isolated(function, avals, "the cotangents of a scan")
    given = [_filled(m, o.aval) for m, o in zip(moving, outs, strict=True)]
    results = scan_p.bind(
        *fixed, *[given[i] for i in c_carry], *[zeros_of(in_avals[i]) for i in c_consts],
        *stacked, *[given[i] for i in c_outs], body=linear, consts=n_fixed,
        carry=len(c_carry) + len(c_consts), length=params["length"],
        reverse=not params["reverse"],
    )  # fmt: skip
    found: list[Array | None] = [None] * len(operands)
    places = [*[consts + i for i in c_carry], *c_consts, *c_inputs]
    for place, r in zip(places, results, strict=False):  # a token when there are none
        found[place] = r
    return found


def _filled(x: Array | None, a: Aval) -> Array:
    return zeros_of(a) if x is None else x


def _present(x: Array | None) -> Array:
    assert x is not None
    return x


def _isolated(function: Callable[..., Sequence[Array]], avals: Sequence[Aval], name: str) -> IR:
    with traces_set(()):
        ir, captures = trace_ir(function, avals, name)
    assert not captures
    return ir


scan_p = Primitive(
    "scan", _lower, _shape_rule, "call", vmap=_vmap, multiple=True, higher_order=True,
    split=_split,
)  # fmt: skip


@filtered
def scan(
    f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Loop `carry, y = f(carry, x)` over the leading axis of `xs`; returns (last carry, all ys).

    init    -- the first carry, a tree; `f` must return one of the same structure, shapes, dtypes
    xs      -- a tree of arrays with one leading size, or None with `length` given
    reverse -- from the last step to the first; `ys` keep their places

    The body is recorded once.  Default random draws differ at every step.

    >>> import nuvec as nv
    >>> nv.scan(lambda c, x: (c + x, c * x), 0.0, nv.array([1.0, 2.0, 3.0]))
    (array(6., dtype=float32), array([0., 2., 9.], dtype=float32))
    """
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
    outs = scan_p.bind(
        *fixed, *carry, *inputs, *keys, body=ir, consts=len(fixed), carry=count, length=steps,
        reverse=bool(reverse),
    )  # fmt: skip
    return tree.unflatten(carry_structure, outs[:count]), tree.unflatten(
        out_ys, outs[count : len(body.out_avals)]
    )


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

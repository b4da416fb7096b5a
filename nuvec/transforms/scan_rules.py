"""scan_p, the primitive of scan, and its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.ir import IR, TOKEN, Aval, Eqn, Var, aval, or_token
from nuvec.core.node import Trace, traces_set
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import Primitive, detach
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.bodies import marked
from nuvec.transforms.derive import Split, split_ir
from nuvec.transforms.hoist import apply_hoisted, hoisted, rounded
from nuvec.transforms.scan_loop import ScanLoop
from nuvec.transforms.tails import Tail, products_outside, tail
from nuvec.transforms.vmap import batched_ir

# scan's operands: constants (the same at every step), the initial carry, inputs with a leading
# axis of `length`.  The body takes constants, carry and one step's inputs, and returns the next
# carry and one step's outputs.  Results: the last carry, outputs with a leading axis of `length`.


def _lower(
    *values: Any, body: IR, consts: int, carry: int, length: int, reverse: bool
) -> tuple[Any, ...]:
    loop = _loop(body, consts, carry)
    return or_token(loop.run([np.asarray(v) for v in values], length, reverse))


def _loop(body: IR, consts: int, carry: int) -> ScanLoop:
    key = ("scan loop", consts, carry)
    loop: ScanLoop | None = body.derived.get(key)
    if loop is None:
        loop = body.remember(key, ScanLoop(body, consts, carry))
        assert loop is not None
    return loop


def _memory(eqn: Eqn) -> tuple[int, int]:
    """Stacked outputs share their rows with others and with carries."""
    p = eqn.params
    return _loop(p["body"], p["consts"], p["carry"]).held(p["length"]), 0


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
    stacked = [*[detached[start + i] for i in parts.given], *stacked]
    mode = _push if trace.mode == "jvp" else _pull
    return outs, lambda moving: mode(parts, fixed, stacked, moving, operands, outs, params)


class _Parts:
    """A split body.  Its residuals are, in the order of `order`: constants of the scan (`fixed`:
    their positions), its inputs (`given`: theirs), and values that `forward` stacks after the
    body's outputs.  `linears`: the bodies that _push and _pull make of `split.linear`."""

    def __init__(self, split: Split, body: IR, consts: int, carry: int) -> None:
        n_out, forward = len(body.outputs), split.forward
        place = {v: i for i, v in enumerate(forward.inputs)}
        residuals = forward.outputs[n_out:]
        where = [place.get(r) if type(r) is Var else None for r in residuals]
        start = consts + carry
        fixed = [k for k, i in enumerate(where) if i is not None and i < consts]
        given = [k for k, i in enumerate(where) if i is not None and i >= start]
        rest = [k for k in range(len(where)) if k not in (*fixed, *given)]
        self.fixed: list[int] = [where[k] for k in fixed]  # type: ignore[misc]
        self.given: list[int] = [where[k] - start for k in given]  # type: ignore[operator]
        self.forward = IR(
            forward.inputs, forward.constants, forward.eqns,
            (*forward.outputs[:n_out], *[residuals[k] for k in rest]),
        )  # fmt: skip
        self.order = [*fixed, *given, *rest]
        self.split = split
        self.linears: dict[Any, Any] = {}

    def residuals(self, fixed: Sequence[Array], stepped: Sequence[Array]) -> list[Array]:
        """The residuals in the split's order."""
        found: list[Any] = [None] * len(self.order)
        for place, x in zip(self.order, [*fixed, *stepped], strict=True):
            found[place] = x
        return found


def _split_body(body: IR, consts: int, carry: int, mode: str, active: tuple[bool, ...]) -> _Parts:
    key = ("split scan", consts, carry, mode, active)
    found = body.derived.get(key)
    if found is None:
        found = body.remember(key, _Parts(split_ir(body, mode, active), body, consts, carry))
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
        bind_scan(
            [*fixed, *[given[i] for i in on_consts]], [given[i] for i in on_carry],
            [*stacked, *[given[i] for i in on_inputs]], linear, params["length"],
            params["reverse"],
        )
    )  # fmt: skip
    return [next(results) if _is_inexact(o.aval) else None for o in outs]


def _pull(
    parts: _Parts, fixed: list[Array], stacked: list[Array], moving: Sequence[Array | None],
    operands: Sequence[Array], outs: Sequence[Array], params: dict[str, Any],
) -> list[Array | None]:  # fmt: skip
    """Reverse mode: the scan backward."""
    body, consts, carry = params["body"], params["consts"], params["carry"]
    length = params["length"]
    come = tuple([m is not None for m in moving])
    key = ("pull", come, rounded(length))
    back = parts.linears.get(key)
    if back is None:
        if len(parts.linears) > 8:
            parts.linears.clear()
        back = parts.linears[key] = _Backward(
            parts, body, consts, carry, come, stacked, rounded(length)
        )
    given = [_filled(m, o.aval) for m, o in zip(moving, outs, strict=True)]
    xs = [*stacked, *[given[i] for i in back.c_outs]]
    results = bind_scan(
        fixed,
        [*[given[i] for i in back.c_carry], *[zeros_of(body.in_avals[i]) for i in back.summed]],
        xs,
        back.body,
        length,
        not params["reverse"],
    )
    found: list[Array | None] = [None] * len(operands)
    ends = len(back.c_carry) + len(back.summed)
    places = [*[consts + i for i in back.c_carry], *back.summed]
    for place, r in zip(places, results[:ends], strict=True):
        found[place] = r
    rows = results[ends : len(back.body.outputs)]
    for place, r in zip(back.c_inputs, rows, strict=False):
        found[place] = r
    more = rows[len(back.c_inputs) :]
    for i, how, sources in back.tails:
        found[i] = how.finish([xs[k] if given_ else more[k] for given_, k in sources])
    return found


class _Backward:
    """The body of the backward scan.  Constants: fixed residuals; carry: cotangents of the carry,
    then sums of those of the constants `summed`; inputs: stacked residuals, cotangents of the
    outputs that have one; outputs: cotangents of the inputs, then what `tails` read: the other
    constants' cotangents are computed after the loop."""

    def __init__(
        self, parts: _Parts, body: IR, consts: int, carry: int, come: tuple[bool, ...],
        stacked: Sequence[Array], length: int,
    ) -> None:  # fmt: skip
        start = consts + carry
        split, in_avals, out_avals = parts.split, body.in_avals, body.out_avals
        self.c_carry = [i for i in range(carry) if _is_inexact(out_avals[i])]
        c_consts = [i for i in range(consts) if split.results[i]]
        self.c_outs = [i for i in range(carry, len(out_avals)) if split.moving[i] and come[i]]
        self.c_inputs = [i for i in range(start, len(in_avals)) if split.results[i]]
        n_fixed, n_stacked, n_carry = len(parts.fixed), len(stacked), len(self.c_carry)

        def function(*xs: Array) -> list[Array]:
            """One step without its sums: new cotangents of the carry, then of the constants, then
            of the inputs."""
            it = iter(xs)
            f = [next(it) for _ in range(n_fixed)]
            cs = {i: next(it) for i in self.c_carry}
            s = [next(it) for _ in range(n_stacked)]
            cs |= {i: next(it) for i in self.c_outs}
            given = [
                cs[i] if i in cs else zeros_of(a)
                for i, (a, m) in enumerate(zip(out_avals, split.moving, strict=True))
                if m
            ]
            results = split.spread(replay(split.linear, [*parts.residuals(f, s), *given]))
            following = []
            for i in self.c_carry:
                r = results[consts + i]
                # A carry that the body only passes on has no derivative through it of its own.
                following.append(zeros_of(in_avals[consts + i]) if r is None else r)
            return [
                *following, *[_present(results[i]) for i in c_consts],
                *[_present(results[i]) for i in self.c_inputs],
            ]  # fmt: skip

        steps = [aval(x.shape[1:], x.dtype) for x in stacked]
        avals = [
            *[in_avals[i] for i in parts.fixed], *[out_avals[i] for i in self.c_carry], *steps,
            *[out_avals[i] for i in self.c_outs],
        ]  # fmt: skip
        step = _isolated(function, avals, "the cotangents of a scan")
        sums_at = slice(n_carry, n_carry + len(c_consts))
        step = products_outside(step, set(step.outputs[sums_at]), length)
        varying = set(step.inputs[n_fixed:])
        for e in step.eqns:
            if not varying.isdisjoint(e.inputs):
                varying.update(e.outputs)
        rows = {v: k for k, v in enumerate(step.inputs[n_fixed + n_carry :])}
        extra: dict[Any, int] = {}
        self.summed: list[int] = []
        self.tails: list[tuple[int, Tail, list[tuple[bool, int]]]] = []
        terms = dict(zip(c_consts, step.outputs[n_carry:], strict=False))
        for i, out in terms.items():
            how = tail(step, out, varying, length)
            if how is None:
                self.summed.append(i)
                continue
            sources = [
                (True, rows[v]) if v in rows else (False, extra.setdefault(v, len(extra)))
                for v in how.operands
            ]
            self.tails.append((i, how, sources))
        outputs = step.outputs[n_carry + len(c_consts) :]

        def summing(*xs: Array) -> list[Array]:
            sums = xs[n_fixed + n_carry : n_fixed + n_carry + len(self.summed)]
            rest = (*xs[: n_fixed + n_carry], *xs[n_fixed + n_carry + len(self.summed) :])
            chosen = IR(
                step.inputs, step.constants, step.eqns,
                (*step.outputs[:n_carry], *[terms[i] for i in self.summed], *outputs, *extra),
            )  # fmt: skip
            found = replay(chosen, rest)
            for k, total in enumerate(sums, n_carry):
                found[k] = add(total, found[k])
            return found

        places = n_fixed + n_carry
        sums = [in_avals[i] for i in self.summed]
        self.body = _isolated(
            summing, [*avals[:places], *sums, *avals[places:]], "the cotangents of a scan"
        )


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


def bind_scan(
    fixed: Sequence[Array], carry: Sequence[Array], xs: Sequence[Array], body: IR, length: int,
    reverse: bool,
) -> list[Array]:  # fmt: skip
    """Record a scan, with what can leave its body outside of it."""
    parts = hoisted(body, len(fixed), len(carry), length)
    if parts is not None:
        fixed, xs = apply_hoisted(parts, fixed, xs, length)
        body = parts.body
    return scan_p.bind(
        *fixed,
        *carry,
        *xs,
        body=body,
        consts=len(fixed),
        carry=len(carry),
        length=length,
        reverse=reverse,
    )


scan_p = Primitive(
    "scan", _lower, _shape_rule, "call", vmap=_vmap, multiple=True, higher_order=True,
    split=_split, memory=_memory,
)  # fmt: skip

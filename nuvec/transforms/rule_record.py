"""custom_rule: an equation that carries a custom rule as closed IRs.

Function, forward and backward (and the forward-mode rule, where there is one) are traced when the
equation is recorded, with what they close over as further operands; no Python function is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.functions.stream import RANDOM_SOURCE, next_key
from nuvec.core.interpreter import queue_of
from nuvec.core.ir import IR, Aval, Var, aval, or_token, results_of
from nuvec.core.lower import lower
from nuvec.core.node import Node, Trace, context, traces_set
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.shape import move_axis, sum_p
from nuvec.core.primitive import Primitive, detach
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.vmap import batched_ir, run_batched


@dataclass(eq=False)
class Rule:
    """A custom rule as IRs.  `captures` operands follow the inputs of each:

    fun      -- arguments -> outputs
    forward  -- arguments -> outputs, residuals
    backward -- residuals, cotangents of the outputs -> cotangents of the arguments in `wanted`
    jvp      -- arguments, tangents -> outputs, tangents; None where there is no such rule

    A forward that calls the function itself refers to the rule it is part of.
    """

    name: str
    count: int  # of arguments
    captures: int
    outs: tuple[Aval, ...] = ()
    wanted: tuple[bool, ...] = ()
    effect: bool = False  # whether any of the IRs communicates
    queue: Any = None
    fun: IR = field(default=None, repr=False)  # type: ignore[assignment]
    forward: IR = field(default=None, repr=False)  # type: ignore[assignment]
    backward: IR = field(default=None, repr=False)  # type: ignore[assignment]
    jvp: IR | None = field(default=None, repr=False)
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    def note_effects(self) -> None:
        irs = [ir for ir in (self.fun, self.forward, self.backward, self.jvp) if ir is not None]
        self.effect = any(ir.effect for ir in irs)
        for ir in irs:
            if ir.effect and self.queue is None:
                self.queue = queue_of(Node(custom_rule_p, (), {"fun": ir}, None))


KEY_AVAL = aval((2,), dtypes.uint64)


@dataclass(eq=False)
class Building:
    """A call of a custom function whose IRs are being traced."""

    signature: Any
    rule: Rule | None  # None while the captures are being found
    sources: list[Array]
    out_structure: Any = None
    recursive: bool = False


def record_rule(call: Any, building: list[Building]) -> list[Array]:
    """Trace a custom function's IRs and record the equation that carries them.

    When the forward calls the function itself, tracing it would not end: the first time round the
    inner call is the plain function, which finds the captures; the second time round it is an
    equation with the very rule being built."""
    signature = (call.structure, tuple(call.avals), tuple(call.fixed.items()))
    for other in building:
        if other.signature == signature:
            other.recursive = True
            if other.rule is None:
                return call.fun(*call.arrays)
            call.out_structure = other.out_structure
            fun = other.rule.fun
            return custom_rule_p.bind(*call.arrays, *other.sources, fun=fun, rule=other.rule)
    mine = Building(signature, None, [])
    building.append(mine)
    try:
        rule, sources = _trace_rule(call, mine)
        mine.out_structure = call.out_structure
        if mine.recursive:
            mine.rule, mine.sources = rule, _read(sources)
            _trace_rule(call, mine)
            operands = mine.sources
        else:
            operands = _read(sources)
    finally:
        building.pop()
    return custom_rule_p.bind(*call.arrays, *operands, fun=rule.fun, rule=rule)


def _read(sources: Sequence[Any]) -> list[Array]:
    return [next_key() if s is RANDOM_SOURCE else s for s in sources]


def _trace_rule(call: Any, building: Building) -> tuple[Rule, list[Any]]:
    """The rule's IRs and what they capture; fills in `building.rule` when there is one."""
    sources: dict[int, Any] = {}
    if building.rule is not None:
        sources = {_key(s): s for s in building.sources}
    traced: list[tuple[IR, list[Any]]] = []

    def trace(function: Callable[..., Sequence[Array]], avals: Sequence[Aval], what: str) -> IR:
        ir, captured = trace_ir(function, avals, f"{what} of {call.name}", by_handle=True)
        for s in captured:
            sources.setdefault(_key(s), s)
        traced.append((ir, captured))
        return ir

    split: list[int] = []
    wanted: list[bool] = []

    def forward(*arrays: Array) -> list[Array]:
        outs, residuals = call.fwd(*arrays)
        split.append(len(outs))
        return [*outs, *residuals]

    def backward(*arrays: Array) -> list[Array]:
        count = len(arrays) - split[0]
        results = call.bwd(arrays[:count], arrays[count:])
        wanted.extend(c is not None for c in results)
        return [c for c in results if c is not None]

    fun = trace(call.fun, call.avals, "custom_vjp")
    fwd = trace(forward, call.avals, "the forward")
    outs, residuals = fwd.out_avals[: split[0]], fwd.out_avals[split[0] :]
    for i, (a, b) in enumerate(zip(fun.out_avals, outs, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise NuvecError(
                f"custom_vjp {call.name}: output {i} of the function is {a}, and of fwd {b}"
            )
    trace(backward, (*residuals, *outs), "the backward")
    if call.rule.jvp is not None:
        trace(call.jvp, (*call.avals, *call.avals), "the jvp rule")
    order = list(sources)
    if building.rule is None:
        rule = Rule(call.name, len(call.avals), len(order))
    else:
        rule = building.rule
        if len(order) != rule.captures:
            raise NuvecError(f"custom_vjp {call.name}: fwd closes over other arrays each time")
    irs = [_conform(ir, captured, sources) for ir, captured in traced]
    rule.fun, rule.forward, rule.backward = irs[:3]
    rule.jvp = irs[3] if len(irs) > 3 else None
    rule.outs, rule.wanted = fun.out_avals, tuple(wanted)
    rule.note_effects()
    return rule, list(sources.values())


def _key(source: Any) -> int:
    return id(source)  # captures are the caller's handles


def _conform(ir: IR, captured: Sequence[Any], sources: dict[int, Any]) -> IR:
    """The same IR with its captures last, in the common order; those it does not use are there."""
    own = {_key(s): v for s, v in zip(captured, ir.inputs, strict=False)}
    last = [own[k] if k in own else Var(_aval(s)) for k, s in sources.items()]
    return IR((*ir.inputs[len(captured) :], *last), ir.constants, ir.eqns, ir.outputs)


def _aval(source: Any) -> Aval:
    return KEY_AVAL if source is RANDOM_SOURCE else source._node.aval


def _lower(*values: Any, fun: IR, rule: Rule) -> tuple[Any, ...]:
    return or_token(lower(fun).run(*[np.asarray(v) for v in values]))


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, fun: IR, rule: Rule
) -> tuple[list[Array], list[int | None]]:
    batched, which = _batched(rule, size, tuple(axes))
    outs = custom_rule_p.bind(*operands, fun=batched.fun, rule=batched)
    return outs, [0 if b else None for b in which] or [None]


def _batched(rule: Rule, size: int, axes: tuple[int | None, ...]) -> tuple[Rule, tuple[bool, ...]]:
    """The rule of the mapped function: every IR batched; a cotangent of an argument that is not
    mapped is summed over the batch."""
    key = (size, axes)
    found = rule.derived.get(key)
    if found is not None:
        return found
    arguments, captures = axes[: rule.count], axes[rule.count :]
    fun, which = batched_ir(rule.fun, size, axes)
    n = len(which)
    batched = Rule(rule.name, rule.count, rule.captures, fun.out_avals, rule.wanted, rule.effect,
                   rule.queue, fun)  # fmt: skip
    rule.derived[key] = (batched, which)  # before the forward, which may refer to it
    forced = (*which, *(True,) * (len(rule.forward.outputs) - n))
    batched.forward, res = batched_ir(rule.forward, size, axes, forced)
    if res != forced:
        raise NuvecError(
            f"custom_vjp {rule.name}: under vmap, fwd's outputs differ between mapped elements "
            "where the function's do not"
        )
    in_axes = (*(0,) * (len(res) - n), *(0 if b else None for b in which), *captures)
    batched.backward = _batched_backward(rule, size, in_axes, arguments)
    if rule.jvp is not None:
        twice = (*arguments, *arguments, *captures)
        batched.jvp, _ = batched_ir(rule.jvp, size, twice, (*which, *which))
    return batched, which


def _batched_backward(
    rule: Rule, size: int, in_axes: tuple[int | None, ...], arguments: tuple[int | None, ...]
) -> IR:
    targets = [axis for axis, w in zip(arguments, rule.wanted, strict=True) if w]
    avals = [
        v.aval
        if axis is None
        else aval((*v.aval.shape[:axis], size, *v.aval.shape[axis:]), v.aval.dtype)
        for v, axis in zip(rule.backward.inputs, in_axes, strict=True)
    ]

    def function(*arrays: Array) -> list[Array]:
        moved = [
            a if axis is None else batch_first(a, axis, size)
            for a, axis in zip(arrays, in_axes, strict=True)
        ]
        axes = [None if axis is None else 0 for axis in in_axes]
        pairs = run_batched(lambda *xs: replay(rule.backward, xs), moved, axes, size, "vmap")
        results = []
        for (c, axis), target in zip(pairs, targets, strict=True):
            if target is None:
                results.append(c if axis is None else sum_p.bind(c, axes=(axis,)))
            else:
                results.append(move_axis(batch_first(c, axis, size), 0, target))
        return results

    with traces_set(()):
        ir, captured = trace_ir(function, avals, "vmap of a backward")
    assert not captured
    return ir


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    rule: Rule = params["rule"]
    arguments, captures = operands[: rule.count], operands[rule.count :]
    detached = [detach(a, trace) for a in arguments]
    nothing = [None] * rule.captures
    if trace.mode == "vjp":
        # Captures keep the mark: what is closed over has its own derivative through the forward.
        found = replay(rule.forward, [*detached, *captures])
        outs, residuals = found[: len(rule.outs)], found[len(rule.outs) :]

        def pull(cs: Sequence[Array | None]) -> list[Array | None]:
            filled = [zeros_of(a) if c is None else c for c, a in zip(cs, rule.outs, strict=True)]
            results = iter(replay(rule.backward, [*residuals, *filled, *captures]))
            return [*(next(results) if w else None for w in rule.wanted), *nothing]

        return outs, pull
    if rule.jvp is None:
        refuse_reverse_over(rule.name, arguments, context.traces)
        with traces_set((*context.traces, trace)):
            return replay(rule.fun, operands), None
    outs = custom_rule_p.bind(*detached, *captures, **params)
    jvp = rule.jvp

    def push(tangents: Sequence[Array | None]) -> list[Array | None]:
        avals = [a.aval for a in arguments]
        filled = [
            zeros_of(a) if t is None else t
            for t, a in zip(tangents[: rule.count], avals, strict=True)
        ]
        return list(replay(jvp, [*detached, *filled, *captures])[len(rule.outs) :])

    return outs, push


def refuse_reverse_over(name: str, arguments: Sequence[Array], outer: tuple[Trace, ...]) -> None:
    """Raise when forward mode of a custom function without a forward rule is itself reversed."""
    reverse = [t for t in outer if t.mode == "vjp"]
    if any(a._node.marks and not a._node.marks.isdisjoint(reverse) for a in arguments):
        raise NuvecError(
            f"reverse mode over forward mode of custom_vjp {name}: forward mode would "
            "differentiate the function itself and reverse mode its rule. Give it a forward rule "
            f"with {name}.defjvp(rule)"
        )


custom_rule_p = Primitive(
    "custom_rule", _lower, lambda *avals, fun, rule: results_of(fun), "call", vmap=_vmap,
    multiple=True, higher_order=True, split=_split,
    inline=lambda *operands, fun, rule: replay(fun, operands),
)  # fmt: skip

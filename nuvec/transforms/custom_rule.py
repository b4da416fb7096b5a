"""custom_rule: an equation that carries a custom rule as closed IRs, and its rules in each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.interpreter import queue_of
from nuvec.core.ir import IR, Aval, aval, or_token, results_of, sub_irs
from nuvec.core.lower import lower
from nuvec.core.node import Node, Trace, context, traces_set
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.shape import move_axis, sum_p
from nuvec.core.primitive import Primitive, detach, identity_input
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.axis import Axis, axis_of, walked_axis
from nuvec.transforms.backward import Recording
from nuvec.transforms.bodies import marked
from nuvec.transforms.jvp import forward_walk
from nuvec.transforms.separate import separates
from nuvec.transforms.vmap import batched_ir, run_batched


@dataclass(eq=False)
class Rule:
    """A custom rule as IRs.  `captures` operands follow the inputs of each:

    fun      -- arguments -> outputs
    forward  -- arguments -> outputs, residuals
    backward -- residuals, cotangents of the outputs -> cotangents of the arguments in `wanted`
    jvp      -- arguments, tangents -> outputs, tangents; None where there is no such rule

    A custom_jvp has no forward and backward: its jvp serves both modes.  A forward (or jvp) that
    calls the function itself refers to the rule it is part of.
    """

    name: str
    count: int  # of arguments
    captures: int
    outs: tuple[Aval, ...] = ()
    wanted: tuple[bool, ...] = ()
    effect: bool = False  # whether any of the IRs communicates
    queue: Any = None
    fun: IR = field(default=None, repr=False)  # type: ignore[assignment]
    forward: IR | None = field(default=None, repr=False)
    backward: IR | None = field(default=None, repr=False)
    jvp: IR | None = field(default=None, repr=False)
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    text_fields = (  # what makes it again, with what it says of effects
        "name", "count", "captures", "outs", "wanted", "fun", "forward", "backward", "jvp",
    )  # fmt: skip

    def restored(self) -> None:
        """Completes what was read from text."""
        self.note_effects()

    def irs(self) -> list[IR]:
        return [ir for ir in (self.fun, self.forward, self.backward, self.jvp) if ir is not None]

    def note_effects(self) -> None:
        irs = self.irs()
        self.effect = any(ir.effect for ir in irs)
        for ir in irs:
            if ir.effect and self.queue is None:
                self.queue = queue_of(Node(custom_rule_p, (), {"fun": ir}, None))


def _lower(*values: Any, fun: IR, rule: Rule) -> tuple[Any, ...]:
    return or_token(lower(fun).runner()(*[np.asarray(v) for v in values]))


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, fun: IR, rule: Rule
) -> tuple[list[Array], list[int | None]]:
    batched, which = _batched(rule, size, tuple(axes))
    outs = custom_rule_p.bind(*operands, fun=batched.fun, rule=batched)
    return outs, [0 if b else None for b in which] or [None]


def _batched(rule: Rule, size: int, axes: tuple[int | None, ...]) -> tuple[Rule, tuple[bool, ...]]:
    """The rule of the mapped function: every IR batched; a cotangent of an argument that is not
    mapped is summed over the batch."""
    mapped = walked_axis() if rule.effect else None
    key = (size, axes, mapped, separates(size))
    found = rule.derived.get(key)
    if found is not None:
        return found
    arguments, captures = axes[: rule.count], axes[rule.count :]
    # Where the elements are ranks, the backward is to get each one's cotangent, not their sum.
    everywhere = None if mapped is None else (True,) * len(rule.fun.outputs)
    fun, which = batched_ir(rule.fun, size, axes, everywhere)
    n = len(which)
    # Over the mapped axis itself they are communications no more.
    effect = rule.effect and (mapped is None or _communicates_beyond(rule.irs(), mapped, set()))
    batched = Rule(
        rule.name, rule.count, rule.captures, fun.out_avals, rule.wanted, effect, rule.queue, fun,
    )  # fmt: skip
    rule.derived[key] = (batched, which)  # before the forward, which may refer to it
    if rule.forward is not None:
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


def _communicates_beyond(irs: Sequence[IR], axis: Axis, seen: set[Rule]) -> bool:
    """Whether IRs communicate over anything but a mapped axis."""
    for eqn in [e for ir in irs for e in ir.eqns if e.effect]:
        if eqn.primitive.effect:
            if axis_of(eqn.params) != axis:
                return True
            continue
        inside = list(sub_irs(eqn.params))
        rule = eqn.params.get("rule")
        if isinstance(rule, Rule) and rule not in seen:
            seen.add(rule)
            inside += rule.irs()
        if _communicates_beyond(inside, axis, seen):
            return True
    return False


def _batched_backward(
    rule: Rule, size: int, in_axes: tuple[int | None, ...], arguments: tuple[int | None, ...]
) -> IR:
    backward = rule.backward
    assert backward is not None
    targets = [axis for axis, w in zip(arguments, rule.wanted, strict=True) if w]
    avals = [
        v.aval
        if axis is None
        else aval((*v.aval.shape[:axis], size, *v.aval.shape[axis:]), v.aval.dtype)
        for v, axis in zip(backward.inputs, in_axes, strict=True)
    ]

    def function(*arrays: Array) -> list[Array]:
        moved = [
            a if axis is None else batch_first(a, axis, size)
            for a, axis in zip(arrays, in_axes, strict=True)
        ]
        axes = [None if axis is None else 0 for axis in in_axes]
        pairs = run_batched(
            lambda *xs: replay(backward, xs), moved, axes, size, "vmap", mapped=walked_axis()
        )
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
    if rule.forward is None or rule.backward is None:
        return _split_jvp(trace, operands, params)
    forward, backward = rule.forward, rule.backward
    if trace.mode == "vjp":
        # Captures keep the mark: what is closed over has its own derivative through the forward.
        found = replay(forward, [*detached, *captures])
        outs, residuals = found[: len(rule.outs)], found[len(rule.outs) :]

        def pull(cs: Sequence[Array | None]) -> list[Array | None]:
            filled = [zeros_of(a) if c is None else c for c, a in zip(cs, rule.outs, strict=True)]
            results = iter(replay(backward, [*residuals, *filled, *captures]))
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


def _split_jvp(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    """A custom_jvp: its rule, run once, in either mode."""
    rule: Rule = params["rule"]
    arguments, captures = operands[: rule.count], operands[rule.count :]
    jvp = rule.jvp
    assert jvp is not None
    if not any(marked(a, trace) for a in arguments):
        return custom_rule_p.bind(*operands, **params), None  # an outer trace may own the rule
    detached = [detach(a, trace) for a in arguments]
    outs, linear = split_rule(
        trace.mode,
        rule.name,
        lambda tangents: replay(jvp, [*detached, *tangents, *captures]),
        [a.aval for a in arguments],
    )

    def of_operands(moving: Sequence[Array | None]) -> list[Array | None]:
        if trace.mode == "jvp":
            return linear(moving[: rule.count])
        return [*linear(moving), *[None] * rule.captures]

    return outs, of_operands


def split_rule(
    mode: str, name: str, rule: Callable[[Sequence[Array]], list[Array]], avals: Sequence[Aval]
) -> tuple[list[Array], Callable[[Sequence[Array | None]], list[Array | None]]]:
    """Run a forward-mode rule once, on tangents that are inputs of a trace of its own: (outputs,
    the linear part), which the trace's walk gives in either mode."""
    inputs: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs.extend([identity_input(trace, zeros_of(a)) for a in avals])
        return tuple(inputs), {}

    recording = Recording(lambda *tangents: rule(tangents), f"the rule of {name}", False, mode)
    recording.run(arguments, inputs)
    count = len(recording.nodes) // 2
    moved = recording.nodes[count:]

    def pull(cs: Sequence[Array | None]) -> list[Array | None]:
        return list(recording.pull([*[None] * count, *cs]))

    def push(tangents: Sequence[Array | None]) -> list[Array | None]:
        moving = {n: t for n, t in zip(recording.inputs, tangents, strict=True) if t is not None}
        forward_walk(recording.trace, recording.steps, moving)
        return [moving.get(n) for n in moved]

    return [Array(n) for n in recording.nodes[:count]], push if mode == "jvp" else pull


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
    inline=lambda *operands, fun, rule: replay(fun, operands), words={"rule": {"Rule": Rule}},
)  # fmt: skip

"""IRs made from IRs: how a closed program is differentiated without running it twice.

`split_ir` divides an IR into a forward, which also returns the residuals its derivative needs,
and a linear IR, which maps tangents forward or cotangents backward.  The forward is recorded
once: what it communicates and draws, it communicates and draws once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.ir import IR, Var
from nuvec.core.node import Node, Trace, open_trace, traces_set
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.primitive import identity_input, placeholder
from nuvec.core.recording import close, replay
from nuvec.core.walk import marked_graph
from nuvec.transforms.backward import Cotangents, backward_walk
from nuvec.transforms.jvp import forward_walk, is_active


@dataclass(frozen=True)
class Split:
    """forward -- inputs as the IR's; outputs: the IR's, then the residuals
    linear    -- inputs: the residuals, then the tangents of the active inputs ("jvp") or the
                 cotangents of the inexact outputs ("vjp"); outputs: one for each True in `results`
    results   -- which outputs ("jvp") or inputs ("vjp") have a derivative that is not zero
    moving    -- which inputs ("jvp") or outputs ("vjp") `linear` takes
    """

    forward: IR
    linear: IR
    results: tuple[bool, ...]
    moving: tuple[bool, ...]

    def lean(self, count: int) -> Lean:
        """The forward without the residuals that are its own inputs: whoever runs it has them."""
        places = {v: i for i, v in enumerate(self.forward.inputs)}
        outputs = self.forward.outputs
        from_input = tuple([places.get(a) if isinstance(a, Var) else None for a in outputs[count:]])
        computed = [a for a, i in zip(outputs[count:], from_input, strict=True) if i is None]
        f = self.forward
        return Lean(IR(f.inputs, f.constants, f.eqns, (*outputs[:count], *computed)), from_input)

    @property
    def residuals(self) -> int:
        return len(self.linear.inputs) - sum(self.moving)

    def arrange(self, moving: Sequence[Array | None], avals: Sequence[Any]) -> list[Array]:
        """What `linear` takes, zeros for what is None."""
        return [
            zeros_of(a) if m is None else m
            for m, a, wanted in zip(moving, avals, self.moving, strict=True)
            if wanted
        ]

    def spread(self, results: Sequence[Array]) -> list[Array | None]:
        """The linear IR's outputs at their places, None for zeros."""
        rest = iter(results)
        return [next(rest) if wanted else None for wanted in self.results]


@dataclass(frozen=True)
class Lean:
    """A forward IR, and which inputs its residuals are (None: the next of its further outputs)."""

    forward: IR
    from_input: tuple[int | None, ...]

    def residuals(self, found: Sequence[Array], operands: Sequence[Array]) -> list[Array]:
        """All residuals, from those that were computed and the operands."""
        computed = iter(found)
        return [next(computed) if i is None else operands[i] for i in self.from_input]


def lean_split(ir: IR, split: Split, key: Any) -> Lean:
    """`split.lean`, kept on the IR."""
    found = ir.derived.get(key)
    return ir.remember(key, split.lean(len(ir.outputs))) if found is None else found


def split_ir(ir: IR, mode: str, active: tuple[bool, ...]) -> Split:
    """Divide an IR for forward ("jvp") or reverse ("vjp") mode.  Cached on the IR."""
    key = ("split", mode, active)
    found = ir.derived.get(key)
    if found is None:
        with traces_set(()):  # an IR is closed: what happens to be open does not concern it
            found = ir.remember(key, _split(ir, mode, active))
    return found


def _split(ir: IR, mode: str, active: tuple[bool, ...]) -> Split:
    with open_trace("scope", "a compiled forward") as outer:
        inputs = [placeholder(outer, a, f"input {i}") for i, a in enumerate(ir.in_avals)]
        with open_trace(mode, f"{mode} of a compiled function") as trace:
            moving = [
                on and dtypes.is_inexact(n.aval.dtype) for on, n in zip(active, inputs, strict=True)
            ]
            arguments = [
                identity_input(trace, Array(n)) if on else Array(n)
                for on, n in zip(moving, inputs, strict=True)
            ]
            outs = replay(ir, arguments)
            nodes = [o._node for o in outs]
            stop = {a._node for a, on in zip(arguments, moving, strict=True) if on}
            steps = marked_graph(trace, [*nodes, *trace.effects], stop)
        with open_trace("scope", "a compiled linear part") as inner:
            walk = _tangents if mode == "jvp" else _cotangents
            taken, places, results = walk(trace, inner, steps, nodes, arguments, moving)
            wanted = tuple(r is not None for r in results)
            linear, sources = close(inner, places, [r for r in results if r is not None])
        forward, captures = close(outer, inputs, [*(Array(n) for n in nodes), *sources])
    assert not captures
    return Split(forward, linear, wanted, tuple(taken))


def _tangents(
    trace: Trace, inner: Trace, steps: Any, nodes: list[Node], arguments: list[Array],
    moving: list[bool],
) -> tuple[list[bool], list[Node], list[Array | None]]:  # fmt: skip
    places, tangents = [], {}
    for argument, on in zip(arguments, moving, strict=True):
        if on:
            place = placeholder(inner, argument.aval, "a tangent")
            places.append(place)
            tangents[argument._node] = Array(place)
    forward_walk(trace, steps, tangents)
    results = [tangents.get(n) if is_active(n, trace) else None for n in nodes]
    return moving, places, results


def _cotangents(
    trace: Trace, inner: Trace, steps: Any, nodes: list[Node], arguments: list[Array],
    moving: list[bool],
) -> tuple[list[bool], list[Node], list[Array | None]]:  # fmt: skip
    places, carried = [], Cotangents()
    taken = [is_active(n, trace) for n in nodes]
    for node, on in zip(nodes, taken, strict=True):
        if on:
            place = placeholder(inner, node.aval, "a cotangent")
            places.append(place)
            c = Array(place)
            carried[node] = add(carried[node], c) if node in carried else c
    backward_walk(trace, steps, carried)
    results = [
        carried.get(a._node) if on else None for a, on in zip(arguments, moving, strict=True)
    ]
    return taken, places, results

"""Recorded graph -> IR: how a scope is traced and closed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.check import check_ir
from nuvec.core.config import config
from nuvec.core.errors import LeakedTracerError
from nuvec.core.ir import IR, Atom, Aval, Eqn, Literal, Var
from nuvec.core.node import LITERAL, Node, Trace, constant, is_literal, open_trace
from nuvec.core.primitive import IDENTITY, MARK, PLACEHOLDER, PROJECTION, adopt, placeholder
from nuvec.core.queue import CommunicationQueue, process_queue
from nuvec.core.walk import Step, marked_graph


def trace_ir(
    function: Callable[..., Sequence[Array]],
    avals: Sequence[Aval],
    name: str,
    names: Sequence[str] | None = None,
    by_handle: bool = False,
    late: bool = False,
) -> tuple[IR, list[Any]]:
    """Record `function` on placeholders and close it.

    Returns the IR, whose first inputs are the captures, and where each capture is read from (an
    Array, or RANDOM_SOURCE)."""
    with open_trace("scope", name, by_handle, late) as trace:
        inputs = [
            placeholder(trace, a, names[i] if names else f"argument {i} of {name}")
            for i, a in enumerate(avals)
        ]
        outputs = function(*[Array(n) for n in inputs])
        return close(trace, inputs, outputs)


def close(trace: Trace, inputs: Sequence[Node], outputs: Sequence[Array]) -> tuple[IR, list[Any]]:
    """The IR of what `trace`, still open, recorded from `inputs` to `outputs`."""
    out_nodes = [adopt(trace, o) for o in outputs]
    steps = marked_graph(trace, [*out_nodes, *trace.effects])
    closer = _Closer(trace, inputs)
    for step in steps:
        closer.add(step)
    atoms = tuple([closer.read(n) for n in out_nodes])
    captures = list(trace.captures.values())
    variables = [closer.place(node) for _, node in captures]
    ir = IR(
        (*variables, *[closer.place(n) for n in inputs]),
        tuple(closer.constants),
        tuple(closer.eqns),
        atoms,
    )
    if config.check_ir:
        check_ir(ir)
    return ir, [source for source, _ in captures]


class _Closer:
    """Turns nodes into variables and equations."""

    def __init__(self, trace: Trace, inputs: Sequence[Node]) -> None:
        self.trace = trace
        self.variables: dict[Node, Atom] = {n: Var(n.aval, _hint(n)) for n in inputs}
        for _, node in trace.captures.values():
            self.variables[node] = Var(node.aval)
        self.results: dict[Node, tuple[Any, ...]] = {}  # of equations with several
        self.constants: list[tuple[Var, np.ndarray]] = []
        self.eqns: list[Eqn] = []

    def place(self, node: Node) -> Var:
        """The variable of an input."""
        found = self.variables[node]
        assert isinstance(found, Var)
        return found

    def read(self, node: Node) -> Atom:
        found = self.variables.get(node)
        if found is not None:
            return found
        if is_literal(node):
            atom: Atom = Literal(node.value, node.aval.weak)
        elif node.primitive is None and node.seq > self.trace.start:
            atom = Var(node.aval)
            self.constants.append((atom, np.asarray(node.value)))
        elif node.primitive is PLACEHOLDER and node.marks and self.trace in node.marks:
            raise LeakedTracerError(
                f"a value of {node.aval} from inside a transformed function ({node.params['name']})"
                f" was stored and used in {self.trace.name} after that function had returned: "
                "return it from the function instead"
            )
        else:  # an outer value: not seen when it was used (from another thread, or in a trace that
            # is no scope), but it may be an output too
            known = self.trace.captures.get(id(node))
            if known is None:
                known = (Array(node), placeholder(self.trace, node.aval, "a captured array"))
                self.trace.captures[id(node)] = known
            atom = self.variables.setdefault(known[1], Var(node.aval))
        self.variables[node] = atom
        return atom

    def add(self, step: Step) -> None:
        node, inputs = step
        primitive = node.primitive
        if node in self.variables or primitive is PLACEHOLDER:
            return
        if primitive is IDENTITY:
            self.variables[node] = self.read(inputs[0])
        elif primitive is MARK:  # the identity for everyone but its own trace
            self.results[node] = tuple([self.read(n) for n in inputs[: node.params["count"]]])
        elif primitive is PROJECTION:
            self.variables[node] = self.results[inputs[0]][node.params["index"]]
        else:
            atoms = tuple([self.read(n) for n in inputs])
            if primitive.multiple:
                outs = tuple([Var(a) for a in node.aval])
                self.results[node] = outs
            else:
                outs = (Var(node.aval),)
                self.variables[node] = outs[0]
            self.eqns.append(Eqn(primitive, atoms, outs, node.params, node.source))


def _hint(node: Node) -> str:
    """A name for the printer from the placeholder's description: "argument 'x'['w'] of f" is the
    leaf x_w."""
    name = node.params.get("name", "")
    if name.count("'") < 2:
        return ""
    path = name[: name.rindex(" of ")] if " of " in name else name
    return "_".join(re.findall(r"[A-Za-z0-9_]+", path.removeprefix("argument ")))


def _literal_array(atom: Literal) -> Array:
    return Array(Node(None, (), LITERAL, atom.aval, None, atom.value))


def replay(
    ir: IR, arrays: Sequence[Array], record: Callable[[Eqn, list[Array]], Any] | None = None
) -> list[Array]:
    """Record an IR's equations again, on other arrays: how passes are applied to an IR.

    record -- records one equation on its operands, and returns what `bind` returns; as it stands
              by default"""
    environment: dict[Any, Array] = dict(zip(ir.inputs, arrays, strict=True))
    for variable, value in ir.constants:
        environment[variable] = Array(constant(value, variable.aval))
    for eqn in ir.eqns:
        inputs = [
            _literal_array(a) if isinstance(a, Literal) else environment[a] for a in eqn.inputs
        ]
        if record is None:
            out = eqn.primitive.bind(*inputs, **eqn.params)
        else:
            out = record(eqn, inputs)
        if eqn.primitive.multiple:
            environment.update(zip(eqn.outputs, out, strict=True))
        else:
            environment[eqn.outputs[0]] = out
    return [_literal_array(a) if isinstance(a, Literal) else environment[a] for a in ir.outputs]


__all__ = ["CommunicationQueue", "close", "process_queue", "replay", "trace_ir"]

"""Large lazy graphs run as programs: fused, in tiles, on several threads, as a compiled function.

Evaluation runs pending equations one by one, which is the quickest for small arrays.  Where they
make large ones, the same passes that `compile` uses pay at once: the equations become an IR, whose
program is kept under the graph's structure.  Nothing is added up in another order, so that what a
program computes uncompiled does not depend on how it came to be evaluated together.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import interpreter
from nuvec.core.config import config
from nuvec.core.ir import IR, Atom, Aval, Eqn, Literal, Var
from nuvec.core.lower.emit import Emitted
from nuvec.core.lower.program import lower_exactly
from nuvec.core.node import Node, context, is_literal, live, release
from nuvec.core.profiler import recorded

CACHE_SIZE = 128  # programs kept; the least recently used goes first

# By structure: the program, or None for what was met once.  Making a program takes longer than
# running it once gains, and a structure may never come again.
_programs: OrderedDict[Any, Emitted | None] = OrderedDict()
_lock = threading.Lock()


def run_large(pending: list[Node], asked: Sequence[Node]) -> set[Node]:
    """Run those of the pending nodes (the first of them last) that are worth a program; these are
    returned, and those of them that somebody can see have values.

    The others stay to be computed one by one: what communicates, what has several results, what
    is small, and what fails, for an error must name its own equation."""
    if "fuse" not in config.passes:
        return set()
    wanted = set(asked)
    nodes: list[Node] = []
    done: set[Node] = set()
    for place in range(len(pending) - 1, -1, -1):
        node = pending[place]
        if node.primitive.plain and type(node.aval) is Aval and not node.primitive.foreign:
            nodes.append(node)
        else:
            if _run(nodes, wanted):
                done.update(nodes)
            nodes = []
    node = None  # type: ignore[assignment]  # references are counted
    if _run(nodes, wanted):
        done.update(nodes)
    return done


def _run(nodes: list[Node], wanted: set[Node]) -> bool:
    if sum(n.aval.large and n.primitive.kind != "view" for n in nodes) < 2:
        return False
    needed = _needed(nodes, wanted)
    inside = set(nodes)
    if any(i.value is None and i not in inside for n in nodes for i in n.inputs):
        return False  # it follows from what communicates first
    # A view costs nothing, and shares its operand's memory.
    views = []
    for n in reversed(nodes):
        if n in needed and n.primitive.kind == "view":
            views.append(n)
            needed.remove(n)
            needed.update(i for i in n.inputs if i in inside)
    graph = _Graph(nodes, needed)
    try:
        program = _program(graph)
    except TypeError:  # a parameter that does not hash
        return False
    if program is None:
        return False
    try:
        with recorded("lazy graph", "program", equations=len(nodes)):
            values = program.function(*[leaf.value for leaf in graph.leaves])
    except Exception:
        return False
    finally:
        program.release()  # there are many programs, and some run seldom
    for node, value in zip(graph.outputs, values, strict=True):
        node.value = value
    for node in reversed(views):
        interpreter.compute(node)
    for node in nodes:
        if node.marks is None:
            node.inputs = ()
        else:
            release(node)
    return True


def _program(graph: _Graph) -> Emitted | None:
    """The program of a graph; None where its structure is new."""
    with _lock:
        met = graph.key in _programs
        program = _programs.get(graph.key)
    if met and program is None:
        with recorded("lower", "lower", equations=len(graph.nodes)):
            program = lower_exactly(graph.ir(), graph.contiguous, graph.record)
    with _lock:
        _programs[graph.key] = program
        _programs.move_to_end(graph.key)
        if len(_programs) > CACHE_SIZE:
            _programs.popitem(last=False)
    return program


def _needed(nodes: list[Node], wanted: set[Node]) -> set[Node]:
    """The nodes somebody else refers to: a handle, a trace, an equation that is not run now."""
    inside: dict[Node, int] = {}
    traced: set[Node] = set()
    for n in nodes:
        for i in n.inputs:
            inside[i] = inside.get(i, 0) + 1
        if n.marks is not None and live(n.marks) is not None:
            traced.update((n, *n.inputs))  # the trace may ask for its operands
    found = set()
    for n in nodes:
        # Known are: this name and the call's, the lists of nodes and of the pending ones, and
        # what is counted here.
        known = 4 + inside.get(n, 0) + (n in inside) + (n in wanted) + (n in traced)
        if n in wanted or n in traced or sys.getrefcount(n) > known:
            found.add(n)
    return found


class _Graph:
    """What is pending as a program: its key, and its IR.

    leaves -- the nodes with values that it reads; `contiguous` says which are C-contiguous
    outputs -- the nodes that get values
    """

    def __init__(self, nodes: list[Node], needed: set[Node]) -> None:
        self.nodes = nodes
        self.outputs = [n for n in nodes if n in needed]
        self.leaves: list[Node] = []
        numbers: dict[Node, int] = {}
        parts: list[Any] = []
        for n in nodes:
            operands: list[Any] = []
            for i in n.inputs:
                if i not in numbers and is_literal(i):
                    operands.append((i.aval, i.value.tobytes()))
                    continue
                if i not in numbers:
                    numbers[i] = ~len(self.leaves)
                    self.leaves.append(i)
                operands.append(numbers[i])
            numbers[n] = len(numbers)
            parts.append((n.primitive, n.aval, tuple(n.params.items()), *operands))
        self.contiguous = tuple([_is_contiguous(leaf.value) for leaf in self.leaves])
        avals = tuple([leaf.aval for leaf in self.leaves])
        outputs = tuple([numbers[n] for n in self.outputs])
        self.record = bool(context.profiles)  # programs that record their steps are others
        options = (config.passes, self.record)
        self.key = (options, tuple(parts), avals, self.contiguous, outputs)

    def ir(self) -> IR:
        variables: dict[Node, Atom] = {leaf: Var(leaf.aval) for leaf in self.leaves}
        eqns = []
        for n in self.nodes:
            for i in n.inputs:
                if i not in variables:
                    variables[i] = Literal(i.value, i.aval.weak)
            out = Var(n.aval)
            eqns.append(Eqn(n.primitive, tuple([variables[i] for i in n.inputs]), (out,), n.params))
            variables[n] = out
        inputs: Any = tuple([variables[leaf] for leaf in self.leaves])
        return IR(inputs, (), tuple(eqns), tuple([variables[n] for n in self.outputs]))


def _is_contiguous(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.flags.c_contiguous


interpreter.large_graphs = run_large

"""The one walk: the equations that depend on a trace, in program order.

Every pass goes over what this returns: forward for jvp and vmap, backward for vjp, and once to
close a recording into an IR.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

from nuvec.core.node import Node, Trace

Step = tuple[Node, tuple[Node, ...]]  # a node and its inputs, as they were when it was walked

_in_program_order = operator.itemgetter(0)


def marked_graph(
    trace: Trace, roots: Iterable[Node], stop: frozenset[Node] | set[Node] = frozenset()
) -> list[Step]:
    """The nodes behind `roots` that carry `trace`'s mark, with their inputs, in program order.

    The inputs are noted because evaluating a node later drops them; `stop` nodes (the trace's
    inputs) are left out.  No recursion: a chain can be 100,000 long."""
    found: list[tuple[int, Node, tuple[Node, ...]]] = []
    seen: set[Node] = set(stop)
    stack = [n for n in roots if n.marks is not None and trace in n.marks]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        inputs = node.inputs
        found.append((node.seq, node, inputs))
        for i in inputs:
            marks = i.marks
            if marks is not None and trace in marks and i not in seen:
                stack.append(i)
    found.sort(key=_in_program_order)
    return [(node, inputs) for _, node, inputs in found]

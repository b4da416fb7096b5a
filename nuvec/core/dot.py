"""IR as a graph in Graphviz's DOT language; drawing it is left to whoever has Graphviz."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nuvec.core.ir import IR, Literal, Var, shown_irs, sub_irs
from nuvec.core.printer import Names, format_atom, format_params, symbols_named

__all__ = ["ir_dot"]

PARAMS = 60  # characters of an equation's parameters that are shown


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class _Graph:
    """Numbers the nodes of a graph, those of all its clusters alike."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.seen: set[int] = set()  # the custom rules whose IRs are drawn already

    def name(self, kind: str) -> str:
        return f"{kind}{next(self.numbers)}"

    def program(self, ir: IR, margin: str) -> Iterator[str]:
        names = Names(ir)
        at: dict[Var, str] = {}
        for kind, variables in (("input", ir.inputs), ("constant", [v for v, _ in ir.constants])):
            for var in variables:
                at[var] = node = self.name("v")
                label = _quoted(f"{names[var]}:{var.aval!r}")
                style = "shape=oval" if kind == "input" else "shape=oval style=dashed"
                yield f"{margin}{node} [label={label} {style}]"
        previous = ""  # communications stay in order
        for eqn in ir.eqns:
            node = self.name("e")
            plain = {k: v for k, v in eqn.params.items() if not sub_irs({k: v})}
            text = format_params(plain, eqn.primitive.words) if plain else ""
            text = text if len(text) <= PARAMS else text[:PARAMS] + "...]"
            text = "\n".join(filter(None, [eqn.primitive.name, text]))
            tooltip = f" tooltip={_quoted(eqn.source)}" if eqn.source else ""
            style = ' style=filled fillcolor="#ffb347" fontcolor=black' if eqn.effect else ""
            yield f"{margin}{node} [label={_quoted(text)} shape=box{style}{tooltip}]"
            for atom in eqn.inputs:
                if isinstance(atom, Literal):
                    leaf = self.name("v")
                    yield f"{margin}{leaf} [label={_quoted(format_atom(atom, names))} shape=plain]"
                    yield f"{margin}{leaf} -> {node}"
                else:
                    label = _quoted(f"{names[atom]}:{atom.aval!r}")
                    yield f"{margin}{at[atom]} -> {node} [label={label}]"
            if eqn.effect:
                if previous:
                    yield f"{margin}{previous} -> {node} [style=dotted constraint=false]"
                previous = node
            at.update((var, node) for var in eqn.outputs)
            for param, inner in shown_irs(eqn, self.seen):
                yield from self.cluster(inner, f"{eqn.primitive.name}: {param}", margin)
        for atom in ir.outputs:
            node = self.name("o")
            yield f"{margin}{node} [label={_quoted(format_atom(atom, names))} shape=doublecircle]"
            if isinstance(atom, Var):
                yield f"{margin}{at[atom]} -> {node}"

    def cluster(self, ir: IR, label: str, margin: str) -> Iterator[str]:
        yield f"{margin}subgraph {self.name('cluster')} {{"
        yield f"{margin}  label={_quoted(label)}"
        yield from self.program(ir, margin + "  ")
        yield f"{margin}}}"


def ir_dot(ir: IR) -> str:
    """The IR as Graphviz's DOT text: values flow down, and IRs inside, those of custom rules
    included, are clusters.

    Communications are filled, and dotted lines join them in the order they run.

    >>> print(ir_dot(IR((), (), (), ())))
    digraph ir {
      node [fontname=monospace]
    }
    """
    with symbols_named(folded=True):
        lines = _Graph().program(ir, "  ")
        return "\n".join(["digraph ir {", "  node [fontname=monospace]", *lines, "}"])


# Attached here because this file is built on ir.py, and an IR draws itself.
IR.to_dot = ir_dot  # type: ignore[assignment, method-assign]

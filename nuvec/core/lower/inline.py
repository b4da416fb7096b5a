"""Calls -> the equations they stand for, so that one plan sees the whole program.

An equation that runs an IR on its operands (a compiled function inside another, a part of a
checkpointed one) gives nothing but those equations' results.  It is left alone where its own plan
would hand over a copy in another layout than the value inside it has: bits depend on layout.
"""

from __future__ import annotations

from typing import Any

from nuvec.core.ir import IR, Atom, Eqn, Var
from nuvec.core.lower.layout import ALIASES


def inline(ir: IR) -> IR:
    """The IR with its calls replaced, at every depth; the IR itself when it has none.  Cached."""
    found = ir.derived.get("inlined")
    if found is None:
        calls = any(_callee(e) is not None for e in ir.eqns)
        found = ir.derived["inlined"] = _Inliner(ir).run() if calls else ir
    return found


def _callee(eqn: Eqn) -> IR | None:
    """The IR an equation runs on its operands, whatever else it may do about derivatives."""
    callee = eqn.params.get("ir")
    if isinstance(callee, IR) and len(callee.inputs) == len(eqn.inputs) and callee.outputs:
        return callee
    return None


class _Inliner:
    def __init__(self, ir: IR) -> None:
        self.ir = ir
        self.constants = list(ir.constants)
        self.eqns: list[Eqn] = []
        self.views: set[Atom] = set()  # what may be laid out unlike a copy of it

    def run(self) -> IR:
        names: dict[Var, Atom] = {}
        self.add(self.ir, names)
        outputs = tuple([_read(names, a) for a in self.ir.outputs])
        return IR(self.ir.inputs, tuple(self.constants), tuple(self.eqns), outputs)

    def add(self, ir: IR, names: dict[Var, Atom]) -> None:
        """Append an IR's equations; `names` says what its variables are here, and is filled in."""
        for eqn in ir.eqns:
            inputs = tuple([_read(names, a) for a in eqn.inputs])
            callee = _callee(eqn)
            inner = None if callee is None else inline(callee)
            if inner is not None and self.can_inline(inner, inputs):
                inside: dict[Var, Atom] = dict(zip(inner.inputs, inputs, strict=True))
                for v, value in inner.constants:
                    inside[v] = constant = Var(v.aval)
                    self.constants.append((constant, value))
                self.add(inner, inside)
                for v, a in zip(eqn.outputs, inner.outputs, strict=True):
                    names[v] = _read(inside, a)
                continue
            outputs = eqn.outputs
            if ir is not self.ir:  # the same IR may be called twice
                outputs = tuple([Var(v.aval, v.hint) for v in eqn.outputs])
                names.update(zip(eqn.outputs, outputs, strict=True))
            if eqn.primitive.kind == "view" or eqn.primitive in ALIASES:
                self.views.update(outputs)
            self.eqns.append(Eqn(eqn.primitive, inputs, outputs, eqn.params, eqn.source))

    def can_inline(self, inner: IR, operands: tuple[Atom, ...]) -> bool:
        """Whether every output is in memory as its copy would be."""
        by_input = dict(zip(inner.inputs, operands, strict=True))
        made = {v: e for e in inner.eqns for v in e.outputs}
        for a in inner.outputs:
            eqn: Any = made.get(a)  # type: ignore[arg-type]
            if eqn is not None:
                if eqn.primitive.kind == "view" or eqn.primitive in ALIASES:
                    return False
            elif isinstance(a, Var) and by_input.get(a) in self.views:
                return False
        return True


def _read(names: dict[Var, Atom], atom: Atom) -> Atom:
    return names.get(atom, atom) if isinstance(atom, Var) else atom

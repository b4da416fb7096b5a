"""IR -> an IR that computes the same bits with fewer equations.

One walk in program order rewrites by the rows of `rules.py`, computes what depends on constants
alone, and merges equal equations; then what nobody needs is left out.  Effects are never dropped,
merged, moved or computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.interpreter import lower_eqn
from nuvec.core.ir import IR, Atom, Eqn, Literal, Var
from nuvec.core.lower.layout import Layout, layout_of, result_layout
from nuvec.core.lower.rules import Equation, rows_for
from nuvec.core.primitive import Primitive

FOLD_LIMIT = 1 << 20  # bytes of a constant computed ahead
NOT_FOLDED = frozenset(("random", "call", "effect"))  # large for what they are made of, or opaque


def simplify(ir: IR, contiguous: Sequence[bool]) -> IR:
    """The simplified IR.  `contiguous` says which inputs are known to be C-contiguous."""
    return _Simplifier(ir, contiguous).run()


class _Simplifier:
    def __init__(self, ir: IR, contiguous: Sequence[bool]) -> None:
        self.ir = ir
        self.replaced: dict[Var, Atom] = {}
        self.definitions: dict[Var, Eqn] = {}
        self.values: dict[Var, Any] = dict(ir.constants)
        self.constants: dict[Var, Any] = dict(ir.constants)
        self.layouts: dict[Var, Layout] = {
            v: Layout.CONTIGUOUS if c else Layout.UNKNOWN
            for v, c in zip(ir.inputs, contiguous, strict=True)
        }
        for v, value in ir.constants:
            self.layouts[v] = layout_of(value)
        self.uniforms: dict[Var, Literal] = {}
        self.merged: dict[Any, tuple[Var, ...]] = {}
        self.eqns: list[Eqn] = []

    def run(self) -> IR:
        for eqn in self.ir.eqns:
            self.visit(eqn)
        outputs = tuple(self.resolve(a) for a in self.ir.outputs)
        eqns = _without_dead(self.eqns, outputs)
        used = {a for e in eqns for a in e.inputs} | set(outputs)
        constants = tuple((v, c) for v, c in self.constants.items() if v in used)
        return IR(self.ir.inputs, constants, tuple(eqns), outputs)

    def resolve(self, atom: Atom) -> Atom:
        return self.replaced.get(atom, atom) if type(atom) is Var else atom

    # What the rows ask

    def definition(self, atom: Atom) -> Eqn | None:
        return self.definitions.get(atom) if type(atom) is Var else None

    def layout(self, atom: Atom) -> Layout:
        return self.layouts[atom] if type(atom) is Var else Layout.CONTIGUOUS

    def scalar(self, atom: Atom) -> Literal | None:
        if type(atom) is Literal:
            return atom
        value = self.values.get(atom)  # type: ignore[arg-type]
        if value is not None:
            repeats = value.size > 0 and not any(
                s for n, s in zip(value.shape, value.strides, strict=True) if n != 1
            )
            return _literal(value[(0,) * value.ndim], atom.aval.weak) if repeats else None
        eqn = self.definition(atom)
        if eqn is not None and eqn.primitive.name == "broadcast_to":
            inner = eqn.inputs[0]
            return inner if type(inner) is Literal else None
        return None

    def uniform(self, atom: Atom) -> Literal | None:
        found = self.scalar(atom)
        return self.uniforms.get(atom) if found is None and type(atom) is Var else found

    def make(self, primitive: Primitive, inputs: tuple[Atom, ...], **params: Any) -> Atom:
        out = Var(primitive.infer(tuple([a.aval for a in inputs]), params))
        self.visit(Eqn(primitive, inputs, (out,), params))
        return self.resolve(out)

    # One equation

    def visit(self, eqn: Eqn) -> None:
        inputs = tuple([self.resolve(a) for a in eqn.inputs])
        if any(a is not b for a, b in zip(inputs, eqn.inputs, strict=True)):
            eqn = Eqn(eqn.primitive, inputs, eqn.outputs, eqn.params, eqn.source)
        if eqn.effect:
            self.keep(eqn)
            return
        while True:  # every rewrite leaves fewer equations behind this one, so it ends
            rewritten = self.rewrite(eqn)
            if rewritten is None:
                return
            if rewritten is eqn:
                break
            eqn = rewritten
        if self.fold(eqn) or self.merge(eqn):
            return
        self.keep(eqn)

    def rewrite(self, eqn: Eqn) -> Eqn | None:
        """The equation by the first row that applies; None when atoms replace its outputs."""
        for row in rows_for(eqn.primitive):
            found = row.apply(eqn, self)
            if found is None:
                continue
            if isinstance(found, Equation):
                return Eqn(found.primitive, found.inputs, eqn.outputs, found.params, eqn.source)
            self.replaced.update(zip(eqn.outputs, found, strict=True))
            return None
        return eqn

    def fold(self, eqn: Eqn) -> bool:
        """Compute an equation of constants; leave it when that fails, to fail when it runs."""
        if eqn.primitive.kind in NOT_FOLDED or eqn.primitive.higher_order:
            return False
        values = []
        for a in eqn.inputs:
            value = a.value if type(a) is Literal else self.values.get(a)  # type: ignore[arg-type]
            if value is None:
                return False
            values.append(value)
        if sum(v.aval.nbytes for v in eqn.outputs) > FOLD_LIMIT:
            return False
        try:
            with np.errstate(all="ignore"):
                result = lower_eqn(eqn, values)
        except Exception:
            return False
        for var, value in zip(
            eqn.outputs, result if eqn.primitive.multiple else (result,), strict=True
        ):
            if var.aval.shape:
                self.values[var] = self.constants[var] = value
                self.layouts[var] = layout_of(value)
                first = value.reshape(-1)[:1]
                if value.size and first.tobytes() * value.size == value.tobytes():
                    self.uniforms[var] = _literal(first[0], var.aval.weak)
            else:
                self.replaced[var] = _literal(np.asarray(value)[()], var.aval.weak)
        return True

    def merge(self, eqn: Eqn) -> bool:
        """Use an earlier equal equation's results."""
        try:
            key = (eqn.primitive, _key(eqn.inputs), _key(tuple(eqn.params.items())))
            earlier = self.merged.setdefault(key, eqn.outputs)
        except TypeError:  # a parameter that does not hash
            return False
        if earlier is eqn.outputs or any(
            a.aval is not b.aval for a, b in zip(earlier, eqn.outputs, strict=True)
        ):
            return False
        self.replaced.update(zip(eqn.outputs, earlier, strict=True))
        return True

    def keep(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)
        for i, v in enumerate(eqn.outputs):
            self.definitions[v] = eqn
            self.layouts[v] = result_layout(eqn, self.layout, i)


def _literal(value: Any, weak: bool) -> Literal:
    return Literal(value, weak)


def _key(value: Any) -> Any:
    """A key under which 1, 1.0 and True differ, and 0.0 and -0.0, and every NaN from another."""
    if type(value) is Literal:
        return value.aval, value.value.tobytes()
    if type(value) is tuple:
        return tuple([_key(v) for v in value])
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if type(value) in (float, complex):
        return type(value), repr(value)
    return type(value), value


def _without_dead(eqns: list[Eqn], outputs: Sequence[Atom]) -> list[Eqn]:
    live = set(outputs)
    kept = []
    for eqn in reversed(eqns):
        if eqn.effect or not live.isdisjoint(eqn.outputs):
            kept.append(eqn)
            live.update(eqn.inputs)
    kept.reverse()
    return kept

"""IR as HTML for notebooks: nested IRs fold, communications stand out, values explain themselves.

One piece without outside resources or scripts.  Colours are of middle lightness and greys are
transparencies of the page's own text colour, so that it reads on light and on dark pages.
"""

from __future__ import annotations

import html
from dataclasses import replace

from nuvec.core.ir import IR, Eqn, Literal, Var, shown_irs, sub_irs
from nuvec.core.printer import (
    Names,
    format_atom,
    format_constant,
    format_eqn,
    format_params,
    symbols_named,
)

__all__ = ["ir_html"]

TITLE = 400  # characters of an equation that are shown where the pointer rests

_STYLE = """\
<style>
.nuvec-ir { font-family: monospace; white-space: pre-wrap; line-height: 1.5; color: inherit; }
.nuvec-ir details { margin-left: 2ch; border-left: 1px solid rgba(128, 128, 128, 0.35);
  padding-left: 1ch; }
.nuvec-ir summary { cursor: pointer; }
.nuvec-ir .eqn { margin-left: 2ch; text-indent: -2ch; padding-left: 3ch; }
.nuvec-ir .eqn:hover { background: rgba(128, 128, 128, 0.12); }
.nuvec-ir .eqn details { text-indent: 0; }
.nuvec-ir .aval, .nuvec-ir .source, .nuvec-ir .params { opacity: 0.65; }
.nuvec-ir .source { font-style: italic; }
.nuvec-ir .primitive { font-weight: bold; color: hsl(212, 70%, 52%); }
.nuvec-ir .value { color: hsl(160, 60%, 38%); cursor: help; }
.nuvec-ir .value:hover { text-decoration: underline; }
.nuvec-ir .effect { background: rgba(255, 140, 0, 0.22);
  box-shadow: inset 3px 0 0 rgb(255, 140, 0); }
.nuvec-ir .effect > .primitive { color: hsl(28, 95%, 46%); }
</style>"""


def _span(kind: str, text: str, title: str = "") -> str:
    shown = f' title="{html.escape(title)}"' if title else ""
    return f'<span class="{kind}"{shown}>{html.escape(text)}</span>'


class _Page:
    """One IR: its names, and what each of its values is, for where the pointer rests.

    seen -- the custom rules whose IRs are shown already"""

    def __init__(self, ir: IR, seen: set[int]) -> None:
        self.ir = ir
        self.seen = seen
        self.names = Names(ir)
        self.titles: dict[Var, str] = {}
        for var in ir.inputs:
            self.titles[var] = f"{self.names[var]}: an input, {var.aval!r}"
        for var, value in ir.constants:
            self.titles[var] = f"{self.names[var]} = {format_constant(value)}, a constant"
        for eqn in ir.eqns:
            title = self.title(eqn)
            self.titles.update((var, title) for var in eqn.outputs)

    def title(self, eqn: Eqn) -> str:
        words = eqn.primitive.words
        short = {k: v for k, v in eqn.params.items() if k not in words and not sub_irs({k: v})}
        text = format_eqn(replace(eqn, params=short), self.names)
        if len(text) > TITLE:
            text = text[:TITLE] + " ..."
        return f"{text}\n{eqn.source}" if eqn.source else text

    def binder(self, var: Var) -> str:
        name = _span("value", self.names[var], self.titles.get(var, ""))
        return name + _span("aval", f":{var.aval!r}")

    def atom(self, atom: Var | Literal) -> str:
        if isinstance(atom, Var):
            return _span("value", self.names[atom], self.titles.get(atom, ""))
        return html.escape(format_atom(atom, self.names))

    def eqn(self, eqn: Eqn) -> str:
        outputs = " ".join(self.binder(var) for var in eqn.outputs) or "()"
        plain = {name: value for name, value in eqn.params.items() if not sub_irs({name: value})}
        text = f"{outputs} = {_span('primitive', eqn.primitive.name, self.title(eqn))}"
        if plain:
            text += _span("params", format_params(plain, eqn.primitive.words))
        text += "".join(f" {self.atom(a)}" for a in eqn.inputs)
        if eqn.source:
            text += _span("source", f"  # {eqn.source}")
        for label, ir in shown_irs(eqn, self.seen):
            text += _Page(ir, self.seen).details(label, is_open=False)
        return (
            f'<div class="eqn effect">{text}</div>'
            if eqn.effect
            else (f'<div class="eqn">{text}</div>')
        )

    def details(self, label: str, is_open: bool) -> str:
        ir = self.ir
        binders = " ".join(self.binder(var) for var in ir.inputs)
        count = f"{len(ir.eqns)} equation{'' if len(ir.eqns) == 1 else 's'}"
        effects = sum(eqn.effect for eqn in ir.eqns)
        if effects:
            count += f", {effects} of them communicat{'es' if effects == 1 else 'e'}"
        parts = [f"<summary>{html.escape(label)} ({binders}), {count}</summary>"]
        for var, value in ir.constants:
            constant = html.escape(format_constant(value))
            parts.append(f'<div class="eqn">const {self.binder(var)} = {constant}</div>')
        parts += [self.eqn(eqn) for eqn in ir.eqns]
        outputs = ", ".join(self.atom(atom) for atom in ir.outputs)
        parts.append(f'<div class="eqn">in ({outputs})</div>')
        return f"<details{' open' if is_open else ''}>{''.join(parts)}</details>"


def ir_html(ir: IR) -> str:
    """The IR as a self-contained piece of HTML.

    IRs inside, those of custom rules included, fold; communications stand out; resting the pointer
    on a value shows the equation it comes from and the user's line.

    >>> "<details" in ir_html(IR((), (), (), ()))
    True
    """
    with symbols_named(folded=True):
        page = _Page(ir, set()).details("lambda", is_open=True)
        return f'{_STYLE}<div class="nuvec-ir">{page}</div>'


# Attached here because this file is built on ir.py, and an IR shows itself.
IR._repr_html_ = ir_html  # type: ignore[assignment, method-assign]

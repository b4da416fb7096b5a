"""IR as text that a person can read and `parser.parse` reads back, and as HTML for notebooks.

The form::

    { lambda w:float32[3,2] x:float32[4,3] .
      const m:float32[2] = [0.5, 1.5]
      let a:float32[4,2] = dot_general[contract=((1,), (0,)) batch=((), ())] x w
          b:float32[4,2] = multiply a m
          c:float32[4,2] = maximum b 0.0
      in (c) }

A variable is written with its aval where it is defined (`~` marks a weak one) and by its name
where it is used. Names are the user's where known, else a, b, ..., z, aa, ... in order of
definition. A literal of a default dtype (bool, int32, float32, complex64) is its value alone;
any other says its aval: `2.0:float64`, `1:~int32`. Layout carries no meaning.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import IR, Aval, Eqn, Literal, Var, sub_irs

__all__ = ["RESERVED", "Names", "format_eqn", "format_ir", "format_value", "ir_html"]

LARGE = 64  # a constant with more elements than this is printed without its values
# Words that mean something where a variable's name could stand.
RESERVED = frozenset(
    {"lambda", "const", "let", "in", "complex", "inf", "nan", "True", "False", "None"}
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# --- Names


def _letters() -> Iterator[str]:
    """a, b, ..., z, aa, ab, ..."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    for length in itertools.count(1):
        for letters in itertools.product(alphabet, repeat=length):
            yield "".join(letters)


class Names:
    """The names of an IR's variables, one each: a function of the IR alone."""

    def __init__(self, ir: IR) -> None:
        self._fresh = _letters()
        self._taken: set[str] = set(RESERVED)
        self._names: dict[Var, str] = {}
        defined = [*ir.inputs, *(var for var, _ in ir.constants)]
        defined += [var for eqn in ir.eqns for var in eqn.outputs]
        for var in defined:
            if var.hint and var.hint not in self._taken and _NAME.fullmatch(var.hint):
                self._taken.add(var.hint)
                self._names.setdefault(var, var.hint)
        for var in defined:
            self[var]

    def __getitem__(self, var: Var) -> str:
        name = self._names.get(var)
        if name is None:
            name = next(name for name in self._fresh if name not in self._taken)
            self._names[var] = name
        return name


# --- Values


def _format_float(value: Any) -> str:
    text = str(value)
    return text if any(mark in text for mark in ".en") else f"{text}.0"  # inf and nan have an n


def _format_number(value: np.generic) -> str:
    """The shortest text that gives the number back in its own dtype."""
    if isinstance(value, np.complexfloating):
        return f"complex({_format_float(value.real)}, {_format_float(value.imag)})"
    if isinstance(value, (np.floating, ml_dtypes.bfloat16)):
        return _format_float(value)
    return str(value)


def format_value(value: Any) -> str:
    """A parameter's value as text; what cannot be read back is written `<...>`.

    >>> format_value({"axes": (0, 1), "dtype": np.dtype("float32"), "index": slice(0, None)})
    "{'axes': (0, 1), 'dtype': float32, 'index': slice(0, None, None)}"
    """
    kind = type(value)
    if kind is tuple:
        inner = ", ".join(_map(value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if kind is list:
        return f"[{', '.join(_map(value))}]"
    if kind is dict:
        pairs = (f"{format_value(k)}: {format_value(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if value is None or value is Ellipsis or kind in (bool, int, str):
        return "..." if value is Ellipsis else repr(value)
    if kind is float:
        return _format_float(value)
    if kind is complex:
        return f"complex({_format_float(value.real)}, {_format_float(value.imag)})"
    if kind is slice:
        return f"slice({', '.join(_map((value.start, value.stop, value.step)))})"
    if isinstance(value, np.dtype) and value in dtypes.ALL:
        return dtypes.name(value)
    if isinstance(value, Aval):
        return repr(value)
    if isinstance(value, (np.generic, ml_dtypes.bfloat16)) and value.dtype in dtypes.ALL:
        return f"{dtypes.name(value.dtype)}({_format_number(value)})"
    if isinstance(value, IR):
        return format_ir(value)
    return _format_opaque(value)


def _map(values: Iterable[Any]) -> Iterator[str]:
    return (format_value(value) for value in values)


def _format_opaque(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    text = f"{type(value).__name__} {name}" if isinstance(name, str) else repr(value)
    text = text.removeprefix("<").removesuffix(">")
    if "\n" in text or " at 0x" in text:  # an address would differ from run to run
        text = type(value).__name__
    return f"<{text}>"


def _format_atom(atom: Var | Literal, names: Names) -> str:
    if isinstance(atom, Var):
        return names[atom]
    if not isinstance(atom, Literal) or not isinstance(atom.value, np.generic):
        return _format_opaque(atom)  # ill-formed: only the checker's messages show it
    text = _format_number(atom.value)
    default = dtypes.scalar_dtype(atom.value.item())
    if atom.aval.weak or atom.aval.dtype != default:
        weak = "~" if atom.aval.weak else ""
        text += f":{weak}{dtypes.name(atom.aval.dtype)}"
    return text


def _format_binder(var: Var, names: Names) -> str:
    return f"{names[var]}:{var.aval!r}"


def _format_constant(value: Any) -> str:
    array = np.asarray(value)
    if array.size > LARGE:
        return f"<{array.size} values>"

    def nested(part: Any) -> str:  # an array's rows are arrays, down to scalars
        if np.ndim(part):
            return f"[{', '.join(nested(row) for row in part)}]"
        return _format_number(part[()])

    return nested(array)


# --- Equations and programs


def _indent(text: str, columns: int) -> str:
    """Indent every line but the first."""
    return text.replace("\n", "\n" + " " * columns)


def _format_params(params: dict[str, Any]) -> str:
    if not params:
        return ""
    items = [f"{name}={format_value(value)}" for name, value in params.items()]
    if not sub_irs(params):
        return f"[{' '.join(items)}]"
    lines = "".join(f"\n  {_indent(item, 2)}" for item in items)
    return f"[{lines}\n]"


def format_eqn(eqn: Eqn, names: Names, source: bool = False) -> str:
    """One equation as text; with `source`, the user's line as a comment."""
    outputs = " ".join(_format_binder(var, names) for var in eqn.outputs) or "()"
    operation = eqn.primitive.name + _format_params(eqn.params)
    text = " ".join([f"{outputs} = {operation}", *(_format_atom(a, names) for a in eqn.inputs)])
    return f"{text}  # {eqn.source}" if source and eqn.source else text


def format_ir(ir: IR, source: bool = False) -> str:
    """The IR as text; with `source`, each equation carries the user's line as a comment.

    >>> from nuvec.core.ir import aval
    >>> x = Var(aval((3,), dtypes.float32), "x")
    >>> print(format_ir(IR((x,), (), (), (x,))))
    { lambda x:float32[3] .
      in (x) }
    """
    names = Names(ir)
    binders = "".join(f" {_format_binder(var, names)}" for var in ir.inputs)
    lines = [f"{{ lambda{binders} ."]
    lead = "  const "
    for var, value in ir.constants:
        lines.append(f"{lead}{_format_binder(var, names)} = {_format_constant(value)}")
        lead = " " * len(lead)
    lead = "  let "
    for eqn in ir.eqns:
        lines.append(lead + _indent(format_eqn(eqn, names, source), 6))
        lead = " " * len(lead)
    outputs = ", ".join(_format_atom(atom, names) for atom in ir.outputs)
    lines.append(f"  in ({outputs}) }}")
    return "\n".join(lines)


# --- HTML

_STYLE = """\
<style>
.nuvec-ir { font-family: monospace; white-space: pre-wrap; line-height: 1.4; }
.nuvec-ir details { margin-left: 2ch; }
.nuvec-ir summary { cursor: pointer; }
.nuvec-ir .eqn { margin-left: 4ch; text-indent: -2ch; }
.nuvec-ir .aval, .nuvec-ir .source { opacity: 0.6; }
.nuvec-ir .primitive { font-weight: bold; }
.nuvec-ir .effect { background: rgba(255, 165, 0, 0.25); }
</style>"""


def _span(kind: str, text: str) -> str:
    return f'<span class="{kind}">{html.escape(text)}</span>'


def _html_binder(var: Var, names: Names) -> str:
    return html.escape(names[var]) + _span("aval", f":{var.aval!r}")


def _html_eqn(eqn: Eqn, names: Names) -> str:
    outputs = " ".join(_html_binder(var, names) for var in eqn.outputs) or "()"
    plain = {name: value for name, value in eqn.params.items() if not sub_irs({name: value})}
    operands = "".join(f" {_format_atom(atom, names)}" for atom in eqn.inputs)
    text = f"{outputs} = {_span('primitive', eqn.primitive.name)}"
    text += html.escape(_format_params(plain) + operands)
    if eqn.source:
        text += _span("source", f"  # {eqn.source}")
    for name, value in eqn.params.items():
        inner = sub_irs({name: value})
        for i, ir in enumerate(inner):
            label = name if len(inner) == 1 else f"{name}[{i}]"
            text += _html_details(ir, label, is_open=False)
    effect = " effect" if eqn.effect else ""
    title = ' title="communicates"' if eqn.effect else ""
    return f'<div class="eqn{effect}"{title}>{text}</div>'


def _html_details(ir: IR, label: str, is_open: bool) -> str:
    names = Names(ir)
    binders = " ".join(_html_binder(var, names) for var in ir.inputs)
    count = f"{len(ir.eqns)} equation{'' if len(ir.eqns) == 1 else 's'}"
    parts = [f"<summary>{html.escape(label)} ({binders}), {count}</summary>"]
    for var, value in ir.constants:
        constant = html.escape(_format_constant(value))
        parts.append(f'<div class="eqn">const {_html_binder(var, names)} = {constant}</div>')
    parts += [_html_eqn(eqn, names) for eqn in ir.eqns]
    outputs = ", ".join(_format_atom(atom, names) for atom in ir.outputs)
    parts.append(f'<div class="eqn">in ({html.escape(outputs)})</div>')
    return f"<details{' open' if is_open else ''}>{''.join(parts)}</details>"


def ir_html(ir: IR) -> str:
    """The IR as a self-contained piece of HTML: IRs inside fold, communications stand out."""
    return f'{_STYLE}<div class="nuvec-ir">{_html_details(ir, "lambda", is_open=True)}</div>'


# Attached here because this file is built on ir.py, and an IR prints itself.
IR.__str__ = IR.__repr__ = format_ir  # type: ignore[assignment, method-assign]
IR._repr_html_ = ir_html  # type: ignore[attr-defined]

"""IR as text that a person can read and `parser.parse` reads back.

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

A group of ranks, which text cannot carry, is written as a symbol, `@world`: `parse` is told which
group that is. Anything else text cannot carry (a function, a custom rule) is written `<...>`.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import IR, Aval, Eqn, Literal, Var, sub_irs

__all__ = [
    "RESERVED",
    "Names",
    "format_atom",
    "format_binder",
    "format_constant",
    "format_eqn",
    "format_ir",
    "format_params",
    "format_value",
    "symbols_named",
]

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


# --- Symbols: what text cannot carry, and parse is given


class _Symbols(threading.local):
    """The symbols of the text that this thread is writing: object -> name."""

    names: dict[Any, str] | None = None


_symbols = _Symbols()


@contextmanager
def symbols_named() -> Iterator[None]:
    """One object has one name, and another object another one, all through a text."""
    if _symbols.names is not None:  # an IR inside another one
        yield
        return
    _symbols.names = {}
    try:
        yield
    finally:
        _symbols.names = None


def _symbol(value: Any) -> str | None:
    """`@world` for a group; None for what has no symbol."""
    wanted = getattr(type(value), "symbol", None)
    if wanted is None:
        return None
    names = {} if _symbols.names is None else _symbols.names
    if value not in names:
        name = re.sub(r"\W", "_", value.symbol)
        taken = sum(re.sub(r"_\d+$", "", n) == name for n in names.values())
        names[value] = f"{name}_{taken + 1}" if taken else name
    return f"@{names[value]}"


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
    symbol = _symbol(value)
    if symbol is not None:
        return symbol
    name = getattr(value, "__qualname__", None)
    text = f"{type(value).__name__} {name}" if isinstance(name, str) else repr(value)
    text = text.removeprefix("<").removesuffix(">")
    if "\n" in text or " at 0x" in text:  # an address would differ from run to run
        text = type(value).__name__
    return f"<{text}>"


def format_atom(atom: Var | Literal, names: Names) -> str:
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


def format_binder(var: Var, names: Names) -> str:
    return f"{names[var]}:{var.aval!r}"


def format_constant(value: Any) -> str:
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


def format_params(params: dict[str, Any]) -> str:
    if not params:
        return ""
    items = [f"{name}={format_value(value)}" for name, value in params.items()]
    if not sub_irs(params):
        return f"[{' '.join(items)}]"
    lines = "".join(f"\n  {_indent(item, 2)}" for item in items)
    return f"[{lines}\n]"


def format_eqn(eqn: Eqn, names: Names, source: bool = False) -> str:
    """One equation as text; with `source`, the user's line as a comment."""
    outputs = " ".join(format_binder(var, names) for var in eqn.outputs) or "()"
    operation = eqn.primitive.name + format_params(eqn.params)
    text = " ".join([f"{outputs} = {operation}", *(format_atom(a, names) for a in eqn.inputs)])
    return f"{text}  # {eqn.source}" if source and eqn.source else text


def format_ir(ir: IR, source: bool = False) -> str:
    """The IR as text; with `source`, each equation carries the user's line as a comment.

    >>> from nuvec.core.ir import aval
    >>> x = Var(aval((3,), dtypes.float32), "x")
    >>> print(format_ir(IR((x,), (), (), (x,))))
    { lambda x:float32[3] .
      in (x) }
    """
    with symbols_named():
        return _format_ir(ir, source)


def _format_ir(ir: IR, source: bool) -> str:
    names = Names(ir)
    binders = "".join(f" {format_binder(var, names)}" for var in ir.inputs)
    lines = [f"{{ lambda{binders} ."]
    lead = "  const "
    for var, value in ir.constants:
        lines.append(f"{lead}{format_binder(var, names)} = {format_constant(value)}")
        lead = " " * len(lead)
    lead = "  let "
    for eqn in ir.eqns:
        lines.append(lead + _indent(format_eqn(eqn, names, source), 6))
        lead = " " * len(lead)
    outputs = ", ".join(format_atom(atom, names) for atom in ir.outputs)
    lines.append(f"  in ({outputs}) }}")
    return "\n".join(lines)


# Attached here because this file is built on ir.py, and an IR prints itself.
IR.__str__ = IR.__repr__ = format_ir  # type: ignore[assignment, method-assign]

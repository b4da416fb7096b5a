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

A constant of more than 64 elements is written without its values, `<1000 values>`; with
`constants="full"` as `bytes('...')`, its elements' bytes in base64, little-endian.

A custom rule is written field by field, with its IRs, and numbered: `&1 Rule[name='f' ...]`. Where
it occurs again, as in its own forward, it is `*1`. A group of ranks, which text cannot carry, is
written as a symbol, `@world`: `parse` is told which group that is. Anything else text cannot carry
(a function of the user's) is written `<...>`.
"""

from __future__ import annotations

import base64
import itertools
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from typing import Literal as OneOf

import ml_dtypes
import numpy as np

from nuvec.core import dtypes
from nuvec.core.errors import ConfigurationError
from nuvec.core.ir import IR, Aval, Eqn, Literal, Var

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


class _Writing(threading.local):
    """The text that this thread is writing: what it has named, and how it writes the rest."""

    symbols: dict[Any, str] | None = None  # object -> name
    records: dict[Any, int]  # record -> number
    full = False  # constants with all their values
    folded = False  # custom rules without their IRs, which are shown elsewhere
    source = False  # equations with the user's lines


_writing = _Writing()


@contextmanager
def symbols_named(full: bool = False, source: bool = False, folded: bool = False) -> Iterator[None]:
    """One object has one name, and another object another one, all through a text; `full`,
    `source` and `folded` hold for all of it, too."""
    if _writing.symbols is not None:  # an IR inside another one
        yield
        return
    _writing.symbols, _writing.records = {}, {}
    _writing.full, _writing.source, _writing.folded = full, source, folded
    try:
        yield
    finally:
        _writing.symbols, _writing.records = None, {}
        _writing.full = _writing.source = _writing.folded = False


def _symbol(value: Any) -> str | None:
    """`@world` for a group; None for what has no symbol."""
    wanted = getattr(type(value), "symbol", None)
    if wanted is None:
        return None
    names = {} if _writing.symbols is None else _writing.symbols
    if value not in names:
        name = re.sub(r"\W", "_", value.symbol)
        taken = sum(re.sub(r"_\d+$", "", n) == name for n in names.values())
        names[value] = f"{name}_{taken + 1}" if taken else name
    return f"@{names[value]}"


# --- Values


def _format_float(value: Any) -> str:
    text = str(value)
    if text == "nan" and np.signbit(value):  # as NumPy computes it on many machines
        return "-nan"
    return text if any(mark in text for mark in ".en") else f"{text}.0"  # inf and nan have an n


def _format_number(value: np.generic) -> str:
    """The shortest text that gives the number back in its own dtype."""
    if isinstance(value, np.complexfloating):
        return f"complex({_format_float(value.real)}, {_format_float(value.imag)})"
    if isinstance(value, (np.floating, ml_dtypes.bfloat16)):
        return _format_float(value)
    return str(value)


Words = Mapping[str, Any]  # what a primitive writes by name: `Primitive.words`


def format_value(value: Any, words: Words | None = None, given: Words | None = None) -> str:
    """A parameter's value as text; what cannot be read back is written `<...>`.

    words -- the names that its primitive has for values of this parameter
    given -- the equation's parameters, which a record refers to by name

    >>> format_value({"axes": (0, 1), "dtype": np.dtype("float32"), "index": slice(0, None)})
    "{'axes': (0, 1), 'dtype': float32, 'index': slice(0, None, None)}"
    """
    if words:
        for name, meant in words.items():
            if value is meant:
                return name
            if isinstance(meant, type) and type(value) is meant:
                return _format_record(name, value, given or {})

    def mapped(values: Iterable[Any]) -> Iterator[str]:
        return (format_value(v, words, given) for v in values)

    kind = type(value)
    if kind is tuple:
        inner = ", ".join(mapped(value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if kind is list:
        return f"[{', '.join(mapped(value))}]"
    if kind is dict:
        pairs = (": ".join(mapped(pair)) for pair in value.items())
        return f"{{{', '.join(pairs)}}}"
    if value is None or value is Ellipsis or kind in (bool, int, str):
        return "..." if value is Ellipsis else repr(value)
    if kind is float:
        return _format_float(value)
    if kind is complex:
        return f"complex({_format_float(value.real)}, {_format_float(value.imag)})"
    if kind is slice:
        return f"slice({', '.join(mapped((value.start, value.stop, value.step)))})"
    if isinstance(value, np.dtype) and value in dtypes.ALL:
        return dtypes.name(value)
    if isinstance(value, Aval):
        return repr(value)
    if isinstance(value, (np.generic, ml_dtypes.bfloat16)) and value.dtype in dtypes.ALL:
        return f"{dtypes.name(value.dtype)}({_format_number(value)})"
    if isinstance(value, IR):
        same = [name for name, other in (given or {}).items() if other is value]
        return same[0] if same else format_ir(value)
    return _format_opaque(value)


def _format_record(name: str, record: Any, given: Words) -> str:
    """What `Primitive.words` names by its class: `&1 Rule[...]`, and `*1` from then on."""
    with symbols_named():
        number = _writing.records.get(record)
        if number is not None:
            return f"*{number}"
        number = _writing.records[record] = len(_writing.records) + 1
        fields = {n: getattr(record, n) for n in record.text_fields}
        left_out = IR if _writing.folded else ()
        fields = {
            n: value
            for n, value in fields.items()
            if value is not None and not isinstance(value, left_out)
        }
        return f"&{number} {name}{format_params(fields, given=given)}"


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
    if array.size > LARGE and not _writing.full:
        return f"<{array.size} values>"
    if array.size > LARGE or _has_payload(array):
        little = array if sys.byteorder == "little" else array.byteswap()
        return f"bytes({base64.b64encode(little.tobytes()).decode()!r})"

    def nested(part: Any) -> str:  # an array's rows are arrays, down to scalars
        if np.ndim(part):
            return f"[{', '.join(nested(row) for row in part)}]"
        return _format_number(part[()])

    return nested(array)


def _has_payload(array: np.ndarray) -> bool:
    """Whether a NaN in it is another one than the usual, which numbers as text cannot tell."""
    if dtypes.is_complex(array.dtype):
        return _has_payload(array.real) or _has_payload(array.imag)
    if not dtypes.is_floating(array.dtype):
        return False
    found = array[array != array]
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    beside_sign = unsigned.type(np.iinfo(unsigned).max >> 1)
    usual = np.array(np.nan, array.dtype).view(unsigned)
    return bool(np.any((found.view(unsigned) ^ usual) & beside_sign))


# --- Equations and programs


def _indent(text: str, columns: int) -> str:
    """Indent every line but the first."""
    return text.replace("\n", "\n" + " " * columns)


def format_params(
    params: Mapping[str, Any], words: Mapping[str, Words] | None = None, given: Words | None = None
) -> str:
    """Parameters in brackets: one a line if any takes several.  `words` are their primitive's."""
    if not params:
        return ""
    words = words or {}
    items = []
    for name, value in params.items():
        own = words.get(name)
        items.append(f"{name}={format_value(value, own, params if own else given)}")
    if not any("\n" in item for item in items):
        return f"[{' '.join(items)}]"
    lines = "".join(f"\n  {_indent(item, 2)}" for item in items)
    return f"[{lines}\n]"


def format_eqn(eqn: Eqn, names: Names, source: bool = False) -> str:
    """One equation as text; with `source`, the user's line as a comment."""
    outputs = " ".join(format_binder(var, names) for var in eqn.outputs) or "()"
    operation = eqn.primitive.name + format_params(eqn.params, eqn.primitive.words)
    text = " ".join([f"{outputs} = {operation}", *(format_atom(a, names) for a in eqn.inputs)])
    return f"{text}  # {eqn.source}" if source and eqn.source else text


def format_ir(ir: IR, source: bool = False, constants: OneOf["short", "full"] = "short") -> str:
    """The IR as text, which `parser.parse` reads back.

    source    -- whether each equation carries the user's line as a comment
    constants -- "full" writes all values of constants of more than 64 elements, so that the text
                 is read back whatever they are; "short" writes how many they are

    >>> from nuvec.core.ir import aval
    >>> x = Var(aval((3,), dtypes.float32), "x")
    >>> print(format_ir(IR((x,), (), (), (x,))))
    { lambda x:float32[3] .
      in (x) }
    """
    if constants not in ("short", "full"):
        raise ConfigurationError(f"constants must be 'short' or 'full', got {constants!r}")
    with symbols_named(constants == "full", source):
        return _format_ir(ir, _writing.source)


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
IR.__str__ = IR.__repr__ = IR.to_text = format_ir  # type: ignore[assignment, method-assign]

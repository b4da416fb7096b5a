"""The intermediate representation: frozen values, with no behaviour beyond naming their parts.

An `IR` is a function in straight-line form::

    { lambda a:float32[3] .
      let b:float32[3] = sin a
          c:float32[3] = multiply b 2.0
      in (c) }

`Aval` (abstract value) is what is known of an array before it has a value: shape and dtype, and
whether it came from a bare Python scalar ("weak"), which yields in promotion.  Avals are interned:
two equal ones are the same object, so caches key on identity and comparing costs nothing.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.errors import ArgumentError, DtypeError
from nuvec.core.size import Size

if TYPE_CHECKING:
    from nuvec.core.primitive import Primitive

LARGE = 1 << 20

_interned: weakref.WeakValueDictionary[tuple[tuple[int, ...], np.dtype, bool], Aval] = (
    weakref.WeakValueDictionary()
)
_interning = threading.Lock()


class Aval:
    """Shape, dtype and weakness of an array.  Make one with `aval(shape, dtype)`.

    large -- whether it has `LARGE` bytes: a graph of such arrays may be worth a program"""

    __slots__ = ("__weakref__", "dtype", "large", "shape", "weak")
    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool
    large: bool

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        weak = "~" if self.weak else ""
        return f"{weak}{dtypes.name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return aval, (self.shape, self.dtype, self.weak)


class NoAvalError(ArgumentError):
    """A shape or a dtype that no array has."""


def aval(shape: Sequence[int], dtype: Any, weak: bool = False) -> Aval:
    """The one `Aval` with this shape, dtype and weakness.

    shape -- integers, none of them negative (NumPy's become Python's)
    dtype -- one of nuvec's, or what names it: np.int32, "bfloat16" (see `dtypes.as_dtype`)

    Raises ArgumentError (a TypeError and a ValueError) for anything else.

    >>> aval([np.int64(2), 3], "float32") is aval((2, 3), dtypes.float32)
    True
    """
    try:
        found = _interned.get((shape, dtype, weak))  # type: ignore[arg-type]
    except TypeError:  # unhashable: a list
        found = None
    if found is None:  # only what is new, or written in another way, is looked at
        found = _intern(*_normalized(shape, dtype, weak))
    return found


def _normalized(shape: Any, dtype: Any, weak: Any) -> tuple[tuple[int, ...], np.dtype, bool]:
    try:
        sizes = tuple([n if type(n) is Size else operator.index(n) for n in shape])
    except TypeError:
        sizes = (-1,)
    if isinstance(shape, str | bytes) or any(n < 0 for n in sizes):
        raise NoAvalError(
            "the shape of an aval must be a tuple of integers, none of them negative, got "
            f"{shape!r}"
        )
    try:
        return sizes, dtypes.as_dtype(dtype), bool(weak)
    except DtypeError as error:
        raise NoAvalError(f"the dtype of an aval: {error}") from None


def _intern(shape: tuple[int, ...], dtype: np.dtype, weak: bool) -> Aval:
    key = (shape, dtype, weak)
    with _interning:  # two threads must not make two of it
        found = _interned.get(key)
        if found is None:
            found = object.__new__(Aval)
            found.shape = shape
            found.dtype = dtype
            found.weak = weak
            known = all(type(n) is int for n in shape)  # a size that notes questions is asked none
            found.large = known and math.prod(shape) * dtype.itemsize >= LARGE
            _interned[key] = found
    return found


class Var:
    """A value of an IR.  Variables are equal only to themselves; printers name them."""

    __slots__ = ("aval", "hint")

    def __init__(self, aval: Aval, hint: str = "") -> None:
        self.aval = aval
        self.hint = hint  # the user's name for it, where known; for printing only

    def __repr__(self) -> str:
        return f"Var({self.aval})"


class Literal:
    """A scalar constant written into an equation; `value` is a NumPy scalar."""

    __slots__ = ("aval", "value")

    def __init__(self, value: np.generic, weak: bool = False) -> None:
        self.value = value
        self.aval = aval((), value.dtype, weak)

    def __repr__(self) -> str:
        return f"Literal({self.value!r})"


Atom = Var | Literal


@dataclass(frozen=True, slots=True, eq=False)
class Eqn:
    """`outputs = primitive(inputs, **params)`; `source` is the user's line ("file.py:12")."""

    primitive: Primitive
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    params: dict[str, Any]
    source: str | None = None

    @property
    def effect(self) -> bool:
        """True for a communication, and for an equation that holds an IR that communicates."""
        return has_effect(self.primitive, self.params)


DERIVED_LIMIT = 64


@dataclass(frozen=True, eq=False)
class IR:
    """A closed program: inputs, array constants, equations in program order, outputs.

    Identity is equality, so an IR can be a parameter of an equation and a key of a cache.
    `derived` keeps what passes computed from this IR (its batched form, its forward and
    backward), each under a key of its pass; it is a cache and not part of the value.
    """

    inputs: tuple[Var, ...]
    constants: tuple[tuple[Var, np.ndarray], ...]
    eqns: tuple[Eqn, ...]
    outputs: tuple[Atom, ...]
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    def remember(self, key: Any, value: Any) -> Any:
        """Keep what a pass derived from this IR, and return it.  Bounded: a function may be
        batched to sizes without end."""
        if len(self.derived) > DERIVED_LIMIT:
            for old in [k for k in self.derived if isinstance(k, tuple)]:
                del self.derived[old]
        self.derived[key] = value
        return value

    if TYPE_CHECKING:  # attached by the files that show an IR: printer.py, html.py, dot.py

        def to_text(self, source: bool = False, constants: Any = "short") -> str:
            """The program as text: `printer.format_ir`."""

        def to_dot(self) -> str:
            """The program as a graph, in Graphviz's DOT language."""

        def _repr_html_(self) -> str: ...

    @property
    def effect(self) -> bool:
        found = self.derived.get("effect")
        if found is None:
            found = self.derived["effect"] = any(e.effect for e in self.eqns)
        return found

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        return tuple(v.aval for v in self.inputs)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        return tuple(v.aval for v in self.outputs)


# An equation that communicates and has no results has this one, so that others can depend on it.
TOKEN = aval((), dtypes.bool_)


def results_of(ir: IR) -> tuple[Aval, ...]:
    """The outputs of an equation that runs `ir`."""
    return ir.out_avals or (TOKEN,)


def or_token(values: Sequence[Any]) -> tuple[Any, ...]:
    """What such an equation's lowering returns."""
    return tuple(values) or (np.False_,)


def sub_irs(params: dict[str, Any]) -> tuple[IR, ...]:
    """The IRs held by an equation's parameters, directly or in a tuple."""
    found = []
    for value in params.values():
        if isinstance(value, IR):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(v for v in value if isinstance(v, IR))
    return tuple(found)


def held_irs(eqn: Eqn, seen: set[int]) -> list[tuple[str, IR]]:
    """The IRs of an equation and where each is: those of `sub_irs`, and those of the records among
    its parameters (a custom rule).  A record may refer to itself: one that is in `seen` is left
    out, and the others enter it."""
    found = [(name, ir) for name, value in eqn.params.items() for ir in sub_irs({name: value})]
    for name, words in eqn.primitive.words.items():
        record: Any = eqn.params.get(name)
        if any(type(record) is w for w in words.values()) and id(record) not in seen:
            seen.add(id(record))
            fields = {f"{name}.{f}": getattr(record, f) for f in record.text_fields}
            found += [(f, ir) for f, value in fields.items() for ir in sub_irs({f: value})]
    return found


def shown_irs(eqn: Eqn, seen: set[int]) -> list[tuple[str, IR]]:
    """`held_irs` with names that tell them apart: those of a tuple are numbered.  A record's IR
    that is a parameter as well is there once."""
    direct = sub_irs(eqn.params)
    held = held_irs(eqn, seen)
    held = held[: len(direct)] + [(n, ir) for n, ir in held[len(direct) :] if ir not in direct]
    names = [name for name, _ in held]
    return [
        (f"{name}[{names[:i].count(name)}]" if names.count(name) > 1 else name, ir)
        for i, (name, ir) in enumerate(held)
    ]


def has_effect(primitive: Primitive, params: dict[str, Any]) -> bool:
    """Whether an equation communicates, itself or in an IR it holds."""
    return primitive.effect or (
        primitive.higher_order
        and (
            any(ir.effect for ir in sub_irs(params))
            or any(getattr(value, "effect", False) is True for value in params.values())
        )
    )


sequence = itertools.count(1).__next__  # program order of everything recorded in this process

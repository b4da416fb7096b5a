"""What control flow shares: tracing Python bodies into IRs with common captures."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, literal
from nuvec.core.errors import DtypeError, ShapeError, TreeError
from nuvec.core.functions.stream import (
    RANDOM_KEY,
    Folded,
    RandomPosition,
    another_stream,
    source_aval,
    source_id,
)
from nuvec.core.ir import IR, Atom, Aval, Literal, Var, aval
from nuvec.core.node import Trace
from nuvec.core.ops.build import converted
from nuvec.core.pytree import Path
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.arguments import arrays_of

Places = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Names:
    """What messages call the arguments and results of bodies, as the user knows them: fori_loop is
    made of scan, and its user never sees an `xs`.

    function  -- what the user called: "scan", "fori_loop"
    arguments -- (place, name) of parts of a body's arguments: () all of them, (0,) the first
    results   -- the same of what a body returns
    calls     -- how a body is called: "(carry, x)"
    """

    function: str
    arguments: Places
    results: Places
    calls: str = ""

    def argument(self, path: Path) -> str:
        return _named(self.arguments, path)

    def result(self, path: Path) -> str:
        return f"{self.function}: {_named(self.results, path)}"

    def carry(self, path: Path) -> str:
        """A part of the carry, which is a body's first argument."""
        return f"{self.function}: {self.argument((tree.SequenceKey(0), *path))}"

    def init(self, init: Any) -> list[Array]:
        """The leaves of the first carry."""
        leaves, structure = tree.flatten(init)
        return arrays_of(leaves, structure, lambda p: f"{self.function}: init{tree.keystr(p)}")


def _named(places: Places, path: Path) -> str:
    for place, name in places:
        if tuple([getattr(key, "index", None) for key in path[: len(place)]]) == place:
            return f"{name}{tree.keystr(path[len(place) :])}"
    return tree.keystr(path)


CARRIED = ("the carry", "its next value")  # what messages call the two that must be alike


class Body:
    """A Python function of trees, traced: its IR (captures first), what it captures, and the
    structure of its output.  `argument` and `result` say what messages call a part of either."""

    structure: Any

    def __init__(
        self, f: Callable[..., Any], structure: Any, avals: Sequence[Aval], name: str,
        argument: Callable[[Path], str], result: Callable[[Path], str],
    ) -> None:  # fmt: skip
        self.name = name

        def function(*inputs: Array) -> list[Array]:
            leaves, self.structure = tree.flatten(f(*tree.unflatten(structure, inputs)))
            return arrays_of(leaves, self.structure, result)

        labels = [f"{argument(path)} of {name}" for path in structure.paths()]
        self.ir, self.captures = trace_ir(function, avals, name, labels, by_handle=True)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        return self.ir.out_avals


# A body is traced at every call, for it is a Python function and may read anything.  What costs
# more than tracing (splitting, batching, lowering) is kept with its IR, so equal IRs are made one.
_interned: OrderedDict[Any, IR] = OrderedDict()
_interning = threading.Lock()
_INTERNED = 256  # IRs; the least recently used goes first
_CONSTANTS = 1 << 16  # bytes of array constants up to which IRs are compared


def interned(ir: IR) -> IR:
    """An earlier IR that is the same program, written on the same lines, or `ir` itself."""
    if ir.effect or sum(value.nbytes for _, value in ir.constants) > _CONSTANTS:
        return ir
    try:
        key = _program_key(ir)
        with _interning:
            found = _interned.get(key)
            if found is None:
                _interned[key] = found = ir
                if len(_interned) > _INTERNED:
                    _interned.popitem(last=False)
            else:
                _interned.move_to_end(key)
    except TypeError:  # a parameter that does not hash
        return ir
    return found


def _program_key(ir: IR) -> Any:
    """Equal for IRs that differ in nothing but which variables they use.  (An IR as a parameter
    is equal to itself alone: inner bodies are interned first.)"""
    numbers: dict[Any, int] = {}

    def define(v: Var) -> Aval:
        numbers[v] = len(numbers)
        return v.aval

    def read(atom: Atom) -> Any:
        if type(atom) is Literal:
            return atom.aval, atom.value.tobytes()
        return numbers[atom]

    inputs = tuple([(define(v), v.hint) for v in ir.inputs])
    constants = tuple([
        (define(v), value.tobytes(), value.strides) for v, value in ir.constants
    ])  # fmt: skip
    eqns = []
    for e in ir.eqns:
        operands = tuple([read(a) for a in e.inputs])
        params = tuple([(k, _typed(v)) for k, v in e.params.items()])
        outs = tuple([define(v) for v in e.outputs])
        eqns.append((e.primitive, operands, params, outs, e.source))
    return inputs, constants, tuple(eqns), tuple([read(a) for a in ir.outputs])


def _typed(value: Any) -> Any:
    """A key of a parameter under which 1, 1.0 and True differ, and 0.0 and -0.0."""
    if type(value) is tuple:
        return tuple([_typed(v) for v in value])
    hash(value)
    return type(value), repr(value) if isinstance(value, float | complex) else value


def share_captures(bodies: Sequence[Body]) -> tuple[list[IR], list[Any]]:
    """The bodies' IRs with one common list of captures before the arguments, and that list."""
    sources = union([body.captures for body in bodies])
    irs = []
    for body in bodies:
        ir, count = body.ir, len(body.captures)
        own = dict(zip([source_id(s) for s in body.captures], ir.inputs[:count], strict=True))
        first = [own[k] if k in own else Var(source_aval(s)) for k, s in sources.items()]
        irs.append(IR((*first, *ir.inputs[count:]), ir.constants, ir.eqns, ir.outputs))
    return irs, list(sources.values())


def union(captures: Iterable[Sequence[Any]]) -> dict[Any, Any]:
    """The captures of several IRs that are one equation's, each once.  Of the default stream it
    takes as much as the one that draws most."""
    found: dict[Any, Any] = {}
    for source in itertools.chain.from_iterable(captures):
        known = found.setdefault(source_id(source), source)
        if isinstance(source, RandomPosition) and source.count > known.count:
            found[RandomPosition] = source
    return found


def own_stream(ir: IR, captures: Sequence[Any]) -> tuple[IR, list[Any]]:
    """An IR, captures first, and these, made to draw from a stream of its own: one that begins at
    one position of the caller's.  As it is where it does not draw."""
    if RANDOM_KEY not in captures:
        return ir, list(captures)
    places = [source_id(s) for s in captures]
    key, position = places.index(id(RANDOM_KEY)), places.index(RandomPosition)

    def function(*inputs: Array) -> list[Array]:
        values = list(inputs)
        values[key] = another_stream(inputs[key], inputs[position], Folded.BACKWARD)
        values[position] = literal(0, inputs[position].dtype)
        return replay(ir, values)

    own, none = trace_ir(function, ir.in_avals, "a stream of its own")
    assert not none
    return own, [RandomPosition(1) if isinstance(s, RandomPosition) else s for s in captures]


def strengthen(ir: IR, expected: Sequence[Aval]) -> IR:
    """The IR with its outputs in the given dtypes: only weak ones (from Python scalars) differ."""
    if all(a is b for a, b in zip(ir.out_avals, expected, strict=True)):
        return ir

    def function(*inputs: Array) -> list[Array]:
        return [
            o if o.aval is a else converted(o, a.dtype, a.weak)
            for o, a in zip(replay(ir, inputs), expected, strict=True)
        ]

    strengthened, captures = trace_ir(function, ir.in_avals, "conversion of outputs")
    assert not captures
    return strengthened


def common_avals(
    where_is: Callable[[Path], str],
    first: Sequence[Aval],
    second: Sequence[Aval],
    structure: Any,
    labels: tuple[str, str],
) -> list[Aval]:
    """The strong avals two bodies (or a carry and its next value) agree on; weak ones yield.
    `where_is` says what messages call a part of them."""
    found = []
    for path, a, b in zip(structure.paths(), first, second, strict=True):
        where = where_is(path)
        if a.shape != b.shape:
            raise ShapeError(
                f"{where} has shape {a.shape} in {labels[0]} and {b.shape} in {labels[1]}; they "
                "must be equal"
            )
        dtype = a.dtype
        if a.dtype != b.dtype:
            dtype, _ = dtypes.promote((a.dtype, a.weak), (b.dtype, b.weak))
            if any(not v.weak and v.dtype != dtype for v in (a, b)):  # only weak ones yield
                raise DtypeError(
                    f"{where} is {a} in {labels[0]} and {b} in {labels[1]}; convert one with "
                    ".astype"
                )
        found.append(aval(a.shape, dtype, a.weak and b.weak))
    return found


def _first_difference(first: Any, second: Any) -> str:
    """Where two structures part, as the end of a message."""
    try:
        tree.flatten_up_to(first, tree.unflatten(second, list(range(second.num_leaves))))
    except TreeError as error:
        return f": {error}"
    return ""


def same_structure(what: str, first: Any, second: Any, labels: tuple[str, str]) -> None:
    if first != second:
        raise TreeError(
            f"{what}: {labels[0]} has structure {first} and {labels[1]} {second}; they must be the "
            f"same{_first_difference(first, second)}"
        )


def marked(array: Array, trace: Trace) -> bool:
    marks = array._node.marks
    return marks is not None and trace in marks

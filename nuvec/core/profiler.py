"""What runs while a profile is open, as events with a start and an end.

`context.profiles` lists the profiles that are open in this thread.  Evaluation looks at it once,
and while it is empty runs what it always runs; otherwise it runs what is made here, which computes
the same bits and tells every open profile how long each part took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from nuvec.core.ir import Aval, Eqn
from nuvec.core.node import Node, context

if TYPE_CHECKING:
    from nuvec.core.primitive import Primitive

Kind = Literal["compute", "program", "communication", "wait", "trace", "lower", "tiles"]

MAIN = "main"  # the thread that opened the profile
BESIDE = "communication"  # the one whose communications run beside it
STRUCTURE = frozenset(("projection", "identity", "mark"))  # what only takes results apart
SHOWN = 6  # operations of a group of equations that its name lists


class Event(NamedTuple):
    """One thing that ran.

    name    -- the operation ("matmul", "exp, sum (128 tiles)"), or what was done
    kind    -- "compute", or "program" for a compiled call, which has its steps inside it;
               "communication", or "wait" for the time the program spent on one that runs beside it;
               "trace" and "lower", what compiling took; "tiles", what one thread did of a loop
    start, end -- nanoseconds since the profile began
    thread  -- "main", "communication", or a thread that runs tiles
    bytes   -- compute: read and written, as known from shapes (none by views, and by loops and
               calls, whose steps are events); communication: of this rank's message, what it gives
               or what it gets, whichever is larger
    source  -- the user's line, where it is known
    details -- more of it: the size of the group, the results' shapes
    rank    -- the rank in the profile's group
    """

    name: str
    kind: Kind
    start: int
    end: int
    thread: str = MAIN
    bytes: int = 0
    source: str | None = None
    details: dict[str, Any] = {}  # noqa: RUF012 (never written)
    rank: int = 0

    @property
    def lane(self) -> str:
        """Where a picture shows it: what communicates has a lane of its own."""
        if self.kind == "communication":
            return "communication"
        return "compute" if self.thread == MAIN else self.thread


class Listener(Protocol):
    """What is in `context.profiles`."""

    def add(self, event: Event) -> None:
        """Take an event, from any thread; its times are those of `clock`."""


Profiles = Sequence[Listener]


class Note(NamedTuple):
    """What an event says, but for its times."""

    name: str
    kind: Kind
    bytes: int = 0
    source: str | None = None
    details: dict[str, Any] = {}  # noqa: RUF012 (never written)

    def happened(self, profiles: Profiles, start: int, end: int, thread: str = MAIN) -> None:
        name, kind, size, source, details = self
        event = Event(name, kind, start, end, thread, size, source, details)
        for profile in profiles:
            profile.add(event)


def note_of(
    primitive: Primitive, params: dict[str, Any], inputs: Sequence[Aval],
    outputs: Sequence[Aval], source: str | None,
) -> Note:  # fmt: skip
    """What to say of an equation."""
    name = primitive.name
    if primitive.higher_order and isinstance(params.get("name"), str):
        name = f"{name} {params['name']}"
    given, got = (sum(a.nbytes for a in avals) for avals in (inputs, outputs))
    details: dict[str, Any] = {"results": ", ".join(map(str, outputs))}
    if primitive.effect:
        if "group" in params:
            details["group"] = params["group"].size()
        return Note(name, "communication", max(given, got), source, details)
    # A view moves none, and what an equation runs that holds programs says so itself.
    size = 0 if primitive.kind == "view" or primitive.higher_order else given + got
    return Note(name, "compute", size, source, details)


def note_of_eqn(eqn: Eqn) -> Note:
    given, got = [a.aval for a in eqn.inputs], [v.aval for v in eqn.outputs]
    return note_of(eqn.primitive, eqn.params, given, got, eqn.source)


def note_of_tiles(
    eqns: Sequence[Eqn], tiles: int, inputs: Sequence[Aval], outputs: Sequence[Aval]
) -> Note:
    """What to say of a group of equations that runs in tiles: its inputs are read once, and its
    outputs written once, whatever happens in between."""
    names = list(dict.fromkeys(e.primitive.name for e in eqns))
    listed = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        listed += f" and {len(names) - SHOWN} more"
    source = next((e.source for e in eqns if e.source), None)
    details = {"results": ", ".join(map(str, outputs)), "equations": len(eqns)}
    size = sum(a.nbytes for a in (*inputs, *outputs))
    name = f"{listed} ({tiles} tile{'s' if tiles > 1 else ''})"
    return Note(name, "compute", size, source, details)


@contextmanager
def recorded(name: str, kind: Kind, **details: Any) -> Iterator[None]:
    """What happens inside is an event of the profiles that are open.  For what is seldom."""
    profiles, start = context.profiles, clock()
    try:
        yield
    finally:
        if profiles:
            Note(name, kind, details=details).happened(profiles, start, clock())


def while_profiled(function: Callable[..., Any], name: str, kind: Kind) -> Callable[..., Any]:
    """`function`, each call of which is an event."""

    def profiled(*args: Any) -> Any:
        with recorded(name, kind):
            return function(*args)

    return profiled


def recording(compute: Callable[[Node], None]) -> Callable[[Node], None]:
    """`compute`, which runs one node, as it is while a profile is open."""
    profiles = context.profiles

    def compute_recorded(node: Node) -> None:
        primitive, inputs, params = node.primitive, node.inputs, node.params
        if node.value is not None or primitive.name in STRUCTURE:
            compute(node)
            return
        start = clock()
        compute(node)  # after which the node has let go of its inputs
        end = clock()
        given = [a for i in inputs for a in _avals(i.aval)]
        note = note_of(primitive, params, given, _avals(node.aval), node.source)
        note.happened(profiles, start, end)

    return compute_recorded


def _avals(found: Any) -> tuple[Aval, ...]:
    return found if isinstance(found, tuple) else (found,)


class Steps:
    """The steps of a program that records itself, each by its number."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def add(self, note: Note) -> int:
        self.notes.append(note)
        return len(self.notes) - 1

    def begin(self) -> Ticks:
        """A run begins: the program calls `tick(k)` when it is done with step k."""
        return Ticks(self.notes)


class Ticks:
    """One run of such a program."""

    __slots__ = ("last", "notes", "profiles")

    def __init__(self, notes: Sequence[Note]) -> None:
        self.notes = notes
        self.profiles = context.profiles
        self.last = clock()

    def __call__(self, k: int) -> None:
        self.notes[k].happened(self.profiles, self.last, clock())
        self.last = clock()

    def beside(self, k: int, lower: Callable[..., Any], /, *operands: Any, **params: Any) -> Any:
        """Run step k, in a thread of its own."""
        start = clock()
        try:
            return lower(*operands, **params)
        finally:
            self.notes[k].happened(self.profiles, start, clock(), BESIDE)


class Shares:
    """What each thread does of a loop over tiles."""

    def __init__(self) -> None:
        self.profiles = context.profiles
        self.own = threading.get_ident()
        self.found: dict[str, list[int]] = {}  # thread -> [start, end, tiles, time in them]

    def around(self, run: Callable[[int], None]) -> Callable[[int], None]:
        """`run`, for one tile, noted."""

        def noted(t: int) -> None:
            start = clock()
            run(t)
            end = clock()
            own = threading.get_ident() == self.own
            thread = "tiles of main" if own else threading.current_thread().name
            share = self.found.setdefault(thread, [start, end, 0, 0])
            share[1] = end
            share[2] += 1
            share[3] += end - start

        return noted

    def end(self) -> None:
        for thread, (start, end, tiles, busy) in self.found.items():
            details = {"busy_us": busy / 1000}
            Note(f"{tiles} tiles", "tiles", details=details).happened(
                self.profiles, start, end, thread
            )

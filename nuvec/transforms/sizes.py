"""The programs of a shapeless function: recorded at two leading sizes, derived for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nuvec.core.errors import ShapeError
from nuvec.core.functions.stream import RandomPosition, drawn
from nuvec.core.ir import Aval
from nuvec.transforms.entry import Entry
from nuvec.transforms.shapeless import (
    PROBE,
    Polymorphic,
    asked_of,
    leading_size,
    with_leading_size,
)  # fmt: skip

Record = Callable[[tuple[Aval, ...]], Entry]  # of the function, at these avals

BASES = 8  # signatures a function keeps; the oldest goes first


@dataclass
class _Base:
    """A signature: its first recording, and from the second on how the program depends on the
    leading size."""

    signature: Any
    avals: tuple[Aval, ...]
    entry: Entry
    program: Polymorphic | None = None
    size: int = -1
    moved: frozenset[int] = frozenset()  # the arguments that have the leading size
    draws: tuple[int, int] = (0, 0)  # from the default stream, of the two recordings


class Sizes:
    """What is known of a function at other leading sizes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bases: list[_Base] = []

    def entry(self, signature: Any, avals: tuple[Aval, ...], record: Record) -> Entry:
        """The function's program at these avals; `signature` is the rest of what it depends on."""
        for base in self.bases:
            if base.program is not None and base.signature == signature:
                sizes = leading_size(avals, base.avals)
                same = sizes is not None and _changed(avals, base.avals) == base.moved
                if same and sizes is not None and base.entry.fits():
                    return self._derived(base, base.program, sizes[0], avals, record)
        entry = record(avals)
        self._learn(signature, avals, entry, record)
        return entry

    def _derived(
        self, base: _Base, program: Polymorphic, n: int, avals: tuple[Aval, ...], record: Record
    ) -> Entry:
        """Without recording, unless the function asks something of the size that has another
        answer there."""
        line = program.reads or program.question(n)
        if n <= 1 or line is not None:  # NumPy asks of 1 what cannot be noted
            entry = record(avals)
            if n > 1:
                program.confirm(entry.ir, n, f", which the function asks about at {line},")
            return entry
        draws = program.number(base.draws, n)
        captures = [
            RandomPosition(draws) if isinstance(c, RandomPosition) else c
            for c in base.entry.captures
        ]
        return Entry(program.at(n), captures, base.entry.structure, traces=base.entry.traces)

    def _learn(self, signature: Any, avals: tuple[Aval, ...], entry: Entry, record: Record) -> None:
        """The second size says how the program depends on the size; further ones, recorded on
        nothing but shapes, confirm it and show what it asks."""
        for base in self.bases:
            sizes = leading_size(avals, base.avals)
            if base.signature != signature or base.program is not None or sizes is None:
                continue
            now, before = sizes
            try:
                program = Polymorphic(self.name, base.entry.ir, before, entry.ir, now)
            except ShapeError:
                if 1 not in sizes:
                    raise
                if before == 1:  # an axis of size 1 broadcasts: another program than all others
                    base.avals, base.entry = avals, entry
                return
            _confirm(program, avals, base.avals, record)
            base.moved, base.size, base.program = _changed(avals, base.avals), before, program
            base.draws = (drawn(base.entry.captures), drawn(entry.captures))
            return
        self.bases = [*self.bases[1 - BASES :], _Base(signature, avals, entry)]


def _confirm(
    program: Polymorphic, avals: tuple[Aval, ...], before: tuple[Aval, ...], record: Record
) -> None:
    """Record the function at sizes it was not called with: once to see that the program that
    follows is its own, and twice to note what it asks of the size."""
    probe = with_leading_size(avals, before, PROBE)
    try:
        recorded = record(probe).ir
    except Exception as error:
        program.fail(f"at size {PROBE}, tried to confirm it, it raises: {error}".rstrip("."))
    program.confirm(recorded, PROBE, ", tried to confirm it,")
    program.questions, program.reads = asked_of(record, avals, before)


def _changed(avals: tuple[Aval, ...], before: tuple[Aval, ...]) -> frozenset[int]:
    pairs = zip(avals, before, strict=True)
    return frozenset([i for i, (a, b) in enumerate(pairs) if a is not b])

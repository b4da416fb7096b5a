"""Which equations run together, tile by tile: what one computes, the next finds in the cache.

The equations of a group share their leading axes, its *rows*: row i of every result follows from
row i of the operands.  So the group is one loop over tiles of rows, whose body is a program of its
own (`tiles.py`), and only what is used outside is ever whole.  Which equation can be cut, and how,
is said by its record (nuvec.core.tiling).

Everything here depends on shapes alone: not on the number of threads or the size of a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nuvec.core.ir import IR, Atom, Eqn, Var
from nuvec.core.lower.layout import Layout, layouts_of
from nuvec.core.tiling import Role, Shape, has_rows, tile_of

LEAST = 1 << 18  # bytes of a value below which tiles gain nothing
ALONE = 1 << 20  # bytes of a value from which a single equation gains from threads
TILE = 1 << 18  # bytes of a value's tile: a handful of them fits the second-level cache
ARRAYS = 24  # arrays a group reads: more streams than memory serves well
SEEN = 8  # groups looked at for an equation to join


@dataclass
class Fusion:
    """A group that is being gathered.

    shape -- of its leading axes, `shape[:lead]` are its rows
    roles -- of what it reads and makes
    """

    shape: Shape
    lead: int
    partials: bool = True  # whether sums over rows may join
    eqns: list[Eqn] = field(default_factory=list)
    roles: dict[Var, Role] = field(default_factory=dict)
    made: set[Var] = field(default_factory=set)
    partial: set[Var] = field(default_factory=set)

    @property
    def rows(self) -> Shape:
        return self.shape[: self.lead]

    def add(self, eqn: Eqn, layout: Callable[[Atom], Layout]) -> bool:
        """Take an equation in, if there are leading axes all have in common."""
        operands = {a for a in eqn.inputs if type(a) is Var}
        if not self.partial.isdisjoint(operands):
            return False  # it is whole after the last tile
        if len((self.roles.keys() | operands) - self.made) > ARRAYS:
            return False
        for lead in range(self.lead, 0, -1):
            if lead == self.lead:
                found = self._joined(self, (eqn,), layout)
            else:
                empty = Fusion(self.shape, lead, self.partials)
                found = self._joined(empty, (*self.eqns, eqn), layout)
            if found is not None:
                self.lead, self.roles, self.made, self.partial = (
                    lead, found.roles, found.made, found.partial,
                )  # fmt: skip
                self.eqns.append(eqn)
                return True
        return False

    @staticmethod
    def _joined(
        start: Fusion, eqns: Sequence[Eqn], layout: Callable[[Atom], Layout]
    ) -> Fusion | None:
        """What is known after these equations; None where one of them does not fit."""
        new = Fusion(
            start.shape, start.lead, start.partials, [], dict(start.roles), set(start.made),
            set(start.partial),
        )  # fmt: skip
        rows = start.rows
        for eqn in eqns:
            tile = tile_of(eqn, rows, 1)
            (out,) = eqn.outputs
            if tile is None or (tile.partial and not start.partials):
                return None
            for a, role in zip(eqn.inputs, tile.roles, strict=True):
                if not isinstance(a, Var):
                    continue
                if a in new.made and role is not Role.CUT:
                    return None
                if role is Role.CUT and row_bytes(a, rows) > TILE:
                    return None
                if new.roles.setdefault(a, role) is not role:
                    return None
                if a not in new.made and layout(a) is not Layout.CONTIGUOUS:
                    return None  # it cannot be cut without a copy
            if eqn.primitive.kind != "view" and layout(out) is not Layout.CONTIGUOUS:
                return None  # whoever uses it expects it in another order
            if tile.partial:
                new.partial.add(out)
            elif not has_rows(out.aval, rows) or row_bytes(out, rows) > TILE:
                return None
            else:
                new.roles[out] = Role.CUT
            new.made.add(out)
        return new

    def shared(self, eqn: Eqn) -> int:
        """Bytes of the equation's operands that the group reads or makes already."""
        return sum(
            a.aval.nbytes for a in set(eqn.inputs)
            if type(a) is Var and a in self.roles and a not in self.partial
        )  # fmt: skip

    def worth(self) -> bool:
        """Whether tiles save more than they cost."""
        if tile_rows(self.rows, self.widest()) is None:
            return False
        computed = sum(e.primitive.kind != "view" for e in self.eqns)
        largest = max(a.aval.nbytes for e in self.eqns for a in (*e.inputs, *e.outputs))
        return computed > 1 or (computed == 1 and largest >= ALONE)

    def live(self, wanted: set[Var]) -> tuple[Eqn, ...]:
        """The equations that what is wanted needs."""
        wanted, found = set(wanted), []
        for e in reversed(self.eqns):
            if not wanted.isdisjoint(e.outputs):
                found.append(e)
                wanted.update(a for a in e.inputs if type(a) is Var)
        return tuple(reversed(found))

    def widest(self) -> int:
        """The most bytes that a row of a value has."""
        return max(
            row_bytes(a, self.rows)
            for e in self.eqns for a in (*e.inputs, *e.outputs)
            if type(a) is Var and self.roles.get(a) is Role.CUT
        )  # fmt: skip


def row_bytes(atom: Atom, rows: Shape) -> int:
    return math.prod(atom.aval.shape[len(rows) :]) * atom.aval.dtype.itemsize


def tile_rows(rows: Shape, widest: int) -> tuple[int, int] | None:
    """How many rows a tile has, and how many tiles there are; the last may have fewer rows, or
    up to half as many again.  None for fewer than two tiles.

    Tiles begin at multiples of 16 rows (where they have as many): NumPy's vector loops then take
    the same elements together as they do for the whole array, to the last bit."""
    count = math.prod(rows)
    tiles = max(1, round(count * widest / TILE))
    size = -(-count // tiles)
    if size >= 16:
        size = -(-size // 16) * 16
    tiles = max(1, count // size)
    if tiles > 1 and count - (tiles - 1) * size > size + size // 2:
        tiles += 1
    return None if tiles < 2 else (size, tiles)


def gather(ir: IR, contiguous: Sequence[bool], partial: bool) -> list[Fusion | Eqn]:
    """The program as groups and single equations, in an order that can run.  `partial` lets sums
    over a group's rows join it, which adds up in another order."""
    layout = layouts_of(ir, contiguous)
    items: list[Fusion | Eqn] = []
    place: dict[Var, int] = {}
    for eqn in ir.eqns:
        after = max((place[a] for a in eqn.inputs if type(a) is Var and a in place), default=-1)
        where = _join(eqn, items, after, layout) if _may_join(eqn) else None
        if where is None:
            where = len(items)
            items.append(_start(eqn, layout, partial) or eqn)
        for v in eqn.outputs:
            place[v] = where
    found: list[Fusion | Eqn] = []
    for item in items:
        if isinstance(item, Fusion) and not item.worth():
            found.extend(item.eqns)
        else:
            found.append(item)
    return found


def _may_join(eqn: Eqn) -> bool:
    return (
        len(eqn.outputs) == 1
        and not eqn.effect
        and (eqn.primitive.kind == "elementwise" or eqn.primitive.tile is not None)
    )


def _join(
    eqn: Eqn, items: list[Fusion | Eqn], after: int, layout: Callable[[Atom], Layout]
) -> int | None:
    """The number of the group that took the equation: of those that come no earlier than its
    operands, one that has most of them in the cache, the latest of equals."""
    recent: list[tuple[int, int, int, Fusion]] = []
    for k in range(len(items) - 1, max(after, 0) - 1, -1):
        item = items[k]
        if isinstance(item, Fusion):
            recent.append((-item.shared(eqn), len(recent), k, item))
            if len(recent) == SEEN:
                break
    return next((k for _, _, k, item in sorted(recent) if item.add(eqn, layout)), None)


def _start(eqn: Eqn, layout: Callable[[Atom], Layout], partial: bool) -> Fusion | None:
    """A group that begins with this equation; None where it cannot be one's first."""
    if not _may_join(eqn) or eqn.primitive.kind == "view":
        return None
    largest = max((*eqn.inputs, *eqn.outputs), key=lambda a: a.aval.nbytes).aval
    if largest.nbytes < LEAST:
        return None
    fusion = Fusion(largest.shape, largest.ndim, partials=partial)
    return fusion if fusion.add(eqn, layout) else None

"""Which equations run together, tile by tile: what one computes, the next finds in the cache.

The equations of a group share their leading axes, its *rows*: row i of every result follows from
row i of the operands.  So the group is one loop over tiles of rows, whose body is a program of its
own (`tiles.py`), and only what is used outside is ever whole.  Which equation can be cut, and how,
is said by its record (nuvec.core.tiling).

Everything here depends on shapes alone: not on the number of threads or the size of a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from nuvec.core.ir import Atom, Eqn, Var
from nuvec.core.lower.layout import Layout
from nuvec.core.tiling import Role, Rows, Shape, has_rows, tile_of

LEAST = 1 << 18  # bytes of a value below which tiles gain nothing
ALONE = 1 << 20  # bytes of a value from which a single equation gains from threads
TILE = 1 << 19  # bytes of a value's tile: smaller ones have threads wait for one another's lock
EVEN = 4  # more than two tiles are a multiple of it, for threads to be done at the same time
ALIGNED = 16  # elements that a vector loop may take together
ARRAYS = 24  # large arrays a group reads: more streams than memory serves well


@dataclass
class Fusion:
    """A group that is being gathered.

    shape -- of its leading axes, the first are its rows
    rows -- these
    partials -- whether sums over rows may join
    roles -- of what it reads and makes
    """

    shape: Shape
    rows: Rows
    partials: bool = True
    eqns: list[Eqn] = field(default_factory=list)
    roles: dict[Var, Role] = field(default_factory=dict)
    made: set[Var] = field(default_factory=set)
    partial: set[Var] = field(default_factory=set)

    def add(self, eqn: Eqn, layout: Callable[[Atom], Layout]) -> bool:
        """Take an equation in, if there are leading axes all have in common."""
        operands = {a for a in eqn.inputs if type(a) is Var}
        if not self.partial.isdisjoint(operands):
            return False  # it is whole after the last tile
        read = (self.roles.keys() | operands) - self.made
        if sum(a.aval.nbytes > TILE for a in read) > ARRAYS:
            return False
        found = self._joined(self, (eqn,), layout)
        if found is None and (not self.eqns or self.shared(eqn)):
            # As many axes as possible; then those that leave some operands alone.
            lead = len(self.rows)
            ways = [(k, 0) for k in range(lead, 0, -1)]
            ways += [(k, outer) for k in range(lead, 0, -1) for outer in range(1, k)]
            for k, outer in ways:
                rows = Rows(self.shape[:k], outer)
                if rows != self.rows or outer != self.rows.outer:
                    empty = Fusion(self.shape, rows, self.partials)
                    found = self._joined(empty, (*self.eqns, eqn), layout)
                    if found is not None and found.tiles() is not None:
                        break
                    found = None
        if found is None:
            return False
        self.rows, self.roles, self.made, self.partial = (
            found.rows, found.roles, found.made, found.partial,
        )  # fmt: skip
        self.eqns.append(eqn)
        return True

    @staticmethod
    def _joined(
        start: Fusion, eqns: Sequence[Eqn], layout: Callable[[Atom], Layout]
    ) -> Fusion | None:
        """What is known after these equations; None where one of them does not fit."""
        rows = start.rows
        new = Fusion(
            start.shape, rows, start.partials, [], dict(start.roles), set(start.made),
            set(start.partial),
        )  # fmt: skip
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
        if self.tiles() is None:
            return False
        computed = sum(e.primitive.kind != "view" for e in self.eqns)
        largest = max(a.aval.nbytes for e in self.eqns for a in (*e.inputs, *e.outputs))
        if computed == 1:  # threads gain, but for a sum: it reads once whatever is done
            return largest >= ALONE and not self.partial
        return computed > 1

    def live(self, wanted: set[Var]) -> tuple[Eqn, ...]:
        """The equations that what is wanted needs."""
        wanted, found = set(wanted), []
        for e in reversed(self.eqns):
            if not wanted.isdisjoint(e.outputs):
                found.append(e)
                wanted.update(a for a in e.inputs if type(a) is Var)
        return tuple(reversed(found))

    def tiles(self) -> tuple[int, int] | None:
        return tile_rows(self.rows, [a for a, role in self.roles.items() if role is Role.CUT])


def row_bytes(atom: Atom, rows: Shape) -> int:
    return math.prod(atom.aval.shape[len(rows) :]) * atom.aval.dtype.itemsize


def tile_rows(rows: Rows, cut: Collection[Atom]) -> tuple[int, int] | None:
    """How many rows a tile of these values has, and how many tiles there are for each index of the
    outer axes; the last of these may have fewer rows, or up to half as many again.  None for fewer
    than two tiles, or small ones.

    Tiles begin at multiples of 16 elements of every value: NumPy's vector loops then take the same
    elements together as they do for the whole array, to the last bit.  (Elsewhere it is but the
    sign of a NaN made of two that could differ.  Where rows are so wide that few of them make a
    tile, the columns beside them may begin anywhere.)"""
    outer, count = math.prod(rows[: rows.outer]), math.prod(rows[rows.outer :])
    widest = max(row_bytes(a, rows) for a in cut)
    elements = [math.prod(a.aval.shape[len(rows) :]) for a in cut]
    for least in (1, ALIGNED):
        grain = max([ALIGNED // math.gcd(ALIGNED, n) for n in elements if n >= least], default=1)
        if rows.outer and (count * widest < TILE // 2 or count % grain):
            continue
        tiles = max(1, round(count * widest / TILE))
        if tiles > 2:
            tiles = -(-tiles // EVEN) * EVEN
        size = -(-count // tiles)
        size = -(-size // grain) * grain
        tiles = max(1, count // size)
        if tiles > 1 and count - (tiles - 1) * size > size + size // 2:
            tiles += 1
        if tiles * outer > 1 and size * widest <= 4 * TILE:
            return size, tiles
    return None

"""The loop over a group's tiles: each runs one program, on operands cut along their rows.

A tile's scratch stays in the second-level cache, and every tile does the same steps whichever
thread runs it; the sums over rows that tiles make are added up in the tiles' order.  So the bits
do not depend on how many threads there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nuvec.core.config import config
from nuvec.core.ir import IR, Eqn, Var, aval
from nuvec.core.lower.fuse import row_bytes, tile_rows
from nuvec.core.lower.threads import run_all, thread_count
from nuvec.core.ops.summation import reduced_sum
from nuvec.core.tiling import Role, Shape, shared_shape, tile_of

if TYPE_CHECKING:
    from nuvec.core.lower.emit import Emitted
    from nuvec.core.lower.schedule import Group

PER_THREAD = 2  # tiles a thread must have to be worth waking


class Body(NamedTuple):
    """The program of a tile, and the bytes of its scratch."""

    emitted: Emitted
    scratch: int


# (the IR of one tile, the outputs that go to given arrays, those of them that are the memory of an
# input) -> its program
Compile = Callable[[IR, Sequence[int], Mapping[int, int]], Body]


class TileLoop:
    """`loop(*operands, out=arrays) -> list`: the group's outputs.

    over -- output -> the input whose memory it is given
    size, tiles -- how many rows a tile has, and how many tiles there are
    """

    def __init__(
        self, group: Group, names: Mapping[Var, str], over: Mapping[int, int], compile_tile: Compile
    ) -> None:
        assert group.rows is not None
        self.group, self.rows, self.names = group, group.rows, names
        self.over, self.compile_tile = over, compile_tile
        self.count = math.prod(self.rows)
        cut = self._analyse()
        layout = tile_rows(self.rows, max(row_bytes(a, self.rows) for a in cut))
        assert layout is not None
        self.size, self.tiles = layout
        self.last = self.count - (self.tiles - 1) * self.size
        self.main = self._body(self.size)
        self.rest = self.main if self.last == self.size else self._body(self.last)

    def _analyse(self) -> set[Var]:
        """What each input and output is to a tile; the values that have rows."""
        lead = len(self.rows)
        roles: dict[Var, Role] = {}
        shapes: dict[Var, Shape] = {}
        cut: set[Var] = set()
        partial: set[Var] = set()
        for e in self.group.eqns:
            tile = tile_of(e, self.rows, 1)
            assert tile is not None
            for a, role in zip(e.inputs, tile.roles, strict=True):
                if type(a) is not Var:
                    continue
                roles[a] = role
                shapes[a] = a.aval.shape
                if role is Role.CUT:
                    cut.add(a)
                elif role is Role.SHARED:
                    shape = shared_shape(a.aval.shape, e.outputs[0].aval.ndim, lead)
                    assert shape is not None
                    shapes[a] = shape
            if tile.partial:
                partial.update(e.outputs)
            else:
                cut.update(e.outputs)
        self.cut = [roles[v] is Role.CUT for v in self.group.inputs]
        self.given = [
            (self.count, *v.aval.shape[lead:]) if c else shapes[v]
            for v, c in zip(self.group.inputs, self.cut, strict=True)
        ]
        self.partial = [v in partial for v in self.group.outputs]
        return cut

    def _body(self, rows: int) -> Body:
        ir = self._tile_ir(rows)
        into = [k for k, p in enumerate(self.partial) if not p]
        return self.compile_tile(ir, into, self.over)

    def _tile_ir(self, rows: int) -> IR:
        """The program of one tile."""
        new: dict[Var, Var] = {}

        def renew(v: Var, shape: Shape) -> Var:
            new[v] = Var(aval(shape, v.aval.dtype, v.aval.weak), self.names.get(v, v.hint))
            return new[v]

        inputs = tuple([
            renew(v, (rows, *shape[1:]) if cut else shape)
            for v, cut, shape in zip(self.group.inputs, self.cut, self.given, strict=True)
        ])  # fmt: skip
        eqns = []
        for e in self.group.eqns:
            tile = tile_of(e, self.rows, rows)
            assert tile is not None
            operands = tuple([new[a] if isinstance(a, Var) else a for a in e.inputs])
            (out,) = e.outputs
            shape = out.aval.shape if tile.partial else (rows, *out.aval.shape[len(self.rows) :])
            eqns.append(Eqn(e.primitive, operands, (renew(out, shape),), tile.params, e.source))
        return IR(inputs, (), tuple(eqns), tuple([new[v] for v in self.group.outputs]))

    @property
    def scratch(self) -> int:
        """Bytes that a run needs beside its operands and results."""
        partial = sum(
            v.aval.nbytes for v, p in zip(self.group.outputs, self.partial, strict=True) if p
        )
        each = max(self.main.scratch, self.rest.scratch)
        return self.threads() * each + self.tiles * partial

    def threads(self) -> int:
        """How many run tiles at the same time."""
        if "threads" not in config.passes:
            return 1
        return max(1, min(thread_count(), self.tiles // PER_THREAD))

    def describe(self) -> str:
        """What the loop does, for the text of the program that calls it."""
        name = "x".join(map(str, self.rows))
        own = f"; the last has {self.last}" if self.last != self.size else ""
        text = self.main.emitted.source.replace("\n", "\n#     ").rstrip("# \n")
        return f"{name} rows in {self.tiles} tiles of {self.size}{own}, each by\n#     {text}"

    def __call__(self, *values: Any, out: Sequence[Any] = ()) -> list[Any]:
        lead, size, tiles, cut = len(self.rows), self.size, self.tiles, self.cut
        given = [x.reshape(shape) for x, shape in zip(values, self.given, strict=True)]
        into = [o.reshape((self.count, *o.shape[lead:])) for o in out]
        sums = [
            np.empty((tiles, *v.aval.shape), v.aval.dtype)
            for v, p in zip(self.group.outputs, self.partial, strict=True) if p
        ]  # fmt: skip
        main, rest = self.main.emitted.function, self.rest.emitted.function

        def run(t: int) -> None:
            start = t * size
            if t < tiles - 1:
                rows, body = slice(start, start + size), main
            else:
                rows, body = slice(start, None), rest
            mine = [x[rows] if c else x for x, c in zip(given, cut, strict=True)]
            found = body(*mine, *[o[rows] for o in into])
            for total, part in zip(sums, found, strict=True):
                total[t] = part

        run_all(run, tiles, self.threads())
        whole, parts = iter(out), iter(sums)
        return [
            reduced_sum(next(parts), (0,)) if p else next(whole)  # in the order of the tiles
            for p in self.partial
        ]

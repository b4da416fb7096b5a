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
from nuvec.core.lower.fuse import tile_rows
from nuvec.core.ops.summation import reduced_sum
from nuvec.core.profiler import Shares
from nuvec.core.threads import run_all, thread_count
from nuvec.core.tiling import Role, Shape, shared_shape, tile_of

if TYPE_CHECKING:
    from nuvec.core.lower.emit import Emitted
    from nuvec.core.lower.schedule import Group


Run = Callable[[int], None]  # of the tile of a number


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
    size, tiles -- how many rows a tile has, and how many tiles there are for each index of the
            outer axes
    """

    def __init__(
        self, group: Group, names: Mapping[Var, str], over: Mapping[int, int], compile_tile: Compile
    ) -> None:
        assert group.rows is not None
        self.group, self.rows, self.names = group, group.rows, names
        self.over, self.compile_tile = over, compile_tile
        self.outer = math.prod(self.rows[: self.rows.outer])
        self.inner = math.prod(self.rows[self.rows.outer :])
        cut = self._analyse()
        layout = tile_rows(self.rows, cut)
        assert layout is not None
        self.size, self.tiles = layout
        self.last = self.inner - (self.tiles - 1) * self.size
        self.main = self._body(self.size)
        self.rest = self.main if self.last == self.size else self._body(self.last)

    def _analyse(self) -> set[Var]:
        """What each input and output is to a tile; the values that have rows."""
        lead = len(self.rows)
        roles: dict[Var, Role] = {}
        shapes: dict[Var, Shape] = {}  # of what every tile gets of an input
        cut: set[Var] = set()
        for e in self.group.eqns:
            tile = tile_of(e, self.rows, 1)
            assert tile is not None
            for a, role in zip(e.inputs, tile.roles, strict=True):
                if type(a) is not Var:
                    continue
                roles[a] = role
                shape: Shape | None = a.aval.shape
                if role is Role.SHARED:
                    shape = shared_shape(a.aval.shape, e.outputs[0].aval.ndim, lead)
                elif role is not Role.WHOLE:
                    shape = a.aval.shape[lead:]
                assert shape is not None
                shapes[a] = shape
                if role is Role.CUT:
                    cut.add(a)
            if not tile.partial:
                cut.update(e.outputs)
        self.roles = [roles[v] for v in self.group.inputs]
        self.shapes = [shapes[v] for v in self.group.inputs]
        self.partial = [v in self.group.partial for v in self.group.outputs]
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
            renew(v, (rows, *shape) if role is Role.CUT else shape)
            for v, role, shape in zip(self.group.inputs, self.roles, self.shapes, strict=True)
        ])  # fmt: skip
        eqns = []
        for e in self.group.eqns:
            tile = tile_of(e, self.rows, rows)
            assert tile is not None
            operands = tuple([new[a] if isinstance(a, Var) else a for a in e.inputs])
            (out,) = e.outputs
            shape = out.aval.shape[self.rows.outer :]
            if not tile.partial:
                shape = (rows, *out.aval.shape[len(self.rows) :])
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

    @property
    def total(self) -> int:
        """How many tiles there are in all."""
        return self.outer * self.tiles

    def threads(self) -> int:
        """How many run tiles at the same time."""
        if "threads" not in config.passes:
            return 1
        return min(thread_count(), self.total)

    def describe(self) -> str:
        """What the loop does, for the text of the program that calls it."""
        each = f"{self.tiles} tiles of {self.size}" if self.tiles > 1 else "one tile"
        if self.last != self.size:
            each += f", the last of {self.last}"
        name = "x".join(map(str, self.rows[self.rows.outer :])) + f" rows in {each}"
        if self.rows.outer:
            name = f"{'x'.join(map(str, self.rows[: self.rows.outer]))} times {name}"
        text = self.main.emitted.source.replace("\n", "\n#     ").rstrip("# \n")
        return f"{name}, each by\n#     {text}"

    def recorded(self, *values: Any, out: Sequence[Any] = ()) -> list[Any]:
        """The same while a profile is open, which is told what each thread did."""
        shares = Shares()
        try:
            return self(*values, out=out, around=shares.around)
        finally:
            shares.end()

    def __call__(
        self, *values: Any, out: Sequence[Any] = (), around: Callable[[Run], Run] | None = None
    ) -> list[Any]:
        inner, size, tiles = self.inner, self.size, self.tiles
        count = self.outer * inner
        given = [
            x if role is Role.WHOLE else x.reshape((count, *shape)) if role is Role.CUT
            else x.reshape((self.outer, *shape)) if role is Role.OUTER else x.reshape(shape)
            for x, role, shape in zip(values, self.roles, self.shapes, strict=True)
        ]  # fmt: skip
        into = [o.reshape((count, *o.shape[len(self.rows) :])) for o in out]
        kept = self.rows.outer
        sums = [
            np.empty((self.outer, tiles, *v.aval.shape[kept:]), v.aval.dtype)
            for v, p in zip(self.group.outputs, self.partial, strict=True) if p
        ]  # fmt: skip
        main, rest, roles = self.main.emitted.function, self.rest.emitted.function, self.roles

        def run(number: int) -> None:
            place, t = divmod(number, tiles)
            start = place * inner + t * size
            if t < tiles - 1:
                rows, body = slice(start, start + size), main
            else:
                rows, body = slice(start, (place + 1) * inner), rest
            mine = [
                x[rows] if role is Role.CUT else x[place] if role is Role.OUTER else x
                for x, role in zip(given, roles, strict=True)
            ]
            found = body(*mine, *[o[rows] for o in into])
            for total, part in zip(sums, found, strict=True):
                total[place, t] = part

        work = run if around is None else around(run)
        run_all(work, self.total, self.threads())
        whole, parts = iter(out), iter(sums)
        return [self._combined(next(parts)) if p else next(whole) for p in self.partial]

    def _combined(self, parts: Any) -> Any:
        """The sums of the tiles' sums, in the order of the tiles."""
        if not self.rows.outer:
            return reduced_sum(parts[0], (0,))
        return reduced_sum(parts, (1,)).reshape(self.rows[: self.rows.outer] + parts.shape[2:])

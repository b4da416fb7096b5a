"""How an equation is cut into tiles: row by row along its result's leading axes.

A group of equations that share their leading axes, their *rows*, runs tile by tile: what one
computes the next finds in the cache (nuvec.core.lower.fuse).  Which equations can be cut, and
how, is said by their records: the rule `tile`, or the class "elementwise".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from nuvec.core.ir import Aval, Eqn

Shape = tuple[int, ...]


class Rows(tuple[int, ...]):
    """The leading axes that a group's equations share.

    outer -- how many of them, the first, no tile straddles: it has rows of one index along them
    """

    outer: int

    def __new__(cls, shape: Shape, outer: int = 0) -> Rows:
        rows = super().__new__(cls, shape)
        rows.outer = outer
        return rows


class Role(Enum):
    """How an operand is given to each tile.

    CUT -- its leading axes are the rows: a tile gets its own
    OUTER -- it has the outer ones of the rows' axes, and is repeated over the others: a tile gets
             its part, without leading axes
    SHARED -- it is repeated over the rows: every tile gets all of it, without leading axes
    WHOLE -- every tile gets all of it, as it is
    """

    CUT = 1
    OUTER = 2
    SHARED = 3
    WHOLE = 4


class Tile(NamedTuple):
    """How one tile of an equation is computed.

    params -- of the equation on tiles, whose leading axes are one, the tile's rows
    roles  -- of the operands
    partial -- the result has no rows but the outer ones: those of the tiles, one after the other
               along a new axis, are combined by the same primitive over that axis
    """

    params: dict[str, Any]
    roles: tuple[Role, ...]
    partial: bool = False


def has_rows(a: Aval, rows: Shape) -> bool:
    return a.shape[: len(rows)] == rows


def aligned_roles(avals: Sequence[Aval], ndim: int, rows: Rows) -> tuple[Role, ...] | None:
    """The roles of operands that broadcast to a result of `ndim` axes; None where one of them
    is repeated over some of the leading axes and not over others."""
    roles = []
    lead, outer = len(rows), rows.outer
    for a in avals:
        if a.ndim == ndim and has_rows(a, rows):
            roles.append(Role.CUT)
        elif shared_shape(a.shape, ndim, lead) is not None:
            roles.append(Role.SHARED)
        elif outer and a.ndim == ndim and a.shape[:lead] == rows[:outer] + (1,) * (lead - outer):
            roles.append(Role.OUTER)
        else:
            return None
    return tuple(roles)


def shared_shape(shape: Shape, ndim: int, lead: int) -> Shape | None:
    """The shape without leading axes of an operand that is repeated over all rows."""
    over = len(shape) - (ndim - lead)  # how many of its axes are leading ones of the result
    if over <= 0:
        return shape
    return shape[over:] if all(n == 1 for n in shape[:over]) else None


def tile_of(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    """How a tile of `count` rows of an equation is computed; None where it cannot be cut."""
    primitive = eqn.primitive
    if primitive.tile is not None:
        return primitive.tile(eqn, rows, count)
    out = eqn.outputs[0].aval
    if primitive.kind != "elementwise" or not has_rows(out, rows):
        return None
    roles = aligned_roles([a.aval for a in eqn.inputs], out.ndim, rows)
    return None if roles is None else Tile(eqn.params, roles)

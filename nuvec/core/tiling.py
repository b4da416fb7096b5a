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


class Role(Enum):
    """How an operand is given to each tile.

    CUT -- its leading axes are the rows: a tile gets its own
    SHARED -- it is repeated over the rows: every tile gets all of it, without leading axes
    WHOLE -- every tile gets all of it, as it is
    """

    CUT = 1
    SHARED = 2
    WHOLE = 3


class Tile(NamedTuple):
    """How one tile of an equation is computed.

    params -- of the equation on tiles, whose leading axes are one, the tile's rows
    roles  -- of the operands
    partial -- the result has no rows: those of all tiles, one after the other along a new
               leading axis, are combined by the same primitive over that axis, `axes=(0,)`
    """

    params: dict[str, Any]
    roles: tuple[Role, ...]
    partial: bool = False


def has_rows(a: Aval, rows: Shape) -> bool:
    return a.shape[: len(rows)] == rows


def aligned_roles(avals: Sequence[Aval], ndim: int, rows: Shape) -> tuple[Role, ...] | None:
    """The roles of operands that broadcast to a result of `ndim` axes; None where one of them
    is repeated over some of the leading axes and not over others."""
    roles = []
    lead = len(rows)
    for a in avals:
        if a.ndim == ndim and has_rows(a, rows):
            roles.append(Role.CUT)
        elif shared_shape(a.shape, ndim, lead) is not None:
            roles.append(Role.SHARED)
        else:
            return None
    return tuple(roles)


def shared_shape(shape: Shape, ndim: int, lead: int) -> Shape | None:
    """The shape without leading axes of an operand that is repeated over all rows."""
    over = len(shape) - (ndim - lead)  # how many of its axes are leading ones of the result
    if over <= 0:
        return shape
    return shape[over:] if all(n == 1 for n in shape[:over]) else None


def tile_of(eqn: Eqn, rows: Shape, count: int) -> Tile | None:
    """How a tile of `count` rows of an equation is computed; None where it cannot be cut."""
    primitive = eqn.primitive
    if primitive.tile is not None:
        return primitive.tile(eqn, rows, count)
    out = eqn.outputs[0].aval
    if primitive.kind != "elementwise" or not has_rows(out, rows):
        return None
    roles = aligned_roles([a.aval for a in eqn.inputs], out.ndim, rows)
    return None if roles is None else Tile(eqn.params, roles)

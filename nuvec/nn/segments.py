"""How an axis of a weight is cut among the ranks of a group: whole, or segment by segment.

A layer that computes several outputs at once (fused queries, keys and values) has a weight of as
many segments. Each is divided among the ranks by itself, so that every rank has its part of each.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.ops.structure import concatenate
from nuvec.distributed.group import Group
from nuvec.nn.arguments import number

__all__ = ["Segments", "own_part"]

# How an axis is cut before each piece is divided among the ranks: into this many equal segments,
# or at these fractions of its size.
Segments = int | Sequence[float]


def own_part(name: str, what: str, x: Array, segments: Segments, group: Group, axis: int) -> Array:
    """This rank's part of every segment of an axis, joined.

    name, what -- who cuts, and what the axis is called in errors ("output_dims")

    ValueError where the segments or the ranks do not divide it, TypeError for what are no
    segments."""
    rank, ranks = group.rank(), group.size()
    pieces = []
    for start, stop in _cuts(name, what, x.shape[axis], segments):
        if (stop - start) % ranks:
            segment = "" if stop - start == x.shape[axis] else f" (a segment of {x.shape[axis]})"
            raise ValueError(
                f"{name}: the group's {ranks} ranks do not divide {what} = {stop - start}{segment}."
            )
        part = (stop - start) // ranks
        index = slice(start + rank * part, start + (rank + 1) * part)
        pieces.append(x[(slice(None),) * axis + (index,)])
    return pieces[0] if len(pieces) == 1 else concatenate(pieces, axis=axis)


def _cuts(name: str, what: str, size: int, segments: Segments) -> list[tuple[int, int]]:
    """The start and stop of each segment of an axis."""
    count = _as_count(segments)
    if count is not None:
        if count < 1 or size % count:
            raise ValueError(f"{name}: {count} segments do not divide {what} = {size}.")
        step = size // count
        inner = [step * i for i in range(1, count)]
    else:
        inner = []
        for fraction in _fractions(name, segments):
            point = round(size * fraction)
            if not math.isclose(point, size * fraction, rel_tol=1e-9):
                raise ValueError(
                    f"{name}: the segment boundary {fraction} of {what} = {size} is not "
                    "a whole number."
                )
            inner.append(point)
    points = [0, *inner, size]
    if points != sorted(set(points)):
        raise ValueError(
            f"{name}: segment boundaries must increase between 0 and 1, got {segments}."
        )
    return list(itertools.pairwise(points))


def _as_count(segments: Any) -> int | None:
    """`segments` if it is how many there are: an integer, NumPy's too."""
    if isinstance(segments, bool | np.bool_ | np.ndarray):
        return None
    try:
        return operator.index(segments)
    except TypeError:
        return None


def _fractions(name: str, segments: Any) -> list[float]:
    try:
        if isinstance(segments, str):
            raise TypeError
        return [float(number(fraction, "a fraction", 0, 1)) for fraction in segments]
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"{name}: segments is how many there are, or a sequence of fractions between 0 and 1 "
            f"where one ends and the next begins, got {segments!r:.60}."
        ) from None

"""Blocks of a quantised matrix, unpacked one by one, on NumPy values.

A block is some rows of some groups, small enough to stay in a core's own memory.  Its columns are
ordered plane after plane, as they are unpacked (nuvec.core.ops.packing), and so are those of what
it is multiplied with.  The blocks follow from the shapes alone, so threads that share them do not
change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core import blas
from nuvec.core.ops.packing import WORD, plane_count, planes
from nuvec.core.threads import run_all

BLOCK = 1 << 18  # elements of W that are there at a time, for each thread
LONGEST = 1 << 10  # of them, at most, along the axis that is summed over
MAKING = 50  # multiplications and additions that take as long as making an element of a block

Cut = list[slice]


def _cut(length: int, step: int) -> Cut:
    return [slice(i, min(i + step, length)) for i in range(0, length, step)]


def cuts(scales: Any, group_size: int, by_rows: bool) -> tuple[Cut, Cut]:
    """The pieces of the rows and of the groups whose blocks are done one by one; `by_rows` says
    that it is columns that are summed over."""
    rows, groups = scales.shape
    if by_rows:
        wide = max(1, min(groups, LONGEST // group_size))
        return _cut(rows, BLOCK // (wide * group_size)), _cut(groups, wide)
    tall = max(1, min(rows, LONGEST))
    return _cut(rows, tall), _cut(groups, BLOCK // (tall * group_size))


def columns_of(groups: slice, group_size: int) -> slice:
    """The columns of some groups."""
    return slice(groups.start * group_size, groups.stop * group_size)


def codes_of(words: Any, groups: slice, group_size: int, bits: int, dtype: Any) -> Any:
    """The codes of some groups, plane after plane: [rows, planes, groups, group_size / planes]."""
    each = group_size * bits // WORD
    words = words[:, groups.start * each : groups.stop * each]
    count = plane_count(bits)
    block = np.empty((len(words), count, groups.stop - groups.start, group_size // count), dtype)
    flat = block.reshape(len(words), count, -1)
    for i, plane in enumerate(planes(words, bits)):
        flat[:, i] = plane
    return block


def elements_of(
    words: Any, scales: Any, biases: Any, groups: slice, group_size: int, bits: int
) -> Any:
    """The elements of W in some groups, their columns ordered plane after plane."""
    block = codes_of(words, groups, group_size, bits, scales.dtype)
    block *= scales[:, None, groups, None]
    if biases is not None:
        block += biases[:, None, groups, None]
    return block.reshape(len(words), -1)


def by_planes(x: Any, bits: int) -> Any:
    """x[m, k] with its columns ordered as those of a block."""
    count = plane_count(bits)
    m, k = x.shape
    ordered = np.empty((m, count, k // count), x.dtype)
    ordered[...] = x.reshape(m, k // count, count).transpose(0, 2, 1)
    return ordered.reshape(m, k)


def in_order(x: Any, bits: int) -> Any:
    """The opposite, as a view."""
    count = plane_count(bits)
    m, k = x.shape
    return x.reshape(m, count, k // count).transpose(0, 2, 1)


def share(work: Callable[[int], None], count: int, elements: int, x: Any) -> None:
    """Do blocks of so many elements in all, multiplied with x, on threads if that is worth it."""
    blas.hold(max(elements, x.size))
    run_all(work, count, blas.parts_of(count, elements * (MAKING + 2 * len(x))))


def product_for(count: int) -> Any:
    """The product of a block: shared among threads only where the blocks cannot be."""
    return np.dot if count > 1 else blas.dot


def accumulate(parts: Any, out: Any) -> None:
    """The sum of the parts, in order; zero where there are none."""
    first = next(parts, None)
    out[...] = 0 if first is None else first
    for part in parts:
        out += part

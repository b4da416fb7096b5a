"""Hypothesis strategies for arrays, shapes, axes and programs.

Hypothesis is not needed for the rest of nuvec; `pip install hypothesis` (or nuvec's `tests` extra)
brings it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes as dt
from nuvec.testing.programs import Case, draw_case

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "nuvec.testing.strategies needs Hypothesis, which is not installed: pip install hypothesis"
    ) from error

__all__ = ["arrays", "axes", "broadcastable", "dtypes", "float_dtypes", "programs", "shapes"]

float_dtypes = st.sampled_from(
    [np.dtype(d) for d in (np.float16, dt.bfloat16, np.float32, np.float64)]
)
dtypes = st.sampled_from(
    [np.dtype(d) for d in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
        np.float16, dt.bfloat16, np.float32, np.float64, np.complex64, np.complex128,
    )]
)  # fmt: skip


def shapes(min_dims: int = 0, max_dims: int = 3, max_side: int = 4) -> st.SearchStrategy:
    """Shapes, with sizes of 0 and 1 among them."""
    sides = st.integers(0, max_side)
    return st.lists(sides, min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def arrays(
    draw: Any, dtype: Any = np.float32, shape: Any = None, low: float = -4.0, high: float = 4.0
) -> np.ndarray:
    """NumPy arrays of a dtype (or a strategy of them) and a shape (or a strategy; any by default).

    Floating numbers are multiples of 1/8 in [low, high], so that sums are exact in float32;
    integers and booleans likewise.  Half of the arrays are not contiguous."""
    dtype = np.dtype(draw(dtype) if isinstance(dtype, st.SearchStrategy) else dtype)
    if shape is None:
        shape = shapes()
    sizes = tuple(draw(shape) if isinstance(shape, st.SearchStrategy) else shape)
    count = int(np.prod(sizes))
    if dt.is_bool(dtype):
        values = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    else:
        step = 8 if dt.is_inexact(dtype) else 1
        least = 0 if dtype.kind == "u" else int(np.ceil(low * step))
        numbers = st.integers(least, int(high * step))
        drawn = draw(st.lists(numbers, min_size=count, max_size=count))
        values = np.array(drawn, np.float64) / step
        if dt.is_complex(dtype):
            values = values + 1j * values[::-1]
    found = values.astype(dtype).reshape(sizes)
    return np.asfortranarray(found) if draw(st.booleans()) else found


@st.composite
def axes(draw: Any, ndim: int, several: bool = True) -> Any:
    """An axis of an array of `ndim` dimensions, negative ones included; with `several`, None and
    tuples too."""
    one = st.integers(-ndim, ndim - 1) if ndim else st.nothing()
    if not several:
        return draw(one)
    some = st.lists(st.integers(0, max(ndim - 1, 0)), max_size=ndim, unique=True).map(tuple)
    return draw(st.one_of(st.none(), one, some if ndim else st.just(())))


@st.composite
def broadcastable(draw: Any, count: int = 2, max_dims: int = 3, max_side: int = 4) -> Any:
    """`count` shapes that broadcast together."""
    whole = draw(shapes(max_dims=max_dims, max_side=max_side))
    found = []
    for _ in range(count):
        kept = draw(st.integers(0, len(whole)))
        tail = whole[len(whole) - kept :]
        found.append(tuple(1 if draw(st.booleans()) else n for n in tail))
    return tuple(found)


class _Drawn:
    """Decisions that Hypothesis makes, and makes smaller when a test fails."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]


@st.composite
def programs(draw: Any, ranks: int | None = None, sizes: tuple[int, int] = (10, 40)) -> Case:
    """Random programs drawn from the table of primitives, with the points to check them at.

    ranks -- how many ranks run it, 1 to 4 by default; sizes -- the least and the most steps.
    What they are checked with is `nuvec.testing.check_case`."""
    return draw_case(_Drawn(draw), ranks, sizes)

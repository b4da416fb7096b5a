"""np.where on NumPy values without a branch for each element.

NumPy takes a jump for every element, which costs ten times as much as the copy where the condition
is unpredictable.  Elements are chosen here by their bits instead, whatever they stand for:

    c ? x : 0   =  x & -c                 on integers of the same width: -1 has all bits
    c ? x : y   =  y ^ (x ^ y) & -c
"""

from __future__ import annotations

from typing import Any

import numpy as np

LEAST = 4096  # elements below which one call of np.where is faster
BLOCK = 65536  # elements taken through all steps while they are in the cache
_INTEGERS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def choose(condition: Any, x: Any, y: Any, out: Any = None) -> Any:
    """`np.where(condition, x, y)` for x and y of one dtype, bit for bit; `out` may be x or y."""
    width = _INTEGERS.get(x.dtype.itemsize)
    shape = condition.shape
    if width is None or condition.size < LEAST or not _runs(condition, x, y):
        chosen = np.where(condition, x, y)
        if out is None:
            return chosen
        out[...] = chosen
        return out
    if out is None:
        out = np.empty(shape, x.dtype)
    flat = [v.reshape(-1) if v.shape else v for v in (condition, x.view(width), y.view(width))]
    target = out.reshape(-1).view(width)  # views: what is given is C-contiguous
    kept = 1 if is_zero(y) else 2 if is_zero(x) else 0
    for start in range(0, condition.size, BLOCK):
        block = slice(start, start + BLOCK)
        c, a, b = [v[block] if v.shape else v for v in flat]
        c = c.view(np.int8)
        if kept == 1:
            np.bitwise_and(np.negative(c, dtype=width), a, out=target[block])
        elif kept == 2:
            np.bitwise_and(np.subtract(c, 1, dtype=width), b, out=target[block])
        else:
            chosen = np.negative(c, dtype=width)
            np.bitwise_and(chosen, np.bitwise_xor(a, b), out=chosen)  # of scalars, a scalar
            np.bitwise_xor(chosen, b, out=target[block])
    return out


def working_elements(size: int, masked: bool) -> int:
    """How many elements' memory `choose` works in, for a result of so many; `masked` where one of
    the values is zero."""
    if size < LEAST:
        return size
    return min(size, BLOCK) * (1 if masked else 2)


def _runs(condition: np.ndarray, *values: Any) -> bool:
    """Whether the condition, and the values but for scalars, are C-contiguous and of one shape."""
    return condition.flags.c_contiguous and all(
        not v.shape or (v.shape == condition.shape and v.flags.c_contiguous) for v in values
    )


def is_zero(value: Any) -> bool:
    """Whether all bits of a scalar are zero (those of -0.0 are not)."""
    return not value.shape and not any(value.tobytes())

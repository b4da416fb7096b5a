"""Large matrix products on several threads: rows by rows or columns by columns, each part one call
of NumPy.

A BLAS has threads of its own, which wait for one another in busy loops: where another program
takes a core for a moment, products take many times as long.  So BLAS is held to one thread, before
the first product for which it would take more, and the pool that runs tiles runs products too.  How
BLAS sums up an element may depend on how many rows and columns it is given, so the parts follow
from the shapes alone: the same ones, to the last bit, on any number of threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core.threads import run_all, thread_count

LEAST = 1 << 25  # multiplications and additions of a part: some 0.4 ms of them
VECTOR = 1 << 20  # elements of a part of a matrix that is multiplied with a vector
WIDTH = 128  # rows or columns that a part has at least: with fewer, reading the other matrix counts
MOST = 16  # parts
FEW = 8  # matrices of a stack below which each is shared out, rather than the stack
ALIGNED = 16  # what parts begin at a multiple of

ALONE = 1 << 12  # elements of an operand from which BLAS might take threads of its own

_lock = threading.Lock()
_limits: list[Any] = []  # of the BLAS libraries; empty until they are asked for


def dot(x: Any, y: Any, out: Any = None) -> Any:
    """`np.dot` of matrices, or of a matrix and a vector; `out` is C-contiguous."""
    rows = x.shape[0] if x.ndim == 2 else 0
    columns = y.shape[1] if y.ndim == 2 else 0
    parts = dot_parts(x.shape, y.shape)
    hold(max(x.size, y.size))
    if parts < 2 or not _is_held():
        return np.dot(x, y, out=out)
    if out is None:
        out = np.empty(x.shape[:-1] + y.shape[1:], x.dtype)
    by_rows = rows >= columns  # the longer: each part reads all of the other matrix
    step = _step(max(rows, columns), parts)
    # np.dot copies what matmul reads where it is.
    product = np.dot if by_rows and x.flags.c_contiguous else np.matmul

    def part(k: int) -> None:
        some = slice(k * step, (k + 1) * step)
        if by_rows:
            product(x[some], y, out=out[some])
        else:
            product(x, y[:, some], out=out[..., some])

    run_all(part, -(-max(rows, columns) // step), thread_count())
    return out


def matmul(x: Any, y: Any, out: Any) -> Any:
    """`np.matmul` of stacks of matrices of the same leading axes; `out` is C-contiguous."""
    hold(max(x.shape[-2] * x.shape[-1], y.shape[-2] * y.shape[-1]))
    stack = out.shape[:-2]
    axis = max(range(len(stack)), key=stack.__getitem__)
    count = stack[axis]
    if count < FEW and dot_parts(x.shape[-2:], y.shape[-2:]) > 1:
        for place in np.ndindex(stack):
            dot(x[place], y[place], out[place])
        return out
    parts = parts_of(count, 2 * out.size * x.shape[-1])
    if parts < 2:
        return np.matmul(x, y, out=out)
    step = -(-count // parts)

    def part(k: int) -> None:
        some = (slice(None),) * axis + (slice(k * step, (k + 1) * step),)
        np.matmul(x[some], y[some], out=out[some])

    run_all(part, -(-count // step), parts)
    return out


def dot_parts(xs: tuple[int, ...], ys: tuple[int, ...]) -> int:
    """How many parts the product of operands of these shapes is made of: a power of two."""
    if len(xs) + len(ys) == 4:
        work, least = 2 * xs[0] * xs[1] * ys[1], LEAST
        most = max(xs[0], ys[1]) // WIDTH
    elif len(xs) + len(ys) == 3:
        work, least = math.prod(xs if len(xs) > len(ys) else ys), VECTOR
        most = MOST
    else:
        return 1
    return 1 << max(0, min(work // least, most, MOST).bit_length() - 1)


def parts_of(most: int, work: int) -> int:
    """In how many parts, of at least `LEAST` multiplications and additions, threads share a work
    for BLAS whose bits do not depend on it: `most` at most; 1 where BLAS does it alone."""
    return threads_for(min(most, work // LEAST))


def threads_for(parts: int) -> int:
    """How many threads share so many parts of a work for BLAS: 1 where BLAS has its own."""
    parts = min(parts, thread_count())
    return parts if parts > 1 and _is_held() else 1


def _step(length: int, parts: int) -> int:
    """The rows or columns of each part but the last."""
    return -(-length // (parts * ALIGNED)) * ALIGNED


def hold(size: int) -> None:
    """See to it that BLAS has one thread, for products of operands of so many elements."""
    if not _limits and size > ALONE:
        _is_held()


def _is_held() -> bool:
    """Hold BLAS to one thread; False where that cannot be done, and is left to it."""
    if not _limits:
        with _lock:
            if not _limits:
                _limits.append(_hold())
    return bool(_limits[0])


def _hold() -> Callable[..., Any] | None:
    # Here, for it looks at the libraries that are loaded, and takes 5 ms to import.
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas")
    return found.limit(limits=1) if len(found) else None

"""Large matrix products on several threads: rows by rows, each part one call of NumPy.

A BLAS has threads of its own, which wait for one another in busy loops: where another program
takes a core for a moment, products take many times as long.  So BLAS is held to one thread, once
there is a product large enough to matter, and the pool that runs tiles runs products too.  How BLAS
sums up a row may depend on how many rows it is given, so the last bits may on the number of parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core.threads import run_all, thread_count

LEAST = 1 << 25  # products that a part sums up: some 0.4 ms of them
ROWS = 64  # of a part, and what it begins at a multiple of

_lock = threading.Lock()
_limits: list[Any] = []  # of the BLAS libraries; empty until they are asked for


def dot(x: Any, y: Any, out: Any = None) -> Any:
    """`np.dot` of a matrix and a matrix; `out` is C-contiguous."""
    rows, columns = x.shape[0], y.shape[1]
    parts = parts_of(rows // ROWS, 2 * rows * columns * x.shape[1])
    if parts < 2:
        return np.dot(x, y, out=out)
    if out is None:
        out = np.empty((rows, columns), x.dtype)
    step = -(-rows // (parts * ROWS)) * ROWS
    # np.dot would copy some rows of a transposed matrix.
    product = np.dot if x.flags.c_contiguous else np.matmul

    def part(k: int) -> None:
        some = slice(k * step, (k + 1) * step)
        product(x[some], y, out=out[some])

    run_all(part, -(-rows // step), parts)
    return out


def matmul(x: Any, y: Any, out: Any) -> Any:
    """`np.matmul` of stacks of matrices of the same leading axes."""
    count = x.shape[0]
    products = 2 * out.size * x.shape[-1]
    parts = parts_of(count, products)
    if parts < 2:
        return np.matmul(x, y, out=out)
    step = -(-count // parts)

    def part(k: int) -> None:
        some = slice(k * step, (k + 1) * step)
        np.matmul(x[some], y[some], out=out[some])

    run_all(part, -(-count // step), parts)
    return out


def parts_of(most: int, products: int) -> int:
    """How many parts, of at least `LEAST` products, some work for BLAS is shared out in, `most` at
    most; 1 where BLAS does it alone."""
    if products < 2 * LEAST:
        return 1
    parts = min(most, products // LEAST, thread_count()) if _is_held() else 1
    return int(parts)


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

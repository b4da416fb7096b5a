"""A small pool of threads that run tiles, and parts of matrix products: NumPy's loops let go of the
interpreter's lock."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from nuvec.core.config import config

MOST = 256  # threads of the pool, which starts one only when no other is idle

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def cores() -> int:
    """The processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count() -> int:
    """How many threads evaluation may use: `config.threads`, or all cores."""
    return config.threads or cores()


def run_all(work: Callable[[int], None], count: int, threads: int) -> None:
    """Call `work` with 0 .. count - 1, each once, on up to `threads` threads, this one included.

    Each thread takes the next number when it is done with one: none waits for another that is
    busy elsewhere.  Of the errors that calls raise, the one of the lowest number is raised."""
    if threads < 2:
        for k in range(count):
            work(k)
        return
    numbers = itertools.count()  # its next is atomic
    failed: list[tuple[int, BaseException]] = []

    def some() -> None:
        while not failed:
            k = next(numbers)
            if k >= count:
                return
            try:
                work(k)
            except BaseException as error:
                failed.append((k, error))

    waiting = _submit(some, threads - 1)
    some()
    for future in waiting:
        _finish(future)
    if failed:
        raise min(failed, key=lambda f: f[0])[1]


def _finish(future: Future[None]) -> None:
    """Wait for a helper, unless it has not begun: then there is nothing left for it."""
    if not future.cancel():
        future.result()


def _submit(some: Callable[[], None], count: int) -> list[Future[None]]:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MOST, "nuvec-tiles")
        return [_pool.submit(some) for _ in range(count)]


def close() -> None:
    """End the pool's threads; the next group of tiles starts them anew."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.shutdown()


def _forget() -> None:
    """In a forked child the pool's threads do not exist."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

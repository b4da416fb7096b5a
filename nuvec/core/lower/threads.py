"""A small pool of threads that run tiles: NumPy's loops let go of the interpreter's lock."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from nuvec.core.config import config

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # at most one, by how many workers it has


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

    waiting = [_pool(threads - 1).submit(some) for _ in range(threads - 1)]
    some()
    for future in waiting:
        _finish(future)
    if failed:
        raise min(failed, key=lambda f: f[0])[1]


def _finish(future: Future[None]) -> None:
    """Wait for a helper, unless it has not begun: then there is nothing left for it."""
    if not future.cancel():
        future.result()


def _pool(workers: int) -> ThreadPoolExecutor:
    pool = _pools.get(workers)
    if pool is None:
        with _lock:
            pool = _pools.get(workers)
            if pool is None:
                for old in _pools.values():
                    old.shutdown(wait=False)  # what it has begun is finished
                _pools.clear()
                pool = _pools[workers] = ThreadPoolExecutor(workers, "nuvec-tiles")
    return pool


def close() -> None:
    """End the pool's threads; the next group of tiles starts them anew."""
    with _lock:
        for pool in _pools.values():
            pool.shutdown()
        _pools.clear()


def _forget() -> None:
    """In a forked child the pool's threads do not exist."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

"""The worker's side of a benchmark: one framework, in its own process and environment.

It is started by `_peers.Worker` as `PYTHON benchmark.py --worker FRAMEWORK` and answers one JSON
object a line on standard input with one a line on standard output:

    {"do": "prepare", "case": "gradient", "seconds": 0.1}
        -> {"result": [base64 of float64 bytes, for each array], "first": s of the first call,
            "bits": a hash of all their bits, "calls": in a round}
    {"do": "round"}                         -> {"seconds": per call of the case prepared last}
    {"do": "memory"}                        -> {"peak_mb": of the process so far}
    {"do": "version"}                       -> {"version": of the framework}

An exception is answered as {"error": text}.  The end of the input ends the worker.  This file
runs in the peers' environments: it needs nothing but NumPy.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

Task = Callable[[], Any]
"""Does a case's work once, to the end (lazy frameworks evaluate), and returns its arrays.

They may be nested in lists, tuples and dicts, and in the framework's own memory: only `prepare`
converts them, before the task is called again (which may write over them).
"""

Framework = Callable[[], Mapping[str, Task]]
"""Imports the framework and builds its task for every case it can do; the mapping may build one
when it is asked for it, and is asked again only for another turn of the whole case."""

SAMPLE = 4096  # numbers of a large array that are compared; its mean and its size are too


def serve(name: str, framework: Framework) -> None:
    """Answer requests until standard input ends."""
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = _Worker(name, framework)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


class _Worker:
    def __init__(self, name: str, framework: Framework) -> None:
        self._name = name
        self._framework = framework
        self._tasks: Mapping[str, Task] | None = None
        self._task: Task | None = None  # of the case prepared last
        self._calls = 0

    def version(self) -> dict[str, Any]:
        # nuvec is run from the checkout, whatever may be installed beside it.
        if environment_of(self._name) == "nuvec":
            return {"version": "(this checkout)"}
        return {"version": version(environment_of(self._name))}

    def prepare(self, case: str, seconds: float) -> dict[str, Any]:
        """Run a case once for its result, then find how many calls a round of `seconds` takes."""
        if self._tasks is None:
            self._tasks = self._framework()
        self._task = None  # the memory of the case before is free for this one
        if case not in self._tasks:
            return {"missing": True}
        task = self._task = self._tasks[case]
        start = time.perf_counter()
        result = task()
        first = time.perf_counter() - start
        numbers, bits = _encode(result), _hash(result)
        del result
        calls = 1
        while (spent := _time(task, calls)) < seconds / 4:
            calls *= 2
        self._calls = max(1, round(calls * seconds / spent))
        return {"result": numbers, "bits": bits, "first": first, "calls": self._calls}

    def round(self) -> dict[str, Any]:
        assert self._task is not None, "prepare comes first"
        return {"seconds": _time(self._task, self._calls) / self._calls}

    def memory(self) -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_mb": peak / (2**20 if sys.platform == "darwin" else 2**10)}


def _time(task: Task, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        task()
    return time.perf_counter() - start


def environment_of(framework: str) -> str:
    """Whose environment a framework lives in: that of "torch-compile" is torch's."""
    return framework.split("-")[0]


def _encode(result: Any) -> list[str]:
    return [base64.b64encode(_digest(a).tobytes()).decode() for a in _leaves(result)]


def _hash(result: Any) -> str:
    """Of the dtypes, the shapes and every bit; two zeros of unlike sign differ, too."""
    found = hashlib.blake2b(digest_size=16)
    for leaf in _leaves(result):
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = [tree[key] for key in sorted(tree)]
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree


def _digest(array: Any) -> np.ndarray:
    """All numbers of an array; of a large one some, evenly spread, its mean and its root mean
    square."""
    flat = np.asarray(array).ravel()
    if flat.size <= SAMPLE:
        return flat.astype(np.float64)
    square = np.mean(np.square(flat, dtype=np.float64))
    some = flat[np.linspace(0, flat.size - 1, SAMPLE).astype(np.int64)]
    return np.append(some.astype(np.float64), [flat.mean(dtype=np.float64), np.sqrt(square)])


def decode(result: list[str]) -> list[np.ndarray]:
    """The numbers of a `prepare` answer's result, array by array."""
    return [np.frombuffer(base64.b64decode(text), np.float64) for text in result]

"""The worker's side of a benchmark: one framework, in its own process and environment.

It is started by `_peers.Worker` as `PYTHON benchmark.py --worker FRAMEWORK` and answers one JSON
object a line on standard input with one a line on standard output:

    {"do": "prepare", "case": "gradient", "seconds": 0.1}
        -> {"result": base64 of float64 bytes, "first": s of the first call, "calls": in a round}
    {"do": "round", "case": "gradient"}     -> {"seconds": per call}
    {"do": "memory"}                        -> {"peak_mb": of the process so far}
    {"do": "version"}                       -> {"version": of the framework}

An exception is answered as {"error": text}.  The end of the input ends the worker.  This file
runs in the peers' environments: it needs nothing but NumPy.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

Task = Callable[[], Any]
"""Does a case's work once, to the end (lazy frameworks evaluate), and returns its arrays."""

Framework = Callable[[], Mapping[str, Task]]
"""Imports the framework and builds its task for every case it can do."""


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
        self._calls: dict[str, int] = {}

    def version(self) -> dict[str, Any]:
        # nuvec is run from the checkout, whatever may be installed beside it.
        return {"version": "(this checkout)" if self._name == "nuvec" else version(self._name)}

    def prepare(self, case: str, seconds: float) -> dict[str, Any]:
        """Run a case once for its result, then find how many calls a round of `seconds` takes."""
        if self._tasks is None:
            self._tasks = self._framework()
        if case not in self._tasks:
            return {"missing": True}
        task = self._tasks[case]
        start = time.perf_counter()
        result = task()
        first = time.perf_counter() - start
        calls = 1
        while (spent := _time(task, calls)) < seconds / 4:
            calls *= 2
        self._calls[case] = max(1, round(calls * seconds / spent))
        return {"result": _encode(result), "first": first, "calls": self._calls[case]}

    def round(self, case: str) -> dict[str, Any]:
        assert self._tasks is not None, "prepare comes first"
        return {"seconds": _time(self._tasks[case], self._calls[case]) / self._calls[case]}

    def memory(self) -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_mb": peak / (2**20 if sys.platform == "darwin" else 2**10)}


def _time(task: Task, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        task()
    return time.perf_counter() - start


def _encode(result: Any) -> str:
    arrays = result if isinstance(result, list | tuple) else [result]
    flat = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    return base64.b64encode(np.concatenate(flat).tobytes()).decode()


def decode(result: str) -> np.ndarray:
    """The numbers of a `prepare` answer's result, all arrays one after another."""
    return np.frombuffer(base64.b64decode(result), np.float64)

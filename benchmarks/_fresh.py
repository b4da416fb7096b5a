"""What a framework costs before it is warm: import, first step, memory; in fresh processes.

    python _fresh.py FRAMEWORK STEPS

trains the perceptron of workloads/mlp.py for so many steps and prints the seconds from the NumPy
inputs to the first step's result (building, tracing, compiling; the import comes before), and the
peak memory of the process in MB.  `measure_fresh` starts such processes, the frameworks in turns.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

STEPS = 50
MODULES = {
    "nuvec": ("nuvec", "nuvec.nn"),
    "jax": ("jax",),
    "torch": ("torch",),
    "mlx": ("mlx.core", "mlx.nn"),
    "autograd": ("autograd.numpy",),
}


def train(framework: str, steps: int) -> tuple[float, float]:
    """(seconds to the first step's result, peak MB)"""
    for name in MODULES[framework]:
        importlib.import_module(name)
    from workloads import mlp

    inputs = mlp.inputs(**mlp.SIZES)
    start = time.perf_counter()
    task = getattr(mlp, framework)(inputs)
    task()
    first = time.perf_counter() - start
    for _ in range(steps - 1):
        task()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return first, peak / (2**20 if sys.platform == "darwin" else 2**10)


def measure_fresh(
    pythons: Mapping[str, str], threads: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """By "import" (seconds), "numpy" (its import, in the same environment), "first_step" (seconds)
    and "memory" (MB), every framework's figures round by round."""
    # Only the process that measures needs these, and their memory would count in the others'.
    import subprocess

    from _peers import environment_for
    from import_time import measure

    kinds = ("import", "numpy", "first_step", "memory")
    figures: dict[str, dict[str, list[float]]] = {k: {n: [] for n in pythons} for k in kinds}
    order = list(pythons)
    for i in range(-1, rounds):
        for name in order:
            python, environment = pythons[name], environment_for(name, threads)
            numpy = measure("numpy", python, environment)[0] / 1e3
            own = measure(MODULES[name][0], python, environment)[0] / 1e3
            done = subprocess.run(
                [python, __file__, name, str(STEPS)],
                env=environment, stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            if i < 0:
                continue  # files come into the cache, bytecode is written
            first, peak = map(float, done.stdout.split()[-2:])
            for kind, value in zip(kinds, (own, numpy, first, peak), strict=True):
                figures[kind][name].append(value)
        order = order[1:] + order[:1]
    return figures


def main(arguments: Sequence[str]) -> Any:
    framework, steps = arguments
    print(*train(framework, int(steps)))


if __name__ == "__main__":
    main(sys.argv[1:])

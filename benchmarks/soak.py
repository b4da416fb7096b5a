"""Ten thousand steps of training: the memory of the process stays where it is.

    python benchmarks/soak.py [--steps N] [--only compiled lazy] [--threads N] [--json FILE]

The perceptron of workloads/mlp.py with Adam, smaller, but with arrays large enough to run in
tiles; each loop in a process of its own:

compiled -- a compiled step
donating -- the same, which writes over the parameters and the optimizer's state it is given
lazy     -- the step uncompiled, evaluated at the end of each

Growth is from the median of the first quarter of the samples after the warm-up to that of the
last: single samples differ by what the allocator has not given back at that moment.  Where the
system does not say how much is resident (it does on Linux), the peak is taken, which shows growth
too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _peers import environment_for

LOOPS = ("compiled", "donating", "lazy")
SIZES = {"features": 256, "hidden": 512, "classes": 10, "batch": 32}
WARM_UP = 200  # steps
SAMPLES = 50
ALLOWED = 2.0  # MB of growth


def stepper(loop: str) -> Callable[[], Any]:
    """A function that trains one step more, to the end, and returns the loss."""
    from workloads import adam, mlp

    import nuvec as nv
    import nuvec.nn as nn

    parameters, m, v, x, labels = nv.tree.map(nv.array, mlp.inputs(**SIZES))
    optimizer = nn.optim.adam(adam.RATE, adam.B1, adam.B2, adam.EPSILON)
    state = adam.state_nuvec(optimizer, parameters, m, v)
    del m, v

    def step(parameters: Any, state: Any, x: Any, labels: Any) -> Any:
        loss, gradients = nv.value_and_grad(mlp.loss_nuvec)(parameters, x, labels)
        updates, state = optimizer.update(gradients, state, parameters)
        return nn.optim.apply_updates(parameters, updates), state, loss

    run: Callable[..., Any] = step
    if loop != "lazy":
        run = nv.compile(step, donate_argnums=(0, 1) if loop == "donating" else ())

    def once() -> Any:
        nonlocal parameters, state
        parameters, state, loss = run(parameters, state, x, labels)
        nv.eval((parameters, state, loss))
        return loss

    return once


def resident() -> float:
    """MB of this process's memory."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def train(loop: str, steps: int, warm_up: int) -> dict[str, Any]:
    """{"first", "last": the losses after the warm-up and at the end, "ms": of a step, "resident":
    MB at even distances from the warm-up to the end}"""
    once = stepper(loop)
    for _ in range(warm_up):
        first = float(once())
    samples = []
    start = time.perf_counter()
    for i in range(warm_up, steps):
        last = once()
        done = i + 1 - warm_up
        if done * SAMPLES // (steps - warm_up) > (done - 1) * SAMPLES // (steps - warm_up):
            samples.append(resident())
    ms = (time.perf_counter() - start) * 1e3 / (steps - warm_up)
    return {"first": first, "last": float(last), "ms": ms, "resident": samples}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--only", nargs="+", choices=LOOPS, default=LOOPS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument("--worker", choices=LOOPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not 0 < args.warm_up < args.steps:
        parser.error("--warm-up must be at least 1, and less than --steps")
    if args.worker:
        print(json.dumps(train(args.worker, args.steps, args.warm_up)))
        return 0
    print(f"{args.steps} steps, {args.warm_up} of them warm-up; threads: {args.threads}")
    print(
        f"{'':10} {'ms/step':>8} {'MB first':>9} {'last':>8} {'least':>8} {'most':>8} {'growth':>7}"
    )
    report: dict[str, Any] = {}
    for loop in args.only:
        own = report[loop] = apart(loop, args)
        samples = own["resident"]
        quarter = max(1, len(samples) // 4)
        before, after = statistics.median(samples[:quarter]), statistics.median(samples[-quarter:])
        growth = own["growth"] = after - before
        verdict = "flat" if growth <= ALLOWED else f"GROWS by more than {ALLOWED:.0f} MB"
        print(
            f"{loop:10} {own['ms']:8.2f} {before:9.1f} {after:8.1f} {min(samples):8.1f} "
            f"{max(samples):8.1f} {growth:7.2f}  {verdict}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(own["growth"] <= ALLOWED for own in report.values()) else 1


def apart(loop: str, args: argparse.Namespace) -> dict[str, Any]:
    """`train` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--worker", loop, "--steps", str(args.steps),
         "--warm-up", str(args.warm_up)],
        env=environment_for("nuvec", args.threads), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())

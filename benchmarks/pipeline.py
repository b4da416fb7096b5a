"""Pipeline parallelism by send and recv: a step of 3 ranks against one process, and the bubble.

    python benchmarks/pipeline.py [--steps 10] [--batch 768] [--width 384] [--layers 4]

A deep MLP is cut into a stage a rank.  For each number of micro-batches it prints the time of a
training step (forward and gradient, compiled) in one process and over the ranks, for two
schedules: all forwards before all backwards ("forward first": one `grad`), and one forward, one
backward ("1F1B": a `vjp` a micro-batch).  The bubble is the share of a step that the ranks spend
waiting for a message, on average; beside it stands what the schedule itself makes unavoidable,
(ranks - 1) / (micro-batches + ranks - 1).  Every process has one thread of linear algebra; with
fewer cores than ranks the ranks also wait for each other's cores.

Steps of the one process (rank 0 alone, the others wait) and of the pipeline alternate, so that
whatever else the machine does falls on both.  Gradients are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nuvec as nv
from nuvec import distributed as nd
from nuvec.distributed.communicator import Buffer, Spec
from nuvec.distributed.group import Group
from nuvec.testing.communications import RecordingCommunicator

RANKS = 3
Params = list[dict[str, Any]]


def parameters(rank: int, width: int, layers: int) -> Params:
    """The weights of a stage: the same in the one process and on the rank."""
    generator = np.random.Generator(np.random.PCG64(rank))
    return [
        {
            "w": nv.array(generator.normal(size=(width, width)).astype(np.float32) / width**0.5),
            "b": nv.zeros(width),
        }
        for _ in range(layers)
    ]


def data(batch: int, width: int, count: int) -> list[Any]:
    x = np.random.Generator(np.random.PCG64(99)).normal(size=(batch, width)).astype(np.float32)
    return [nv.array(part) for part in np.split(x, count)]


def stage(params: Params, h: Any) -> Any:
    for layer in params:
        h = nv.tanh(h @ layer["w"] + layer["b"])
    return h


def one_process(width: int, layers: int, batch: int, count: int) -> Callable[[], Any]:
    """The whole model's step, micro-batch by micro-batch."""
    params = [parameters(r, width, layers) for r in range(RANKS)]
    xs = data(batch, width, count)

    def loss(params: list[Params], x: Any) -> Any:
        h = x
        for p in params:
            h = stage(p, h)
        return nv.mean((h - x) ** 2) / count

    def step(params: list[Params]) -> Any:
        total: Any = None
        for x in xs:
            gradient = nv.grad(loss)(params, x)
            total = gradient if total is None else nv.tree.map(nv.add, total, gradient)
        return total

    compiled = nv.compile(step)
    return lambda: compiled(params)


def part(group: Group, params: Params, x: Any, count: int) -> Any:
    """A rank's part of the model on one micro-batch: its loss, which the last rank has."""
    rank, last = group.rank(), group.size() - 1
    h = stage(params, x if rank == 0 else nd.recv_like(x, rank - 1, group))
    if rank < last:
        nd.send(h, rank + 1, group)
        return nv.array(0.0)
    return nv.mean((h - x) ** 2) / count


def forward_first(group: Group, params: Params, xs: Sequence[Any]) -> Any:
    def loss(params: Params) -> Any:
        total = nv.array(0.0)
        for x in xs:
            total = total + part(group, params, x, len(xs))
        return total

    return nv.grad(loss)(params)


def one_forward_one_backward(group: Group, params: Params, xs: Sequence[Any]) -> Any:
    """Runs ahead by the number of stages that follow, alternates, drains."""
    pulls: list[Any] = []
    total: Any = None
    ahead = min(group.size() - 1 - group.rank(), len(xs))
    for i in range(len(xs) + ahead):
        if i < len(xs):
            out, pull = nv.vjp(lambda p, x=xs[i]: part(group, p, x, len(xs)), params)
            pulls.append((out, pull))
        if i >= ahead:
            out, pull = pulls[i - ahead]
            (gradient,) = pull(nv.ones_like(out))
            total = gradient if total is None else nv.tree.map(nv.add, total, gradient)
    return total


SCHEDULES = {"forward first": forward_first, "1F1B": one_forward_one_backward}


class TimedCommunicator(RecordingCommunicator):
    """Adds up the time spent in messages."""

    seconds = 0.0

    def send(self, arrays: Sequence[Buffer], dst: int) -> None:
        start = time.perf_counter()
        self.inner.send(arrays, dst)
        self.seconds += time.perf_counter() - start

    def recv(self, specs: Sequence[Spec], src: int) -> list[Buffer]:
        start = time.perf_counter()
        found = self.inner.recv(specs, src)
        self.seconds += time.perf_counter() - start
        return found


def timed(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    nv.eval(step())
    return time.perf_counter() - start


def rank_main(args: argparse.Namespace) -> None:
    """What a rank runs: its figures go to a file of its own."""
    joined = nd.init(strict=True)
    communicator = TimedCommunicator(joined.communicator)
    group = Group(communicator, joined.queue)
    params = parameters(group.rank(), args.width, args.layers)
    found = {}
    for count in args.micro:
        xs = data(args.batch, args.width, count)
        for name, schedule in SCHEDULES.items():
            compiled = nv.compile(lambda p, s=schedule, xs=xs: s(group, p, xs))
            gradient = compiled(params)
            alone = one_process(args.width, args.layers, args.batch, count)
            expected = alone()[group.rank()]
            for a, b in zip(nv.tree.leaves(gradient), nv.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
            single, times, waits = [], [], []
            for _ in range(args.steps):
                if group.rank() == 0:
                    single.append(timed(alone))
                group.barrier()
                waited = communicator.seconds
                times.append(timed(lambda step=compiled: step(params)))
                waits.append(communicator.seconds - waited)
            found[f"{count} {name}"] = {"single": single, "times": times, "waits": waits}
    Path(args.rank, f"{group.rank()}.json").write_text(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4, help="of each stage")
    parser.add_argument("--micro", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args)
        return 0
    with tempfile.TemporaryDirectory(prefix="nuvec-pipeline-") as directory:
        command = [sys.executable, "-m", "nuvec.launch", "-n", str(RANKS), __file__,
                   *sys.argv[1:], "--rank", directory]  # fmt: skip
        subprocess.run(command, check=True)
        ranks = [json.loads(Path(directory, f"{r}.json").read_text()) for r in range(RANKS)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{RANKS} stages of {args.layers} layers of {args.width}, a batch of {args.batch}, "
          f"{cores} cores")  # fmt: skip
    print("micro-batches  one process  schedule       pipeline  speed-up  bubble  unavoidable")
    report: dict[str, Any] = {"cores": cores, "cases": {}}
    for count in args.micro:
        ideal = (RANKS - 1) / (count + RANKS - 1)
        for name in SCHEDULES:
            figures = [r[f"{count} {name}"] for r in ranks]
            each = [max(times) for times in zip(*[f["times"] for f in figures], strict=True)]
            step_time = statistics.median(each)
            waits = [
                sum(waits) / RANKS for waits in zip(*[f["waits"] for f in figures], strict=True)
            ]
            bubble = statistics.median([w / t for w, t in zip(waits, each, strict=True)])
            alone = figures[0]["single"]
            gain = statistics.median([a / t for a, t in zip(alone, each, strict=True)])
            single = statistics.median(alone)
            print(
                f"{count:13}  {single * 1e3:8.1f} ms  {name:13} {step_time * 1e3:7.1f} ms"
                f"  {gain:7.2f}x  {bubble:6.0%}  {ideal:11.0%}"
            )
            report["cases"][f"{count} {name}"] = {
                "one_process": single, "pipeline": step_time, "bubble": bubble,
                "unavoidable": ideal,
            }  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if variable not in os.environ:  # read when NumPy is loaded: start anew
            os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
            os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())

"""One rank of one peer in benchmarks/collectives.py: it sums arrays when it is told to.

    python _ranks.py PEER CONTROL

CONTROL is the path of a Unix socket, over which the benchmark says what to do, a JSON object a
line, and gets an answer each.  What is timed is one call, from the array to the evaluated sum.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Makes, for an array, a function of no arguments that sums it over the ranks, as an array.
Summing = Callable[[np.ndarray], Callable[[], Any]]


def nuvec(backend: str) -> tuple[int, int, Summing]:
    import nuvec as nv

    group = nv.distributed.init(strict=True, backend=backend)

    def summing(x: np.ndarray) -> Callable[[], Any]:
        array = nv.array(x)

        def run() -> Any:
            y = nv.distributed.all_sum(array, group)
            nv.eval(y)
            return y

        return run

    return group.rank(), group.size(), summing


def gloo() -> tuple[int, int, Summing]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def summing(x: np.ndarray) -> Callable[[], Any]:
        source = torch.from_numpy(x)

        def run() -> Any:
            y = source.clone()  # it sums in place
            dist.all_reduce(y)
            return y

        return run

    return dist.get_rank(), dist.get_world_size(), summing


def mpi() -> tuple[int, int, Summing]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def summing(x: np.ndarray) -> Callable[[], Any]:
        def run() -> Any:
            y = np.empty_like(x)
            world.Allreduce(x, y)
            return y

        return run

    return world.rank, world.size, summing


def mlx() -> tuple[int, int, Summing]:
    import mlx.core as mx

    group = mx.distributed.init(strict=True, backend="ring")

    def summing(x: np.ndarray) -> Callable[[], Any]:
        array = mx.array(x)

        def run() -> Any:
            y = mx.distributed.all_sum(array, group=group)
            mx.eval(y)
            return y

        return run

    return group.rank(), group.size(), summing


PEERS: dict[str, Callable[[], tuple[int, int, Summing]]] = {
    **{f"nuvec-{name}": lambda name=name: nuvec(name) for name in ("mesh", "ring", "shm")},
    "gloo": gloo,
    "mpi": mpi,
    "mlx": mlx,
}


def given(rank: int, elements: int) -> np.ndarray:
    """What a rank sums: whole numbers, so that every order of adding up is exact."""
    return (np.arange(elements) % 251 + rank).astype(np.float32)


def check(found: Any, ranks: int, elements: int) -> None:
    expected = sum(given(r, elements) for r in range(ranks))
    if not np.array_equal(np.array(found), expected):
        raise RuntimeError(f"{elements} elements: the sum is wrong")


def main() -> None:
    peer, control = sys.argv[1:]
    rank, ranks, summing = PEERS[peer]()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control)
        lines = connection.makefile("rw")
        print(json.dumps({"rank": rank, "ranks": ranks}), file=lines, flush=True)
        calls: dict[int, Callable[[], Any]] = {}
        for line in lines:
            asked = json.loads(line)
            elements = asked["elements"]
            if elements not in calls:
                calls[elements] = summing(given(rank, elements))
                check(calls[elements](), ranks, elements)
            call = calls[elements]
            times = []
            for _ in range(asked["calls"]):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            print(json.dumps({"times": times}), file=lines, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # some peers wait for one another at exit

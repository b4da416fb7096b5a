"""Random SPMD programs, and the three ways to run one: threads, processes, a mapped axis.

A program is a function of (group, x) that every rank runs on its own x, derived from a seed alone.

Communications have the same bits every way.  Long local sums need not: NumPy adds a row of a batch
in another order than the row alone.  So the sums here are of fewer than eight elements, which it
always adds in order.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.core.queue import process_queue
from nuvec.distributed.group import Group, run_local
from nuvec.distributed.transports.job import Address, Job
from nuvec.distributed.transports.mesh import mesh_communicator

Program = Callable[[Any, Any], Any]
ROOT = Path(__file__).resolve().parents[2]


def random_perm(rng: random.Random, size: int) -> list[tuple[int, int]]:
    """Pairs in which no rank is twice a source or twice a destination; perhaps none."""
    count = rng.randrange(size + 1)
    return list(zip(rng.sample(range(size), count), rng.sample(range(size), count), strict=True))


def rows(size: int) -> int:
    """The length of axis 0: a multiple of the size, below eight."""
    return size if size > 3 else 2 * size


def total(x: Any) -> Any:
    return nv.sum(nv.sum(x, axis=0))


def _step(rng: random.Random, size: int) -> Program:
    """One operation that keeps the shape (rows(size), 3)."""
    root, perm = rng.randrange(size), random_perm(rng, size)
    half = rng.choice([0.5, 0.25, -0.75])
    return rng.choice(STEPS)(root, perm, half)


STEPS: list[Callable[[int, Any, float], Program]] = [
    lambda root, perm, half: lambda g, x: nv.sin(x) * half,
    lambda root, perm, half: lambda g, x: nv.tanh(x) * x,
    lambda root, perm, half: lambda g, x: x / (1 + x * x),
    lambda root, perm, half: lambda g, x: x - nv.sum(x, axis=0) * half,
    lambda root, perm, half: lambda g, x: x * (g.rank() + 1) * half,
    lambda root, perm, half: lambda g, x: nv.where(g.rank() == root, x, nv.cos(x)),
    lambda root, perm, half: lambda g, x: nd.all_sum(x * half, g),
    lambda root, perm, half: lambda g, x: nd.all_sum({"a": x, "b": [nv.sin(x)]}, g)["b"][0] * x,
    lambda root, perm, half: lambda g, x: nd.all_max(x, g) - nd.all_min(x * half, g),
    lambda root, perm, half: lambda g, x: nd.broadcast(x, root, g) + x,
    lambda root, perm, half: lambda g, x: nd.permute(x, perm, g) + x * half,
    lambda root, perm, half: lambda g, x: nd.all_to_all(x, g),
    lambda root, perm, half: lambda g, x: nd.sum_scatter(nd.all_gather(x, g), g) * half,
    lambda root, perm, half: lambda g, x: nd.all_gather(x[: len(x) // g.size()], g) * x,
    lambda root, perm, half: lambda g, x: x * nv.sum(
        nv.reshape(nd.all_gather(nv.sum(x, axis=0), g), (g.size(), 3)) * half, axis=0
    ),
    lambda root, perm, half: lambda g, x: nd.sum_partials(nd.sum_gradients(x, g) * half, g),
    lambda root, perm, half: lambda g, x: x * nd.all_sum(nv.stop_gradient(x), g) * half,
    lambda root, perm, half: lambda g, x: nv.compile(lambda y: nd.all_sum(y * x, g))(x * half),
    lambda root, perm, half: lambda g, x: nv.scan(
        lambda c, _: (nv.sin(nd.permute(c, perm, g)) + c * half, None), x, None, length=2
    )[0],
    lambda root, perm, half: lambda g, x: nv.cond(
        nv.array(half > 0), lambda y: nd.all_sum(y, g), lambda y: nd.broadcast(y, root, g), x
    ),
    lambda root, perm, half: lambda g, x: nv.grad(
        lambda y: total(nv.sin(nd.all_sum(y * half, g)) * y)
    )(x),
    lambda root, perm, half: lambda g, x: nv.vmap(
        lambda r: nd.all_sum(r, g) * half + r * r, in_axes=1, out_axes=-1
    )(x),
]  # fmt: skip


def random_program(seed: int, size: int) -> Program:
    """A composition of a few steps, seen through one or two transforms."""
    rng = random.Random(seed)
    steps = [_step(rng, size) for _ in range(rng.randrange(2, 7))]
    mode = rng.choice(["plain", "grad", "jvp", "second", "compiled", "vmap", "grad of vmap"])

    def run(g: Any, x: Any) -> Any:
        for step in steps:
            x = step(g, x)
        return x

    def loss(g: Any, x: Any) -> Any:
        return total(nv.sin(run(g, x)))

    def through(g: Any, x: Any) -> Any:
        if mode == "plain":
            return run(g, x)
        if mode == "jvp":
            return nv.jvp(lambda y: run(g, y), (x,), (nv.cos(x),))
        if mode == "compiled":
            return nv.compile(nv.value_and_grad(lambda y: loss(g, y)))(x)
        if mode == "second":
            inner = nv.grad(lambda y: loss(g, y))
            return nv.grad(lambda y: total(nv.sin(inner(y))))(x)
        both = nv.stack([x, x * 0.5])
        if mode == "vmap":
            return nv.vmap(lambda y: run(g, y), out_axes=1)(both)
        if mode == "grad of vmap":
            return nv.grad(lambda y: nv.sum(nv.vmap(lambda z: loss(g, z))(y)))(both)
        return nv.value_and_grad(lambda y: loss(g, y))(x)

    return through


def operand_of(seed: int, size: int, rank: int) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64([seed, rank]))
    dtype = [np.float32, np.float64][seed % 2]
    return generator.normal(size=(rows(size), 3)).astype(dtype)


Results = list[list[np.ndarray]]  # by rank, then by leaf


def on_axis(program: Program, operands: Sequence[np.ndarray]) -> Results:
    """The program with the elements of a mapped axis as its ranks."""
    result = nv.vmap(lambda x: program(nd.axis_group("ranks"), x), axis_name="ranks")(
        from_numpy(np.stack(operands))
    )
    leaves = [np.asarray(leaf) for leaf in nv.tree.leaves(result)]
    return [[leaf[r] for leaf in leaves] for r in range(len(operands))]


def on_threads(program: Program, operands: Sequence[np.ndarray]) -> Results:
    found = run_local(
        lambda g: nv.tree.leaves(program(g, from_numpy(operands[g.rank()]))), len(operands)
    )
    return [[np.asarray(leaf) for leaf in leaves] for leaves in found]


def rank_process(rank: int, directory: str, size: int, count: int) -> None:
    """What a process of `on_processes` runs: every program, one after the other."""
    addresses = tuple(
        Address("localhost", unix=f"{directory}/sockets/{r}.sock") for r in range(size)
    )
    communicator = mesh_communicator(Job(rank, addresses, b"test secret", timeout=60))
    group = Group(communicator, process_queue())
    found = []
    try:
        for seed in range(count):
            x = from_numpy(operand_of(seed, size, rank))
            leaves = nv.tree.leaves(random_program(seed, size)(group, x))
            found.append([np.asarray(leaf) for leaf in leaves])
            nv.synchronize(group)
    finally:
        communicator.close()
    Path(directory, f"{rank}.pickle").write_bytes(pickle.dumps(found))


def on_processes(size: int, count: int) -> list[list[list[np.ndarray]]]:
    """Programs 0 to `count` on as many processes as ranks: by rank, then by program."""
    with tempfile.TemporaryDirectory(prefix="nuvec-test-") as directory:
        os.mkdir(os.path.join(directory, "sockets"))  # it goes with the last of the group
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", "from tests.distributed.spmd import rank_process; "
                 f"rank_process({rank}, {directory!r}, {size}, {count})"],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for rank in range(size)
        ]  # fmt: skip
        try:
            codes = [p.wait(timeout=200) for p in processes]
        finally:
            for p in processes:
                p.kill()
                p.wait()
        assert codes == [0] * size
        return [
            pickle.loads(Path(directory, f"{rank}.pickle").read_bytes()) for rank in range(size)
        ]

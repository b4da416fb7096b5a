"""Worlds of ranks for tests: threads of the test's process, each with a communicator."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nuvec.distributed.communicator import Communicator
from nuvec.distributed.transports.job import Address, Job, listen
from nuvec.distributed.transports.local import local_world
from nuvec.distributed.transports.mesh import mesh_communicator
from nuvec.distributed.transports.ring import ring_communicator
from nuvec.distributed.transports.shm import shm_communicator
from nuvec.testing.contract import MakeWorld

TIMEOUT = 30.0


def mesh_jobs(size: int, family: str, timeout: float = TIMEOUT) -> list[Job]:
    """The job as each rank sees it, over Unix sockets or over TCP on ephemeral ports.

    The directory of the Unix sockets goes with this process.
    """
    if family == "unix":
        directory = tempfile.mkdtemp(prefix="nuvec-test-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        paths = [os.path.join(directory, f"{rank}.sock") for rank in range(size)]
        addresses = tuple(Address("localhost", unix=path) for path in paths)
        return [Job(rank, addresses, b"test secret", timeout=timeout) for rank in range(size)]
    listeners = [listen(("127.0.0.1", 0)) for _ in range(size)]
    addresses = tuple(Address("localhost", tcp=sock.getsockname()) for sock in listeners)
    return [
        Job(rank, addresses, b"test secret", timeout=timeout, listeners=(sock,))
        for rank, sock in enumerate(listeners)
    ]


def _mesh_world(family: str, timeout: float) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        return [partial(mesh_communicator, job) for job in mesh_jobs(size, family, timeout)]

    return make


def _shm_world(timeout: float) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        return [partial(shm_communicator, job) for job in mesh_jobs(size, "unix", timeout)]

    return make


def _unshared_world(timeout: float) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        jobs = mesh_jobs(size, "unix", timeout)
        return [partial(mesh_communicator, job, shared=False) for job in jobs]

    return make


def _ring_world(family: str, timeout: float) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        return [partial(ring_communicator, job) for job in mesh_jobs(size, family, timeout)]

    return make


def _local_world(timeout: float) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        return [lambda c=c: c for c in local_world(size, timeout)]  # type: ignore[misc]

    return make


TRANSPORTS: dict[str, Callable[[float], MakeWorld]] = {
    "local": _local_world,
    "mesh-unix": lambda timeout: _mesh_world("unix", timeout),
    "mesh-unix-sockets": _unshared_world,
    "shm": _shm_world,
    "mesh-tcp": lambda timeout: _mesh_world("tcp", timeout),
    "ring-unix": lambda timeout: _ring_world("unix", timeout),
    "ring-tcp": lambda timeout: _ring_world("tcp", timeout),
}


def on_ranks(make_world: MakeWorld, size: int, body: Callable[[Communicator], Any]) -> list[Any]:
    """Run `body` on every rank; returns results by rank, raises the first error."""
    factories = make_world(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        communicator = None
        try:
            communicator = factories[rank]()
            results[rank] = body(communicator)
        except BaseException as error:
            errors.append(error)
            if communicator is not None:
                communicator.abort(f"test failed: {error!r}")
        finally:
            if communicator is not None:
                communicator.close()

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results

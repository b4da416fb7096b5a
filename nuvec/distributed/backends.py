"""The backends: every transport that processes can be joined by, as one table.

A row of `BACKENDS` is a name, why the transport cannot be used here (if so), and how a process
becomes a rank by it. Another transport is another row. The local transport is none of them: its
ranks are threads, which `run_local` starts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.mpi_job import join_mpi, launched_by_mpi
from nuvec.distributed.rendezvous import BACKEND, find_job
from nuvec.distributed.transports.job import Job
from nuvec.distributed.transports.mesh import mesh_communicator
from nuvec.distributed.transports.ring import ring_communicator
from nuvec.distributed.transports.shm import shm_communicator

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendName",
    "is_available",
    "join",
    "needs_extra",
    "over_job",
    "requested",
]

BackendName = Literal["any", "mesh", "ring", "shm", "mpi", "gloo", "local"]


def _always() -> str | None:
    return None


def _nobody(environment: Mapping[str, str]) -> bool:
    return False


class Backend(NamedTuple):
    """One row."""

    name: str
    join: Callable[[float], Communicator | None]
    """``join(timeout)`` makes this process a rank and returns its communicator; None where nothing
    says that it is one, never a communicator of size 1 instead."""
    missing: Callable[[], str | None] = _always
    """Why it cannot be used in this installation and what to do about it, or None."""
    launched: Callable[[Mapping[str, str]], bool] = _nobody
    """Whether the environment is that of a launcher of this backend's own (mpirun), so that
    ``"any"`` means this one."""


def over_job(connect: Callable[[Job], Communicator]) -> Callable[[float], Communicator | None]:
    """`Backend.join` for a transport that needs no more than what `find_job` finds."""

    def join_job(timeout: float) -> Communicator | None:
        job = find_job(timeout=timeout)
        return None if job is None else connect(job)

    return join_job


def needs_extra(extra: str, module: str) -> Callable[[], str | None]:
    """`Backend.missing` for a transport that imports `module`, which ``nuvec[extra]`` installs."""

    def missing() -> str | None:
        if importlib.util.find_spec(module) is not None:
            return None
        return f"it needs the package {module}: pip install 'nuvec[{extra}]'"

    return missing


def _connect_gloo(job: Job) -> Communicator:
    # Loading torch takes seconds, so it is loaded only where it is wanted.
    try:
        from nuvec.distributed.transports.gloo import gloo_communicator
    except ImportError as error:
        raise ConfigurationError(f"the gloo backend needs a torch with gloo: {error}") from None
    return gloo_communicator(job)


BACKENDS: dict[str, Backend] = {
    row.name: row
    for row in (
        Backend("mesh", over_job(mesh_communicator)),
        Backend("ring", over_job(ring_communicator)),
        Backend("shm", over_job(shm_communicator)),
        Backend("mpi", join_mpi, needs_extra("mpi", "mpi4py"), launched_by_mpi),
        Backend("gloo", over_job(_connect_gloo), needs_extra("gloo", "torch")),
    )
}


def requested(backend: str, environment: Mapping[str, str] | None = None) -> str:
    """The backend to use: `backend`, or where that is ``"any"`` what `NUVEC_BACKEND` says.

    Raises `ConfigurationError` for one there is not, or that cannot be used here.
    """
    environment = os.environ if environment is None else environment
    where = "backend="
    if backend == "any" and environment.get(BACKEND):
        backend, where = environment[BACKEND], f"{BACKEND}="
    if backend in ("any", "local"):
        return backend
    if backend not in BACKENDS:
        names = ", ".join(map(repr, ("any", *BACKENDS, "local")))
        raise ConfigurationError(f"{where}{backend!r} is an unknown backend: one of {names}")
    if why := BACKENDS[backend].missing():
        raise ConfigurationError(f"{where}{backend!r} cannot be used here: {why}")
    return backend


def join(backend: str, timeout: float) -> Communicator | None:
    """Become a rank by `backend`, as `requested` returned it; None where nothing says of which job.

    ``"any"`` is the backend whose own launcher started this process, else the mesh.
    """
    if backend == "any":
        backend = next((row.name for row in BACKENDS.values() if row.launched(os.environ)), "mesh")
        backend = requested(backend)
    return BACKENDS[backend].join(timeout)


def is_available(backend: str = "any") -> bool:
    """Whether this installation has the backend (not whether a job is configured for it).

    >>> is_available("ring"), is_available("carrier pigeon")
    (True, False)
    """
    if backend in BACKENDS:
        return BACKENDS[backend].missing() is None
    return backend in ("any", "local")

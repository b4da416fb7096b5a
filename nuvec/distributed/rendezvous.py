"""Rendezvous: from a process's environment to what it needs to join its job.

Each way of saying it (nuvec's own variables, another launcher's) is one row of `SOURCES`: the
variables whose presence selects it, and the function that reads them. The first row that is
selected is used; a row that is selected but incomplete is an error, never a group of one. Where
none is, the variables of other launchers are read (`nuvec.distributed.variables`).

A rank that has joined takes the job's variables out of its environment (`withdraw`): the processes
it starts would otherwise take themselves for that rank.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, MutableMapping
from typing import NamedTuple

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.hostfile import read_hosts
from nuvec.distributed.meeting import meet
from nuvec.distributed.transports._checked import DEFAULT_TIMEOUT
from nuvec.distributed.transports.job import Address, Job
from nuvec.distributed.variables import (
    FOREIGN,
    Environment,
    Meeting,
    Place,
    check_private,
    place_of,
    read_foreign,
    shown,
    whole_number,
)

__all__ = ["OWN", "SOURCES", "Source", "find_job", "find_place", "read_secret", "withdraw"]

PARENT = "NUVEC_PARENT_RANK"
"""Set by a rank that has joined, for the processes it starts: which rank they come from."""

BACKEND = "NUVEC_BACKEND"
"""The backend that ``init(backend="any")`` uses, by name; the launcher's ``--backend`` sets it."""

PARENT_VARIABLES = "NUVEC_PARENT_VARIABLES"
"""What other launchers had said to that rank, which is not meant for the processes it starts."""


class Source(NamedTuple):
    """One row: a name for messages, the variables that select it, and how to read them."""

    name: str
    variables: tuple[str, ...]
    read: Callable[[Environment], Place]


def find_job(
    environment: Environment | None = None, timeout: float = DEFAULT_TIMEOUT
) -> Job | None:
    """The job this process belongs to, or None if no launcher's variables are set.

    Raises `ConfigurationError` for variables that contradict each other or are not enough, and
    `PeerError` when ranks that have to meet first do not come within `timeout` seconds.
    """
    environment = os.environ if environment is None else environment
    place = find_place(environment)
    if place is None:
        return None
    secret = read_secret(environment)
    name = environment.get("NUVEC_JOB") or "nuvec"
    if isinstance(place, Meeting):
        place = meet(place, secret, name, timeout)
    return Job(place.rank, place.addresses, secret, name, timeout)


def find_place(environment: Environment) -> Place | Meeting | None:
    """Which rank this process is, and where the ranks are or meet; None if nothing says so."""
    for source in SOURCES:
        if any(environment.get(variable) for variable in source.variables):
            return source.read(environment)
    said = _foreign_variables(environment)
    if said and environment.get(PARENT) and said == environment.get(PARENT_VARIABLES):
        return None
    return read_foreign(environment)


def _foreign_variables(environment: Environment) -> str:
    names = (name for row in FOREIGN for name in (row.rank, row.size, *row.job))
    return shown(environment, tuple(names))


def looked_for(environment: Environment | None = None) -> str:
    """What `find_job` looks for, for the message of whoever found nothing."""
    environment = os.environ if environment is None else environment
    rows = "; ".join(f"{' or '.join(row.variables)} ({row.name})" for row in SOURCES)
    rows += "".join(f"; {row.rank} and {row.size} ({row.name})" for row in FOREIGN)
    parent = environment.get(PARENT)
    if parent:
        rows += (
            f". It was started by {parent}, which has joined: a child of a rank is not a rank, "
            "unless it is given variables of its own"
        )
    return rows


def withdraw(environment: MutableMapping[str, str], rank: int, size: int) -> None:
    """Take what said that this process is a rank out of its environment, the secret included."""
    for name in (*OWN, BACKEND, *(variable for row in SOURCES for variable in row.variables)):
        environment.pop(name, None)
    environment[PARENT] = f"rank {rank} of {size} (pid {os.getpid()})"
    # Those of other launchers stay, since an MPI reads them when it is loaded.
    environment[PARENT_VARIABLES] = _foreign_variables(environment)


def read_secret(environment: Environment) -> bytes:
    """The job's secret: `NUVEC_SECRET`, or the content of the 0600 file `NUVEC_SECRET_FILE`."""
    secret = environment.get("NUVEC_SECRET", "").encode()
    path = environment.get("NUVEC_SECRET_FILE")
    if not path:
        return secret
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigurationError(
                    f"NUVEC_SECRET_FILE={path} can be read by others (mode {mode:04o}): "
                    f"chmod 600 {path}"
                )
            data = file.read(1 << 16).strip()
    except OSError as error:
        raise ConfigurationError(f"NUVEC_SECRET_FILE={path}: {error.strerror}") from None
    if not data:
        raise ConfigurationError(f"NUVEC_SECRET_FILE={path} is empty")
    if secret and secret != data:
        raise ConfigurationError(
            f"NUVEC_SECRET is set, and NUVEC_SECRET_FILE={path} holds another secret: unset one"
        )
    return data


# nuvec's own variables.

_SELECT = ("NUVEC_RANK", "NUVEC_HOSTFILE", "NUVEC_WORLD_SIZE")

OWN = (
    *_SELECT,
    *("NUVEC_SOCKET_DIR", "NUVEC_SECRET", "NUVEC_SECRET_FILE", "NUVEC_JOB", "NUVEC_LIFELINE_FD"),
    *(PARENT, PARENT_VARIABLES),
)
"""What describes one job, and is wrong in another."""


def _read_nuvec(environment: Environment) -> Place:
    hostfile = environment.get("NUVEC_HOSTFILE")
    directory = environment.get("NUVEC_SOCKET_DIR")
    size_text = environment.get("NUVEC_WORLD_SIZE")
    size = None if not size_text else whole_number("NUVEC_WORLD_SIZE", size_text)
    if size is not None and size < 1:
        raise ConfigurationError(f"NUVEC_WORLD_SIZE={size} is not a number of ranks")
    if not environment.get("NUVEC_RANK"):
        raise ConfigurationError(
            "NUVEC_HOSTFILE or NUVEC_WORLD_SIZE is set but NUVEC_RANK is not: each process needs "
            "its own NUVEC_RANK from 0, or start the job with `nuvec.launch -n 2 script.py`"
        )
    rank = whole_number("NUVEC_RANK", environment["NUVEC_RANK"])
    if hostfile:
        addresses = read_hosts(hostfile)
        if size is not None and size != len(addresses):
            raise ConfigurationError(
                f"NUVEC_WORLD_SIZE={size} but the host file {hostfile} has {len(addresses)} ranks: "
                "is it the file of another job?"
            )
    elif size is None:
        raise ConfigurationError(
            "NUVEC_RANK is set but neither NUVEC_HOSTFILE nor NUVEC_WORLD_SIZE is, so the other "
            "ranks are unknown"
        )
    elif directory:
        addresses = tuple(
            Address("localhost", unix=os.path.join(directory, f"{other}.sock"))
            for other in range(size)
        )
    elif size == 1:
        addresses = (Address("localhost"),)
    else:
        raise ConfigurationError(
            f"NUVEC_WORLD_SIZE={size} but nothing says where the ranks are: set NUVEC_HOSTFILE, or "
            "for one host NUVEC_SOCKET_DIR to a private directory (`nuvec.launch` does it)"
        )
    place = place_of("NUVEC_RANK", rank, addresses)
    if directory and not hostfile:
        if not os.path.isdir(directory):
            raise ConfigurationError(
                f"NUVEC_SOCKET_DIR={directory} is not a directory: make it before the first rank "
                f"starts, `mkdir -m 700 {directory}`; the last one to join removes it"
            )
        check_private(directory, f"NUVEC_SOCKET_DIR={directory}")
    return place


# MLX's variables.


def _read_mlx(environment: Environment) -> Place:
    for name, what in (("MLX_RANK", "which rank it is"), ("MLX_HOSTFILE", "where the ranks are")):
        if not environment.get(name):
            raise ConfigurationError(
                f"{shown(environment, ('MLX_RANK', 'MLX_HOSTFILE'))} is set but {name} is not, "
                f"so this process does not know {what}; mlx.launch --backend ring sets both"
            )
    hostfile = environment["MLX_HOSTFILE"]
    rank = whole_number("MLX_RANK", environment["MLX_RANK"])
    return place_of("MLX_RANK", rank, read_hosts(hostfile))


SOURCES: tuple[Source, ...] = (
    Source("nuvec's own", _SELECT, _read_nuvec),
    Source("MLX's", ("MLX_RANK", "MLX_HOSTFILE"), _read_mlx),
)

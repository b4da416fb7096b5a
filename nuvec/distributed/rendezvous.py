"""Rendezvous: from a process's environment to what it needs to join its job.

Each way of saying it (nuvec's own variables, another launcher's) is one row of `SOURCES`: the
variables whose presence selects it, and the function that reads them. The first row that is
selected is used; a row that is selected but incomplete is an error, never a group of one. So are
the variables of a launcher that nuvec cannot read yet (`FOREIGN`).

A rank that has joined takes the job's variables out of its environment (`withdraw`): the processes
it starts would otherwise take themselves for that rank.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.transports._checked import DEFAULT_TIMEOUT
from nuvec.distributed.transports.job import Address, Job

__all__ = ["FOREIGN", "SOURCES", "Source", "find_job", "parse_hosts", "read_secret", "withdraw"]

PARENT = "NUVEC_PARENT_RANK"
"""Set by a rank that has joined, for the processes it starts: which rank they come from."""

Environment = Mapping[str, str]


class Place(NamedTuple):
    """This rank's number, and where every rank is."""

    rank: int
    addresses: tuple[Address, ...]


class Source(NamedTuple):
    """One row: a name for messages, the variables that select it, and how to read them."""

    name: str
    variables: tuple[str, ...]
    read: Callable[[Environment], Place]


def find_job(
    environment: Environment | None = None, timeout: float = DEFAULT_TIMEOUT
) -> Job | None:
    """The job this process belongs to, or None if no source's variables are set.

    Raises `ConfigurationError` for variables that contradict each other, and for those of a
    launcher of several processes that nuvec cannot read.
    """
    environment = os.environ if environment is None else environment
    for source in SOURCES:
        if any(environment.get(variable) for variable in source.variables):
            place = source.read(environment)
            return Job(
                rank=place.rank,
                addresses=place.addresses,
                secret=read_secret(environment),
                name=environment.get("NUVEC_JOB") or "nuvec",
                timeout=timeout,
            )
    if not environment.get(PARENT):
        _refuse_foreign(environment)
    return None


def looked_for(environment: Environment | None = None) -> str:
    """What `find_job` looks for, for the message of whoever found nothing."""
    environment = os.environ if environment is None else environment
    rows = "; ".join(f"{' or '.join(row.variables)} ({row.name})" for row in SOURCES)
    parent = environment.get(PARENT)
    if parent:
        rows += (
            f". It was started by {parent}, which has joined: a child of a rank is not a rank, "
            "unless it is given variables of its own"
        )
    return rows


def withdraw(environment: MutableMapping[str, str], rank: int, size: int) -> None:
    """Take what said that this process is a rank out of its environment, the secret included."""
    for name in (*_OWN, *(variable for row in SOURCES for variable in row.variables)):
        environment.pop(name, None)
    environment[PARENT] = f"rank {rank} of {size} (pid {os.getpid()})"


def read_secret(environment: Environment) -> bytes:
    """The job's secret: `NUVEC_SECRET`, or the content of the 0600 file `NUVEC_SECRET_FILE`."""
    if secret := environment.get("NUVEC_SECRET"):
        return secret.encode()
    path = environment.get("NUVEC_SECRET_FILE")
    if not path:
        return b""
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
    return data


# nuvec's own variables.

_OWN = (
    *("NUVEC_SOCKET_DIR", "NUVEC_SECRET", "NUVEC_SECRET_FILE", "NUVEC_JOB", "NUVEC_LIFELINE_FD"),
    PARENT,
)
"""What else describes a job, besides the variables that select a row."""


def _read_nuvec(environment: Environment) -> Place:
    hostfile = environment.get("NUVEC_HOSTFILE")
    directory = environment.get("NUVEC_SOCKET_DIR")
    size_text = environment.get("NUVEC_WORLD_SIZE")
    size = None if not size_text else _integer("NUVEC_WORLD_SIZE", size_text)
    if size is not None and size < 1:
        raise ConfigurationError(f"NUVEC_WORLD_SIZE={size} is not a number of ranks")
    if not environment.get("NUVEC_RANK"):
        raise ConfigurationError(
            "NUVEC_HOSTFILE or NUVEC_WORLD_SIZE is set but NUVEC_RANK is not: each process needs "
            "its own NUVEC_RANK from 0, or start the job with `nuvec.launch -n 2 script.py`"
        )
    rank = _integer("NUVEC_RANK", environment["NUVEC_RANK"])
    if hostfile:
        addresses = parse_hosts(_read_file(hostfile), hostfile)
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
        _check_private(directory)
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
    return _place("NUVEC_RANK", rank, addresses)


def _place(variable: str, rank: int, addresses: tuple[Address, ...]) -> Place:
    if not 0 <= rank < len(addresses):
        raise ConfigurationError(
            f"{variable}={rank} is out of range: the ranks of a job of size {len(addresses)} are 0 "
            f"to {len(addresses) - 1}"
        )
    return Place(rank, addresses)


def _check_private(directory: str) -> None:
    try:
        status = os.stat(directory)
    except OSError:
        return  # whoever listens there will say what is wrong with it
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigurationError(
            f"NUVEC_SOCKET_DIR={directory} can be entered by other users: chmod 700 {directory}"
        )


# MLX's variables.


def _read_mlx(environment: Environment) -> Place:
    for name, what in (("MLX_RANK", "which rank it is"), ("MLX_HOSTFILE", "where the ranks are")):
        if not environment.get(name):
            raise ConfigurationError(
                f"{_shown(environment, ('MLX_RANK', 'MLX_HOSTFILE'))} is set but {name} is not, "
                f"so this process does not know {what}; mlx.launch --backend ring sets both"
            )
    hostfile = environment["MLX_HOSTFILE"]
    rank = _integer("MLX_RANK", environment["MLX_RANK"])
    return _place("MLX_RANK", rank, parse_hosts(_read_file(hostfile), hostfile))


SOURCES: tuple[Source, ...] = (
    Source("nuvec's own", ("NUVEC_RANK", "NUVEC_HOSTFILE", "NUVEC_WORLD_SIZE"), _read_nuvec),
    Source("MLX's", ("MLX_RANK", "MLX_HOSTFILE"), _read_mlx),
)


# Launchers that nuvec cannot read yet: (name, the variable of the rank, that of their number).

FOREIGN: tuple[tuple[str, str, str], ...] = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
)


def _refuse_foreign(environment: Environment) -> None:
    """Raise where this process is one of several: alone, each would compute something else."""
    for name, rank, size in FOREIGN:
        if environment.get(rank) and environment.get(size):
            ranks = _integer(size, environment[size])
            if ranks > 1:
                raise ConfigurationError(
                    f"{_shown(environment, (rank, size))}: {name} has started this process as one "
                    f"of {ranks}, and nuvec cannot join ranks from these variables yet. Start the "
                    f"ranks with `nuvec.launch -n {ranks} script.py`, or give each process "
                    "NUVEC_RANK and NUVEC_HOSTFILE; if it is meant to be alone, "
                    "NUVEC_RANK=0 NUVEC_WORLD_SIZE=1"
                )


def _shown(environment: Environment, names: tuple[str, ...]) -> str:
    return " ".join(f"{name}={environment[name]}" for name in names if environment.get(name))


# Host files.


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"host file {path}: {reason}") from None


def parse_hosts(text: str, name: str = "host file") -> tuple[Address, ...]:
    """The ranks' addresses out of a host file, which is JSON in one of three forms.

    ``{"ranks": [{"host": "a", "unix": "/path", "tcp": "10.0.0.1:5000"}, ...]}`` (the launcher's),
    ``[["10.0.0.1:5000"], ["10.0.0.2:5000"], ...]`` (of each rank's addresses the first is used),
    ``[{"ip": "10.0.0.1", "port": 5000}, ...]``.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"host file {name} is not JSON: {error}") from None
    entries = data.get("ranks") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(
            f'host file {name} should be a list of ranks, such as [["127.0.0.1:5000"], '
            '["127.0.0.1:5001"]]'
        )
    addresses = tuple(_address(entry, rank, name) for rank, entry in enumerate(entries))
    seen: dict[object, int] = {}
    for rank, address in enumerate(addresses):
        for where in (address.tcp, address.unix and (address.host, address.unix)):
            if where and where in seen:
                raise ConfigurationError(
                    f"host file {name}: ranks {seen[where]} and {rank} have the same address "
                    f"{where[0]}:{where[1]}"
                )
            seen[where] = rank
    return addresses


def _address(entry: Any, rank: int, name: str) -> Address:
    if isinstance(entry, list) and entry:
        entry = entry[0]
    if isinstance(entry, str):
        tcp = _tcp(entry, rank, name)
        return Address(tcp[0], tcp=tcp)
    if isinstance(entry, dict) and "ip" in entry and "port" in entry:
        tcp = _tcp(f"{_bracketed(str(entry['ip']))}:{entry['port']}", rank, name)
        return Address(tcp[0], tcp=tcp)
    if isinstance(entry, dict) and isinstance(entry.get("host"), str):
        unix, at = entry.get("unix"), entry.get("tcp")
        if (unix is None or isinstance(unix, str)) and (at is None or isinstance(at, str)):
            return Address(entry["host"], unix, None if at is None else _tcp(at, rank, name))
    raise ConfigurationError(
        f'host file {name}: the entry of rank {rank} is {entry!r}, which is neither "ip:port" nor '
        '{"ip": ..., "port": ...} nor {"host": ..., "unix": ..., "tcp": ...}'
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _tcp(text: str, rank: int, name: str) -> tuple[str, int]:
    host, colon, port_text = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port_text.isdecimal() or not 0 < int(port_text) < 65536:
        raise ConfigurationError(
            f"host file {name}: the address of rank {rank} is {text!r}, which is not like "
            '"127.0.0.1:5000"'
        )
    try:
        # Host names become numbers here, once; everything later compares and binds numbers.
        found = socket.getaddrinfo(host, int(port_text), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"host file {name}: the host {host!r} of rank {rank} is unknown: {error.strerror}"
        ) from None
    return str(found[0][4][0]), int(port_text)


def _integer(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable}={text!r} is not a whole number") from None

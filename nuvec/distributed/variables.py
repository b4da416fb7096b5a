"""The variables of other launchers: torchrun's, Open MPI's, MPICH's, Slurm's.

They say which rank a process is, seldom where the others are. On one host that is no matter: the
ranks meet in a directory whose name they all can make up. On several hosts they meet at a
coordinator, an address where rank 0 listens (`Meeting`): ``MASTER_ADDR`` and ``MASTER_PORT``, or
what the scheduler says of the first host.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.transports.job import Address

__all__ = ["FOREIGN", "Environment", "Foreign", "Meeting", "Place", "check_private", "read_foreign"]

Environment = Mapping[str, str]


class Place(NamedTuple):
    """This rank's number, and where every rank is."""

    rank: int
    addresses: tuple[Address, ...]


class Meeting(NamedTuple):
    """This rank's number, and where all ranks meet to tell each other where they are."""

    rank: int
    size: int
    host: str
    port: int
    said: str
    """The variables that say so, for messages."""


class Foreign(NamedTuple):
    """One launcher: its name, the variables of the rank and of their number, what else it says."""

    name: str
    rank: str
    size: str
    local_size: tuple[str, ...]
    """How many ranks share this rank's host; the first that is set."""
    local_rank: tuple[str, ...]
    job: tuple[str, ...]
    """What tells the job from others on this host; without any, the process that started it."""


FOREIGN: tuple[Foreign, ...] = (
    Foreign(
        "torchrun", "RANK", "WORLD_SIZE", ("LOCAL_WORLD_SIZE",), ("LOCAL_RANK",),
        ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ),
    Foreign(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        ("OMPI_COMM_WORLD_LOCAL_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Foreign(
        "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
        ("MV2_COMM_WORLD_LOCAL_SIZE",), ("MV2_COMM_WORLD_LOCAL_RANK",), (),
    ),
    Foreign(
        "MPI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALNRANKS",), ("MPI_LOCALRANKID",), (),
    ),
    Foreign(
        "Slurm", "SLURM_PROCID", "SLURM_NTASKS", (), ("SLURM_LOCALID",),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
)  # fmt: skip
"""From the innermost outwards: torchrun and mpirun run inside a scheduler's steps."""


def read_foreign(environment: Environment) -> Place | Meeting | None:
    """What another launcher's variables say; None where there are none.

    `ConfigurationError` for what contradicts itself or is not enough.
    """
    for launcher in FOREIGN:
        if environment.get(launcher.rank) and environment.get(launcher.size):
            return _read(launcher, environment)
    for launcher in FOREIGN:
        for missing, other in ((launcher.rank, launcher.size), (launcher.size, launcher.rank)):
            if environment.get(other):
                _check_half(launcher, missing, other, environment)
    return None


def _check_half(launcher: Foreign, missing: str, other: str, environment: Environment) -> None:
    """Raise where `other` is set, and without `missing` does not mean a process that is alone."""
    if launcher.name == "torchrun":
        # These names are common: half of them alone may mean anything.
        if environment.get("MASTER_ADDR"):
            raise ConfigurationError(
                f"{shown(environment, (other, 'MASTER_ADDR'))} is set but {missing} is not: each "
                f"process of a job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which "
                "torchrun sets. If this process is meant to be alone, unset MASTER_ADDR"
            )
    # In an allocation, or a batch script that asks for no number of tasks, a process is alone.
    elif launcher.name != "Slurm" or (other == launcher.rank and environment[other] != "0"):
        raise ConfigurationError(
            f"{shown(environment, (other,))} is set but {missing} is not: {launcher.name} sets "
            "both in each process of a job. If this process is meant to be alone, NUVEC_RANK=0 "
            "NUVEC_WORLD_SIZE=1"
        )


def _read(launcher: Foreign, environment: Environment) -> Place | Meeting:
    rank = whole_number(launcher.rank, environment[launcher.rank])
    size = whole_number(launcher.size, environment[launcher.size])
    said = shown(environment, (launcher.rank, launcher.size))
    if not 0 <= rank < size:
        raise ConfigurationError(
            f"{said}: the ranks of a job of size {size} are 0 to {size - 1}. Are both variables "
            f"of the same job ({launcher.name})?"
        )
    if size == 1:
        return Place(0, (Address("localhost"),))
    step = environment.get("SLURM_STEP_NODELIST")
    local = _local_size(launcher, environment, size)
    if launcher.name == "MPI" and local is None and step:
        # What `srun --mpi=pmi2` sets beside Slurm's own.
        launcher = FOREIGN[-1]
    if launcher.name == "Slurm":
        if not step:
            raise ConfigurationError(
                f"{said}, but SLURM_STEP_NODELIST is not set: this process is of a batch script, "
                f"and its {size} tasks are started by srun: `srun python script.py`. If it is "
                "meant to be alone, NUVEC_RANK=0 NUVEC_WORLD_SIZE=1"
            )
        nodes = environment.get("SLURM_STEP_NUM_NODES")
        number = whole_number("SLURM_STEP_NUM_NODES", nodes) if nodes else None
        if number == 1 or (number is None and not re.search(r"[\[,]", step)):
            local = size
    if local == size:
        return _one_host(launcher, environment, rank, size)
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    job = "-".join(environment.get(name, "") for name in launcher.job)
    if host:
        if not port and launcher.name != "Slurm":
            raise ConfigurationError(
                f"{said} MASTER_ADDR={host}, but MASTER_PORT is not set: give a port that is free "
                "on that host, the same on every rank"
            )
        number = whole_number("MASTER_PORT", port) if port else _port_of(job)
        if not 0 < number < 65536:
            raise ConfigurationError(f"MASTER_PORT={port} is not a port: 1 to 65535")
        if environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
            number = _port_of(job)  # torchrun itself listens at MASTER_PORT
        return Meeting(rank, size, host, number, f"{said} MASTER_ADDR={host} MASTER_PORT={number}")
    if launcher.name == "Slurm" and step:
        host, number = first_host(step), _port_of(job)
        text = f"{said} SLURM_STEP_NODELIST={step} (port {number})"
        return Meeting(rank, size, host, number, text)
    where = "" if local is None else f", {local} of them on this host"
    raise ConfigurationError(
        f"{said}: {launcher.name} has started this process as one of {size}{where}, and nothing "
        "says where the others are: set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a "
        'free port there, the same on every rank, or use the MPI itself with init(backend="mpi"). '
        "If this process is meant to be alone, NUVEC_RANK=0 NUVEC_WORLD_SIZE=1"
    )


def _local_size(launcher: Foreign, environment: Environment, size: int) -> int | None:
    name = next((name for name in launcher.local_size if environment.get(name)), None)
    if name is None:
        return None
    local = whole_number(name, environment[name])
    if not 1 <= local <= size:
        raise ConfigurationError(
            f"{shown(environment, (launcher.size, name))}: there cannot be {local} ranks on this "
            f"host in a job of {size}"
        )
    for rank in launcher.local_rank:
        if environment.get(rank) and not 0 <= whole_number(rank, environment[rank]) < local:
            raise ConfigurationError(
                f"{shown(environment, (rank, name))}: the ranks of a host with {local} are 0 to "
                f"{local - 1}"
            )
    return local


def _one_host(launcher: Foreign, environment: Environment, rank: int, size: int) -> Place:
    """All ranks on this host: sockets in a directory that only this user can enter."""
    job = "-".join(environment[name] for name in launcher.job if environment.get(name))
    text = f"{launcher.name} {size} {job or os.getppid()}"
    name = f"nuvec-{os.geteuid()}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    directory = os.path.join(tempfile.gettempdir(), name)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the directory {directory} for the sockets of this job: {error.strerror}. "
            "Set TMPDIR, the same on every rank, to a directory that can be written"
        ) from None
    check_private(directory, f"the directory of this job's sockets, {directory},")
    addresses = (
        Address("localhost", unix=os.path.join(directory, f"{other}.sock")) for other in range(size)
    )
    return Place(rank, tuple(addresses))


def check_private(directory: str, what: str) -> None:
    """Raise where other users could put a socket of theirs into this directory."""
    try:
        status = os.lstat(directory)
    except OSError:
        return  # whoever listens there will say what is wrong with it
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not private or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigurationError(f"{what} can be entered by other users: chmod 700 {directory}")


def first_host(hosts: str) -> str:
    """The first host of a Slurm list.

    >>> first_host("node[08-11,20],gpu1"), first_host("login"), first_host("r[1,3]n[2-3]")
    ('node08', 'login', 'r1n2')
    """
    # A comma ends the first host outside of brackets only.
    first = re.split(r",(?![^\[]*\])", hosts.strip())[0]
    host = re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)
    if not host or "[" in host or "]" in host:
        raise ConfigurationError(
            f"SLURM_STEP_NODELIST={hosts} is not a list of hosts, such as node[1-4]: set "
            "MASTER_ADDR to the host of rank 0"
        )
    return host


def _port_of(job: str) -> int:
    # Below the ports that systems give to outgoing connections.
    return 20000 + zlib.crc32(job.encode()) % 10000


def whole_number(variable: str, text: str) -> int:
    """The variable's text as an integer."""
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable}={text!r} is not a whole number") from None


def shown(environment: Environment, names: tuple[str, ...]) -> str:
    """The variables that are set, as one would set them."""
    return " ".join(f"{name}={environment[name]}" for name in names if environment.get(name))


def place_of(variable: str, rank: int, addresses: tuple[Address, ...]) -> Place:
    """The place of a rank whose number `variable` gave."""
    if not 0 <= rank < len(addresses):
        raise ConfigurationError(
            f"{variable}={rank} is out of range: the ranks of a job of size {len(addresses)} are 0 "
            f"to {len(addresses) - 1}"
        )
    return Place(rank, addresses)

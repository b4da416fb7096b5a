"""Whether this process is a rank of an MPI job, asked without loading MPI; and joining that job."""

from __future__ import annotations

import importlib.util
import os

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.rendezvous import PARENT_VARIABLES, SOURCES
from nuvec.distributed.variables import FOREIGN, Environment, shown, whole_number

__all__ = ["join_mpi", "launched_by_mpi", "mpi_ranks"]


def mpi_ranks(environment: Environment) -> int | None:
    """How many ranks MPI's launcher, or Slurm, says there are; None where it says nothing.

    >>> mpi_ranks({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}), mpi_ranks({})
    (4, None)
    """
    for row in FOREIGN:
        said = shown(environment, (row.rank, row.size))
        if row.name == "torchrun" or not (environment.get(row.rank) and environment.get(row.size)):
            continue
        # A process that a rank has started is not a rank, though it has inherited the variables.
        if said not in environment.get(PARENT_VARIABLES, ""):
            return whole_number(row.size, environment[row.size])
    return None


def launched_by_mpi(environment: Environment) -> bool:
    """Whether ``init(backend="any")`` should use MPI.

    It does where mpirun (not Slurm alone) has started several ranks and mpi4py is installed, unless
    nuvec's own variables, MLX's or torchrun's are set: those are closer to the program.

    >>> launched_by_mpi({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    False
    """
    rows = {row.name: row for row in FOREIGN}
    torchrun = rows["torchrun"]
    closer = [name for source in SOURCES for name in source.variables] + [torchrun.rank]
    slurm = rows["Slurm"]
    mpirun = {name: text for name, text in environment.items() if name != slurm.rank}
    return (
        not any(environment.get(name) for name in closer)
        and (mpi_ranks(mpirun) or 1) > 1
        and importlib.util.find_spec("mpi4py") is not None
    )


def join_mpi(timeout: float) -> Communicator:
    """Become a rank of the MPI job; raises `ConfigurationError` where this process is of none."""
    said = mpi_ranks(os.environ)
    if said is None and os.environ.get(PARENT_VARIABLES):
        raise ConfigurationError(
            "init(backend='mpi'): this process was started by a rank of an MPI job and is none "
            "itself; MPI cannot be started in it"
        )
    # Loading it starts MPI, so it is loaded only where it is wanted.
    from nuvec.distributed.transports.mpi import mpi_communicator

    communicator = mpi_communicator(timeout)
    if communicator.size == 1 and said != 1:
        communicator.close()
        if said is None:
            raise ConfigurationError(
                "init(backend='mpi'): this process was not started as a rank of an MPI job. Start "
                "it with `mpirun -n 2 python script.py` or `nuvec.launch --backend mpi -n 2 "
                "script.py`"
            )
        raise ConfigurationError(
            f"this process was started as one of {said} ranks, and its MPI sees itself alone: "
            "mpi4py is for another MPI than the launcher (`python -m mpi4py --mpi-library`, "
            "`mpirun --version`)"
        )
    return communicator

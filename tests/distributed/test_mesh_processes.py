"""The mesh over real processes: deaths, forks, interrupts, orderly exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]


class Processes:
    """Ranks as processes that run the same program; ended whatever happens."""

    def __init__(self, size: int, program: str, **variables: str) -> None:
        directory = tempfile.mkdtemp(prefix="nuvec-test-")
        environment = dict(
            os.environ,
            PYTHONPATH=str(ROOT),
            NUVEC_WORLD_SIZE=str(size),
            NUVEC_SOCKET_DIR=directory,
            NUVEC_SECRET="test secret",
            **variables,
        )
        source = PRELUDE + textwrap.dedent(program)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", source],
                env=dict(environment, NUVEC_RANK=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def line(self, rank: int) -> str:
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()


PRELUDE = """
import os, signal, sys, time
import numpy as np
from nuvec.core.errors import *
from nuvec.distributed.rendezvous import find_job
from nuvec.distributed.transports.mesh import mesh_communicator
c = mesh_communicator(find_job(timeout=20))
def say(*words):
    print(*words, flush=True)
"""


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    started: list[Processes] = []

    def start(size: int, program: str, **variables: str) -> Processes:
        started.append(Processes(size, program, **variables))
        return started[-1]

    yield start
    for job in started:
        job.end()


WORKLOADS = {
    "large": "x = np.ones(1 << 24, np.float32)\ndo = lambda: c.all_reduce('sum', [x])",
    "small": "do = lambda: c.all_reduce('sum', [np.ones(1)])",
    # Ranks 0 and 2 wait for each other only; the dead one is in neither's data.
    "group": "g = c.split(c.rank == 1)\n"
    "do = lambda: (g.all_reduce('sum', [np.ones(1)]) if c.rank != 1 else None)",
    "receive": "do = lambda: (c.recv([((1,), np.dtype(float))], 2 - c.rank) if c.rank != 1 "
    "else time.sleep(1))",
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_killed_rank_raises_on_every_other(
    workload: str, processes: Callable[..., Processes]
) -> None:
    job = processes(
        3,
        WORKLOADS[workload]
        + """
say("ready")
try:
    while True:
        do()
except PeerError as error:
    say(f"{time.time():.3f} {error}")
""",
    )
    for rank in range(3):
        assert job.line(rank) == "ready"
    time.sleep(0.3)
    killed = time.time()
    job.ranks[1].send_signal(signal.SIGKILL)
    for rank in (0, 2):
        when, _, text = job.line(rank).partition(" ")
        assert float(when) - killed < 5.0
        assert "rank 1 (host" in text and f"pid {job.ranks[1].pid}" in text
        assert "all_sum" in text or "recv" in text


def test_a_forked_child_does_not_hide_a_death(processes: Callable[..., Processes]) -> None:
    job = processes(
        2,
        """
child = 0
if c.rank == 1:
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
say(child)
try:
    while True:
        c.barrier()
except PeerError as error:
    say(error)
""",
    )
    job.line(0)
    child = int(job.line(1))
    try:
        job.ranks[1].send_signal(signal.SIGKILL)
        assert "rank 1 (host" in job.line(0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_ctrl_c_works_inside_a_collective(processes: Callable[..., Processes]) -> None:
    job = processes(
        2,
        """
say("ready")
if c.rank == 0:
    try:
        c.recv([((3,), np.dtype(float))], 1)
    except KeyboardInterrupt:
        say("interrupted")
    try:
        c.barrier()
    except PeerError as error:
        say(error)
else:
    time.sleep(1.5)
    try:
        c.barrier()
    except PeerError as error:
        say(error)
""",
    )
    assert job.line(0) == job.line(1) == "ready"
    time.sleep(0.2)
    job.ranks[0].send_signal(signal.SIGINT)
    assert job.line(0) == "interrupted"
    assert "was interrupted at recv" in job.line(0)
    assert "was interrupted at recv" in job.line(1)


def test_orderly_exits_in_any_order(processes: Callable[..., Processes]) -> None:
    job = processes(
        3,
        """
total = 0
for i in range(50):
    total += c.all_reduce("sum", [np.array(i)])[0]
if c.rank == 0:
    c.send([np.arange(300_000)], 2)
if c.rank == 2:
    time.sleep(0.3)
    total += c.recv([((300_000,), np.arange(1).dtype)], 0)[0][-1]
c.close()
say(total)
""",
    )
    assert [job.line(rank) for rank in range(3)] == ["3675", "3675", str(3675 + 299_999)]
    assert [rank.wait(10) for rank in job.ranks] == [0, 0, 0]

"""Ranks that are real processes, over every transport of sockets: deaths, stops, forks, interrupts,
orderly exits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.distributed.processes import Processes

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Processes]

TRANSPORTS = ("mesh", "shm", "ring")

# Until there is an error, which is printed with the time.
FOREVER = """
say("ready")
try:
    while True:
        do()
except PeerError as error:
    say(f"{time.time():.3f} {error}")
time.sleep(1)
"""

WORKLOADS = {
    "large": "x = np.ones(1 << 23, np.float32)\ndo = lambda: c.all_reduce('sum', [x])",
    "small": "do = lambda: c.all_reduce('sum', [np.ones(1)])",
    # The other ranks wait for each other only; the dead one is in none of their data.
    "group": "g = c.split(c.rank == 1)\n"
    "do = lambda: (g.all_reduce('sum', [np.ones(1)]) if c.rank != 1 else time.sleep(0.01))",
    "receive": "do = lambda: (c.recv([((1,), np.dtype(float))], 2 - c.rank) if c.rank != 1 "
    "else time.sleep(1))",
}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_rank_raises_on_every_other(
    transport: str, workload: str, processes: Start
) -> None:
    size = 4 if transport == "ring" and workload == "group" else 3  # a ring of three, without it
    job = processes(size, WORKLOADS[workload] + FOREVER, transport)
    for rank in range(size):
        assert job.line(rank) == "ready"
    time.sleep(0.3)
    killed = time.time()
    job.ranks[1].send_signal(signal.SIGKILL)
    for rank in range(size):
        if rank != 1:
            when, _, text = job.line(rank).partition(" ")
            assert float(when) - killed < 5.0
            assert "rank 1 (host" in text and f"pid {job.ranks[1].pid}" in text
            assert "all_sum" in text or "recv" in text


@pytest.mark.parametrize("workload", ["large", "small"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stopped_rank_is_named_when_time_is_up(
    transport: str, workload: str, processes: Start
) -> None:
    job = processes(3, WORKLOADS[workload] + FOREVER, transport, timeout=2.0)
    for rank in range(3):
        assert job.line(rank) == "ready"
    time.sleep(0.3)
    stopped = time.time()
    job.ranks[1].send_signal(signal.SIGSTOP)
    for rank in (0, 2):
        when, _, text = job.line(rank).partition(" ")
        assert 1.0 < float(when) - stopped < 12.0
        assert "NUVEC_TIMEOUT" in text and "rank 1 (host" in text
        assert f"pid {job.ranks[1].pid}" in text and "all_sum" in text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_goes_on_in_time_is_none_the_worse(transport: str, processes: Start) -> None:
    job = processes(
        3,
        """
say("ready")
total = 0
for i in range(2000):
    total += int(c.all_reduce("sum", [np.array(i)])[0])
say(total)
c.close()
""",
        transport,
    )
    for rank in range(3):
        assert job.line(rank) == "ready"
    job.ranks[1].send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    job.ranks[1].send_signal(signal.SIGCONT)
    assert [job.line(rank) for rank in range(3)] == [str(3 * 1999 * 1000)] * 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forked_child_does_not_hide_a_death(transport: str, processes: Start) -> None:
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
        transport,
    )
    job.line(0)
    child = int(job.line(1))
    try:
        job.ranks[1].send_signal(signal.SIGKILL)
        assert "rank 1 (host" in job.line(0)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("n", [1, 1 << 22])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_works_inside_a_collective(transport: str, n: int, processes: Start) -> None:
    job = processes(
        3,
        f"""
x = np.ones({n}, np.float32)
c.all_reduce("sum", [x])
say("ready")
try:
    if c.rank == 0:
        time.sleep(1.5)
    c.all_reduce("sum", [x])
except KeyboardInterrupt:
    say("interrupted")
except PeerError as error:
    say(error)
try:
    c.barrier()
except PeerError as error:
    say(error)
c.close()
""",
        transport,
    )
    assert [job.line(rank) for rank in range(3)] == ["ready"] * 3
    time.sleep(0.4)
    job.ranks[1].send_signal(signal.SIGINT)
    assert job.line(1) == "interrupted"
    assert "was interrupted at all_sum #1" in job.line(1)
    for rank in (0, 2):
        assert "rank 1" in job.line(rank)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_works_inside_a_receive(transport: str, processes: Start) -> None:
    job = processes(
        2,
        """
say("ready")
if c.rank == 0:
    try:
        c.recv([((3,), np.dtype(float))], 1)
    except KeyboardInterrupt:
        say("interrupted")
else:
    time.sleep(1.5)
try:
    c.barrier()
except PeerError as error:
    say(error)
""",
        transport,
    )
    assert job.line(0) == job.line(1) == "ready"
    time.sleep(0.2)
    job.ranks[0].send_signal(signal.SIGINT)
    assert job.line(0) == "interrupted"
    assert "was interrupted at recv" in job.line(0)
    assert "was interrupted at recv" in job.line(1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_orderly_exits_in_any_order(transport: str, processes: Start) -> None:
    job = processes(
        3,
        """
total = 0
for i in range(50):
    total += c.all_reduce("sum", [np.array(i)])[0]
if c.rank == 0:
    c.send([np.arange(3_000_000)], 2)
if c.rank == 2:
    time.sleep(0.3)
    total += c.recv([((3_000_000,), np.arange(1).dtype)], 0)[0][-1]
c.close()
say(total)
""",
        transport,
    )
    assert [job.line(rank) for rank in range(3)] == ["3675", "3675", str(3675 + 2_999_999)]
    assert [rank.wait(10) for rank in job.ranks] == [0, 0, 0]

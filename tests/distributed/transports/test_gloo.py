"""The gloo transport, over torch.distributed.

These need torch (`pip install 'nuvec[gloo]'`); `.ci/run` makes such an environment and runs them in
it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.transports import _messages
from nuvec.distributed.transports.connect import connect
from nuvec.distributed.transports.job import Job
from nuvec.distributed.transports.wire import Wiring
from nuvec.testing.contract import CONTRACT, MakeWorld, on_threads
from nuvec.testing.contract_tools import raises, same_bits
from tests.distributed.worlds import mesh_jobs, on_ranks

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(90)]


def gloo_communicator(job: Job) -> Communicator:
    # Not above: this file is collected where there is no torch too.
    from nuvec.distributed.transports import gloo

    return gloo.gloo_communicator(job)


def world(family: str = "unix", timeout: float = 30.0) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        return [partial(gloo_communicator, job) for job in mesh_jobs(size, family, timeout)]

    return make


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT), **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=80,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("case", CONTRACT)
def test_contract(case: str, size: int) -> None:
    on_threads(world(), size, CONTRACT[case])


@pytest.mark.parametrize("case", ["moves_large_messages", "a_message_outlives_its_sender"])
def test_contract_over_tcp(case: str) -> None:
    on_threads(world("tcp"), 3, CONTRACT[case])


def test_long_messages_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_messages, "CHUNK", 10_000)
    sent = []
    monkeypatch.setattr(
        _messages.MessageLink,
        "chunks",
        lambda self, payload, cut=_messages.MessageLink.chunks: (
            sent.append(len(cut(self, payload))) or cut(self, payload)
        ),
    )
    for case in ("moves_large_messages", "sends_in_order", "all_may_send_first"):
        on_threads(world(), 3, CONTRACT[case])
    assert max(sent) > 100


def test_100_mb_both_ways_at_once() -> None:
    def body(c: Communicator) -> None:
        mine = np.full(100_000_000, c.rank, np.uint8)
        c.send([mine], 1 - c.rank)
        got = c.recv([(mine.shape, mine.dtype)], 1 - c.rank)[0]
        assert (got == 1 - c.rank).all()

    on_ranks(world(), 2, body)


def test_a_receiver_may_leave_at_once() -> None:
    """Its goodbye can come before gloo says that the message has been sent."""

    def body(c: Communicator) -> None:
        x = np.full(1_000_003, float(c.rank))
        if c.rank == 0:
            same_bits(c.recv([(x.shape, x.dtype)], 1)[0], x + 1)
        else:
            c.send([x], 0)

    for _ in range(25):
        on_ranks(world(), 2, body)


def test_a_message_that_the_receiver_leaves_without_is_an_error() -> None:
    def body(c: Communicator) -> None:
        c.barrier()
        if c.rank:
            with pytest.raises(PeerError, match=r"rank 0 .*has left|rank 0 .*closed"):
                c.send([np.ones(1_000_003)], 0)

    on_ranks(world(), 2, body)


def test_messages_of_many_arrays_and_long_descriptions() -> None:
    """More arrays than a block of a frame can describe, small and large together."""

    def body(c: Communicator) -> None:
        arrays = [np.full(n % 7, n + c.rank, np.float32) for n in range(1200)]
        arrays[5] = np.full((300, 1000), c.rank, np.float32)
        for result, array in zip(c.all_reduce("max", arrays), arrays, strict=True):
            same_bits(result, array - np.float32(c.rank) + np.float32(c.size - 1))
        for result in c.all_gather(arrays[:400])[6:8]:
            assert result.shape[0] in (0, 6 * c.size)

    on_ranks(world(), 3, body)


def test_read_only_arrays_can_be_sent() -> None:
    def body(c: Communicator) -> None:
        x = np.arange(10_000.0)
        x.setflags(write=False)
        c.send([x], 1 - c.rank)
        same_bits(c.recv([(x.shape, x.dtype)], 1 - c.rank)[0], np.arange(10_000.0))

    on_ranks(world(), 2, body)


def listening() -> set[str]:
    """The addresses and ports at which this process listens, in hexadecimal."""
    own = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables")
@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_it_listens_at_the_address_given_only(family: str) -> None:
    before = listening()

    def body(c: Communicator) -> set[str]:
        c.barrier()
        found = listening() - before
        c.barrier()
        return found

    loopback = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), 'little'):08X}"
    for found in on_ranks(world(family), 2, body):
        assert {place.split(":")[0] for place in found} == {loopback}
    gc.collect()
    assert listening() <= before, "it listens after it was closed"


def test_closing_ends_its_threads() -> None:
    on_ranks(world(), 3, lambda c: c.barrier())
    names = [t.name for t in threading.enumerate() if "gloo" in t.name]
    assert names == []


def test_a_forked_child_cannot_use_it() -> None:
    source = """
import os
from nuvec.core.errors import DistributedError
from nuvec.distributed.rendezvous import find_job
from nuvec.distributed.transports.gloo import gloo_communicator
c = gloo_communicator(find_job())
if c.rank == 0:
    child = os.fork()
    if not child:
        try:
            c.barrier()
        except DistributedError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
c.barrier()
c.close()
"""
    done = run("-m", "nuvec.launch", "-n", "2", sys.executable, "-c", source)
    assert done.returncode == 0, done.stderr
    assert "a forked child cannot use its parent's connections" in done.stdout


PROGRAM = """
    import os
    import nuvec as nv
    import nuvec.distributed as nd

    group = nd.init(backend="gloo")
    half = group.split(group.rank() % 2)

    @nv.compile
    def step(x):
        y = nd.all_sum(x)
        return y.sum() + (x[:100, None] * x[None, :100]).sum()

    loss, gradient = nv.value_and_grad(step)(nv.ones(200_000) * (group.rank() + 1))
    total = nd.all_sum(nv.ones(5000, dtype=nv.bfloat16), half)
    # In one write: torchrun passes on what two ranks print at once as it comes.
    line = f"{group} {float(loss)} {float(gradient[-1])} {float(total[0])}\\n"
    os.write(1, line.encode())
"""


@pytest.mark.parametrize("how", ["launcher", "torchrun"])
def test_an_unchanged_script(script: Callable[[str], str], how: str) -> None:
    path = script(PROGRAM)
    if how == "launcher":
        done = run("-m", "nuvec.launch", "--no-prefix", "-n", "2", path)
    else:
        done = run("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29577", path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"Group(rank={r}, size=2, transport=gloo) {600_000 + 10_000.0 * (r + 1) ** 2} 2.0 1.0"
        for r in range(2)
    ]


def test_with_the_coordinator_of_torchs_variables(script: Callable[[str], str]) -> None:
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT alone, as any scheduler can set them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, script(PROGRAM)],
            env=dict(
                os.environ, PYTHONPATH=str(ROOT), RANK=str(rank), WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            ),
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [p.communicate(timeout=60)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    assert [p.returncode for p in processes] == [0, 0]
    assert ["size=2, transport=gloo" in text for text in outputs] == [True, True]


def test_torchs_own_groups_are_left_alone(script: Callable[[str], str], tmp_path: Path) -> None:
    source = script(
        f"""
        import torch, torch.distributed as dist
        import nuvec as nv
        import nuvec.distributed as nd
        group = nd.init(backend="gloo")
        assert not dist.is_initialized()
        dist.init_process_group(
            "gloo", init_method="file://{tmp_path}/store", rank=1 - group.rank(), world_size=2)
        for turn in range(3):
            t = torch.ones(50_000) * (turn + 1)
            work = dist.all_reduce(t, async_op=True)
            x = nd.all_sum(nv.ones(50_000) * 10)
            assert float(x[-1]) == 20.0
            work.wait()
            assert float(t[-1]) == 2.0 * (turn + 1)
        assert dist.get_rank() == 1 - group.rank()
        dist.destroy_process_group()
        group.barrier()
        print("ok", flush=True)
        """
    )
    done = run("-m", "nuvec.launch", "-n", "2", source)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] ok", "[1] ok"]


def test_a_killed_rank_is_noticed_by_all(script: Callable[[str], str], tmp_path: Path) -> None:
    """Each rank on its own, without a launcher that would end the others."""
    source = script(
        """
        import os, time
        import nuvec as nv
        group = nv.distributed.init(backend="gloo")
        group.barrier()
        print("ready", os.getpid(), flush=True)
        try:
            for i in range(10**6):
                nv.distributed.all_sum(nv.ones(30_000)).tolist()
        except nv.PeerError as error:
            print(time.time(), error, flush=True)
        """
    )
    directory = tmp_path / "sockets"
    directory.mkdir(mode=0o700)
    processes = [
        subprocess.Popen(
            [sys.executable, source],
            env=dict(
                os.environ, PYTHONPATH=str(ROOT), NUVEC_RANK=str(rank), NUVEC_WORLD_SIZE="3",
                NUVEC_SOCKET_DIR=str(directory), NUVEC_SECRET="test",
            ),
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        for p in processes:
            assert p.stdout is not None
            assert p.stdout.readline().startswith("ready")
        time.sleep(0.5)
        killed = time.time()
        processes[1].send_signal(signal.SIGKILL)
        for rank in (0, 2):
            when, _, text = processes[rank].communicate(timeout=20)[0].partition(" ")
            assert f"rank 1 (host {socket.gethostname()}, pid {processes[1].pid})" in text
            assert float(when) - killed < 5
        assert [p.wait(timeout=20) for p in processes] == [0, -signal.SIGKILL, 0]
    finally:
        for p in processes:
            p.kill()


def test_a_silent_rank_is_named() -> None:
    def body(c: Communicator) -> None:
        c.barrier()
        if c.rank == 1:
            time.sleep(3)
        with pytest.raises(PeerError, match=r"rank 0 .*gave up after 1 s .* at all_sum #1 float64"):
            c.all_reduce("sum", [np.ones(7)])

    on_ranks(world(timeout=1.0), 2, body)


def test_a_rank_that_does_not_say_where_the_store_is() -> None:
    """Or that has another backend, which is noticed before."""
    jobs = mesh_jobs(2, "unix", 1.5)
    first = threading.Thread(target=lambda: kept.append(connect(jobs[0], Wiring.GLOO)))
    kept: list[Any] = []
    first.start()
    with pytest.raises(PeerError, match=r"rank 1 could not connect .* by gloo: timed out"):
        gloo_communicator(jobs[1])
    first.join()
    for sock, _ in kept[0].values():
        sock.close()
    jobs = mesh_jobs(2, "unix", 10)
    other = threading.Thread(target=lambda: raises(ConfigurationError, lambda: connect(jobs[0])))
    other.start()
    with pytest.raises(ConfigurationError, match="rank 1 was started with the backend gloo, rank"):
        gloo_communicator(jobs[1])
    other.join()


def test_a_frame_of_no_possible_length_is_not_made_room_for() -> None:
    def body(c: Communicator) -> None:
        c.barrier()
        if c.rank == 0:
            block = np.full(4096, 255, np.uint8)
            links: Any = c._links  # type: ignore[attr-defined]
            links.links[1]._post_send(1, block)
        text = raises(PeerError, lambda: c.recv([((), np.dtype(bool))], 1 - c.rank))
        assert c.rank == 0 or "a frame of 4294967295 bytes" in text

    on_ranks(world(), 2, body)


def test_an_endless_timeout() -> None:
    on_ranks(world(timeout=float("inf")), 2, lambda c: c.barrier())


def test_a_rank_that_does_not_come_is_named() -> None:
    factories = world(timeout=1.0)(2)
    with pytest.raises(PeerError, match="could not connect to rank 0"):
        factories[1]()

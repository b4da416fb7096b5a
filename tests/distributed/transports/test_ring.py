"""What is particular to the ring: neighbours, several sockets, news that goes round, splits."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nuvec.core.errors import ConfigurationError, DistributedError, PeerError
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.hostfile import parse_hosts
from nuvec.distributed.transports import _known, _ring_collectives, _ring_links, connect
from nuvec.distributed.transports._frames import shared_out
from nuvec.distributed.transports._specs import as_bytes
from nuvec.distributed.transports._writer import WrittenLink
from nuvec.distributed.transports.job import Address, Job, listen
from nuvec.distributed.transports.mesh import mesh_communicator
from nuvec.distributed.transports.ring import RingCommunicator, ring_communicator
from nuvec.distributed.transports.wire import Peer
from nuvec.testing.contract_tools import raises, values
from tests.distributed.worlds import TRANSPORTS, mesh_jobs, on_ranks

pytestmark = pytest.mark.timeout(60)

RING = TRANSPORTS["ring-tcp"](20.0)


def joined(
    jobs: list[Job], make: Callable[[Job], Communicator] = ring_communicator
) -> list[RingCommunicator]:
    """All ranks of a ring, connected on threads."""
    return [r for r in outcomes(jobs, [make] * len(jobs)) if _raise(r)]


def _raise(result: Any) -> bool:
    if isinstance(result, BaseException):
        raise result
    return True


def outcomes(jobs: list[Job], makes: list[Callable[[Job], Communicator]]) -> list[Any]:
    """What each rank's attempt to connect came to: a communicator, or an error."""
    results: list[Any] = [None] * len(jobs)

    def run(rank: int) -> None:
        try:
            results[rank] = makes[rank](jobs[rank])
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


# Start-up.


def test_each_rank_listens_on_its_entries_of_the_host_file() -> None:
    """As MLX's ring: a list of addresses a rank, used in turn for the sockets to it."""
    ports = [[listen(("127.0.0.1", 0)) for _ in range(2)] for _ in range(3)]
    text = str([[f"127.0.0.1:{s.getsockname()[1]}" for s in row] for row in ports])
    addresses = parse_hosts(text.replace("'", '"'))
    for row in ports:
        for sock in row:
            sock.close()
    ranks = joined([Job(rank, addresses, b"s", timeout=20) for rank in range(3)])
    for rank, communicator in enumerate(ranks):
        following, previous = communicator._neighbours
        peers = [link.sock.getpeername() for link in following]
        assert peers == list(addresses[(rank + 1) % 3].every_tcp())
        assert [link.peer.rank for link in previous] == [(rank - 1) % 3] * 2
    for communicator in ranks:
        communicator.close()


def test_the_same_address_twice_in_a_host_file() -> None:
    with pytest.raises(ConfigurationError, match="ranks 0 and 1 have the same address"):
        parse_hosts('[["127.0.0.1:5000", "127.0.0.1:5001"], ["127.0.0.1:5001"]]')


def test_further_addresses_count_as_reachable_from_elsewhere() -> None:
    away = Address("a", tcp=("127.0.0.1", 5000), more=(("192.0.2.1", 5000),))
    with pytest.raises(ConfigurationError, match="NUVEC_SECRET"):
        ring_communicator(Job(0, (away, replace(away, tcp=("127.0.0.1", 5001)))))


@pytest.mark.parametrize("sockets", [1, 3])
def test_the_number_of_sockets(sockets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUVEC_RING_SOCKETS", str(sockets))

    def body(c: Communicator) -> None:
        assert isinstance(c, RingCommunicator)
        assert [len(links) for links in c._neighbours] == [sockets, sockets]
        x = np.arange(400_000) + c.rank
        assert (c.all_reduce("sum", [x])[0] == 3 * np.arange(400_000) + 3).all()
        c.send([x], (c.rank + 1) % 3)
        got = c.recv([(x.shape, x.dtype)], (c.rank - 1) % 3)[0]
        assert (got == np.arange(400_000) + (c.rank - 1) % 3).all()

    on_ranks(RING, 3, body)


@pytest.mark.parametrize("text", ["none", "0", "65", "-1"])
def test_a_wrong_number_of_sockets(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUVEC_RING_SOCKETS", text)
    with pytest.raises(ConfigurationError, match=f"NUVEC_RING_SOCKETS='?{text}"):
        ring_communicator(Job(0, (Address("a"),)))


def test_ranks_that_were_told_different_numbers_of_sockets() -> None:
    makes = [lambda job, n=n: ring_communicator(job, n) for n in (2, 3)]
    for result in outcomes(mesh_jobs(2, "tcp", timeout=10), makes):  # type: ignore[arg-type]
        assert isinstance(result, ConfigurationError)
        assert "with 2 sockets" in str(result) or "with 3 sockets" in str(result)
        assert "NUVEC_RING_SOCKETS" in str(result)


def test_ranks_that_were_told_different_backends() -> None:
    """The rank that listens says so, and the other is told."""
    jobs = mesh_jobs(2, "tcp", timeout=10)
    for result in outcomes(jobs, [mesh_communicator, ring_communicator]):
        assert isinstance(result, ConfigurationError), result
        assert "backend" in str(result) and "NUVEC_BACKEND" in str(result)


def test_a_wrong_secret_is_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "GIVE_UP_SECONDS", 0.2)
    jobs = mesh_jobs(2, "tcp", timeout=2)
    results = outcomes([jobs[0], replace(jobs[1], secret=b"wrong")], [ring_communicator] * 2)
    refused = [r for r in results if isinstance(r, ConfigurationError)]
    assert refused and all("NUVEC_SECRET" in str(result) for result in refused)
    assert all(isinstance(r, ConfigurationError | PeerError) for r in results)
    assert "dropped a connection" in caplog.text


def test_a_rank_that_never_comes_is_named() -> None:
    jobs = mesh_jobs(3, "unix", timeout=0.5)[:2]
    first, second = outcomes(jobs, [ring_communicator] * 2)
    assert isinstance(second, PeerError) and "rank 2" in str(second)
    assert isinstance(first, PeerError)


def test_nothing_is_left_of_the_sockets() -> None:
    before = set(os.listdir("/proc/self/fd"))
    jobs = mesh_jobs(3, "unix")
    path = jobs[0].addresses[0].unix
    assert path is not None
    ranks = joined(jobs)
    assert not os.path.exists(os.path.dirname(path))
    threads = [threading.Thread(target=c.split, args=(0,)) for c in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for communicator in ranks:
        communicator.close()
        communicator.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    names = {thread.name for thread in threading.enumerate()}
    assert not any("writer" in name for name in names)


# Messages and bits.


def test_only_neighbours_are_sent_to() -> None:
    def body(c: Communicator) -> None:
        other = (c.rank + 2) % 4
        text = raises(DistributedError, lambda: c.send([np.ones(2)], other))
        assert f"send to rank {other}" in text and 'init(backend="mesh")' in text
        assert f"ranks {(c.rank - 1) % 4} and {(c.rank + 1) % 4}" in text
        c.barrier()

    on_ranks(RING, 4, body)


def test_sixteen_bit_floats_are_rounded_once() -> None:
    """Each addend alone would be lost in float16 (1 + 2**-12 == 1), and in bfloat16."""

    def body(c: Communicator) -> None:
        x = np.full(40_000, 1.0 if c.rank == 0 else 2.0**-12, np.float16)
        expected = np.float16(1 + 4 * 2.0**-12)
        assert expected > 1
        assert (c.all_reduce("sum", [x])[0] == expected).all()
        assert (c.sum_scatter([x])[0] == expected).all()
        assert (c.all_reduce("sum", [x[:3]])[0] == expected).all()

    on_ranks(RING, 5, body)


def test_two_ranks_have_the_bits_of_the_mesh() -> None:
    x = [values(r, (300_001,), np.dtype(np.float32)) for r in range(2)]
    sums: list[bytes] = []
    for transport in ("ring-tcp", "mesh-unix"):
        results = on_ranks(
            TRANSPORTS[transport](20.0), 2, lambda c: c.all_reduce("sum", [x[c.rank]])[0].tobytes()
        )
        sums += results
    assert len(set(sums)) == 1


@pytest.mark.parametrize("ahead", [0, 1, 5])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_many_small_segments(size: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are pipelined."""
    monkeypatch.setattr(_ring_collectives, "PART_BYTES", 1 << 12)
    monkeypatch.setattr(_ring_collectives, "SMALL", 0)
    monkeypatch.setattr(_ring_collectives, "AHEAD", ahead)

    def body(c: Communicator) -> None:
        x = np.arange(60_000, dtype=np.int64) * (c.rank + 1)
        total = np.arange(60_000) * sum(range(1, size + 1))
        part = slice(c.rank * 60_000 // size, (c.rank + 1) * 60_000 // size)
        small = np.full(1, c.rank, np.int8)
        got, one = c.all_reduce("sum", [x, small])
        assert (got == total).all() and one[0] == sum(range(size))
        assert (c.sum_scatter([x])[0] == total[part]).all()
        assert (c.broadcast([x], size - 1)[0] == np.arange(60_000) * size).all()
        c.barrier()

    on_ranks(RING, size, body)


def test_how_a_payload_is_shared_out() -> None:
    x = np.arange(1 << 20, dtype=np.uint8)
    views = [as_bytes(x[:5]), as_bytes(x[5:700_001]), as_bytes(x[700_001:])]
    for channels in (1, 2, 3, 7):
        shares = shared_out(views, channels)
        assert len(shares) == channels
        assert b"".join(b"".join(share) for share in shares) == x.tobytes()
        lengths = [sum(map(len, share)) for share in shares]
        assert max(lengths) - min(lengths) < 64 * channels
    assert shared_out(views[:1], 4) == [views[:1]]


def test_a_closed_group_says_so_to_its_ranks() -> None:
    def body(c: Communicator) -> None:
        part = c.split(0)
        if c.rank == 0:
            part.close()
        else:
            assert "has left" in raises(PeerError, part.barrier)

    on_ranks(RING, 2, body)


def test_a_permutation_between_others_than_neighbours() -> None:
    def body(c: Communicator) -> None:
        x = np.full(3, c.rank)
        got = c.permute([x, np.array(c.rank)], [(0, 2), (2, 0), (1, 3)])
        expected = {0: 2, 1: 0, 2: 0, 3: 1}[c.rank]
        assert got[0].tolist() == [expected] * 3 and got[1] == expected

    on_ranks(RING, 4, body)


# Failures.


def test_who_is_silent_is_named_all_round_the_ring(caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 waits for rank 3, who waits for 2, who waits for 1, who has not come."""
    jobs = [replace(job, timeout=3, warn_after=1.0) for job in mesh_jobs(4, "unix")]
    ranks = joined(jobs)
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda r=r: texts.append(raises(PeerError, ranks[r].barrier)))  # type: ignore[misc]
        for r in (0, 2, 3)
    ]
    with caplog.at_level(logging.WARNING):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(texts) == 3 and all("rank 1 (host" in text for text in texts)
    warnings = [r.getMessage() for r in caplog.records if "has waited" in r.getMessage()]
    assert len(warnings) == 3 and all("for rank 1 (host" in text for text in warnings)
    for communicator in ranks:
        communicator.close()


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_a_group_that_one_rank_cannot_form(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hear of it at once, and no directory or listener is left."""
    real = _ring_links.listen

    def listen_elsewhere(where: Any, rank: int = 0) -> socket.socket:
        if rank == 1:
            raise ConfigurationError("no descriptors are free")
        return real(where, rank)

    ranks = joined(mesh_jobs(3, family))
    before = set(os.listdir(tempfile.gettempdir())), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(_ring_links, "listen", listen_elsewhere)
    texts: dict[int, str] = {}

    def split(rank: int) -> None:
        kind = ConfigurationError if rank == 1 else PeerError
        texts[rank] = raises(kind, lambda: ranks[rank].split(0, 3 - rank))

    threads = [threading.Thread(target=split, args=(r,), daemon=True) for r in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)  # nobody has left: those who hang do so until the timeout
    assert all("no descriptors are free" in texts[rank] for rank in range(3))
    after = set(os.listdir(tempfile.gettempdir())), len(os.listdir("/proc/self/fd"))
    assert {n for n in after[0] - before[0] if n.startswith("nuvec-")} == set()
    assert after[1] == before[1]
    for communicator in ranks:
        communicator.close()


@pytest.mark.parametrize("transport", sorted(set(TRANSPORTS) - {"local"}))
@pytest.mark.parametrize("size", [2, 4])
def test_groups_that_are_dropped_leave_nothing(transport: str, size: int) -> None:
    """As a program that splits in every step: rings find the connections of earlier ones."""
    counts: list[list[tuple[int, int]]] = []
    together = threading.Barrier(size)

    def body(c: Communicator) -> int:
        for step in range(30):
            for color, key in ((0, -c.rank % size), (c.rank % 2, -1), (c.rank, -1), (0, size)):
                group = c.split(color, size - c.rank if key == size else key)
                total = group.all_reduce("sum", [np.array([c.rank])])[0]
                if group.size == size:
                    assert total == size * (size - 1) // 2
                    after, before = (group.rank + 1) % size, (group.rank - 1) % size
                    group.send([np.array([step])], after)
                    assert group.recv([((1,), np.dtype(int))], before)[0] == step
                    inner = group.split(group.rank // 2, -group.rank % size)
                    assert inner.all_reduce("max", [np.array([step])])[0] == step
                    del inner
                del group
            if step in (3, 29):
                together.wait(20)
                if c.rank == 0:
                    counts.append([(len(os.listdir("/proc/self/fd")), threading.active_count())])
                together.wait(20)
        return len(c._links.links)  # type: ignore[attr-defined]

    links = on_ranks(TRANSPORTS[transport](20.0), size, body)
    assert counts[0] == counts[1]
    # A rank of four has two neighbours in each of three rings, some of them the same.
    assert all(n <= 12 for n in links)


def test_only_so_many_groups_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_known, "REMEMBERED", 5)

    def body(c: Communicator) -> None:
        kept = c.split(0)
        for _ in range(40):
            group = c.split(0)
            group.barrier()
            group.send([np.zeros(2)], 1 - c.rank)
            group.recv([((2,), np.dtype(float))], 1 - c.rank)
        links = c._links  # type: ignore[attr-defined]
        assert len(links.groups) <= 10
        circles = links.circles
        assert max(map(len, (circles._begun, circles._sent, circles._frames))) <= 10
        assert kept.all_reduce("sum", [np.ones(1)])[0] == 2

    on_ranks(RING, 2, body)


def test_a_receiver_may_leave_before_its_message_is_accounted_for() -> None:
    class Slow:
        """A socket whose writes take long to say what they have written."""

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

        def sendmsg(self, *args: Any) -> int:
            sent = self._sock.sendmsg(*args)
            time.sleep(0.5)
            return sent

    def body(c: Communicator) -> None:
        x = np.ones(1 << 17)
        if c.rank == 0:
            assert isinstance(c, RingCommunicator)
            for link in c._neighbours[0]:
                link.sock = Slow(link.sock)  # type: ignore[assignment]
            c.send([x], 1)
        else:
            assert c.recv([(x.shape, x.dtype)], 0)[0].all()

    on_ranks(TRANSPORTS["ring-unix"](20.0), 2, body)


@pytest.mark.parametrize("transport", ["ring-unix", "ring-tcp"])
def test_a_message_that_the_receiver_leaves_without_is_an_error(transport: str) -> None:
    def body(c: Communicator) -> None:
        c.barrier()
        if c.rank:
            text = raises(PeerError, lambda: c.send([np.ones(5_000_000)], 0))
            assert "rank 0" in text and "has left" in text

    on_ranks(TRANSPORTS[transport](20.0), 2, body)


def test_what_a_writer_is_at_is_cut_while_it_waits() -> None:
    """Both threads change what is pending, under one lock."""
    one, other = socket.socketpair()
    link = WrittenLink(one, Peer(1, "here", 1))
    owned: list[bool] = []

    class Watched(deque[memoryview]):
        def clear(self) -> None:
            owned.append(link._state._is_owned())  # type: ignore[attr-defined]
            super().clear()

    link.pending = Watched()
    link.push([bytes(1 << 24)])
    assert link.pending
    link.cut()
    assert owned[0] and not link.pending
    link.close()
    other.close()


def test_abort_reaches_a_rank_that_is_receiving() -> None:
    ranks = joined(mesh_jobs(2, "tcp"))
    timer = threading.Timer(0.1, ranks[0].abort, ["enough"])
    timer.start()
    x = np.ones(1 << 22)
    assert "enough" in raises(PeerError, lambda: ranks[0].all_reduce("sum", [x]))
    assert "enough" in raises(PeerError, lambda: ranks[1].all_reduce("sum", [x]))
    for communicator in ranks:
        communicator.close()

"""What is particular to the mesh: start-up, strangers, deaths, silence, big messages."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nuvec.core.errors import ConfigurationError, DistributedError, MismatchError, PeerError
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.transports import _accept, connect
from nuvec.distributed.transports.job import Job, listen
from nuvec.distributed.transports.mesh import MeshCommunicator, mesh_communicator
from nuvec.distributed.transports.wire import Identity, Kind, Wiring, connect_side, pack_head
from nuvec.testing.contract_tools import raises
from tests.distributed.worlds import TRANSPORTS, mesh_jobs, on_ranks

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ["unix", "tcp"]


class Joining(threading.Thread):
    """A rank that joins its job on a thread of its own."""

    def __init__(self, job: Job, delay: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._job, self._delay = job, delay
        self._communicator: MeshCommunicator | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        time.sleep(self._delay)
        try:
            self._communicator = mesh_communicator(self._job)
        except BaseException as error:
            self._error = error

    def result(self) -> MeshCommunicator:
        self.join(20)
        if self._error is not None:
            raise self._error
        assert self._communicator is not None
        return self._communicator


def joined(jobs: list[Job]) -> list[MeshCommunicator]:
    return [rank.result() for rank in [Joining(job) for job in jobs]]


def reach(where: Any) -> socket.socket:
    """Connect to a rank's address as soon as it listens."""
    deadline = time.monotonic() + 20
    while True:
        sock = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
        try:
            sock.connect(where)
            return sock
        except OSError:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that should come soon."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Start-up.


@pytest.mark.parametrize("family", FAMILIES)
def test_late_ranks_are_waited_for(family: str, caplog: pytest.LogCaptureFixture) -> None:
    jobs = [replace(job, warn_after=0.3) for job in mesh_jobs(3, family)]
    ranks = [Joining(jobs[0], 0.6), Joining(jobs[1]), Joining(jobs[2], 0.2)]
    communicators = [rank.result() for rank in ranks]
    assert "rank 1" in caplog.text
    for communicator in communicators:
        communicator.close()


def test_a_rank_that_never_comes_is_named() -> None:
    jobs = mesh_jobs(3, "tcp", timeout=0.4)
    last, first = Joining(jobs[2]), Joining(replace(jobs[0], timeout=1.5))
    with pytest.raises(PeerError, match="could not connect to rank 1"):
        last.result()
    # Rank 0 hears that rank 2 gave up; alone it says itself who is missing.
    with pytest.raises(PeerError, match=r"rank 2 \(host .* gave up"):
        first.result()
    jobs[1].listeners[0].close()
    alone = mesh_jobs(2, "unix", timeout=0.2)[0]
    with pytest.raises(PeerError, match=r"ranks 1 \(host localhost\)"):
        mesh_communicator(alone)


def test_a_death_during_start_up_is_noticed() -> None:
    """Rank 1 dies when it has connected to rank 0 and the others are still waiting for it."""
    jobs = mesh_jobs(4, "unix")
    path, first = jobs[1].addresses[1].unix, jobs[0].addresses[0].unix
    assert path is not None and first is not None
    # Rank 3 may come to rank 0 too late to see it give up; then it cannot reach it.
    others = [Joining(jobs[0]), Joining(replace(jobs[3], timeout=3))]
    listener = listen(path)
    with reach(first) as dying:
        handshake = connect_side(Identity(jobs[1].secret, jobs[1].name, 4, 1), 0)
        connect._run(dying, handshake, 5.0, connect._looking_after({}))
        time.sleep(0.1)
        listener.close()
        os.unlink(path)
    with pytest.raises(PeerError, match=r"rank 1 .*died or gave up while the job was starting"):
        others[0].result()
    with pytest.raises(PeerError, match="rank 0"):
        others[1].result()


def test_nothing_is_left_of_the_sockets() -> None:
    jobs = mesh_jobs(3, "unix")
    path = jobs[0].addresses[0].unix
    assert path is not None
    before = set(os.listdir("/proc/self/fd"))
    communicators = joined(jobs)
    assert not os.path.exists(os.path.dirname(path))
    for communicator in communicators:
        communicator.close()
        communicator.close()
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0


def test_two_processes_of_one_rank() -> None:
    jobs = mesh_jobs(3, "tcp", timeout=5)
    first, second = Joining(jobs[0]), Joining(jobs[2])
    time.sleep(0.5)
    # Rank 2 waits for rank 1; another process that says it is rank 2 comes to rank 0.
    with pytest.raises(ConfigurationError, match="rank 2 is already taken"):
        Joining(replace(jobs[2], listeners=())).result()
    middle = Joining(jobs[1])
    for rank in [first.result(), middle.result(), second.result()]:
        rank.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_another_world_size_is_refused(family: str) -> None:
    """At once, and on both sides."""
    jobs = mesh_jobs(3, family)
    wrong = replace(jobs[1], addresses=jobs[1].addresses[:2])
    ranks = [Joining(jobs[0]), Joining(wrong)]
    for rank in ranks:
        with pytest.raises(ConfigurationError, match=r"rank 1 .* world size 2, rank 0 with 3"):
            rank.result()
    for listener in jobs[2].listeners:
        listener.close()


def _garbage(sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + os.urandom(300))


def _silence(sock: socket.socket) -> None:
    pass


def _scan(sock: socket.socket) -> None:
    sock.close()


def test_connections_for_something_else_are_refused() -> None:
    """The gloo backend connects alike, and says other things afterwards."""
    jobs = mesh_jobs(2, "unix")
    first = Joining(jobs[0])
    text = raises(ConfigurationError, lambda: connect.connect(jobs[1], Wiring.GLOO))
    assert "rank 1 was started with the backend gloo, rank 0 with mesh" in text
    assert text in raises(ConfigurationError, first.result)


@pytest.mark.parametrize("behaviour", [_garbage, _silence, _scan])
@pytest.mark.parametrize("family", FAMILIES)
def test_strangers_are_dropped_and_the_job_goes_on(
    family: str,
    behaviour: Callable[[socket.socket], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_accept, "HANDSHAKE_SECONDS", 0.2)
    jobs = mesh_jobs(2, family)
    first = Joining(jobs[0])
    where: Any = jobs[0].addresses[0].unix or jobs[0].addresses[0].tcp
    strangers = []
    for _ in range(5):
        stranger = reach(where)
        behaviour(stranger)
        strangers.append(stranger)
    until(lambda: caplog.text.count("dropped a connection") == 5)
    second = Joining(jobs[1])
    ranks = [first.result(), second.result()]
    for stranger in strangers:
        stranger.close()
    other = threading.Thread(target=ranks[1].barrier)
    other.start()
    ranks[0].barrier()
    other.join()
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("field", ["secret", "name"])
def test_a_wrong_secret_is_dropped_and_the_job_goes_on(
    field: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that has it gives up soon and says why; the others say so once."""
    monkeypatch.setattr(connect, "GIVE_UP_SECONDS", 0.5)
    jobs = mesh_jobs(2, "tcp")
    first = Joining(jobs[0])
    wrong = {"secret": b"wrong"} if field == "secret" else {"name": "another"}
    with pytest.raises(ConfigurationError, match=r"same NUVEC_SECRET .* and NUVEC_JOB"):
        Joining(replace(jobs[1], listeners=(), **wrong)).result()  # type: ignore[arg-type]
    second = Joining(replace(jobs[1], listeners=()))
    ranks = [first.result(), second.result()]
    assert caplog.text.count("it claims to be rank 1 but hung up: it has another NUVEC_SECRET") == 1
    assert caplog.text.count("rank 1 dropped its connection") == 1
    for rank in ranks:
        rank.close()


def test_a_rank_with_a_wrong_secret_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "GIVE_UP_SECONDS", 0.1)
    jobs = mesh_jobs(2, "unix", timeout=1)
    ranks = [Joining(jobs[0]), Joining(replace(jobs[1], secret=b"wrong"))]
    with pytest.raises(ConfigurationError, match="cannot join rank 0"):
        ranks[1].result()
    with pytest.raises(PeerError, match=r"waited 1 s.*claims to be rank 1 .*NUVEC_SECRET"):
        ranks[0].result()


def test_somebody_else_at_the_address_of_a_rank(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale host file: another program answers where rank 0 should be."""
    monkeypatch.setattr(connect, "GIVE_UP_SECONDS", 0.3)
    jobs = mesh_jobs(2, "tcp")
    sock = jobs[0].listeners[0]

    def answer() -> None:
        try:
            while True:
                client, _ = sock.accept()
                client.sendall(b"220 mail.example.org ESMTP\r\n" * 20)
                client.close()
        except OSError:
            pass

    program = threading.Thread(target=answer)
    program.start()
    message = r"cannot join rank 0 at 127\.0\.0\.1.*host file is stale"
    with pytest.raises(ConfigurationError, match=message):
        mesh_communicator(jobs[1])
    assert caplog.text.count("dropped its connection") == 1
    sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    program.join()


# Failures.


def test_a_silent_peer_is_named_after_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    jobs = [replace(job, timeout=0.6, warn_after=0.2) for job in mesh_jobs(3, "unix")]
    ranks = joined(jobs)
    errors = []
    other = threading.Thread(target=lambda: errors.append(raises(PeerError, ranks[1].barrier)))
    with caplog.at_level(logging.WARNING):
        other.start()
        text = raises(PeerError, ranks[0].barrier)
        other.join()
    texts = [text, *errors]
    assert any("NUVEC_TIMEOUT" in t and "no word from rank 2 (host" in t for t in texts)
    assert "has waited" in caplog.text and "rank 2 (host" in caplog.text
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("transport", ["shm", "mesh-tcp", "ring-tcp"])
def test_a_broken_group_keeps_no_arrays(transport: str) -> None:
    """It remembers the error, and not the frames that the error has come through."""

    def body(c: Communicator) -> None:
        given = [np.ones(200_000)]
        gone = weakref.ref(given[0])
        raises(MismatchError, lambda: c.all_to_all(given) if c.rank else c.barrier())
        given.clear()
        deadline = time.monotonic() + 5  # a writer may be about to notice
        while gone() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
            gc.collect()
        assert gone() is None
        assert "an earlier error: rank 0 is at barrier" in raises(MismatchError, c.barrier)

    on_ranks(TRANSPORTS[transport](30.0), 2, body)


def test_a_question_is_no_sign_of_life() -> None:
    """A rank that waits asks the silent one, who could prolong its own timeout by that."""
    ranks = joined([replace(job, timeout=2) for job in mesh_jobs(2, "tcp")])
    started = time.monotonic()
    assert "gave up after 2 s" in raises(PeerError, ranks[0].barrier)
    assert time.monotonic() - started < 2.8
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("timeout", [3e6, float("inf")])
def test_an_endless_timeout(timeout: float) -> None:
    """More than the system's own timeouts can be: a rank that has warned waits on."""
    jobs = [replace(job, timeout=timeout, warn_after=0.25) for job in mesh_jobs(2, "tcp")]
    texts: list[list[float]] = []

    def late(rank: int) -> None:
        communicator = mesh_communicator(jobs[rank])
        time.sleep(0.6 * rank)
        texts.append(communicator.all_gather([np.array(float(rank))])[0].tolist())
        communicator.close()

    threads = [threading.Thread(target=late, args=(r,), daemon=True) for r in (1, 0)]
    for thread in threads:
        thread.start()
        time.sleep(0.6)  # rank 1 comes to join first, and to communicate last
    for thread in threads:
        thread.join(10)
    assert texts == [[0.0, 1.0]] * 2


def test_a_peer_that_is_busy_sending_is_not_silent() -> None:
    jobs = [replace(job, timeout=1) for job in mesh_jobs(2, "unix")]
    ranks = joined(jobs)
    x = np.ones(1000)

    def slowly() -> None:
        for _ in range(4):
            time.sleep(0.4)
            ranks[1].all_reduce("sum", [x])

    other = threading.Thread(target=slowly)
    other.start()
    for _ in range(4):
        ranks[0].all_reduce("sum", [x])
    other.join()
    for rank in ranks:
        rank.close()


def test_abort_wakes_a_waiting_rank() -> None:
    ranks = joined(mesh_jobs(2, "unix"))
    timer = threading.Timer(0.1, ranks[0].abort, ["enough"])
    timer.start()
    assert "enough" in raises(PeerError, ranks[0].barrier)
    assert "enough" in raises(PeerError, ranks[1].barrier)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_message_survives_its_senders_exit(family: str) -> None:
    ranks = joined(mesh_jobs(2, family))
    x = np.arange(3_000_000)

    def leave() -> None:
        ranks[0].send([x], 1)
        ranks[0].close()

    sender = threading.Thread(target=leave)
    sender.start()
    time.sleep(0.05)
    received = ranks[1].recv([(x.shape, x.dtype)], 0)[0]
    assert (received == x).all()
    sender.join()
    assert "has left" in raises(PeerError, lambda: ranks[1].send([x], 0))
    ranks[1].close()


def test_a_malformed_stream_breaks_the_group() -> None:
    ranks = joined(mesh_jobs(2, "unix"))
    ranks[1]._links.links[0].sock.send(b"x" * 48)
    assert "malformed" in raises(DistributedError, ranks[0].barrier)
    assert "malformed" in raises(PeerError, ranks[1].barrier)
    for rank in ranks:
        rank.close()


def test_a_frame_that_lies_about_its_length() -> None:
    ranks = joined(mesh_jobs(2, "unix"))
    link = ranks[1]._links.links[0]
    link.push([pack_head(Kind.COLLECTIVE, 8, -1, 0, 0, 0, 0, 5), b"12345"])
    raises(DistributedError, ranks[0].barrier)
    for rank in ranks:
        rank.close()


# Big messages, once.


def test_sixty_four_megabytes() -> None:
    n = 1 << 24

    def body(c: Communicator) -> None:
        x = np.arange(n, dtype=np.float32) * (c.rank + 1)
        total = c.all_reduce("sum", [x])[0]
        assert (total == np.arange(n, dtype=np.float32) * np.float32(3)).all()

    on_ranks(TRANSPORTS["mesh-unix"](30.0), 2, body)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_send_a_hundred_megabytes_first(family: str) -> None:
    n = 100_000_000

    def body(c: Communicator) -> None:
        x = np.full(n, c.rank + 1, np.uint8)
        c.send([x], 1 - c.rank)
        got = c.recv([((n,), np.dtype(np.uint8))], 1 - c.rank)[0]
        assert (got == 2 - c.rank).all()

    on_ranks(TRANSPORTS[f"mesh-{family}"](30.0), 2, body)

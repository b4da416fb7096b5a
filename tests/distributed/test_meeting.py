"""Ranks that know only where rank 0 is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.meeting import free_port, meet
from nuvec.distributed.variables import Meeting, Place

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport removes the directories of a job, and there is none here."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def together(*calls: Callable[[], Place]) -> list[Place | BaseException]:
    """The results of calls made at once, each in a thread."""
    results: dict[int, Place | BaseException] = {}

    def run(number: int, call: Callable[[], Place]) -> None:
        try:
            results[number] = call()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(calls))]


def attends(
    rank: int, size: int, port: int, secret: bytes = b"s", timeout: float = 10.0, delay: float = 0.0
) -> Callable[[], Place]:
    def call() -> Place:
        time.sleep(delay)
        meeting = Meeting(rank, size, "localhost", port, f"RANK={rank}")
        return meet(meeting, secret, "job", timeout)

    return call


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_are_told_the_same(size: int) -> None:
    port = free_port("127.0.0.1")
    calls = [attends(rank, size, port, delay=0.2 * (rank == 0)) for rank in range(size)]
    places = together(*calls)
    assert all(isinstance(place, Place) for place in places), places
    tables = {place.addresses for place in places if isinstance(place, Place)}
    (table,) = tables
    assert len({address.tcp for address in table}) == size
    assert {address.tcp[0] for address in table if address.tcp} == {"127.0.0.1"}
    assert {address.host for address in table} == {socket.gethostname()}
    assert len({address.unix for address in table}) == size


def test_a_stranger_and_another_secret_are_kept_out() -> None:
    port = free_port("127.0.0.1")

    def stranger() -> Place:
        deadline = time.monotonic() + 5
        with socket.socket() as sock:
            while sock.connect_ex(("127.0.0.1", port)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            sock.settimeout(5)
            try:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x" * 500)
                assert sock.recv(100) == b""
            except ConnectionError:  # dropped before all of it was read
                pass
        return Place(9, ())

    rank0, rank1, wrong, passer = together(
        attends(0, 2, port),
        attends(1, 2, port, delay=3.0),
        attends(1, 2, port, secret=b"another", timeout=5.0),
        stranger,
    )
    assert isinstance(rank0, Place) and isinstance(rank1, Place) and isinstance(passer, Place)
    assert isinstance(wrong, (ConfigurationError, PeerError))


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    (error,) = together(attends(0, 3, port, timeout=0.5))
    assert isinstance(error, PeerError)
    assert "for ranks 1 (host localhost), 2 (host localhost) to connect" in str(error)
    assert "while the ranks met at 127.0.0.1:" in error.__notes__[0]
    (error,) = together(attends(1, 3, port, timeout=0.5))
    assert isinstance(error, PeerError) and f"rank 0 at 127.0.0.1:{port}" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_different_sizes_and_a_rank_twice() -> None:
    port = free_port("127.0.0.1")
    first, second = together(attends(0, 2, port), attends(1, 3, port))
    for error in (first, second):
        assert isinstance(error, ConfigurationError) and "world size 3" in str(error)


def test_a_coordinator_that_cannot_be_used() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        (error,) = together(attends(0, 2, busy.getsockname()[1]))
    assert isinstance(error, ConfigurationError) and "already in use" in str(error)
    unknown = Meeting(0, 2, "no such host.invalid", 5000, "RANK=0")
    with pytest.raises(ConfigurationError, match="of rank 0 is unknown here"):
        meet(unknown, b"s", "job", 1.0)
    # A documentation address, which no machine has.
    stale = Meeting(0, 2, "192.0.2.1", 5000, "RANK=0")
    with pytest.raises(ConfigurationError, match="not an address of this machine"):
        meet(stale, b"s", "job", 1.0)
    with pytest.raises(ConfigurationError, match="RANK=0: ranks on several hosts need a secret"):
        meet(stale, b"", "job", 1.0)


def test_a_name_that_means_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 5000))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    with pytest.raises(ConfigurationError, match=r"node1 is 127\.0\.1\.1 on this machine"):
        meet(Meeting(0, 2, "node1", 5000, "RANK=0"), b"s", "job", 1.0)


def test_a_free_port_is_free_and_not_one_for_outgoing_connections() -> None:
    ports = {free_port("127.0.0.1") for _ in range(20)}
    assert len(ports) > 10 and all(10000 <= port < 32000 for port in ports)


def test_a_rank_killed_while_it_waits_leaves_no_directory(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    program = "from nuvec.distributed.rendezvous import find_job; find_job(timeout=30)"
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    rank = subprocess.Popen(
        [sys.executable, "-c", program],
        env=dict(os.environ, **variables, MASTER_PORT=str(port), TMPDIR=str(tmp_path)),
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 20
        while True:  # until it listens
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and rank.poll() is None
                time.sleep(0.02)
    finally:
        rank.kill()
        rank.communicate()
    assert list(tmp_path.iterdir()) == []


def test_ranks_of_a_job_never_get_the_same_free_port() -> None:
    ports = [{free_port("127.0.0.1", index, 3) for _ in range(30)} for index in range(3)]
    assert all({port % 3 for port in own} == {(10000 + i) % 3} for i, own in enumerate(ports))

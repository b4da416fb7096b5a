"""From environment variables to a job, and clear errors for what is wrong with them."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.hostfile import parse_hosts
from nuvec.distributed.rendezvous import find_job, read_secret
from nuvec.distributed.transports.job import Address, Job, listen
from nuvec.distributed.transports.mesh import mesh_communicator

pytestmark = pytest.mark.timeout(30)


def hostfile(directory: Path, data: object) -> str:
    path = directory / "hosts.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_nothing_is_set() -> None:
    assert find_job({}) is None
    assert find_job({"NUVEC_SECRET": "x", "RANK": "", "NUVEC_RANK": ""}) is None


def test_the_launchers_variables(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    job = find_job(
        {
            "NUVEC_RANK": "1",
            "NUVEC_WORLD_SIZE": "2",
            "NUVEC_SOCKET_DIR": str(tmp_path),
            "NUVEC_SECRET": "s",
            "NUVEC_JOB": "j",
        },
        timeout=7.0,
    )
    assert job is not None
    assert (job.rank, job.secret, job.name, job.timeout) == (1, b"s", "j", 7.0)
    assert [a.unix for a in job.addresses] == [f"{tmp_path}/0.sock", f"{tmp_path}/1.sock"]
    assert job.route(0) == f"{tmp_path}/0.sock"


@pytest.mark.parametrize(
    "data",
    [
        [["127.0.0.1:5000", "127.0.0.1:6000"], ["127.0.0.1:5001"]],
        [{"ip": "127.0.0.1", "port": 5000}, {"ip": "127.0.0.1", "port": 5001}],
        {"ranks": [{"host": "a", "tcp": "127.0.0.1:5000"}, {"host": "b", "tcp": "localhost:5001"}]},
    ],
)
def test_the_forms_of_host_files(data: object, tmp_path: Path) -> None:
    job = find_job({"NUVEC_RANK": "0", "NUVEC_HOSTFILE": hostfile(tmp_path, data)})
    assert job is not None
    assert [a.tcp for a in job.addresses] == [("127.0.0.1", 5000), ("127.0.0.1", 5001)]


def test_the_variables_of_mlx(tmp_path: Path) -> None:
    path = hostfile(tmp_path, [["127.0.0.1:5000", "127.0.0.1:6000"], ["127.0.0.1:5001"]])
    job = find_job({"MLX_RANK": "1", "MLX_HOSTFILE": path})
    assert job is not None and job.rank == 1
    assert [a.tcp for a in job.addresses] == [("127.0.0.1", 5000), ("127.0.0.1", 5001)]
    own = find_job({"NUVEC_RANK": "0", "NUVEC_WORLD_SIZE": "1", "MLX_RANK": "1"})
    assert own is not None and own.rank == 0
    for wrong, message in (
        ({"MLX_RANK": "1"}, "MLX_RANK=1 is set but MLX_HOSTFILE is not"),
        ({"MLX_HOSTFILE": path}, "MLX_RANK is not"),
        ({"MLX_RANK": "2", "MLX_HOSTFILE": path}, "MLX_RANK=2 is out of range"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            find_job(wrong)


def test_ranks_of_one_host_use_unix_sockets() -> None:
    addresses = parse_hosts(
        json.dumps(
            {
                "ranks": [
                    {"host": "a", "unix": "/x/0", "tcp": "10.0.0.1:5000"},
                    {"host": "a", "unix": "/x/1", "tcp": "10.0.0.1:5001"},
                    {"host": "b", "unix": "/x/0", "tcp": "10.0.0.2:5000"},
                ]
            }
        )
    )
    job = Job(0, addresses)
    assert job.route(1) == "/x/1" and job.route(2) == ("10.0.0.2", 5000)
    assert parse_hosts('[["[::1]:5000"]]')[0].tcp == ("::1", 5000)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NUVEC_WORLD_SIZE": "2"}, "NUVEC_RANK is not"),
        ({"NUVEC_RANK": "0"}, "neither NUVEC_HOSTFILE nor NUVEC_WORLD_SIZE"),
        ({"NUVEC_RANK": "one", "NUVEC_WORLD_SIZE": "2"}, "not a whole number"),
        ({"NUVEC_RANK": "0", "NUVEC_WORLD_SIZE": "0"}, "not a number of ranks"),
        ({"NUVEC_RANK": "0", "NUVEC_WORLD_SIZE": "2"}, "nothing says where"),
        ({"NUVEC_RANK": "2", "NUVEC_WORLD_SIZE": "2", "NUVEC_SOCKET_DIR": "/x"}, "0 to 1"),
        ({"NUVEC_RANK": "-1", "NUVEC_WORLD_SIZE": "2", "NUVEC_SOCKET_DIR": "/x"}, "out of range"),
        ({"NUVEC_RANK": "0", "NUVEC_HOSTFILE": "/no/such/file"}, "No such file"),
        (
            {"NUVEC_RANK": "1", "NUVEC_WORLD_SIZE": "2", "NUVEC_SOCKET_DIR": "/no/such"},
            "NUVEC_SOCKET_DIR=/no/such is not a directory: make it before .* `mkdir -m 700",
        ),
    ],
)
def test_contradictory_variables(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_job(environment)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("not json", "not JSON"),
        ([], "should be a list of ranks"),
        ({"hosts": []}, "should be a list of ranks"),
        ([["127.0.0.1:5000"], ["127.0.0.1:5000"]], "ranks 0 and 1 have the same address"),
        ([["127.0.0.1"]], "not like"),
        ([["127.0.0.1:99999"]], "not like"),
        ([["no such host.invalid:5000"]], "unknown"),
        ([7], "entry of rank 0 is 7"),
        ([[]], "entry of rank 0"),
        ([{"host": 3}], "entry of rank 0"),
    ],
)
def test_malformed_host_files(data: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_job({"NUVEC_RANK": "0", "NUVEC_HOSTFILE": hostfile(tmp_path, data)})


def test_a_stale_host_file(tmp_path: Path) -> None:
    path = hostfile(tmp_path, [["127.0.0.1:5000"], ["127.0.0.1:5001"]])
    with pytest.raises(ConfigurationError, match="file of another job"):
        find_job({"NUVEC_RANK": "0", "NUVEC_WORLD_SIZE": "3", "NUVEC_HOSTFILE": path})
    # A documentation address, which no machine has.
    addresses = (Address("a", tcp=("192.0.2.1", 5000)), Address("b", tcp=("192.0.2.2", 5000)))
    with pytest.raises(ConfigurationError, match="stale"):
        mesh_communicator(Job(0, addresses, b"s", timeout=1))


def test_a_busy_port() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        addresses = (Address("a", tcp=busy.getsockname()), Address("a", tcp=("127.0.0.1", 9)))
        with pytest.raises(ConfigurationError, match="already in use"):
            mesh_communicator(Job(0, addresses, b"s", timeout=1))


def test_a_path_that_is_too_long() -> None:
    with pytest.raises(ConfigurationError, match="TMPDIR"):
        listen("/tmp/" + "x" * 120)


def test_other_hosts_need_a_secret() -> None:
    addresses = (Address("a", tcp=("192.0.2.1", 5000)), Address("b", tcp=("192.0.2.2", 5000)))
    with pytest.raises(ConfigurationError, match="NUVEC_SECRET"):
        mesh_communicator(Job(0, addresses))


def test_without_a_secret_loopback_warns(caplog: pytest.LogCaptureFixture) -> None:
    listeners = [listen(("127.0.0.1", 0)) for _ in range(2)]
    addresses = tuple(Address("a", tcp=sock.getsockname()) for sock in listeners)
    jobs = [Job(r, addresses, timeout=5, listeners=(s,)) for r, s in enumerate(listeners)]
    thread = threading.Thread(target=lambda: mesh_communicator(jobs[1]).close())
    thread.start()
    mesh_communicator(jobs[0]).close()
    thread.join()
    assert "no NUVEC_SECRET" in caplog.text


def test_sockets_that_only_this_user_can_reach_need_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = tuple(Address("a", unix=str(tmp_path / f"{rank}.sock")) for rank in range(2))
    thread = threading.Thread(target=lambda: mesh_communicator(Job(1, addresses)).close())
    thread.start()
    mesh_communicator(Job(0, addresses)).close()
    thread.join()
    assert "NUVEC_SECRET" not in caplog.text


def test_secrets(tmp_path: Path) -> None:
    assert read_secret({}) == b""
    assert read_secret({"NUVEC_SECRET": "a"}) == b"a"
    path = tmp_path / "secret"
    path.write_text("from a file\n")
    os.chmod(path, 0o600)
    assert read_secret({"NUVEC_SECRET_FILE": str(path)}) == b"from a file"
    variables = {"NUVEC_SECRET": "from a file", "NUVEC_SECRET_FILE": str(path)}
    assert read_secret(variables) == b"from a file"
    with pytest.raises(ConfigurationError, match="holds another secret: unset one"):
        read_secret({**variables, "NUVEC_SECRET": "from elsewhere"})
    os.chmod(path, 0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_secret({"NUVEC_SECRET_FILE": str(path)})
    os.chmod(path, 0o600)
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="empty"):
        read_secret({"NUVEC_SECRET_FILE": str(path)})
    with pytest.raises(ConfigurationError, match="No such file"):
        read_secret({"NUVEC_SECRET_FILE": str(path) + "x"})


def test_a_socket_directory_that_others_can_enter(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    variables = {
        "NUVEC_RANK": "0",
        "NUVEC_WORLD_SIZE": "2",
        "NUVEC_SOCKET_DIR": str(tmp_path),
    }
    with pytest.raises(ConfigurationError, match="chmod 700"):
        find_job(variables)
    os.chmod(tmp_path, 0o700)
    assert find_job(variables) is not None

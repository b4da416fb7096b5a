"""Host files, and where the launcher puts its ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nuvec.core.errors import ConfigurationError
from nuvec.distributed._placement import (
    Seat,
    addresses_of,
    seated,
    seats_of_file,
    seats_of_hosts,
    unreachable,
    with_ports,
)
from nuvec.distributed.hostfile import format_hosts, parse_hosts, read_hosts
from nuvec.distributed.transports.job import Address


def written(directory: Path, data: object) -> str:
    path = directory / "hosts.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    addresses = (
        Address("a", "/x/0.sock", ("127.0.0.1", 5000)),
        Address("b \"'\n", None, ("::1", 5001)),
        Address("c", "/x/2.sock"),
    )
    text = format_hosts(addresses)
    assert parse_hosts(text) == addresses
    assert read_hosts(written(tmp_path, text)) == addresses


@pytest.mark.parametrize("text", ["[" * 100_000, "", '{"ranks": 3}', "null", '"a"'])
def test_what_is_no_host_file(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError, match=r"hosts\.json"):
        read_hosts(path)


@pytest.mark.parametrize(
    "entry",
    [{"ip": "127.0.0.1", "port": 0}, {"ip": "127.0.0.1", "port": True}, {"ip": "", "port": 5000}],
)
def test_ports_and_addresses_that_are_none(entry: object) -> None:
    with pytest.raises(ConfigurationError, match="the address of rank 1"):
        parse_hosts(json.dumps([["127.0.0.1:5000"], entry]))


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"hosts\.json"):
        read_hosts(str(path))


@pytest.mark.parametrize(
    ("data", "seats"),
    [
        (["a", "u@b"], [Seat("a"), Seat("u@b")]),
        (
            [{"ssh": "a", "ips": ["10.0.0.1", "10.0.1.1"], "rdma": []}, {"ssh": "b"}],
            [Seat("a", "10.0.0.1"), Seat("b")],
        ),
        ([["127.0.0.1:5000"]], [Seat("127.0.0.1", "127.0.0.1", 5000)]),
        (["127.0.0.1:5000"], [Seat("127.0.0.1", "127.0.0.1", 5000)]),
        ([{"ip": "127.0.0.1", "port": 5000}], [Seat("127.0.0.1", "127.0.0.1", 5000)]),
        ({"ranks": [{"host": "n", "tcp": "127.0.0.1:7"}]}, [Seat("n", "127.0.0.1", 7)]),
        ({"ranks": [{"host": "n"}, {"host": "n"}]}, [Seat("n"), Seat("n")]),
    ],
)
def test_the_launchers_host_files(data: object, seats: list[Seat], tmp_path: Path) -> None:
    assert seats_of_file(written(tmp_path, data)) == seats


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"ssh": 3}], "entry 0 is"),
        ([{"ssh": "a", "ips": "10.0.0.1"}], "entry 0 is"),
        (["a", 3], "entry 1 is 3"),
        (["a", "-oProxyCommand=x"], "'-oProxyCommand=x' is not the name of a host"),
        ([], "should be a list of ranks"),
        ("{", "not JSON"),
    ],
)
def test_malformed_files_of_the_launcher(data: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        seats_of_file(written(tmp_path, data))


def test_hosts_and_how_often() -> None:
    a, b = Seat("a"), Seat("b")
    assert seats_of_hosts("a, b,a") == [a, b, a]
    for wrong in ("", "a,,b", "-v", "a b"):
        with pytest.raises(ConfigurationError, match="not the name of a host"):
            seats_of_hosts(wrong)
    assert seated([a, b], None, None) == [a, b]
    assert seated([a, b], 4, None) == seated([a, b], None, 2) == [a, a, b, b]
    assert seated([a, b], 4, 2) == [a, a, b, b]
    with pytest.raises(ConfigurationError, match="-n 3 ranks cannot be shared out evenly over 2"):
        seated([a, b], 3, None)
    with pytest.raises(ConfigurationError, match="-n 1 ranks cannot"):
        seated([a, b], 1, None)
    with pytest.raises(ConfigurationError, match="-n 6 and --repeat-hosts 2 with 2 hosts"):
        seated([a, b], 6, 2)
    with pytest.raises(ConfigurationError, match="says where each of its 1 ranks listens"):
        seated([Seat("a", "10.0.0.1", 5000)], 2, None)


def test_ports_count_up_on_every_host() -> None:
    seats = with_ports([Seat("a"), Seat("b"), Seat("a"), Seat("c", None, 7)], 5000)
    assert [seat.port for seat in seats] == [5000, 5000, 5001, 7]
    with pytest.raises(ConfigurationError, match="there is no port 65536"):
        with_ports([Seat("a"), Seat("a")], 65535)


def test_addresses_as_this_host_knows_them() -> None:
    seats = [Seat("localhost"), Seat("localhost"), Seat("x", "127.0.0.2")]
    assert [a.tcp for a in addresses_of(seats)] == [
        ("127.0.0.1", 32323),
        ("127.0.0.1", 32324),
        ("127.0.0.2", 32323),
    ] or addresses_of(seats)[0].tcp == ("::1", 32323)
    with pytest.raises(ConfigurationError, match=r"'no such\.invalid' is unknown here.*ips"):
        addresses_of([Seat("u@no such.invalid")])


def test_hosts_that_cannot_reach_each_other() -> None:
    inside, outside = Address("a", tcp=("127.0.0.1", 1)), Address("b", tcp=("10.0.0.1", 1))
    assert unreachable([inside, inside]) == unreachable([outside, outside]) == ""
    text = unreachable([outside, inside])
    assert "the ranks of a would listen at 127.0.0.1, where those of b cannot reach them" in text

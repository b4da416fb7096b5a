"""Where the launcher puts its ranks: which host each is on, and where it listens there."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.hostfile import parse_hosts, read_json, read_text
from nuvec.distributed.transports.job import Address

DEFAULT_PORT = 32323
"""MLX's, where ports have to be said before anybody has looked which are free."""


class Seat(NamedTuple):
    """Where one rank goes."""

    host: str
    """As ssh is given it."""
    address: str | None = None
    """Where the host's ranks listen; None is the address by which ssh reached it."""
    port: int | None = None
    """None is any that is free."""


def seats_of_hosts(hosts: str) -> list[Seat]:
    """The hosts of ``--hosts h1,h2``, one rank each; a host may be repeated."""
    return [_checked(name.strip(), "--hosts") for name in hosts.split(",")]


def seats_of_file(path: str) -> list[Seat]:
    """The hosts of a host file.

    Beside the forms of `parse_hosts`, whose hosts and addresses become ssh's: a list of names, and
    that of MLX's launcher, ``[{"ssh": "user@a", "ips": ["10.0.0.1"]}, ...]``.
    """
    text = read_text(path)
    data = read_json(text, path)
    if isinstance(data, list) and any(_names_a_host(entry) for entry in data):
        return [_seat(entry, number, path) for number, entry in enumerate(data)]
    return [
        _checked(address.host, path)._replace(address=address.tcp[0], port=address.tcp[1])
        if address.tcp
        else _checked(address.host, path)
        for address in parse_hosts(text, path)
    ]


def _names_a_host(entry: Any) -> bool:
    if isinstance(entry, str):
        return not entry.rpartition(":")[2].isdecimal()
    return isinstance(entry, dict) and "ssh" in entry


def _seat(entry: Any, number: int, name: str) -> Seat:
    if isinstance(entry, str):
        return _checked(entry, name)
    ssh = entry.get("ssh") if isinstance(entry, dict) else None
    ips = (entry.get("ips") or []) if isinstance(entry, dict) else None
    if (
        not isinstance(ssh, str)
        or not isinstance(ips, list)
        or not all(isinstance(ip, str) for ip in ips)
    ):
        raise ConfigurationError(
            f"host file {name}: entry {number} is {entry!r}, which is neither a host's name nor "
            '{"ssh": "user@host", "ips": ["10.0.0.1"]}'
        )
    return _checked(ssh, name)._replace(address=ips[0] if ips else None)


def _checked(name: str, where: str) -> Seat:
    # What begins with a minus would be an option of ssh.
    if not name or name.startswith("-") or not name.isprintable() or " " in name:
        raise ConfigurationError(f"{where}: {name!r} is not the name of a host")
    return Seat(name)


def seated(seats: Sequence[Seat], size: int | None, repeat: int | None) -> list[Seat]:
    """One seat a rank: each host `repeat` times in a row, or as often as makes `size` ranks."""
    if size is not None and repeat is not None and size != repeat * len(seats):
        raise ConfigurationError(
            f"-n {size} and --repeat-hosts {repeat} with {len(seats)} hosts, which make "
            f"{repeat * len(seats)} ranks: leave one of them out"
        )
    if size is not None:
        repeat, rest = divmod(size, len(seats))
        if rest or not repeat:
            raise ConfigurationError(
                f"-n {size} ranks cannot be shared out evenly over {len(seats)} hosts: give a "
                "multiple, or list a host as often as it should have ranks, --hosts a,a,b"
            )
    repeat = 1 if repeat is None else repeat
    if repeat > 1 and any(seat.port for seat in seats):
        raise ConfigurationError(
            f"the host file says where each of its {len(seats)} ranks listens, so that there "
            f"cannot be {repeat * len(seats)} ranks: leave out -n and --repeat-hosts"
        )
    return [seat for seat in seats for _ in range(repeat)]


def with_ports(seats: Sequence[Seat], start: int) -> list[Seat]:
    """Seats that have ports: those of a host count up from `start`."""
    used: dict[str, int] = {}
    result = []
    for seat in seats:
        if seat.port is None:
            port = used.get(seat.host, start)
            used[seat.host] = port + 1
            if port > 65535:
                raise ConfigurationError(f"--starting-port {start}: there is no port {port}")
            seat = seat._replace(port=port)
        result.append(seat)
    return result


def addresses_of(seats: Sequence[Seat], start: int = DEFAULT_PORT) -> list[Address]:
    """Where the ranks of these seats listen, as far as this host can tell."""
    result = []
    for seat in with_ports(seats, start):
        assert seat.port is not None
        name = seat.address or seat.host.rpartition("@")[2]
        try:
            number = socket.getaddrinfo(name, seat.port, type=socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise ConfigurationError(
                f"the host {name!r} is unknown here: {error.strerror}. In a host file its address "
                'can be given: [{"ssh": "name", "ips": ["10.0.0.1"]}]'
            ) from None
        result.append(Address(seat.host, tcp=(str(number), seat.port)))
    return result


def unreachable(addresses: Sequence[Address]) -> str:
    """Why the hosts of these ranks cannot reach each other, as far as the numbers tell."""
    inside = next((a for a in addresses if a.is_private()), None)
    outside = next((a for a in addresses if not a.is_private()), None)
    if inside is None or outside is None:
        return ""
    assert inside.tcp is not None
    return (
        f"the ranks of {inside.host} would listen at {inside.tcp[0]}, where those of "
        f"{outside.host} cannot reach them: name the host as others reach it, or give its address "
        'in a host file: [{"ssh": "name", "ips": ["10.0.0.1"]}]'
    )

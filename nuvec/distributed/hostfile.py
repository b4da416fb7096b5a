"""Host files: where every rank of a job is, as JSON.

Names of hosts become numbers here, once; everything later compares and binds numbers.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.transports.job import Address

__all__ = ["format_hosts", "parse_hosts", "read_hosts", "read_json", "read_text"]


def read_hosts(path: str) -> tuple[Address, ...]:
    """The ranks' addresses out of the host file at this path."""
    return parse_hosts(read_text(path), path)


def read_text(path: str) -> str:
    """The text of the host file at this path."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"host file {path}: {reason}") from None


def parse_hosts(text: str, name: str = "host file") -> tuple[Address, ...]:
    """The ranks' addresses out of a host file, which is JSON in one of three forms.

    ``{"ranks": [{"host": "a", "unix": "/path", "tcp": "10.0.0.1:5000"}, ...]}`` (the launcher's),
    ``[["10.0.0.1:5000"], ["10.0.0.2:5000"], ...]`` (a rank's further
    addresses are used by the ring only),
    ``[{"ip": "10.0.0.1", "port": 5000}, ...]``.
    """
    data = read_json(text, name)
    entries = data.get("ranks") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(
            f'host file {name} should be a list of ranks, such as [["127.0.0.1:5000"], '
            '["127.0.0.1:5001"]]'
        )
    addresses = tuple(_address(entry, rank, name) for rank, entry in enumerate(entries))
    seen: dict[object, int] = {}
    for rank, address in enumerate(addresses):
        for where in (*address.every_tcp(), address.unix and (address.host, address.unix)):
            if where and where in seen:
                raise ConfigurationError(
                    f"host file {name}: ranks {seen[where]} and {rank} have the same address "
                    f"{where[0]}:{where[1]}"
                )
            seen[where] = rank
    return addresses


def read_json(text: str, name: str) -> Any:
    """What the text of a host file holds; `ConfigurationError` where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"host file {name} is not JSON: {error}") from None


def format_hosts(addresses: Sequence[Address]) -> str:
    """The host file of these addresses, in the launcher's form."""
    rows = []
    for address in addresses:
        row = {"host": address.host}
        if address.unix is not None:
            row["unix"] = address.unix
        if address.tcp is not None:
            row["tcp"] = f"{_bracketed(address.tcp[0])}:{address.tcp[1]}"
        rows.append("  " + json.dumps(row))
    return '{"ranks": [\n' + ",\n".join(rows) + "\n]}\n"


def _address(entry: Any, rank: int, name: str) -> Address:
    if isinstance(entry, str):
        entry = [entry]
    if isinstance(entry, list) and entry and all(isinstance(where, str) for where in entry):
        tcp, *more = [_tcp(where, rank, name) for where in entry]
        return Address(tcp[0], tcp=tcp, more=tuple(more))
    if isinstance(entry, dict) and "ip" in entry and "port" in entry:
        tcp = _tcp(f"{_bracketed(str(entry['ip']))}:{entry['port']}", rank, name)
        return Address(tcp[0], tcp=tcp)
    if isinstance(entry, dict) and isinstance(entry.get("host"), str):
        unix, at = entry.get("unix"), entry.get("tcp")
        if (unix is None or isinstance(unix, str)) and (at is None or isinstance(at, str)):
            return Address(entry["host"], unix, None if at is None else _tcp(at, rank, name))
    raise ConfigurationError(
        f'host file {name}: the entry of rank {rank} is {entry!r}, which is neither "ip:port" nor '
        '{"ip": ..., "port": ...} nor {"host": ..., "unix": ..., "tcp": ...}'
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _tcp(text: str, rank: int, name: str) -> tuple[str, int]:
    host, colon, port_text = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port_text.isdecimal() or not 0 < int(port_text) < 65536:
        raise ConfigurationError(
            f"host file {name}: the address of rank {rank} is {text!r}, which is not like "
            '"127.0.0.1:5000"'
        )
    try:
        found = socket.getaddrinfo(host, int(port_text), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"host file {name}: the host {host!r} of rank {rank} is unknown: {error.strerror}"
        ) from None
    return str(found[0][4][0]), int(port_text)

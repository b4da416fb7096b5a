"""Where the ranks of a job are, and listening there."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass, field

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.transports._checked import DEFAULT_TIMEOUT, WARN_AFTER

__all__ = ["Address", "Job", "Where", "family", "listen", "retire", "show"]

Where = str | tuple[str, int]
"""The path of a Unix socket, or a TCP address and port."""

MAX_UNIX_PATH = 100
"""The kernel's limit is 104 to 108 bytes, depending on the system."""

BACKLOG = 128


@dataclass(frozen=True)
class Address:
    """Where a rank listens: a Unix socket for ranks of the same host, TCP for the others."""

    host: str
    unix: str | None = None
    tcp: tuple[str, int] | None = None
    more: tuple[tuple[str, int], ...] = ()
    """Further TCP addresses, over other links of the network; a ring uses all of them."""

    def every_tcp(self) -> tuple[tuple[str, int], ...]:
        """All its TCP addresses."""
        return () if self.tcp is None else (self.tcp, *self.more)

    def is_private(self) -> bool:
        """Whether nobody outside this machine can reach it."""
        return all(ipaddress.ip_address(host).is_loopback for host, _ in self.every_tcp())


@dataclass(frozen=True)
class Job:
    """All a rank needs to know to join. An empty secret is allowed on loopback only."""

    rank: int
    addresses: tuple[Address, ...]
    secret: bytes = field(default=b"", repr=False)
    name: str = "nuvec"
    timeout: float = DEFAULT_TIMEOUT
    warn_after: float = WARN_AFTER
    listeners: tuple[socket.socket, ...] = ()
    """Listening sockets that exist already (tests bind port 0); otherwise they are made."""

    def route(self, other: int) -> Where:
        """How this rank reaches `other`, which is also how `other` reaches this one."""
        mine, theirs = self.addresses[self.rank], self.addresses[other]
        if mine.unix and theirs.unix and mine.host == theirs.host:
            return theirs.unix
        if theirs.tcp is None or mine.tcp is None:
            raise ConfigurationError(
                f"no way from rank {self.rank} ({mine.host}) to rank {other} ({theirs.host}): they "
                "are on different hosts, and not both have a TCP address"
            )
        return theirs.tcp


def listen(where: Where, rank: int = 0) -> socket.socket:
    """Listen on exactly this address; a clear error where that cannot be."""
    if isinstance(where, str) and len(where.encode()) > MAX_UNIX_PATH:
        raise ConfigurationError(
            f"the socket path {where!r} is longer than {MAX_UNIX_PATH} bytes: set TMPDIR to a "
            "shorter directory"
        )
    sock = socket.socket(family(where), socket.SOCK_STREAM)
    try:
        if isinstance(where, str):
            sock.bind(where)
            os.chmod(where, 0o600)
        else:
            # Only skips the wait after an earlier job; a port in use by a listener still fails.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            text = (
                "is already in use: another process listens there, or two processes were started "
                f"as rank {rank}"
            )
        elif error.errno == errno.EADDRNOTAVAIL:
            text = "is not an address of this machine: the host file is stale, or for another host"
        else:
            text = f"cannot be listened on: {error.strerror}"
        raise ConfigurationError(f"the address {show(where)} of rank {rank} {text}") from None
    return sock


def retire(listener: socket.socket) -> None:
    """Stop listening, and leave no socket file behind."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    listener.close()
    if path:
        try:
            os.unlink(path)
        except OSError:
            pass


def family(where: Where) -> socket.AddressFamily:
    """The family of sockets that reach it."""
    if isinstance(where, str):
        return socket.AF_UNIX
    is_v6 = ipaddress.ip_address(where[0]).version == 6
    return socket.AF_INET6 if is_v6 else socket.AF_INET


def show(where: Where) -> str:
    """The address as text for messages."""
    return where if isinstance(where, str) else f"{where[0]}:{where[1]}"

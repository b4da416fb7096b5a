"""Connecting a ring: some sockets to the next rank, as many from the previous one.

Each rank listens on its own addresses and connects to the next rank's, in turn where there are
several. It lets the previous rank in while it waits for the next, so nobody waits in a circle.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._accept import Acceptor, Connected, check_alive
from nuvec.distributed.transports._writer import WrittenLink, fit_buffers
from nuvec.distributed.transports.connect import reach, stop_accepting
from nuvec.distributed.transports.job import Address, Job, Where, listen
from nuvec.distributed.transports.wire import Identity, Wiring

__all__ = [
    "Neighbours",
    "connect_ring",
    "described",
    "listen_for_split",
    "listen_on",
    "with_addresses",
]

Neighbours = tuple[list[WrittenLink], list[WrittenLink]]
"""The links to the next rank, and those from the previous one; in a ring of two both go to the
same rank."""

_ROOM = 1024
"""How many bytes the addresses of a rank may take, as text."""


def connect_ring(
    job: Job,
    previous: int | None,
    following: int | None,
    sockets: int,
    listeners: Sequence[socket.socket],
    look: Callable[[], None] = lambda: None,
) -> Neighbours:
    """Connect to the two neighbours by `sockets` sockets each; closes the listeners.

    previous, following -- their ranks; None for one that is not connected to
    look -- what to look after meanwhile; it may raise

    Raises as `connect` does, and `ConfigurationError` where neighbours were told different numbers
    of sockets, or different backends.
    """
    identity = Identity(
        job.secret, job.name, len(job.addresses), job.rank, Wiring.RING, channels=sockets
    )
    deadline = time.monotonic() + job.timeout
    incoming: Connected = {}
    outgoing: Connected = {}

    def look_after() -> None:
        check_alive(incoming)
        check_alive(outgoing)
        look()

    wanted = {(previous, c): c for c in range(sockets)} if previous is not None else {}
    acceptor = Acceptor(job, identity, listeners, wanted, incoming, look_after)
    try:
        for channel in range(sockets if following is not None else 0):
            assert following is not None
            routes = _routes(job, following)
            outgoing[channel] = reach(
                job,
                identity,
                following,
                routes[channel % len(routes)],
                deadline,
                outgoing,
                channel=channel,
                meanwhile=acceptor.step,
            )
        acceptor.run(deadline)
    except BaseException:
        for sock, _ in (*incoming.values(), *outgoing.values()):
            sock.close()
        raise
    finally:
        if listeners:
            stop_accepting(job, acceptor, listeners)
        else:
            acceptor.close()
    return _links(outgoing), _links(incoming)


def _routes(job: Job, other: int) -> list[Where]:
    route = job.route(other)
    return [route] if isinstance(route, str) else list(job.addresses[other].every_tcp())


def _links(connected: Connected) -> list[WrittenLink]:
    links = []
    for _, (sock, peer) in sorted(connected.items()):
        if sock.family == socket.AF_UNIX or _is_here(sock):
            fit_buffers(sock)
        links.append(WrittenLink(sock, peer))
    return links


def _is_here(sock: socket.socket) -> bool:
    """Whether the other end is on this machine."""
    other = sock.getpeername()[0]
    return other == sock.getsockname()[0] or ipaddress.ip_address(other).is_loopback


def listen_on(address: Address, rank: int, previous_is_here: bool) -> list[socket.socket]:
    """Listen where `address` says; on the Unix socket alone if that is how the neighbour comes."""
    if previous_is_here and address.unix is not None:
        return [listen(address.unix, rank)]
    return [listen(where, rank) for where in address.every_tcp()]


# Groups that a split has formed: new addresses, agreed on through the parent.


def listen_for_split(
    address: Address, rank: int, directory: str | None, listeners: list[socket.socket]
) -> Address:
    """Listen beside `address`: on other ports of the same interfaces, and on a Unix socket in
    `directory`, if that is given.

    Returns the new address; its listeners are added to `listeners`, even where one fails.
    """
    unix = None
    if directory is not None:
        unix = os.path.join(directory, f"{rank}.sock")
        listeners.append(listen(unix, rank))
    ports: list[tuple[str, int]] = []
    for host in dict.fromkeys(host for host, _ in address.every_tcp()):
        sock = listen((host, 0), rank)
        listeners.append(sock)
        ports.append(sock.getsockname()[:2])
    tcp, more = (ports[0], tuple(ports[1:])) if ports else (None, ())
    return Address(address.host, unix, tcp, more)


def described(address: Address) -> Buffer:
    """An address as bytes of a fixed number, as which it travels."""
    text = json.dumps({"unix": address.unix, "tcp": address.every_tcp()}).encode()
    if len(text) > _ROOM:
        raise ConfigurationError(
            f"{len(address.every_tcp())} addresses of one rank are too many for a split"
        )
    return np.frombuffer(text.ljust(_ROOM), np.uint8)


def with_addresses(job: Job, rows: dict[int, Buffer], name: str) -> Job:
    """`job` under another name, with new addresses for some ranks, as `described` gave them."""
    addresses = list(job.addresses)
    for rank, row in rows.items():
        fields = json.loads(row.tobytes())
        tcp = [(host, port) for host, port in fields["tcp"]]
        addresses[rank] = Address(
            addresses[rank].host, fields["unix"], tcp[0] if tcp else None, tuple(tcp[1:])
        )
    return replace(job, addresses=tuple(addresses), name=f"{job.name}/{name}", listeners=())

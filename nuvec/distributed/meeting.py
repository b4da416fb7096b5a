"""The meeting: ranks that know only where rank 0 is tell each other where they are.

Rank 0 listens at the coordinator's address; every other rank proves there that it is of the job
(with the handshake that every connection starts with), says where it will listen, and is told
where all ranks will. Then the meeting is over and the transport connects them.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import random
import secrets
import socket
import struct
import tempfile
import time

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.hostfile import format_hosts, parse_hosts
from nuvec.distributed.transports._accept import accept_higher
from nuvec.distributed.transports.connect import reach
from nuvec.distributed.transports.job import Address, Job, family, listen, retire, show
from nuvec.distributed.transports.wire import Identity
from nuvec.distributed.variables import Meeting, Place

__all__ = ["free_port", "meet"]

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_MAX_TABLE = 1 << 24
"""Of bytes; only ranks that have proved themselves are listened to."""


def meet(meeting: Meeting, secret: bytes, name: str, timeout: float) -> Place:
    """Hold the meeting; where all ranks are.

    Raises `ConfigurationError` for a coordinator that cannot be used, `PeerError` when ranks do not
    come within `timeout` seconds.
    """
    where = _resolve(meeting)
    coordinator = Address(meeting.host, tcp=where)
    if not secret and not coordinator.is_private():
        raise ConfigurationError(
            f"{meeting.said}: ranks on several hosts need a secret: set NUVEC_SECRET to the same "
            "random text everywhere, or NUVEC_SECRET_FILE to a file with mode 0600 that holds it"
        )
    if not secret:
        _log.warning(
            "no NUVEC_SECRET: any process of this machine could join this job as one of its ranks"
        )
    # Another name, so that nobody takes a connection of the meeting for one of the job.
    name = f"{name} meeting"
    job = Job(meeting.rank, (coordinator,) * meeting.size, secret, name, timeout)
    identity = Identity(secret, name, meeting.size, meeting.rank)
    deadline = time.monotonic() + timeout
    # Made once the ranks have met, so that one killed while it waits leaves none; gone once they
    # are connected.
    directory = os.path.join(tempfile.gettempdir(), f"nuvec-{secrets.token_hex(8)}")
    take_part = _coordinate if meeting.rank == 0 else _attend
    try:
        addresses = take_part(job, identity, where, deadline, directory)
    except BaseException as error:
        error.add_note(f"while the ranks met at {show(where)}, as said by {meeting.said}")
        raise
    os.mkdir(directory, 0o700)
    return Place(meeting.rank, addresses)


def _resolve(meeting: Meeting) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"{meeting.said}: the host {meeting.host!r} of rank 0 is unknown here: {error.strerror}"
        ) from None
    number = str(found[0][4][0])
    named = meeting.host not in ("localhost", number)
    if named and ipaddress.ip_address(number).is_loopback:
        # Some systems list their own name as 127.0.1.1, which no other host can reach.
        raise ConfigurationError(
            f"{meeting.said}: {meeting.host} is {number} on this machine, where no other host can "
            "reach it: set MASTER_ADDR to the host's number in the network, or to localhost if all "
            "ranks are on this one"
        )
    return number, meeting.port


def _coordinate(
    job: Job, identity: Identity, where: tuple[str, int], deadline: float, directory: str
) -> tuple[Address, ...]:
    listener = listen(where)
    connected: dict[int, tuple[socket.socket, object]] = {}
    try:
        accept_higher(job, identity, [listener], connected, deadline)  # type: ignore[arg-type]
        rows = [_own_address(job, where[0], directory)]
        for rank in range(1, len(job.addresses)):
            rows.append(_receive(connected[rank][0], rank, deadline))
        addresses = parse_hosts(json.dumps({"ranks": [json.loads(row) for row in rows]}))
        for rank, (sock, _) in sorted(connected.items()):
            _send(sock, format_hosts(addresses), rank)
        return addresses
    finally:
        retire(listener)
        for sock, _ in connected.values():
            sock.close()


def _attend(
    job: Job, identity: Identity, where: tuple[str, int], deadline: float, directory: str
) -> tuple[Address, ...]:
    sock, _ = reach(job, identity, 0, where, deadline, {})
    with sock:
        _send(sock, _own_address(job, sock.getsockname()[0], directory), 0)
        return parse_hosts(_receive(sock, 0, deadline), "the meeting's table")


def _own_address(job: Job, number: str, directory: str) -> str:
    """Where this rank will listen, as its row of a host file."""
    address = Address(
        socket.gethostname(),
        unix=os.path.join(directory, f"{job.rank}.sock"),
        tcp=(number, free_port(number, job.rank, len(job.addresses))),
    )
    row: str = json.dumps(json.loads(format_hosts([address]))["ranks"][0])
    return row


def free_port(number: str, index: int = 0, count: int = 1) -> int:
    """A TCP port of this address where nobody listens now.

    For the one of `count` askers that is number `index`: two of them never get the same.

    It is below those that systems give to outgoing connections, so that only somebody who asks for
    this very port can take it before it is used.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(10000 + index, 32000, count)
        with socket.socket(family((number, port)), socket.SOCK_STREAM) as sock:
            try:
                sock.bind((number, port))
            except OSError as error:
                last = error
                continue
            return port
    raise ConfigurationError(f"no free port at {number}: {last.strerror}")


# Messages: a length, and text.


def _send(sock: socket.socket, text: str, to: int) -> None:
    sock.setblocking(True)
    try:
        sock.sendall(_LENGTH.pack(len(text.encode())) + text.encode())
    except OSError as error:
        raise PeerError(f"rank {to} is gone: {error.strerror}") from None


def _receive(sock: socket.socket, rank: int, deadline: float) -> str:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, rank, deadline))
    if length > _MAX_TABLE:
        raise PeerError(f"rank {rank} sent a row of {length} bytes")
    return _exactly(sock, length, rank, deadline).decode()


def _exactly(sock: socket.socket, count: int, rank: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            more = sock.recv(count - len(data))
        except TimeoutError:
            raise PeerError(f"rank {rank} came to the meeting and then said nothing") from None
        except OSError as error:
            raise PeerError(f"rank {rank} is gone: {error.strerror}") from None
        if not more:
            raise PeerError(f"rank {rank} left the meeting: it ended or was killed")
        data += more
    return data

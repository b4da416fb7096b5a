"""Connecting the ranks of a job, a socket for every pair.

Each rank listens where its address says, connects to every lower rank, then accepts every higher
one; since the order is that of the ranks, nobody waits in a circle. A rank that is not there yet is
tried again with growing pauses. Whoever connects without proving that it is a rank of the job is
dropped and logged, and the job goes on.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.transports._accept import (
    LOOK_SECONDS,
    Connected,
    accept_higher,
    check_alive,
    tune,
)
from nuvec.distributed.transports.job import Job, Where, family, listen, retire, show
from nuvec.distributed.transports.wire import (
    Handshake,
    Identity,
    Peer,
    Refused,
    Stranger,
    connect_side,
)

__all__ = ["connect"]

_log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 2.0
"""How long whoever listens at a rank's address may fail to prove that it is that rank."""


def connect(job: Job) -> Connected:
    """Connect to all other ranks; returns a proven connection for each.

    Raises `ConfigurationError` for addresses that cannot be used and for ranks that were told
    different things (the secret, the world's size), and `PeerError` when a rank does not come
    within the job's timeout.
    """
    if not job.secret and not all(address.is_private() for address in job.addresses):
        raise ConfigurationError(
            "ranks on several hosts need a secret: set NUVEC_SECRET to the same random text "
            "everywhere, or NUVEC_SECRET_FILE to a file with mode 0600 that holds it"
        )
    if not job.secret:
        _log.warning(
            "no NUVEC_SECRET: any process of this machine could join this job as one of its ranks"
        )
    size = len(job.addresses)
    identity = Identity(job.secret, job.name, size, job.rank)
    deadline = time.monotonic() + job.timeout
    routes = {other: job.route(other) for other in range(size) if other != job.rank}
    listeners = list(job.listeners) or _listen_for(job, routes)
    connected: Connected = {}
    try:
        for other in range(job.rank):
            connected[other] = _reach(job, identity, other, routes[other], deadline, connected)
        accept_higher(job, identity, listeners, connected, deadline)
    except BaseException:
        for sock, _ in connected.values():
            sock.close()
        raise
    finally:
        for listener in listeners:
            retire(listener)
        own = job.addresses[job.rank].unix
        if own is not None:
            _remove_directory(os.path.dirname(own))
    return connected


# Listening.


def _listen_for(job: Job, routes: dict[int, Where]) -> list[socket.socket]:
    """The listening sockets that higher ranks will use."""
    own = job.addresses[job.rank]
    higher = [route for other, route in routes.items() if other > job.rank]
    listeners = []
    if own.unix is not None and any(isinstance(route, str) for route in higher):
        listeners.append(listen(own.unix, job.rank))
    if own.tcp is not None and any(not isinstance(route, str) for route in higher):
        listeners.append(listen(own.tcp, job.rank))
    return listeners


def _remove_directory(directory: str) -> None:
    # The last rank to be connected finds it empty. When a rank gets here every other rank has its
    # own socket in it or needs none any more, so it is not removed too early.
    try:
        os.rmdir(directory)
    except OSError:
        pass


# Reaching a lower rank.


def _reach(
    job: Job,
    identity: Identity,
    other: int,
    where: Where,
    deadline: float,
    connected: Connected,
) -> tuple[socket.socket, Peer]:
    pause = 0.005
    started = time.monotonic()
    warned = False
    rejected: float | None = None  # since when whoever listens there has been a stranger
    complaint = "nobody listens there"
    while True:
        sock = socket.socket(family(where), socket.SOCK_STREAM)
        try:
            left = deadline - time.monotonic()
            patience = max(0.01, min(left, job.warn_after - 0.1 if not warned else left))
            sock.settimeout(patience)
            tune(sock)
            sock.connect(where)
            if sock.family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
                raise OSError(errno.ECONNREFUSED, "connected to itself")
            peer = _run(sock, connect_side(identity, other), patience, connected)
            sock.setblocking(False)
            return sock, peer
        except (Refused, PeerError):
            sock.close()
            raise
        except Stranger as error:
            complaint = str(error)
            if rejected is None:
                rejected = time.monotonic()
                _log.warning(
                    "rank %d dropped its connection to %s (rank %d): %s",
                    job.rank,
                    show(where),
                    other,
                    error,
                )
            elif time.monotonic() - rejected > GIVE_UP_SECONDS:
                sock.close()
                raise ConfigurationError(
                    f"rank {job.rank} cannot join rank {other} at {show(where)}: {error}. "
                    "Both need the same NUVEC_SECRET (or NUVEC_SECRET_FILE) and NUVEC_JOB, or "
                    "the host file is stale and somebody else listens there"
                ) from None
        except TimeoutError:
            complaint = "somebody listens there but does not answer"
        except OSError as error:
            complaint = error.strerror or str(error)
            rejected = None
        except BaseException:
            sock.close()
            raise
        sock.close()
        now = time.monotonic()
        if now >= deadline:
            raise PeerError(
                f"rank {job.rank} could not connect to rank {other} at {show(where)} within "
                f"{job.timeout:.0f} s (NUVEC_TIMEOUT): {complaint}"
            )
        if not warned and now - started >= job.warn_after - 0.2:
            warned = True
            _log.warning(
                "rank %d has tried to connect to rank %d at %s for %.0f s: %s",
                job.rank,
                other,
                show(where),
                now - started,
                complaint,
            )
        check_alive(connected)
        time.sleep(min(pause, max(0.0, deadline - now)))
        pause = min(pause * 1.5, 0.25)


def _run(sock: socket.socket, handshake: Handshake, patience: float, connected: Connected) -> Peer:
    """Drive a handshake over a socket; looks after those already connected meanwhile."""
    until = time.monotonic() + patience
    sock.settimeout(min(patience, LOOK_SECONDS))
    wanted = next(handshake)
    while True:
        try:
            if isinstance(wanted, bytes):
                sock.sendall(wanted)
                wanted = next(handshake)
            else:
                wanted = handshake.send(_receive_exactly(sock, wanted, until, connected))
        except StopIteration as stop:
            peer: Peer = stop.value
            return peer


def _receive_exactly(sock: socket.socket, count: int, until: float, connected: Connected) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = sock.recv(count - len(data))
        except TimeoutError:
            check_alive(connected)
            if time.monotonic() >= until:
                raise
            continue
        if not more:
            raise Stranger(
                "the other end hung up during the handshake (another secret, or another program)"
            )
        data += more
    return data

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
import select
import socket
import time
from collections.abc import Callable, Iterable

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.transports._accept import (
    LOOK_SECONDS,
    Acceptor,
    Connected,
    check_alive,
    higher_ranks,
    tune,
)
from nuvec.distributed.transports._checked import LONGEST_WAIT
from nuvec.distributed.transports.job import Job, Where, family, listen, retire, show
from nuvec.distributed.transports.wire import (
    Handshake,
    Identity,
    Peer,
    Stranger,
    Wiring,
    connect_side,
)

__all__ = ["check_secret", "connect", "reach", "remove_directory", "stop_accepting"]

_log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 2.0
"""How long whoever listens at a rank's address may fail to prove that it is that rank."""


Meanwhile = Callable[[float, socket.socket | None], None]
"""``meanwhile(seconds, sock)`` waits: so long, or until the socket has something to read."""


def connect(job: Job, wiring: Wiring = Wiring.MESH) -> Connected:
    """Connect to all other ranks; returns a proven connection for each.

    wiring -- what for, alike on all ranks

    Raises `ConfigurationError` for addresses that cannot be used and for ranks that were told
    different things (the secret, the world's size, the wiring), and `PeerError` when a rank does
    not come within the job's timeout.
    """
    check_secret(job)
    size = len(job.addresses)
    identity = Identity(job.secret, job.name, size, job.rank, wiring)
    deadline = time.monotonic() + job.timeout
    routes = {other: job.route(other) for other in range(size) if other != job.rank}
    listeners = list(job.listeners) or _listen_for(job, routes)
    connected: Connected = {}
    acceptor = Acceptor(job, identity, listeners, higher_ranks(job), connected)
    try:
        for other in range(job.rank):
            # Higher ranks are let in meanwhile, and told at once if they do not belong here.
            connected[other] = reach(
                job, identity, other, routes[other], deadline, connected, meanwhile=acceptor.step
            )
        acceptor.run(deadline)
    except BaseException:
        for sock, _ in connected.values():
            sock.close()
        raise
    finally:
        stop_accepting(job, acceptor, listeners)
    return connected


def stop_accepting(job: Job, acceptor: Acceptor, listeners: Iterable[socket.socket]) -> None:
    """Listen no longer, and leave nothing of it in the file system."""
    acceptor.close()
    for listener in listeners:
        retire(listener)
    own = job.addresses[job.rank].unix
    if own is not None:
        remove_directory(os.path.dirname(own))


def check_secret(job: Job) -> None:
    """Raise `ConfigurationError` where a secret is needed and there is none; warn where none is."""
    if not job.secret and not all(address.is_private() for address in job.addresses):
        raise ConfigurationError(
            "ranks on several hosts need a secret: set NUVEC_SECRET to the same random text "
            "everywhere, or NUVEC_SECRET_FILE to a file with mode 0600 that holds it"
        )
    if not job.secret and len(job.addresses) > 1 and any(a.unix is None for a in job.addresses):
        _log.warning(
            "no NUVEC_SECRET: any process of this machine could join this job as one of its ranks"
        )


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


def remove_directory(directory: str) -> None:
    """Remove the directory of a job's Unix sockets, if none is left in it."""
    # The last rank to be connected finds it empty. When a rank gets here every other rank has its
    # own socket in it or needs none any more, so it is not removed too early.
    try:
        os.rmdir(directory)
    except OSError:
        pass


# Reaching a lower rank.


def reach(
    job: Job,
    identity: Identity,
    other: int,
    where: Where,
    deadline: float,
    connected: Connected,
    channel: int = 0,
    meanwhile: Meanwhile | None = None,
) -> tuple[socket.socket, Peer]:
    """A proven connection to rank `other`, tried again and again until it is there.

    channel   -- which of the sockets between the two ranks it is
    meanwhile -- what to do while waiting, instead of looking after those of `connected`
    """
    if meanwhile is None:
        meanwhile = _looking_after(connected)
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
            sock.settimeout(min(patience, LONGEST_WAIT))
            tune(sock)
            sock.connect(where)
            if sock.family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
                raise OSError(errno.ECONNREFUSED, "connected to itself")
            peer = _run(sock, connect_side(identity, other, channel), patience, meanwhile)
            return sock, peer
        except (ConfigurationError, PeerError):
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
        meanwhile(min(pause, max(0.0, deadline - now)), None)
        pause = min(pause * 1.5, 0.25)


def _looking_after(connected: Connected) -> Meanwhile:
    def look(seconds: float, also: socket.socket | None) -> None:
        check_alive(connected)
        select.select([] if also is None else [also], [], [], min(seconds, LOOK_SECONDS))

    return look


def _run(sock: socket.socket, handshake: Handshake, patience: float, meanwhile: Meanwhile) -> Peer:
    """Drive a handshake over a socket."""
    until = time.monotonic() + patience
    sock.setblocking(False)  # waiting is up to `meanwhile`
    wanted = next(handshake)
    while True:
        try:
            if isinstance(wanted, bytes):
                sock.sendall(wanted)  # a fresh connection has room for these few bytes
                wanted = next(handshake)
            else:
                wanted = handshake.send(_receive_exactly(sock, wanted, until, meanwhile))
        except StopIteration as stop:
            peer: Peer = stop.value
            return peer


def _receive_exactly(sock: socket.socket, count: int, until: float, meanwhile: Meanwhile) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = sock.recv(count - len(data))
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError from None
            meanwhile(left, sock)
            continue
        if not more:
            raise Stranger(
                "the other end hung up during the handshake (another secret, or another program)"
            )
        data += more
    return data

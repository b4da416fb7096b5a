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
import selectors
import socket
import time
from collections.abc import Sequence

from nuvec.core.errors import ConfigurationError, PeerError
from nuvec.distributed.transports.job import Job, Where, family, listen, retire, show
from nuvec.distributed.transports.wire import (
    Handshake,
    Identity,
    Peer,
    Refused,
    Stranger,
    accept_side,
    connect_side,
)

__all__ = ["connect"]

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long somebody who has connected may take to prove who they are."""

MAX_UNPROVEN = 128
"""How many unproven connections are kept; the oldest goes first."""

LOOK_SECONDS = 0.25
"""How often a starting rank looks whether those already connected are still there."""

Connected = dict[int, tuple[socket.socket, Peer]]
"""Proven connections, by rank."""

_SOCKET_BUFFER = 1 << 21


def connect(job: Job) -> Connected:
    """Connect to all other ranks; returns a proven connection for each.

    Raises `ConfigurationError` for addresses that cannot be used and `PeerError` when a rank does
    not come within the job's timeout.
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
        _accept_higher(job, identity, listeners, connected, deadline)
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
    complaint = "nobody listens there"
    while True:
        sock = socket.socket(family(where), socket.SOCK_STREAM)
        try:
            left = deadline - time.monotonic()
            patience = max(0.01, min(left, job.warn_after - 0.1 if not warned else left))
            sock.settimeout(patience)
            _tune(sock)
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
            _log.warning(
                "rank %d dropped its connection to %s (rank %d): %s",
                job.rank,
                show(where),
                other,
                error,
            )
        except TimeoutError:
            complaint = "somebody listens there but does not answer"
        except OSError as error:
            complaint = error.strerror or str(error)
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
        _check_alive(connected)
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
            _check_alive(connected)
            if time.monotonic() >= until:
                raise
            continue
        if not more:
            raise Stranger(
                "the other end hung up during the handshake (another secret, or another program)"
            )
        data += more
    return data


def _check_alive(connected: Connected) -> None:
    """A rank that died after it had connected would otherwise be missed only after start-up."""
    for rank, (sock, peer) in connected.items():
        try:
            gone = sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            continue
        except OSError:
            gone = True
        if gone:
            raise PeerError(
                f"rank {rank} (host {peer.host}, pid {peer.pid}) died or gave up while the job "
                "was starting"
            )


# Accepting higher ranks.


class _Unproven:
    """A connection whose other end has not yet proved who it is."""

    def __init__(self, sock: socket.socket, handshake: Handshake) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self._handshake = handshake
        self._wanted = 0
        self._data = b""
        self._proceed(None)

    def read(self) -> Peer | None:
        """Take what has arrived; the peer once it is proven. Raises `Stranger` or `OSError`."""
        more = self.sock.recv(self._wanted - len(self._data))
        if not more:
            raise Stranger("it hung up")
        self._data += more
        if len(self._data) < self._wanted:
            return None
        data, self._data = self._data, b""
        return self._proceed(data)

    def _proceed(self, data: bytes | None) -> Peer | None:
        try:
            step = next(self._handshake) if data is None else self._handshake.send(data)
            while isinstance(step, bytes):
                # A fresh connection always has room for these few bytes.
                if self.sock.send(step) != len(step):
                    raise Stranger("it does not read")
                step = next(self._handshake)
            self._wanted = step
            return None
        except StopIteration as stop:
            peer: Peer = stop.value
            return peer


def _accept_higher(
    job: Job,
    identity: Identity,
    listeners: Sequence[socket.socket],
    connected: Connected,
    deadline: float,
) -> None:
    size = len(job.addresses)
    taken = set(connected)
    unproven: dict[socket.socket, _Unproven] = {}
    started = time.monotonic()
    warned = False
    with selectors.DefaultSelector() as selector:

        def drop(sock: socket.socket, why: object) -> None:
            _log.warning("rank %d dropped a connection from %s: %s", job.rank, _who(sock), why)
            selector.unregister(sock)
            del unproven[sock]
            sock.close()

        for listener in listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
        try:
            while len(connected) < size - 1:
                now = time.monotonic()
                missing = [r for r in range(job.rank + 1, size) if r not in connected]
                if now >= deadline:
                    raise PeerError(
                        f"rank {job.rank} waited {job.timeout:.0f} s (NUVEC_TIMEOUT) for ranks "
                        f"{_where(job, missing)} to connect"
                    )
                _check_alive(connected)
                if not warned and now - started >= job.warn_after:
                    warned = True
                    _log.warning(
                        "rank %d has waited %.0f s for ranks %s to connect",
                        job.rank,
                        now - started,
                        _where(job, missing),
                    )
                for sock in [s for s, u in unproven.items() if now >= u.deadline]:
                    drop(sock, f"it did not prove itself within {HANDSHAKE_SECONDS:.0f} s")
                for key, _ in selector.select(min(LOOK_SECONDS, deadline - now)):
                    sock = key.fileobj  # type: ignore[assignment]
                    if sock not in unproven:
                        fresh = _accept_one(sock)
                        if fresh is None:
                            continue
                        if len(unproven) >= MAX_UNPROVEN:
                            drop(next(iter(unproven)), "too many unproven connections")
                        unproven[fresh] = _Unproven(fresh, accept_side(identity, taken))
                        selector.register(fresh, selectors.EVENT_READ)
                        continue
                    try:
                        peer = unproven[sock].read()
                    except BlockingIOError:
                        continue
                    except (Stranger, OSError) as error:
                        drop(sock, error)
                        continue
                    if peer is not None:
                        selector.unregister(sock)
                        del unproven[sock]
                        _tune(sock)
                        taken.add(peer.rank)
                        connected[peer.rank] = (sock, peer)
        finally:
            for sock in unproven:
                sock.close()


def _accept_one(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except OSError:  # gone again, or out of descriptors: the next round tries again
        return None


# Small things.


def _tune(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return
    # TCP sizes its own buffers better than a fixed number would; Unix sockets do not.
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
        except OSError:
            pass


def _where(job: Job, ranks: Sequence[int]) -> str:
    return ", ".join(f"{rank} (host {job.addresses[rank].host})" for rank in ranks)


def _who(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "somebody already gone"
    return show(name[:2]) if isinstance(name, tuple) else "a process of this machine"

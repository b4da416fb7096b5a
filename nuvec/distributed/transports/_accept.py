"""Accepting the higher ranks of a job, and dropping whoever is none of them."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Sequence

from nuvec.core.errors import PeerError
from nuvec.distributed.transports.job import Job, show
from nuvec.distributed.transports.wire import (
    Handshake,
    Identity,
    Peer,
    Stranger,
    accept_side,
)

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long somebody who has connected may take to prove who they are."""

MAX_UNPROVEN = 128
"""How many unproven connections are kept; the oldest goes first."""

MAX_CLAIMS = 256
"""How many different false claims are logged."""

LOOK_SECONDS = 0.25
"""How often a starting rank looks whether those already connected are still there."""

Connected = dict[int, tuple[socket.socket, Peer]]
"""Proven connections, by rank."""

_SOCKET_BUFFER = 1 << 21


def check_alive(connected: Connected) -> None:
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
            try:
                self._handshake.throw(Stranger("it hung up"))
            except StopIteration:
                pass
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


def accept_higher(
    job: Job,
    identity: Identity,
    listeners: Sequence[socket.socket],
    connected: Connected,
    deadline: float,
) -> None:
    size = len(job.addresses)
    taken = set(connected)
    unproven: dict[socket.socket, _Unproven] = {}
    claims: set[tuple[int, str]] = set()
    started = time.monotonic()
    warned = False
    with selectors.DefaultSelector() as selector:

        def drop(sock: socket.socket, why: object) -> None:
            # Who claims to be a rank comes again and again; it is said once.
            claim = getattr(why, "claim", None)
            if claim is None or ((claim, str(why)) not in claims and len(claims) < MAX_CLAIMS):
                _log.warning("rank %d dropped a connection from %s: %s", job.rank, _who(sock), why)
            if claim is not None and len(claims) < MAX_CLAIMS:
                claims.add((claim, str(why)))
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
                        + "".join(sorted(f"; {why}" for _, why in claims)[:4])
                    )
                check_alive(connected)
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
                        tune(sock)
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


def tune(sock: socket.socket) -> None:
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

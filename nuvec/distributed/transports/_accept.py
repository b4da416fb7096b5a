"""Accepting the higher ranks of a job, and dropping whoever is none of them."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence

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


Place = tuple[int, int]
"""A connection to come: the rank, and which of the sockets between the two it is."""


class Acceptor:
    """The connections that other ranks are to make to this one, taken in as they come.

    `step` takes in what is there, so that it can go on while this rank is busy with connections
    that it makes itself.
    """

    def __init__(
        self,
        job: Job,
        identity: Identity,
        listeners: Sequence[socket.socket],
        wanted: Mapping[Place, int],
        connected: Connected,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Fill `connected`: what comes at a place of `wanted` goes under the number given there.

        `look` is called again and again meanwhile; by default it looks whether those of `connected`
        are still there.
        """
        self._job, self._identity = job, identity
        self._wanted, self._connected = dict(wanted), connected
        self._look = look or (lambda: check_alive(connected))
        self._expected = {rank for rank, _ in wanted}
        self._taken: set[Place] = set()
        self._unproven: dict[socket.socket, _Unproven] = {}
        self._claims: set[tuple[int, str]] = set()
        self._selector = selectors.DefaultSelector()
        self._open = {listener for listener in listeners if self._wanted}
        for listener in self._open:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Drop who has not proved anything. The listeners are their owner's."""
        for sock in self._unproven:
            sock.close()
        self._selector.close()

    def run(self, deadline: float) -> None:
        """Return when all are there; `PeerError` at the deadline, which names who is not."""
        job = self._job
        started = time.monotonic()
        warned = False
        while len(self._taken) < len(self._wanted):
            now = time.monotonic()
            missing = sorted({rank for rank, _ in self._wanted.keys() - self._taken})
            if now >= deadline:
                raise PeerError(
                    f"rank {job.rank} waited {job.timeout:.0f} s (NUVEC_TIMEOUT) for ranks "
                    f"{_where(job, missing)} to connect"
                    + "".join(sorted(f"; {why}" for _, why in self._claims)[:4])
                )
            if not warned and now - started >= job.warn_after:
                warned = True
                _log.warning(
                    "rank %d has waited %.0f s for ranks %s to connect",
                    job.rank,
                    now - started,
                    _where(job, missing),
                )
            self.step(deadline - now)

    def step(self, seconds: float, also: socket.socket | None = None) -> None:
        """Wait for at most `seconds`, or until `also` has something to read, and take in what has
        come. Raises `PeerError` when one who had connected is gone again."""
        self._look()
        now = time.monotonic()
        for late in [s for s, u in self._unproven.items() if now >= u.deadline]:
            self._drop(late, f"it did not prove itself within {HANDSHAKE_SECONDS:.0f} s")
        if also is not None:
            self._selector.register(also, selectors.EVENT_READ)
        try:
            ready = self._selector.select(max(0.0, min(LOOK_SECONDS, seconds)))
        finally:
            if also is not None:
                self._selector.unregister(also)
        for key, _ in ready:
            sock: socket.socket = key.fileobj  # type: ignore[assignment]
            if sock in self._open:
                self._admit(sock)
            elif sock in self._unproven:
                self._hear(sock)

    def _admit(self, listener: socket.socket) -> None:
        fresh = _accept_one(listener)
        if fresh is None:
            return
        if len(self._unproven) >= MAX_UNPROVEN:
            self._drop(next(iter(self._unproven)), "too many unproven connections")
        handshake = accept_side(self._identity, self._taken, self._expected)
        self._unproven[fresh] = _Unproven(fresh, handshake)
        self._selector.register(fresh, selectors.EVENT_READ)

    def _hear(self, sock: socket.socket) -> None:
        try:
            peer = self._unproven[sock].read()
        except BlockingIOError:
            return
        except (Stranger, OSError) as error:
            self._drop(sock, error)
            return
        if peer is not None:
            self._selector.unregister(sock)
            del self._unproven[sock]
            tune(sock)
            place = (peer.rank, peer.channel)
            self._taken.add(place)
            self._connected[self._wanted[place]] = (sock, peer)

    def _drop(self, sock: socket.socket, why: object) -> None:
        # Who claims to be a rank comes again and again; it is said once.
        claim = getattr(why, "claim", None)
        known = claim is not None and (claim, str(why)) in self._claims
        if claim is None or (not known and len(self._claims) < MAX_CLAIMS):
            _log.warning(
                "rank %d dropped a connection from %s: %s", self._job.rank, _who(sock), why
            )
        if claim is not None and len(self._claims) < MAX_CLAIMS:
            self._claims.add((claim, str(why)))
        self._selector.unregister(sock)
        del self._unproven[sock]
        sock.close()


def higher_ranks(job: Job) -> dict[Place, int]:
    """Who connects to a rank of a mesh: every higher one, once."""
    return {(rank, 0): rank for rank in range(job.rank + 1, len(job.addresses))}


def accept_higher(
    job: Job,
    identity: Identity,
    listeners: Sequence[socket.socket],
    connected: Connected,
    deadline: float,
) -> None:
    """Accept every higher rank into `connected`."""
    acceptor = Acceptor(job, identity, listeners, higher_ranks(job), connected)
    try:
        acceptor.run(deadline)
    finally:
        acceptor.close()


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

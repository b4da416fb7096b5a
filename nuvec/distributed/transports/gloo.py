"""The gloo transport: torch.distributed's gloo, for programs that have torch anyhow.

The frames of the mesh travel as messages of a gloo process group that is this transport's own:
torch's default group is neither needed nor touched. gloo's own collectives are not used. Its sums
have no promised order and stop at torch's dtypes, a rank that makes another call hangs them, and a
message that is not awaited cannot be looked for. Its messages are what everything is made of, so
the bits and the errors are those of the mesh.

gloo has no authentication of its own. The ranks prove themselves to each other first, over the
sockets the mesh would use, and there learn where gloo's store is: at rank 0's address, bound to
that address alone. But whoever reaches the ports of gloo's own connections can speak there: use it
where no stranger does, on the network between hosts and on each host.
"""

from __future__ import annotations

import ctypes
import queue
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.distributed_c10d import ProcessGroupGloo

from nuvec.core.errors import DistributedError, PeerError
from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.distributed.transports._checked import LONGEST_WAIT
from nuvec.distributed.transports._leaving import LINGER_SECONDS
from nuvec.distributed.transports._link import Lost
from nuvec.distributed.transports._messages import SHORT, MessageLink, MessageLinks
from nuvec.distributed.transports.connect import connect
from nuvec.distributed.transports.job import Job, listen
from nuvec.distributed.transports.mesh import MeshCommunicator
from nuvec.distributed.transports.wire import HEADER, MAX_SPECS, Kind, Peer, Wiring, unpack_head

__all__ = ["GlooCommunicator", "gloo_communicator"]

_FRAME, _PAYLOAD, _READ, _NEVER = 1, 2, 3, 4
"""gloo's tags: a frame or its announcement, the payload of what was announced, the word that a last
frame has been read, and what nobody sends."""

BLOCK = 1 << 12
"""gloo's receivers have to know a message's length: the first this many bytes of a frame are one
message, which says how long the frame is, and what is left is another."""

MAX_FRAME = HEADER.size + MAX_SPECS + SHORT
"""The longest frame, or announcement of one, that there can be."""

UNREAPED = 32
"""So many frames that are sent and not known to have been are looked after together."""

_FOREVER = timedelta(days=365)
"""When to stop waiting for the library; this transport has limits of its own."""

_LENGTH = struct.Struct("<I")
_STORE = struct.Struct("<I32s")


class GlooLink(MessageLink):
    """The messages to and from one rank of a gloo process group.

    What gloo has begun it finishes on threads of its own, but it says so only to who waits. So a
    thread waits for what the peer sends, and another one for what is sent to it.
    """

    def __init__(self, peer: Peer, group: ProcessGroupGloo, inbox: _Inbox) -> None:
        super().__init__(peer)
        self._group = group
        self._inbox = inbox
        self._unreaped: deque[Any] = deque()
        self._told_sent = 0
        self._sent: queue.SimpleQueue[tuple[list[Any], bool]] = queue.SimpleQueue()
        self._places: queue.SimpleQueue[memoryview[Any]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=run, name=f"nuvec gloo {peer.rank}", daemon=True)
            for run in (self._read_frames, self._await_sent)
        ]
        for thread in self._threads:
            thread.start()

    # Sending, on the caller's thread.

    def _send(self, message: bytes) -> None:
        block = np.zeros(BLOCK, np.uint8)
        first = _LENGTH.pack(len(message)) + message[: BLOCK - _LENGTH.size]
        block[: len(first)] = np.frombuffer(first, np.uint8)
        self._post_send(_FRAME, block)
        if len(message) > BLOCK - _LENGTH.size:
            rest = np.frombuffer(message, np.uint8, offset=BLOCK - _LENGTH.size)
            self._post_send(_FRAME, rest.copy())
        if len(self._unreaped) > UNREAPED:
            self._reap(tell=False)

    def _send_payload(self, payload: memoryview[Any]) -> None:
        for chunk in self.chunks(payload):
            self._post_send(_PAYLOAD, np.frombuffer(chunk, np.uint8))
        self._reap(tell=True)

    def _post_send(self, tag: int, data: Buffer) -> None:
        try:
            work = self._group.send([_tensor(data)], self.peer.rank, tag)
        except RuntimeError:
            # Not raised here: what the peer said before it went is still to be read.
            self.unwritable = True
        else:
            self._unreaped.append((work, data))

    def _reap(self, tell: bool) -> None:
        """Have a thread wait for what was sent; with `tell`, it is pending until then."""
        batch = list(self._unreaped)
        self._unreaped.clear()
        if tell:
            self.pending.append(batch)
        self._sent.put((batch, tell))

    # Threads of this link; all they know they put into the inbox.

    def _await_sent(self) -> None:
        try:
            while True:
                batch, tell = self._sent.get()
                for work, _ in batch:
                    work.wait(_FOREVER)
                if tell:
                    self._inbox.put((self, "sent", b""))
                if not (batch or tell):
                    return
        except RuntimeError:
            self._inbox.put((self, "unwritable", b""))

    def _read_frames(self) -> None:
        block = np.empty(BLOCK, np.uint8)
        try:
            while True:
                self._await(_FRAME, block)
                (length,) = _LENGTH.unpack(block[: _LENGTH.size].tobytes())
                if length > MAX_FRAME:
                    raise DistributedError(f"malformed stream: a frame of {length} bytes")
                message = bytearray(length)
                view = np.frombuffer(message, np.uint8)
                view[: BLOCK - _LENGTH.size] = block[_LENGTH.size : _LENGTH.size + length]
                if length > BLOCK - _LENGTH.size:
                    self._await(_FRAME, view[BLOCK - _LENGTH.size :])
                head = unpack_head(message, 0)
                self._inbox.put((self, "frame", message))
                if head.kind in (Kind.BYE, Kind.ABORT):  # its last frame
                    self._group.send([_tensor(block)], self.peer.rank, _READ).wait(_FOREVER)
                    return
                if length < HEADER.size + head.specs_length + head.payload_length:
                    for chunk in self.chunks(self._places.get()):
                        self._await(_PAYLOAD, np.frombuffer(chunk, np.uint8))
                    self._inbox.put((self, "payload", b""))
        except RuntimeError as error:
            self._inbox.put((self, "lost", _reason(error)))

    def _await(self, tag: int, data: Buffer) -> None:
        self._group.recv([_tensor(data)], self.peer.rank, tag).wait(_FOREVER)

    # On the caller's thread again.

    def _take_payload(self, target: memoryview[Any]) -> None:
        self._places.put(target)

    def _settle(self, count: int) -> None:
        while self.pending and self.payloads_sent - len(self.pending) < count:
            self.pending.popleft()

    def take(self, what: str, data: Any) -> None:
        """What one of the threads has put into the inbox."""
        if what == "frame":
            self.arrived(data)
        elif what == "payload":
            self.payload_taken()
        elif what == "sent":
            self.last_active = time.monotonic()
            self._told_sent += 1
            self._settle(self._told_sent)
        elif what == "unwritable":
            # No error by itself, as in `_post_send`.
            self.unwritable = True
            self.pending.clear()
        else:
            self.ended = True
            if not self.left:
                raise Lost(self, data)

    # Leaving.

    def await_read(self, seconds: float) -> None:
        """Wait until the peer has read this rank's last frame."""
        try:
            self._group.recv([_tensor(np.empty(BLOCK, np.uint8))], self.peer.rank, _READ).wait(
                timedelta(seconds=seconds)
            )
        except RuntimeError:  # it is gone, or too busy to read
            pass

    def end(self) -> None:
        """End the connection, and with it the threads."""
        try:
            # Where a wait takes too long gloo ends all that the group has begun. Nothing else does,
            # and a thread that is still waiting when the interpreter ends takes the process down.
            nothing = _tensor(np.empty(BLOCK, np.uint8))
            self._group.recv([nothing], self.peer.rank, _NEVER).wait(timedelta(milliseconds=1))
        except RuntimeError:
            pass
        self._sent.put(([], False))
        self._places.put(memoryview(b""))
        for thread in self._threads:
            thread.join(LINGER_SECONDS)
        self._unreaped.clear()
        del self._group  # with the last of its links it stops listening


_Inbox = queue.SimpleQueue[tuple[GlooLink, str, Any] | None]


class GlooLinks(MessageLinks):
    """One rank's messages to and from all others of a gloo process group."""

    def __init__(self, job: Job, group: ProcessGroupGloo, peers: dict[int, Peer]) -> None:
        self._inbox: _Inbox = queue.SimpleQueue()
        self._all = {rank: GlooLink(peer, group, self._inbox) for rank, peer in peers.items()}
        super().__init__(job.rank, self._all, job.timeout, job.warn_after)

    def _progress(self, seconds: float) -> bool:
        try:
            item = self._inbox.get(timeout=seconds) if seconds > 0 else self._inbox.get_nowait()
            while item is not None:
                link, what, data = item
                link.take(what, data)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return not self._poller.poll(0)
        return False

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._inbox.put(None)  # wakes who waits, to look who asked for it

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        # That a send is over is no help here (and one to a peer that goes may never be, for gloo).
        deadline = time.monotonic() + LINGER_SECONDS
        for link in self._all.values():
            if not (link.ended or link.left):
                link.await_read(max(0.001, deadline - time.monotonic()))
        for link in self._all.values():
            link.end()


class GlooCommunicator(MeshCommunicator):
    """One rank's end of a gloo process group, or of a group split from it (which shares it)."""

    # A payload passes between four threads on its way, which takes longer than to read 1 MB.
    part_bytes = 1 << 22

    @property
    def name(self) -> str:
        return "gloo"

    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        return GlooCommunicator(self._links, rank, members, group)


def gloo_communicator(job: Job) -> GlooCommunicator:
    """Connect to every other rank of `job`; returns when all connections stand.

    Raises as `connect` does, and `PeerError` where gloo itself cannot connect.
    """
    size = len(job.addresses)
    sockets = connect(job, Wiring.GLOO)
    timeout = timedelta(seconds=min(job.timeout, LONGEST_WAIT))
    try:
        own = job.addresses[job.rank].tcp
        address = "127.0.0.1" if own is None else own[0]
        store = _store(job, address, sockets, timeout)
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timeout
        group = ProcessGroupGloo(store, job.rank, size, options)
        if size > 1:
            # Nobody needs the store any more once everybody is connected to everybody.
            group.barrier().wait()
    except (RuntimeError, OSError) as error:
        raise PeerError(
            f"rank {job.rank} could not connect to the other {size - 1} ranks by gloo: "
            f"{_reason(error)}"
        ) from None
    finally:
        for sock, _ in sockets.values():
            sock.close()
    links = GlooLinks(job, group, {rank: peer for rank, (_, peer) in sockets.items()})
    return GlooCommunicator(links, job.rank, range(size), 0)


def _store(
    job: Job, address: str, sockets: dict[int, tuple[socket.socket, Peer]], timeout: timedelta
) -> PrefixStore:
    """gloo's store: rank 0 has it, and tells the others where, and the name of its part of it."""
    if job.rank == 0:
        listener = listen((address, 0))
        port = listener.getsockname()[1]
        token = secrets.token_hex(16).encode()
        store = TCPStore(
            address, port, is_master=True, wait_for_workers=False, timeout=timeout,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
        for sock, _ in sockets.values():
            sock.setblocking(True)
            sock.sendall(_STORE.pack(port, token))
    else:
        sock = sockets[0][0]
        sock.settimeout(timeout.total_seconds())
        data = b""
        while len(data) < _STORE.size:
            more = sock.recv(_STORE.size - len(data))
            if not more:
                raise PeerError(f"rank 0 left while rank {job.rank} was connecting to it by gloo")
            data += more
        port, token = _STORE.unpack(data)
        there = job.addresses[0].tcp
        store = TCPStore(
            "127.0.0.1" if there is None else there[0], port, is_master=False, timeout=timeout,
            wait_for_workers=False,
        )  # fmt: skip
    return PrefixStore(f"nuvec-{token.decode()}", store)


def _tensor(data: Buffer) -> torch.Tensor:
    """The memory of an array of bytes as a tensor, which torch makes of writeable ones only."""
    if not data.flags.writeable:
        memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
        data = np.ctypeslib.as_array(memory)
    return torch.from_numpy(data)


def _reason(error: Exception) -> str:
    """What gloo says, without the place in its source."""
    return str(error).partition("] ")[2] or str(error)

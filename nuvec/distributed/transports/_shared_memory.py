"""A segment of memory that the ranks of one host share, and that has no name.

The lowest rank of the host makes it (`memfd_create`) and passes its descriptor to the others over
their Unix sockets, so only they can have it, and it is gone when the last of them is: nothing is
ever left in /dev/shm. Its pages are allocated before anybody maps it and its size is sealed then:
where there is no room, that is an error at start-up and not a SIGBUS later.

Each rank has an area of it that it alone writes: words and boxes that say what it is at, and a ring
of slots. The chunks that a rank communicates get the slots in turn, over all its groups. A rank
that waits for others' words does so in its poll, which their eventfd ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import platform
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence

import numpy as np

from nuvec.core.errors import PeerError
from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._accept import LOOK_SECONDS, Connected, check_alive
from nuvec.distributed.transports._outputs import Outputs
from nuvec.distributed.transports._signals import Awake
from nuvec.distributed.transports.job import Job

_log = logging.getLogger(__name__)

SLOTS = 4
"""Slots of a rank: a chunk is reduced and the one before it copied out while the next is written;
the fourth is the one that a slower rank may still be reading."""

SLOT_BYTES = 1 << 21
"""A chunk: enough to pay for a synchronisation; larger ones gain nothing more."""

_PAGE = 4096
"""Each rank has a page of words and boxes, before all slots."""

_FINISHED, _PROGRESS, _SLEEPS = 0, 64, 128
_BOXES = (192, 2144)
"""Where a call is announced: in turn, for a slower rank may still look at the last one."""

_POSITION_LENGTH = struct.Struct("<QQ")
_BOX_HEAD = 8 + _POSITION_LENGTH.size
MAX_CALL = _BOXES[1] - _BOXES[0] - _BOX_HEAD
"""The longest description of a call that can be announced."""

_ORDERED_STORES = ("x86_64", "AMD64", "i686")
_MAX_FDS = 253
"""What Linux passes on at once."""

_PASSED, _FAILED = b"+", b"-"
_REASON_BYTES = 200


class SharedMemory:
    """One rank's view of the segment, and what the rank knows of its use."""

    def __init__(self, fds: Sequence[int], rank: int, ranks: Sequence[int]) -> None:
        """Map the segment of `ranks` (of the job, ascending); raises `OSError` if that fails.

        `fds` are the segment's descriptor and those of the doorbells, an eventfd a rank. They are
        this object's if it comes to be.
        """
        fd, *bells = fds
        self.rank = rank
        self.position = 0
        """How many chunks this rank has had: chunk n is in slot n % SLOTS."""
        self.readers: dict[int, int] = {}
        """Who read this rank's last chunks, and the position each has when done with that."""
        self.readers_group = 0
        self.awake = Awake()
        self.outputs = Outputs()
        self.polled = 0.0
        """When this rank last looked at its sockets."""
        self._places = {member: index for index, member in enumerate(ranks)}
        size = _size(len(ranks))
        if os.fstat(fd).st_size != size or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS:
            raise OSError("the segment is not what was expected")
        self._map: mmap.mmap | None = mmap.mmap(fd, size)
        os.close(fd)
        self._bells = bells
        self._fence = threading.Lock()
        self._bytes = memoryview(self._map)[: len(ranks) * _PAGE]
        self.words = self._bytes.cast("Q")
        """The control words; each is written by one rank only."""
        slots = np.frombuffer(self._map, np.uint8, offset=len(ranks) * _PAGE)
        self._slots = slots.reshape(len(ranks), SLOTS, SLOT_BYTES)
        self._mine = self._places[rank] * _PAGE

    def joins(self, ranks: Iterable[int]) -> bool:
        """Whether all of `ranks` have the segment."""
        return all(rank in self._places for rank in ranks)

    def slot(self, rank: int, position: int) -> Buffer:
        """The bytes of a rank's chunk."""
        return self._slots[self._places[rank], position % SLOTS]  # type: ignore[no-any-return]

    # What a rank says to the others. Each writes the word that says so last: the processors this is
    # used on show a rank's stores to others in the order it made them.

    def announce(self, group: int, seq: int, call: bytes) -> None:
        """Say that this rank has begun a call, at its present position."""
        at = self._mine + _BOXES[seq % 2]
        end = at + _BOX_HEAD + len(call)
        self._bytes[at + 8 : end] = _POSITION_LENGTH.pack(self.position, len(call)) + call
        self.words[at // 8] = call_token(group, seq)

    def announced_word(self, rank: int, seq: int) -> int:
        """The index of the word that is the call's token once the rank has announced it."""
        return (self._places[rank] * _PAGE + _BOXES[seq % 2]) // 8

    def announced(self, rank: int, seq: int) -> tuple[int, bytes]:
        """The position at which a rank began the call it has announced, and the call."""
        at = self._places[rank] * _PAGE + _BOXES[seq % 2]
        position, length = _POSITION_LENGTH.unpack_from(self._bytes, at + 8)
        at += _BOX_HEAD
        return position, bytes(self._bytes[at : at + min(length, MAX_CALL)])

    def proceed(self, position: int) -> None:
        """Say how far this rank is; positions only grow."""
        self.words[(self._mine + _PROGRESS) // 8] = position

    def progress_word(self, rank: int) -> int:
        """The index of the word that says how far a rank is."""
        return (self._places[rank] * _PAGE + _PROGRESS) // 8

    def finish(self) -> None:
        """Say that this rank reads none of the chunks it has been told of any more."""
        self.words[(self._mine + _FINISHED) // 8] = self.position

    def still_reading(self) -> list[int]:
        """The ranks that may still read this rank's last chunks."""
        places = ((rank, end, self._places[rank]) for rank, end in self.readers.items())
        return [r for r, end, place in places if self.words[place * _PAGE // 8] < end]

    # Doorbells: they end the poll of a rank that waits. It says that it does and then looks once
    # more for what it waits for; the others say that and then look whether it waits. What each
    # writes has to reach the others before it looks, which a lock's instruction sees to.

    def sleep(self, sleeps: bool) -> None:
        """Say whether this rank waits in a poll; look once more before it does."""
        self.words[(self._mine + _SLEEPS) // 8] = sleeps
        with self._fence:
            pass

    def wake(self, ranks: Iterable[int]) -> None:
        """Wake those who wait in a poll for what this rank has just said."""
        with self._fence:
            pass
        for rank in ranks:
            place = self._places[rank]
            if self.words[(place * _PAGE + _SLEEPS) // 8]:
                os.eventfd_write(self._bells[place], 1)

    @property
    def bell(self) -> int:
        """The descriptor that can be read when this rank's doorbell was rung."""
        return self._bells[self._places[self.rank]]

    def heard(self) -> None:
        """Reset this rank's doorbell."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            pass

    @property
    def closed(self) -> bool:
        """Whether this rank has let go of the segment."""
        return self._map is None

    def close(self) -> None:
        """Let go of the segment and the doorbells. Harmless when done twice."""
        if self._map is None:
            return
        self.outputs.clear()
        self.words.release()
        self._bytes.release()
        del self._slots
        try:
            self._map.close()
        except BufferError:  # the traceback of an error still has a view, and the mapping with it
            pass
        self._map = None
        for fd in self._bells:
            os.close(fd)


def call_token(group: int, seq: int) -> int:
    """A number for a call of a group, never 0; others' are different, but for chance."""
    return (group * 0x9E3779B97F4A7C15 + seq + 1) % (1 << 64) or 1


_SEALS = fcntl.F_SEAL_SHRINK if hasattr(fcntl, "F_SEAL_SHRINK") else 0


def _size(ranks: int) -> int:
    return ranks * (_PAGE + SLOTS * SLOT_BYTES)


def _create(ranks: int) -> list[int]:
    """A segment with its memory, and the doorbells: their descriptors. Raises `OSError`."""
    if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
        raise OSError("this system has no memfd_create or no eventfd")
    if platform.machine() not in _ORDERED_STORES:
        raise OSError(f"a {platform.machine()} processor may reorder what ranks write")
    if ranks >= _MAX_FDS:
        raise OSError(f"{ranks} ranks on one host are too many")
    fds = [os.memfd_create("nuvec", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)]
    try:
        size = _size(ranks)
        os.ftruncate(fds[0], size)
        os.posix_fallocate(fds[0], 0, size)
        fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        for _ in range(ranks):
            fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    except BaseException:
        _close(fds)
        raise
    return fds


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def share(job: Job, connected: Connected) -> SharedMemory | None:
    """Share memory with the ranks reached through Unix sockets; before anything else is sent.

    Returns None if there are none, or if any of them cannot map the segment: then all do without,
    and the lowest rank logs why. Raises `PeerError`, and closes the connections, when one of them
    dies or falls silent.
    """
    local = [rank for rank, (sock, _) in connected.items() if sock.family == socket.AF_UNIX]
    ranks = sorted([job.rank, *local])
    if not local:
        return None
    try:
        memory, reason = _mapped(job, connected, ranks)
        verdict = _agree(job, connected, ranks, reason)
    except BaseException:
        for sock, _ in connected.values():
            sock.close()
        raise
    if not verdict:
        return memory
    if memory is not None:
        memory.close()
    if job.rank == ranks[0]:
        _log.warning(
            "ranks %s have no shared memory and communicate through sockets, which is slower: %s",
            ", ".join(map(str, ranks)),
            verdict,
        )
    return None


def _mapped(
    job: Job, connected: Connected, ranks: Sequence[int]
) -> tuple[SharedMemory | None, str]:
    """Make the segment or take it from the lowest rank, and map it; or why that cannot be."""
    fds: list[int] = []
    try:
        if job.rank == ranks[0]:
            fds = _offer([connected[rank][0] for rank in ranks[1:]])
        else:
            fds = _take(job, connected, ranks)
        return SharedMemory(fds, job.rank, ranks), ""
    except (OSError, ValueError) as error:  # a ValueError where a size is beyond what fits
        _close(fds)
        return None, f"rank {job.rank}: {getattr(error, 'strerror', None) or error}"
    except BaseException:
        _close(fds)
        raise


def _offer(others: Sequence[socket.socket]) -> list[int]:
    """Make the segment and pass it on; raises `OSError` once the others know that it cannot be."""
    try:
        fds = _create(len(others) + 1)
    except OSError:
        for sock in others:
            _send(sock, _FAILED)
        raise
    for sock in others:
        try:
            socket.send_fds(sock, [_PASSED], fds)
        except OSError as error:  # too many on their way; or gone, and will be missed soon
            if error.errno == errno.ETOOMANYREFS:
                _send(sock, _FAILED)
    return fds


def _take(job: Job, connected: Connected, ranks: Sequence[int]) -> list[int]:
    """The descriptors that the lowest rank passes on; `OSError` if it has none."""
    leader = ranks[0]
    _await(job, connected, leader)
    sock = connected[leader][0]
    try:
        data, fds, _, _ = socket.recv_fds(sock, 1, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        data, fds = b"", []
    if len(fds) == len(ranks) + 1:
        return fds
    _close(fds)
    if not data:
        raise _gone(connected, leader)
    if data == _PASSED:
        raise OSError("no descriptors are free")
    raise OSError(f"rank {leader} could not make it")


def _agree(job: Job, connected: Connected, ranks: Sequence[int], reason: str) -> str:
    """Whether all have it: nothing, or the first reason why not, the same on every rank."""
    leader, *others = ranks
    if job.rank != leader:
        _send(connected[leader][0], _pad(reason))
        return _read(job, connected, leader)
    reasons = [reason, *(_read(job, connected, rank) for rank in others)]
    verdict = next(filter(None, reasons), "")
    for rank in others:
        _send(connected[rank][0], _pad(verdict))
    return verdict


def _pad(reason: str) -> bytes:
    return reason.encode()[:_REASON_BYTES].ljust(_REASON_BYTES, b"\0")


def _read(job: Job, connected: Connected, rank: int) -> str:
    data = b""
    while len(data) < _REASON_BYTES:
        _await(job, connected, rank)
        try:
            more = connected[rank][0].recv(_REASON_BYTES - len(data))
        except ConnectionError:
            more = b""
        if not more:
            raise _gone(connected, rank)
        data += more
    return data.rstrip(b"\0").decode(errors="replace")


def _send(sock: socket.socket, data: bytes) -> None:
    """Send to a fresh connection, which has room; one that has gone is missed at the next read."""
    try:
        sock.send(data)
    except OSError:
        pass


def _await(job: Job, connected: Connected, rank: int) -> None:
    """Wait until there is something to read from a rank, and look after the others meanwhile."""
    sock, peer = connected[rank]
    deadline = time.monotonic() + job.timeout
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(1000 * min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
        check_alive(connected)
        if time.monotonic() >= deadline:
            raise PeerError(
                f"rank {job.rank} waited {job.timeout:.0f} s (NUVEC_TIMEOUT) for rank {rank} "
                f"(host {peer.host}, pid {peer.pid}) to share memory"
            )


def _gone(connected: Connected, rank: int) -> PeerError:
    peer = connected[rank][1]
    return PeerError(
        f"rank {rank} (host {peer.host}, pid {peer.pid}) died or gave up while the job was starting"
    )

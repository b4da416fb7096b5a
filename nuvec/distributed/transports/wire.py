"""The wire: frames, and the handshake that every connection starts with.

A frame is a fixed header, then the description of its arrays (dtype, rank and shape of each), then
their bytes. Every field is checked before it is used. Nothing here allocates by a number that came
from a peer who has not proved that it knows the job's secret, and nothing is unpickled or
evaluated.

The handshake is a mutual challenge-response with HMAC-SHA256 over the job's secret. Both ends
prove that they know it, over both nonces, both ranks, the world's size and the job's name, so a
recorded handshake is worth nothing in another job or for another rank. It is written as
generators that do no input or output themselves: they yield bytes to send, or the number of bytes
they need next.

It says who is at the other end. The frames that follow are neither encrypted nor signed, so between
hosts the network itself has to be one that others cannot read or change.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from nuvec.core.errors import ConfigurationError, DistributedError
from nuvec.distributed.transports._call import Op

__all__ = [
    "HEADER",
    "Handshake",
    "Head",
    "Identity",
    "Kind",
    "Peer",
    "Stranger",
    "Wiring",
    "accept_side",
    "connect_side",
    "pack_head",
    "unpack_head",
]

MAGIC = b"nuvW"
VERSION = 1


class Kind(IntEnum):
    """What a frame is for."""

    COLLECTIVE = 1
    POINT_TO_POINT = 2
    BYE = 3
    ABORT = 4
    WAITING = 5
    BLOCKED = 6


class Head(NamedTuple):
    """A frame's header, checked."""

    kind: int
    op: int
    peer: int
    """As in `Call`; in an ABORT frame, whether the reason is a mismatch."""
    step: int
    """The frame's place in its collective: 0 announces the call, the others only carry data."""
    group: int
    seq: int
    specs_length: int
    payload_length: int


HEADER = struct.Struct("<4sBBBxiIQQI4xQ")
MAX_SPECS = 1 << 24
MAX_PAYLOAD = 1 << 46
MAX_REASON = 1 << 14
_KINDS = frozenset(int(kind) for kind in Kind)
_OPS = frozenset([0, *(int(op) for op in Op)])


def pack_head(
    kind: int, op: int, peer: int, step: int, group: int, seq: int, specs: int, payload: int
) -> bytes:
    """The header of a frame whose description and payload have these lengths."""
    return HEADER.pack(MAGIC, VERSION, kind, op, peer, step, group, seq, specs, payload)


def unpack_head(buffer: bytearray, offset: int) -> Head:
    """Read and check a header; raises `DistributedError` where it is not one."""
    magic, version, *fields = HEADER.unpack_from(buffer, offset)
    head = Head._make(fields)
    if magic != MAGIC or version != VERSION:
        raise DistributedError(f"malformed frame: magic {magic!r}, version {version}")
    if (
        head.kind not in _KINDS
        or head.op not in _OPS
        or head.specs_length > MAX_SPECS
        or head.payload_length > (MAX_PAYLOAD if head.kind <= 2 else MAX_REASON)
    ):
        raise DistributedError(f"malformed frame: {head}")
    return head


# The handshake.


class Stranger(Exception):
    """The other end is not a rank of this job (or does not speak this protocol)."""

    def __init__(self, why: str, claim: int | None = None) -> None:
        """`claim` is the rank it said it was."""
        super().__init__(why)
        self.claim = claim


class Wiring(IntEnum):
    """Which ranks connect to which, and what for."""

    MESH = 0
    RING = 1
    GLOO = 2


@dataclass(frozen=True)
class Identity:
    """What a rank needs to prove itself, and what both ends of a connection must have alike."""

    secret: bytes = field(repr=False)
    job: str
    world: int
    rank: int
    wiring: Wiring = Wiring.MESH
    channels: int = 1
    """How many sockets there are between two neighbours."""


class Peer(NamedTuple):
    """Who is at the other end of a connection."""

    rank: int
    host: str
    pid: int
    channel: int = 0
    """Which of the sockets between the two ranks this is."""


Handshake = Generator[bytes | int, bytes, Peer]

_HELLO = struct.Struct("<4sBBBBIII32s64sI")
_REPLY = struct.Struct("<32s64sI32s")
_ANSWER = struct.Struct("<BIBB")
_MAC = 32
OK, DUPLICATE, WRONG_WORLD, WRONG_WIRING = 0, 1, 2, 3


class _Told(NamedTuple):
    """What a rank was told of its job."""

    rank: int
    world: int
    wiring: int
    channels: int


def _refusal(status: int, one: _Told, by: _Told) -> str:
    """Why the rank `one` cannot join the rank `by`."""
    if status == DUPLICATE:
        return f"rank {one.rank} is already taken: two processes were started as rank {one.rank}"
    if status == WRONG_WORLD:
        return (
            f"rank {one.rank} was started with world size {one.world}, rank {by.rank} with "
            f"{by.world}: every rank needs the same NUVEC_WORLD_SIZE, or the same host file"
        )
    backends = [
        Wiring(told.wiring).name.lower() if told.wiring in tuple(Wiring) else "another transport"
        for told in (one, by)
    ]
    if one.wiring != by.wiring:
        return (
            f"rank {one.rank} was started with the backend {backends[0]}, rank {by.rank} with "
            f"{backends[1]}: every rank needs the same init(backend=) or NUVEC_BACKEND"
        )
    return (
        f"rank {one.rank} was started with {one.channels} sockets for each neighbour, rank "
        f"{by.rank} with {by.channels}: every rank needs the same NUVEC_RING_SOCKETS, or as many "
        "addresses in the host file"
    )


def _mac(identity: Identity, label: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(identity.secret, b"nuvec handshake 1 ", hashlib.sha256)
    # Length-prefixed, so that no two different lists of parts read the same.
    for part in (label, identity.job.encode(), *parts):
        digest.update(struct.pack("<I", len(part)))
        digest.update(part)
    return digest.digest()


def _host_field() -> bytes:
    return socket.gethostname().encode()[:64]


def _host_text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")


def connect_side(identity: Identity, peer_rank: int, channel: int = 0) -> Handshake:
    """The handshake of the end that connected, towards `peer_rank`."""
    nonce = os.urandom(32)
    hello = _HELLO.pack(
        *(MAGIC, VERSION, identity.wiring, channel, identity.channels),
        *(identity.world, identity.rank, peer_rank, nonce, _host_field(), os.getpid()),
    )
    yield hello
    reply = yield _REPLY.size
    _, host, pid, proof = _REPLY.unpack(reply)
    said = reply[:-_MAC]
    if not hmac.compare_digest(proof, _mac(identity, b"accepts", hello, said)):
        raise Stranger("the other end does not know this job's secret, or is of another job")
    yield _mac(identity, b"connects", hello, said)
    reply = yield _ANSWER.size + _MAC
    answer, proof = reply[:-_MAC], reply[-_MAC:]
    if not hmac.compare_digest(proof, _mac(identity, b"status", hello, said, answer)):
        raise Stranger("the other end's answer is not authentic")
    status, *theirs = _ANSWER.unpack(answer)
    if status != OK:
        raise ConfigurationError(_refusal(status, _told(identity), _Told(peer_rank, *theirs)))
    return Peer(peer_rank, _host_text(host), pid, channel)


def accept_side(
    identity: Identity,
    connected: Collection[tuple[int, int]],
    expected: Collection[int] | None = None,
) -> Handshake:
    """The handshake of the end that accepted.

    `connected` are those already there, as (rank, channel); `expected` the ranks that may come, in
    a mesh all that are higher.
    """
    hello = yield _HELLO.size
    magic, version, wiring, channel, channels, world, rank, to_rank, _, host, pid = _HELLO.unpack(
        hello
    )
    if magic != MAGIC or version != VERSION:
        raise Stranger("it does not speak nuvec's protocol")
    theirs = _Told(rank, world, wiring, channels)
    alike = (wiring, channels) == (identity.wiring, identity.channels)
    # Who was told something else comes from elsewhere, and is told so once it has proved itself.
    unexpected = rank <= identity.rank if expected is None else rank not in expected
    if to_rank != identity.rank or rank == identity.rank or (alike and unexpected):
        raise Stranger(f"it claims to be rank {rank} and looks for rank {to_rank}")
    said = os.urandom(32) + _host_field().ljust(64, b"\0") + struct.pack("<I", os.getpid())
    yield said + _mac(identity, b"accepts", hello, said)
    try:
        proof = yield _MAC
    except Stranger:  # how a rank with another secret ends, which cannot check our proof
        raise Stranger(
            f"it claims to be rank {rank} but hung up: it has another NUVEC_SECRET or NUVEC_JOB",
            rank,
        ) from None
    if not hmac.compare_digest(proof, _mac(identity, b"connects", hello, said)):
        raise Stranger(f"it claims to be rank {rank} but does not know this job's secret", rank)
    status = OK
    if world != identity.world or rank >= identity.world:
        status = WRONG_WORLD
    elif not alike or channel >= channels:
        status = WRONG_WIRING
    elif (rank, channel) in connected:
        status = DUPLICATE
    answer = _ANSWER.pack(status, identity.world, identity.wiring, identity.channels)
    yield answer + _mac(identity, b"status", hello, said, answer)
    if status in (WRONG_WORLD, WRONG_WIRING):  # whoever is right, this world cannot be completed
        raise ConfigurationError(_refusal(status, theirs, _told(identity)))
    if status != OK:
        raise Stranger(_refusal(status, theirs, _told(identity)), rank)
    return Peer(rank, _host_text(host), pid, channel)


def _told(identity: Identity) -> _Told:
    return _Told(identity.rank, identity.world, identity.wiring, identity.channels)

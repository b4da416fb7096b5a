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
from collections.abc import Generator
from dataclasses import dataclass
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
    "Refused",
    "Stranger",
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


class Refused(ConfigurationError):
    """The other end is of this job, proved it, and the two cannot be in one world."""


@dataclass(frozen=True)
class Identity:
    """What a rank needs to prove itself."""

    secret: bytes
    job: str
    world: int
    rank: int


class Peer(NamedTuple):
    """Who is at the other end of a connection."""

    rank: int
    host: str
    pid: int


Handshake = Generator[bytes | int, bytes, Peer]

_HELLO = struct.Struct("<4sBxxxIII32s64sI")
_REPLY = struct.Struct("<32s64sI32s")
_STATUS = struct.Struct("<BI32s")
_MAC = 32
OK, DUPLICATE, WRONG_WORLD = 0, 1, 2


def _refusal(status: int, rank: int, world: int, by: int, by_world: int) -> str:
    """Why `rank` cannot join `by`, which each were told the size of their world."""
    if status == DUPLICATE:
        return f"rank {rank} is already taken: two processes were started as rank {rank}"
    return (
        f"rank {rank} was started with world size {world}, rank {by} with {by_world}: every rank "
        "needs the same NUVEC_WORLD_SIZE, or the same host file"
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


def connect_side(identity: Identity, peer_rank: int) -> Handshake:
    """The handshake of the end that connected, towards `peer_rank`."""
    nonce = os.urandom(32)
    hello = _HELLO.pack(
        MAGIC, VERSION, identity.world, identity.rank, peer_rank, nonce, _host_field(), os.getpid()
    )
    yield hello
    reply = yield _REPLY.size
    _, host, pid, proof = _REPLY.unpack(reply)
    said = reply[:-_MAC]
    if not hmac.compare_digest(proof, _mac(identity, b"accepts", hello, said)):
        raise Stranger("the other end does not know this job's secret, or is of another job")
    yield _mac(identity, b"connects", hello, said)
    answer = yield _STATUS.size
    status, world, proof = _STATUS.unpack(answer)
    expected = _mac(identity, b"status", hello, said, answer[:-_MAC])
    if not hmac.compare_digest(proof, expected):
        raise Stranger("the other end's answer is not authentic")
    if status != OK:
        raise Refused(_refusal(status, identity.rank, identity.world, peer_rank, world))
    return Peer(peer_rank, _host_text(host), pid)


def accept_side(identity: Identity, connected: set[int]) -> Handshake:
    """The handshake of the end that accepted; `connected` are the ranks already there."""
    hello = yield _HELLO.size
    magic, version, world, rank, to_rank, _, host, pid = _HELLO.unpack(hello)
    if magic != MAGIC or version != VERSION:
        raise Stranger("it does not speak nuvec's protocol")
    if to_rank != identity.rank or rank <= identity.rank:
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
    elif rank in connected:
        status = DUPLICATE
    answer = struct.pack("<BI", status, identity.world)
    yield answer + _mac(identity, b"status", hello, said, answer)
    if status == WRONG_WORLD:  # no matter who is right, this world cannot be completed
        raise Refused(_refusal(status, rank, world, identity.rank, identity.world))
    if status != OK:
        raise Stranger(_refusal(status, rank, world, identity.rank, identity.world), rank)
    return Peer(rank, _host_text(host), pid)

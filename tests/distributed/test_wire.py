"""Frames and the handshake, without a network; and links over a socket pair."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import numpy as np
import pytest

from nuvec.core.errors import ConfigurationError, DistributedError
from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._call import Call, Op
from nuvec.distributed.transports._link import Aborted, Link, Lost, Unexpected
from nuvec.distributed.transports._specs import (
    as_bytes,
    decode_specs,
    describe_specs,
    encode_specs,
)
from nuvec.distributed.transports.job import Job
from nuvec.distributed.transports.wire import (
    HEADER,
    Handshake,
    Identity,
    Kind,
    Peer,
    Stranger,
    accept_side,
    connect_side,
    pack_head,
    unpack_head,
)

pytestmark = pytest.mark.timeout(30)

SECRET = b"a secret"


# Frames.


def test_a_head_reads_back() -> None:
    data = pack_head(Kind.COLLECTIVE, Op.ALL_SUM, -1, 3, 1 << 62, 7, 18, 4096)
    assert len(data) == HEADER.size
    head = unpack_head(bytearray(b"xx" + data), 2)
    assert tuple(head) == (1, 1, -1, 3, 1 << 62, 7, 18, 4096)


def test_garbage_is_not_a_head() -> None:
    rng = random.Random(0)
    good = pack_head(Kind.COLLECTIVE, Op.ALL_SUM, -1, 0, 0, 7, 18, 4096)
    for _ in range(300):
        with pytest.raises(DistributedError, match="malformed"):
            unpack_head(bytearray(rng.randbytes(HEADER.size)), 0)
    for bad in (
        b"X" + good[1:],
        good[:4] + b"\x09" + good[5:],
        good[:5] + b"\x63" + good[6:],
        good[:6] + b"\x63" + good[7:],
        pack_head(Kind.COLLECTIVE, Op.ALL_SUM, -1, 0, 0, 7, 1 << 30, 0),
        pack_head(Kind.COLLECTIVE, Op.ALL_SUM, -1, 0, 0, 7, 0, 1 << 60),
        pack_head(Kind.ABORT, 0, 0, 0, 0, 0, 0, 1 << 20),
    ):
        with pytest.raises(DistributedError, match="malformed"):
            unpack_head(bytearray(bad), 0)


def test_specs_read_back_and_describe_themselves() -> None:
    arrays: list[Buffer] = [np.zeros((4, 3), np.float32), np.zeros((), np.int64)]
    data = encode_specs(arrays)
    assert decode_specs(data) == [(a.shape, a.dtype) for a in arrays]
    assert describe_specs(data) == "(float32[4,3], int64[])"
    assert describe_specs(encode_specs(arrays[:1])) == "float32[4,3]"
    for bad in (data[:-1], b"\x63\x00", b"\x01\xff", b"\x0b\x01" + b"\xff" * 8):
        with pytest.raises(DistributedError, match="malformed"):
            decode_specs(bad)


# The handshake.


def meet(
    connector: Handshake,
    acceptor: Handshake,
    tamper: Callable[[int, bytes], bytes] = lambda index, data: data,
) -> tuple[Peer | Exception, Peer | Exception]:
    """Run both ends against each other; what each comes to."""
    ends = {0: connector, 1: acceptor}
    results: dict[int, Peer | Exception] = {}
    inbox = {0: b"", 1: b""}
    step: dict[int, bytes | int] = {}
    index = 0
    send: dict[int, bytes | None] = {0: None, 1: None}
    while len(results) < 2:
        moved = False
        for end, handshake in ends.items():
            if end in results:
                continue
            wanted = step.get(end)
            if isinstance(wanted, int):
                if len(inbox[end]) < wanted:
                    continue
                send[end], inbox[end] = inbox[end][:wanted], inbox[end][wanted:]
            moved = True
            try:
                data = send[end]
                step[end] = next(handshake) if data is None else handshake.send(data)
                send[end] = None
                out = step[end]
                if isinstance(out, bytes):
                    inbox[1 - end] += tamper(index, out)
                    index += 1
            except StopIteration as stop:
                results[end] = stop.value
            except Exception as error:
                results[end] = error
        if not moved:
            for end in ends:
                results.setdefault(end, EOFError("the other end hung up"))
    return results[0], results[1]


def identity(rank: int, secret: bytes = SECRET, job: str = "j", world: int = 3) -> Identity:
    return Identity(secret, job, world, rank)


def test_secrets_are_not_shown() -> None:
    job = Job(0, (), b"hush")
    assert "hush" not in f"{job} {identity(0, b'hush')!r}" and job.secret == b"hush"


def test_both_ends_learn_who_the_other_is() -> None:
    one, other = meet(connect_side(identity(2), 0), accept_side(identity(0), set()))
    assert isinstance(one, Peer) and one.rank == 0
    assert isinstance(other, Peer) and other.rank == 2
    assert one.host == socket.gethostname()[:64]


@pytest.mark.parametrize(
    "connecting", [identity(2, secret=b"other"), identity(2, job="k"), identity(2, secret=b"")]
)
def test_another_secret_or_job_is_a_stranger(connecting: Identity) -> None:
    one, other = meet(connect_side(connecting, 0), accept_side(identity(0), set()))
    assert isinstance(one, Stranger)
    assert not isinstance(other, Peer)


def test_a_wrong_rank_is_a_stranger() -> None:
    for connecting, looked_for in ((2, 1), (0, 0)):
        _, other = meet(
            connect_side(identity(connecting), looked_for), accept_side(identity(0), set())
        )
        assert isinstance(other, Stranger)


def test_a_rank_that_cannot_join_is_told_why() -> None:
    one, other = meet(connect_side(identity(2), 0), accept_side(identity(0), {(2, 0)}))
    assert isinstance(one, ConfigurationError) and "already taken" in str(one)
    assert isinstance(other, Stranger)
    one, _ = meet(connect_side(identity(2, world=4), 0), accept_side(identity(0), set()))
    assert isinstance(one, ConfigurationError) and "world size" in str(one)


def test_no_changed_byte_goes_unnoticed() -> None:
    rng = random.Random(1)
    for message in range(4):
        for _ in range(40):

            def flip(index: int, data: bytes, message: int = message) -> bytes:
                if index != message:
                    return data
                at = rng.randrange(len(data))
                return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]

            one, other = meet(connect_side(identity(2), 0), accept_side(identity(0), set()), flip)
            # After a change in the last message the acceptor cannot know; the connector does.
            assert not isinstance(one, Peer)
            assert message == 3 or not isinstance(other, Peer)


def test_an_answer_cannot_be_reflected() -> None:
    """A stranger who sends our own proof back to us has not proved anything."""
    acceptor = accept_side(identity(0), set())
    assert isinstance(next(acceptor), int)
    hello = next(connect_side(identity(2, secret=b"unknown"), 0))
    assert isinstance(hello, bytes)
    reply = acceptor.send(hello)
    assert isinstance(reply, bytes)
    assert next(acceptor) == 32
    with pytest.raises(Stranger):
        acceptor.send(reply[-32:])


# Links.


def pair() -> tuple[Link, Link]:
    a, b = socket.socketpair()
    return Link(a, Peer(1, "here", 1)), Link(b, Peer(0, "here", 0))


def frame(call: Call, payload: bytes, step: int = 0, kind: int = Kind.COLLECTIVE) -> list[bytes]:
    specs = call.specs if step == 0 else b""
    head = pack_head(kind, call.op, call.peer, step, 0, call.seq, len(specs), len(payload))
    return [head, specs, payload]


X = np.arange(1000, dtype=np.float64)
CALL = Call(Op.ALL_SUM, 5, -1, encode_specs([X]))


@pytest.mark.parametrize("chunk", [1, 7, 48, 4096, 1 << 20])
@pytest.mark.parametrize("early", [False, True])
def test_frames_arrive_in_pieces(chunk: int, early: bool) -> None:
    a, b = pair()
    stream = b"".join(frame(CALL, X.tobytes()) + frame(CALL, X.tobytes()[::-1], step=1)) * 1
    out = np.zeros_like(X)
    if not early:
        first = b.post((1, 0, 5, 0), CALL, [as_bytes(out[:300]), as_bytes(out[300:])])
    for start in range(0, len(stream), chunk):
        a.sock.send(stream[start : start + chunk])
        b.read()
        if early and start == 0:
            first = b.post((1, 0, 5, 0), CALL, [as_bytes(out[:300]), as_bytes(out[300:])])
    while not b.early or not b.early[1, 0, 5, 1].done:
        b.read()
    second = b.post((1, 0, 5, 1), CALL, None)
    assert first.done and second.done
    assert out.tobytes() == X.tobytes()
    assert bytes(second.payload) == X.tobytes()[::-1]
    assert not b.early and not b.posted
    a.sock.close()
    b.sock.close()


def test_another_call_is_unexpected() -> None:
    other = np.zeros(3, np.float32)
    for theirs in (
        CALL._replace(op=Op.ALL_MAX),
        CALL._replace(peer=1),
        CALL._replace(specs=encode_specs([other])),
    ):
        for early in (False, True):
            a, b = pair()
            a.push(frame(theirs, b"x" * 12))
            if early:
                b.read()
            else:
                b.post((1, 0, 5, 0), CALL, None)
            with pytest.raises(Unexpected):
                b.post((1, 0, 5, 0), CALL, None) if early else b.read()
            a.sock.close()
            b.sock.close()


def test_the_ends_of_a_connection() -> None:
    a, b = pair()
    reason = b"the disk is full"
    a.push([pack_head(Kind.ABORT, 0, 1, 0, 0, 0, 0, len(reason)), reason])
    with pytest.raises(Aborted) as caught:
        b.read()
    assert caught.value.reason == "the disk is full" and caught.value.is_mismatch
    a.push([pack_head(Kind.BYE, 0, 0, 0, 0, 0, 0, 0)])
    b.read()
    assert b.left
    a.sock.close()
    b.read()
    assert b.ended
    b.sock.close()
    a, b = pair()
    a.sock.close()
    with pytest.raises(Lost):
        b.read()
    b.sock.close()


def test_writing_to_the_gone_keeps_their_last_words() -> None:
    a, b = pair()
    a.push([pack_head(Kind.ABORT, 0, 0, 0, 0, 0, 0, 2), b"no"])
    a.sock.close()
    b.push([b"x" * 1000])
    assert b.unwritable
    with pytest.raises(Aborted, match="no"):
        b.read()
    b.sock.close()


def test_both_may_write_more_than_the_buffers_hold() -> None:
    a, b = pair()
    n = 20_000_000
    data = np.arange(n, dtype=np.uint8)
    call = Call(Op.ALL_SUM, 5, -1, encode_specs([data]))
    outs = [np.zeros_like(data), np.zeros_like(data)]
    received = [
        link.post((1, 0, 5, 0), call, [as_bytes(out)])
        for link, out in zip((a, b), outs, strict=True)
    ]
    for link in (a, b):
        head, specs, _ = frame(call, b"")
        head = pack_head(Kind.COLLECTIVE, call.op, -1, 0, 0, 5, len(specs), n)
        link.push([head, specs, as_bytes(data)])
        assert link.pending
    while not all(r.done for r in received):
        for link in (a, b):
            link.read()
            link.flush()
    assert all((out == data).all() for out in outs)
    a.sock.close()
    b.sock.close()


def test_a_malformed_stream_is_an_error() -> None:
    a, b = pair()
    a.sock.send(b"GET / HTTP/1.1\r\n" + b"x" * 100)
    with pytest.raises(DistributedError, match="malformed"):
        b.read()
    a.sock.close()
    b.sock.close()

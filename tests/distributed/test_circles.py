"""Circles of waiting are found, and none where there is none, however often ranks ask."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nuvec.core.errors import DistributedError, MismatchError, PeerError
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.transports import _links
from nuvec.distributed.transports._call import Call, Op
from nuvec.distributed.transports._circles import Circles, Question
from nuvec.distributed.transports.mesh import mesh_communicator
from nuvec.distributed.transports.wire import HEADER, Kind, pack_head, unpack_head
from nuvec.testing.contract_tools import raises
from tests.distributed.contract import CASES
from tests.distributed.worlds import TRANSPORTS, mesh_jobs, on_ranks

pytestmark = pytest.mark.timeout(60)

SPEC = ((3,), np.dtype(np.float32))


@pytest.mark.parametrize("case", [name for name in CASES if "circle_of" not in name])
def test_asking_all_the_time_changes_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_links, "ASK_SECONDS", 0.0)
    on_ranks(TRANSPORTS["mesh-unix"](20.0), 3, CASES[case])


def test_random_messages_while_asking_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks follow one schedule in which every message is sent before it is waited for."""
    monkeypatch.setattr(_links, "ASK_SECONDS", 0.0)
    size = 4

    def body(c: Communicator) -> None:
        random = np.random.default_rng(7)
        pairs = [c.split(int(c.rank in pair)) for pair in ((0, 1), (1, 2), (2, 3), (0, 3))]
        for step in range(300):
            kind, one, other = random.integers(0, 3), *random.choice(size, 2, replace=False)
            big = int(random.integers(0, 2)) * 40_000
            x = np.full(3 + big, step, np.float32)
            if kind == 0 and c.rank == one:
                c.send([x], int(other))
            elif kind == 0 and c.rank == other:
                assert (c.recv([(x.shape, x.dtype)], int(one))[0] == step).all()
            elif kind == 1:
                part = pairs[step % 4]
                if part.size == 2:
                    assert (part.all_reduce("sum", [x])[0] == 2 * step).all()
            elif kind == 2:
                assert (c.all_reduce("sum", [x])[0] == size * step).all()

    on_ranks(TRANSPORTS["mesh-unix"](20.0), size, body)


def test_a_circle_beside_ranks_that_only_wait_for_it() -> None:
    def body(c: Communicator) -> None:
        # 1 and 2 wait for each other, 0 for 1, and 3 for everyone.
        wait = {0: 1, 1: 2, 2: 1}.get(c.rank)
        text = raises(MismatchError, c.barrier if wait is None else lambda: c.recv([SPEC], wait))
        assert "rank 1 is at recv #0 from rank 2" in text
        assert "rank 2 is at recv #0 from rank 1" in text
        assert "rank 0" not in text and "rank 3" not in text

    on_ranks(TRANSPORTS["mesh-tcp"](20.0), 4, body)


def test_a_rank_that_is_only_late_is_waited_for() -> None:
    """Past the time at which ranks ask: the late rank reads the question when it comes."""
    release = threading.Event()

    def body(c: Communicator) -> None:
        if c.rank == 0:
            release.wait(10)
            c.send([np.ones(3, np.float32)], 1)
            assert c.recv([SPEC], 1)[0].tolist() == [1, 1, 1]
        else:
            timer = threading.Timer(1.5, release.set)
            timer.start()
            c.send([c.recv([SPEC], 0)[0]], 0)
            timer.join()

    on_ranks(TRANSPORTS["mesh-unix"](20.0), 2, body)


def test_silence_is_still_no_circle() -> None:
    jobs = [replace(job, timeout=1.5) for job in mesh_jobs(2, "unix")]
    ranks: list[Any] = [None, None]
    joining = threading.Thread(target=lambda: ranks.__setitem__(1, mesh_communicator(jobs[1])))
    joining.start()
    ranks[0] = mesh_communicator(jobs[0])
    joining.join()
    assert "NUVEC_TIMEOUT" in raises(PeerError, lambda: ranks[0].recv([SPEC], 1))
    for rank in ranks:
        rank.close()


class _Sent:
    """A link that keeps what is pushed."""

    left = ended = False

    def __init__(self, peer: int) -> None:
        self.peer = SimpleNamespace(rank=peer)
        self.frames: list[bytes] = []

    def aside(self, parts: list[bytes]) -> None:
        self.frames.append(b"".join(parts))

    def question(self, asker: int) -> Question:
        """The last frame, as its receiver reads it."""
        frame = self.frames[-1]
        link: Any = SimpleNamespace(peer=SimpleNamespace(rank=asker))
        return Question.of(link, unpack_head(bytearray(frame), 0), frame[HEADER.size :])


def test_what_is_on_its_way_answers_a_question() -> None:
    """Ranks 0 and 1 both wait for the other's message 0, but that of rank 0 has been sent."""
    zero, one = Circles(0), Circles(1)
    call = Call(Op.RECV, 0, -1, b"")
    to_one, to_zero = _Sent(1), _Sent(0)
    zero.wait()
    one.wait()
    zero.ask(call, 0, "recv", {to_one: 0})  # type: ignore[list-item]
    one.answer(to_one.question(0), call, 0, "recv", {to_zero: 0})  # type: ignore[list-item]
    coming_back = to_zero.question(1)
    zero.send(0, 1, 0)
    zero.answer(coming_back, call, 0, "recv", {to_one: 0})  # type: ignore[list-item]
    assert len(to_one.frames) == 1
    # Without it, it is a circle; in another wait of rank 0 it is an old question.
    for waits, found in ((1, True), (2, False)):
        zero = Circles(0)
        for _ in range(waits):
            zero.wait()
        if found:
            with pytest.raises(MismatchError, match="rank 0 is at recv; rank 1 is at recv"):
                zero.answer(coming_back, call, 0, "recv", {})
        else:
            zero.answer(coming_back, call, 0, "recv", {})


def test_malformed_questions() -> None:
    link: Any = SimpleNamespace(peer=SimpleNamespace(rank=1))
    for op, payload in ((Op.RECV, b"short"), (Op.SEND, bytes(20)), (0, bytes(20))):
        head = unpack_head(bytearray(pack_head(Kind.WAITING, op, -1, 0, 0, 0, 0, len(payload))), 0)
        with pytest.raises(DistributedError, match="malformed"):
            Question.of(link, head, payload)

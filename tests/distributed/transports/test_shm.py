"""Ranks of one host through shared memory: the same bits, and nothing left behind."""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nuvec.core.errors import ConfigurationError, DistributedError, MismatchError, PeerError
from nuvec.distributed.backends import is_available
from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.distributed.transports import _outputs, _shared_memory, _signals, mesh
from nuvec.distributed.transports._call import Call
from nuvec.distributed.transports._shared import pack_call
from nuvec.distributed.transports._shared_memory import SLOT_BYTES, SLOTS, SharedMemory
from nuvec.distributed.transports._signals import Awake, Signal
from nuvec.distributed.transports.job import Address, Job
from nuvec.distributed.transports.mesh import MeshCommunicator, mesh_communicator
from nuvec.distributed.transports.shm import shm_communicator
from nuvec.testing.contract_tools import DTYPES, raises, reductions, same_bits, values
from tests.distributed.processes import Processes
from tests.distributed.worlds import TRANSPORTS, mesh_jobs, on_ranks

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[3]
SHM, SOCKETS = TRANSPORTS["shm"](30.0), TRANSPORTS["mesh-unix-sockets"](30.0)
JOIN = {"shm": shm_communicator, "mesh": mesh_communicator}


def memory_of(communicator: Communicator) -> SharedMemory | None:
    assert isinstance(communicator, MeshCommunicator)
    return communicator._memory


# The same bits as through sockets.


def everything(arrays: list[Buffer]) -> Callable[[Communicator], list[Buffer]]:
    """Every operation on arrays whose leading axis every group of up to 5 ranks divides."""

    def body(c: Communicator) -> list[Buffer]:
        mine = [np.roll(x, 7 * c.rank, 0) for x in arrays]
        outs: list[Buffer] = []
        for op in set.intersection(*({*reductions(x.dtype)} for x in arrays)):
            outs += c.all_reduce(op, mine)  # type: ignore[arg-type]
            if op == "sum":
                outs += c.sum_scatter(mine)
        outs += c.all_gather(mine)
        outs += c.all_to_all(mine)
        outs += c.broadcast(mine, c.size - 1)
        return outs

    return body


def compare(arrays: list[Buffer], size: int) -> None:
    through_memory = on_ranks(SHM, size, everything(arrays))
    through_sockets = on_ranks(SOCKETS, size, everything(arrays))
    for ours, theirs in zip(through_memory, through_sockets, strict=True):
        assert len(ours) == len(theirs) > 0
        for x, y in zip(ours, theirs, strict=True):
            same_bits(x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_the_bits_are_those_of_sockets(dtype: np.dtype[Any], size: int) -> None:
    """Messages of less than a chunk, and of more chunks than there are slots."""
    for nbytes in (60, 100_000, 6 * SLOT_BYTES):
        length = max(1, nbytes // dtype.itemsize // 60) * 60
        compare([values(0, (length,), dtype)], size)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_bits_of_many_arrays(size: int) -> None:
    """Pieces of one chunk, arrays across chunks, sizes that no power of two divides, and none."""
    shapes = [(60,), (0, 3), (120, 7), (60_000, 5), (180, 1001), (60,), (600_000,)]
    compare([values(1, shape, np.dtype(np.float32)) for shape in shapes], size)
    mixed = [values(2, (60, k), dtype) for k, dtype in enumerate(DTYPES) if dtype.kind != "b"]
    compare(mixed, size)


def test_a_description_too_long_to_announce() -> None:
    """Such a call uses the sockets; those before and after it do not."""
    compare([np.full(60, float(i)) for i in range(400)], 3)


@pytest.mark.parametrize("count", [0, 3])
def test_a_description_too_long_to_announce_on_one_rank_alone(count: int) -> None:
    """That rank waits for frames, the others for its word; they notice what it has sent them."""

    def body(c: Communicator) -> str:
        arrays = [np.ones(3)] * (400 if c.rank == 1 else count)
        call = c.barrier if not arrays else lambda: c.all_reduce("sum", arrays)
        return raises(MismatchError, call)

    texts = on_ranks(SHM, 3, body)
    assert all("rank 1" in text and "all_sum #0 (float64[3]" in text for text in texts)


def test_an_exchange_takes_memory_for_its_results_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, ...]] = []
    empty = _outputs.Outputs.empty

    def noted(self: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        taken.append(shape)
        return empty(self, shape, dtype)

    monkeypatch.setattr(_outputs.Outputs, "empty", noted)
    on_ranks(SHM, 2, lambda c: c.all_to_all([np.ones((4, 7))]))
    assert taken == [(4, 7)] * 2


def test_parts_of_a_slot_split_no_element() -> None:
    """Five parts of a slot are no whole number of elements each."""
    compare([values(3, (120_000,), np.dtype(np.complex128))], 5)


def test_a_slower_rank_of_another_group_reads_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 goes on in another group while rank 1 still copies the end of the message."""
    slot = SharedMemory.slot

    def slow(self: SharedMemory, rank: int, position: int) -> Buffer:
        if self.rank == 1 and rank == 0:
            time.sleep(0.05)
        return slot(self, rank, position)

    monkeypatch.setattr(SharedMemory, "slot", slow)
    n = SLOT_BYTES

    def body(c: Communicator) -> None:
        groups = [c.split(0 if c.rank != 2 else 1), c.split(0 if c.rank != 1 else 1)]
        for turn in range(3):
            for which, group in enumerate(groups):
                if group.size == 1:
                    continue
                chunks = (3, 2 * SLOTS)[which]
                x = np.full((chunks, n), 10 * turn + which, np.uint8)
                got = group.broadcast([x if c.rank == 0 else np.empty_like(x)], 0)[0]
                assert (got == x).all()
        c.barrier()

    on_ranks(SHM, 3, body)


def test_a_rank_that_does_not_end_its_part_in_another_group_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish = SharedMemory.finish
    monkeypatch.setattr(SharedMemory, "finish", lambda self: None if self.rank else finish(self))

    def body(c: Communicator) -> None:
        part = c.split(0)
        assert isinstance(c, MeshCommunicator)
        c._links.warn_after = 0.5
        if c.rank == 1:  # or it might give up first
            c._links.timeout = 20.0
        text = raises(PeerError, lambda: [part.barrier() for _ in range(2)])
        assert "rank 0 gave up after 1 s (NUVEC_TIMEOUT) at barrier #0 on group" in text
        assert "an earlier call has not been ended by rank 1 (host " in text

    with caplog.at_level(logging.WARNING):
        on_ranks(TRANSPORTS["shm"](1.0), 2, body)
    assert "has waited 1 s" in caplog.text or "has waited 0 s" in caplog.text
    assert "for an earlier call to be ended by rank 1 (host " in caplog.text


def test_collectives_that_never_wait_still_take_in_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 2 sends rank 0 more than the sockets hold, which only makes calls with rank 1."""
    n = 30_000_000
    sent = threading.Event()

    def until_there(self: Awake, signals: Any) -> bool:
        if len(signals) > 1:  # of the whole world
            return False
        while not all(signal.done for _, signal in signals):
            time.sleep(0)
        return True

    monkeypatch.setattr(Awake, "wait", until_there)

    def body(c: Communicator) -> None:
        pair = c.split(int(c.rank == 2))
        if c.rank == 2:
            c.send([np.ones(n, np.uint8)], 0)
            sent.set()
            c.barrier()
            return
        stop = np.zeros(1)
        while not stop[0]:
            stop = pair.all_reduce("max", [np.array([float(sent.is_set())])])[0]
        if c.rank == 0:
            assert c.recv([((n,), np.dtype(np.uint8))], 2)[0].all()
        c.barrier()

    on_ranks(SHM, 3, body)


def test_who_aborts_during_a_call_that_never_looks_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread leaves it to the call to tell the peers, which ends without a poll."""
    heard = threading.Event()
    wait = Awake.wait

    def body(c: Communicator) -> None:
        c.barrier()
        if c.rank == 1:
            text = raises(PeerError, lambda: [c.barrier() for _ in range(2)])
            assert "the disk is full" in text
            heard.set()
            return
        own = threading.current_thread()
        memory = memory_of(c)
        assert memory is not None
        memory.polled = float("inf")

        def announced(call: Call, group: int) -> bytes | None:
            if threading.current_thread() is own:
                other = threading.Thread(target=c.abort, args=("the disk is full",))
                other.start()
                other.join()
            return pack_call(call, group)

        def until_there(self: Awake, signals: Any) -> bool:
            while threading.current_thread() is own and not all(s.done for _, s in signals):
                time.sleep(0)
            return wait(self, signals)

        monkeypatch.setattr(mesh, "pack_call", announced)
        monkeypatch.setattr(Awake, "wait", until_there)
        c.barrier()
        assert heard.wait(10)  # before this rank leaves

    on_ranks(SHM, 2, body)


# Where it is used, and where not.


@pytest.mark.parametrize("backend", JOIN)
def test_it_is_used_by_all_groups_of_a_host(backend: str) -> None:
    def body(c: Communicator) -> None:
        assert c.name == backend
        part = c.split(c.rank % 2)
        for group in (c, part) if part.size > 1 else (c,):
            memory = memory_of(group)
            assert memory is not None
            before = memory.position
            group.all_reduce("sum", [np.ones(3)])
            assert memory.position > before
        assert part.name == c.name

    on_ranks(lambda size: [lambda j=j: JOIN[backend](j) for j in mesh_jobs(size, "unix")], 3, body)


def test_tcp_does_not_share() -> None:
    assert on_ranks(TRANSPORTS["mesh-tcp"](30.0), 2, memory_of) == [None, None]
    assert on_ranks(SOCKETS, 2, memory_of) == [None, None]


def test_shm_needs_one_host() -> None:
    assert is_available("shm")
    addresses = tuple(
        Address(host, f"/tmp/{host}", ("127.0.0.1", 1)) for host in ("red", "red", "blue")
    )
    for rank in (0, 2):
        with pytest.raises(ConfigurationError, match=r"rank . \(host .*backend='mesh'"):
            shm_communicator(Job(rank, addresses))
    tcp = mesh_jobs(2, "tcp")
    with pytest.raises(ConfigurationError, match="Unix sockets"):
        shm_communicator(tcp[1])
    for job in tcp:
        job.listeners[0].close()


@pytest.mark.parametrize("transport", ["shm", "mesh-unix-sockets", "mesh-tcp", "ring-tcp"])
def test_groups_end_with_the_world(transport: str) -> None:
    def body(c: Communicator) -> None:
        part = c.split(0)
        c.barrier()
        c.close()
        for _ in range(2):  # no peer is blamed for it, and none is told
            text = raises(DistributedError, lambda: part.all_reduce("sum", [np.ones(3)]))
            assert "is closed, with the one that it was split from" in text
        assert "is closed" in raises(DistributedError, lambda: part.send([x], 1 - part.rank))
        part.close()

    x = np.ones(3)
    on_ranks(TRANSPORTS[transport](30.0), 2, body)


# Where there is none to be had.


def no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def check_sockets_are_used(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    def body(c: Communicator) -> None:
        assert memory_of(c) is None and c.name == "mesh"
        same_bits(c.all_reduce("sum", [np.full(50_000, c.rank + 1.0)])[0], np.full(50_000, 6.0))
        assert c.split(0).name == "mesh"

    before = set(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.WARNING):
        on_ranks(SHM, 3, body)
    warnings = [r.getMessage() for r in caplog.records if "shared memory" in r.getMessage()]
    assert len(warnings) == 1
    assert "ranks 0, 1, 2" in warnings[0] and reason in warnings[0]
    assert set(os.listdir("/proc/self/fd")) - before == set()


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate", "posix_fallocate", "eventfd"])
def test_no_segment_means_sockets_for_all(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, call, no_space)
    check_sockets_are_used(caplog, "rank 0: No space left on device")


def test_another_processor_means_sockets_for_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    check_sockets_are_used(caplog, "riscv64")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_rank_without_it_means_sockets_for_all(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(SharedMemory):
        def __init__(self, fds: Any, me: int, ranks: Any) -> None:
            if me == rank:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            super().__init__(fds, me, ranks)

    monkeypatch.setattr(_shared_memory, "SharedMemory", Refuses)
    check_sockets_are_used(caplog, f"rank {rank}: Cannot allocate memory")


def test_a_descriptor_that_does_not_arrive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recv_fds = socket.recv_fds
    lock = threading.Lock()
    lost: list[int] = []

    def loses_the_first(*args: Any) -> Any:
        data, fds, *rest = recv_fds(*args)
        with lock:
            if not lost:
                lost.append(fds.pop())
                os.close(lost[0])
        return data, fds, *rest

    monkeypatch.setattr(socket, "recv_fds", loses_the_first)
    check_sockets_are_used(caplog, "no descriptors are free")


def test_the_memory_is_there_before_it_is_used() -> None:
    """Its pages are allocated and its size is fixed, so that no write can fail."""
    fds = _shared_memory._create(2)
    try:
        state = os.fstat(fds[0])
        assert state.st_size == _shared_memory._size(2) <= 2 * 9 << 20
        assert 512 * state.st_blocks >= state.st_size
        for size in (0, 2 * state.st_size):
            with pytest.raises(PermissionError):
                os.ftruncate(fds[0], size)
        assert not any(map(os.get_inheritable, fds))
    finally:
        _shared_memory._close(fds)


def test_a_segment_of_another_size_is_refused() -> None:
    fds = _shared_memory._create(2)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, _shared_memory._size(2))
    assert fcntl.fcntl(unsealed, fcntl.F_GET_SEALS) == 0
    try:
        with pytest.raises(OSError, match="not what was expected"):
            SharedMemory(fds, 0, [0, 1, 2])
        with pytest.raises(OSError, match="not what was expected"):
            SharedMemory([unsealed, *fds[1:]], 0, [0, 1])
    finally:
        _shared_memory._close([unsealed, *fds])


# What is left of it.


def test_no_descriptor_is_left_of_fifty_groups() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:nuvec")

    def body(c: Communicator) -> None:
        c.all_reduce("sum", [np.ones(100_000)])

    on_ranks(SHM, 2, body)
    before = count(), maps()
    for _ in range(50):
        on_ranks(SHM, 2, body)
    assert (count(), maps()) == before


def test_an_error_does_not_keep_the_memory() -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:nuvec")

    before = maps()

    def body(c: Communicator) -> None:
        big = np.ones(1_000_000)
        raises(DistributedError, lambda: c.all_reduce("sum", [big[c.rank :]]))

    on_ranks(SHM, 2, body)
    assert maps() == before


def test_silence_names_who_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    jobs = [replace(job, timeout=1.2, warn_after=0.3) for job in mesh_jobs(3, "unix")]

    def body(c: Communicator) -> str:
        c.barrier()
        if c.rank == 2:
            time.sleep(2.5)
            return ""
        text = raises(PeerError, lambda: c.all_reduce("sum", [np.ones(1_000_000)]))
        assert raises(PeerError, c.barrier)
        return text

    with caplog.at_level(logging.WARNING):
        texts = on_ranks(lambda size: [lambda j=j: shm_communicator(j) for j in jobs], 3, body)
    assert any("NUVEC_TIMEOUT" in t and "no word from rank 2 (host" in t for t in texts)
    assert "has waited" in caplog.text and "all_sum #1 float64[1000000]" in caplog.text


# Memory of results.


def test_results_are_never_written_again() -> None:
    """Also a view of one keeps its memory from being used for a later one."""

    def body(c: Communicator) -> None:
        kept = []
        for turn in range(8):
            x = np.full((4, 100_000), float(turn))
            total = c.all_reduce("sum", [x])[0]
            kept.append(total[1:, 5:] if turn % 2 else total)
            del total
        for turn, array in enumerate(kept):
            assert (array == 2.0 * turn).all()

    on_ranks(SHM, 2, body)


def test_memory_of_large_results_is_used_again_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_outputs, "SPARES", 1 << 20)
    outputs = _outputs.Outputs()
    dtype = np.dtype(np.float32)

    def place(n: int) -> int:
        return int(outputs.empty((n,), dtype).ctypes.data)

    assert place(100_000) == place(100_000)
    held = outputs.empty((100_000,), dtype)[3:]
    assert held.ctypes.data != place(100_000) + 12
    for n in (50_000, 60_000, 70_000):
        place(n)
    assert list(outputs._spares) == [((60_000,), dtype), ((70_000,), dtype)]
    assert outputs._kept == 2 * 4 * 130_000 <= 1 << 20
    assert outputs.empty((1 << 18,), dtype).base is None  # more than is ever kept
    assert outputs.empty((3,), dtype).base is None
    outputs.clear()
    assert (outputs._spares, outputs._kept) == ({}, 0)


# Waiting awake.


def test_waiting_awake_ends_where_it_is_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    words = memoryview(bytearray(8)).cast("Q")
    missing: Any = [(None, Signal(words, 0, 1, True, (1, 0, 0, 0)))]
    spun: list[float] = []
    clock = iter(np.arange(0.0, 1000.0, 1e-4))

    def tick() -> float:
        spun.append(0.0)
        return float(next(clock))

    monkeypatch.setattr(_signals.time, "perf_counter", tick)
    awake = Awake()
    for waits in (_signals.TRUST, _signals.RETRY - 1 - _signals.TRUST, _signals.TRUST):
        for _ in range(waits):
            spun.clear()
            assert not awake.wait(missing)
            # Until 500 microseconds have gone, or not at all.
            assert 2 <= len(spun) <= 8 if waits == _signals.TRUST else not spun
    words[0] = 1
    assert awake.wait(missing)


def test_a_rank_that_waits_awake_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the other ranks on its core, and to the other threads of its process."""
    words = memoryview(bytearray(8)).cast("Q")
    missing: Any = [(None, Signal(words, 0, 1, True, (1, 0, 0, 0)))]
    yields: list[int] = []

    def give_way() -> None:
        yields.append(0)
        if len(yields) == 3:
            words[0] = 1

    monkeypatch.setattr(_signals.os, "sched_yield", give_way)
    assert Awake().wait(missing)
    assert len(yields) == 3


# Processes.


@pytest.mark.parametrize("n", [1, 1 << 24])
def test_a_killed_rank_is_named_and_leaves_nothing(
    n: int, processes: Callable[..., Processes]
) -> None:
    job = processes(
        3,
        f"""
x = np.ones({n}, np.float32)
c.all_reduce("sum", [x])
maps = open("/proc/self/maps").read()
say(maps.count("memfd:nuvec"), maps.count("/dev/shm"))
try:
    while True:
        c.all_reduce("sum", [x])
except PeerError as error:
    say(f"{{time.time():.3f}} {{error}}")
try:
    c.barrier()
except PeerError as error:
    say(error)
c.close()
say(open("/proc/self/maps").read().count("memfd:nuvec"))
""",
        "shm",
    )
    for rank in range(3):
        assert job.line(rank) == "1 0"  # it has no name that could stay
    time.sleep(0.3)
    killed = time.time()
    job.ranks[1].send_signal(signal.SIGKILL)
    for rank in (0, 2):
        when, _, text = job.line(rank).partition(" ")
        assert float(when) - killed < 5.0
        assert "rank 1 (host" in text and f"pid {job.ranks[1].pid}" in text and "all_sum" in text
        assert "the group is broken" in job.line(rank)
        assert job.line(rank) == "0"
    for rank in job.ranks:
        rank.wait(20)
    assert not os.path.exists(job.directory) or not os.listdir(job.directory)


@pytest.mark.parametrize(
    ("limit", "rank", "reason"),
    [("RLIMIT_FSIZE", 0, "File too large"), ("RLIMIT_AS", 1, "Cannot allocate memory")],
)
def test_a_limit_of_the_system_means_sockets(
    limit: str, rank: int, reason: str, processes: Callable[..., Processes]
) -> None:
    """One rank may not make so large a file, or may not map it."""
    job = processes(
        2,
        f"""
import logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")
job = find_job(timeout=20)
if job.rank == {rank}:
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = 1 << 20 if "{limit}" == "RLIMIT_FSIZE" else used + (4 << 20)
    resource.setrlimit(resource.{limit}, (most, resource.RLIM_INFINITY))
c = join(job)
resource.setrlimit(resource.{limit}, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say(c.name, c.all_reduce("sum", [np.full(100_000, c.rank + 1.0)])[0].max())
c.close()
""",
        "shm",
        timeout=None,
    )
    warning = job.line(0)
    assert "ranks 0, 1 have no shared memory" in warning and f"rank {rank}: {reason}" in warning
    assert [job.line(0), job.line(1)] == ["mesh 3.0", "mesh 3.0"]


def test_a_death_while_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest rank connects and goes before it passes anything on."""
    from tests.distributed.test_mesh import Joining

    jobs = [replace(job, timeout=10) for job in mesh_jobs(2, "unix")]
    offer = _shared_memory._offer

    def dies(others: Any) -> list[int]:
        for sock in others:
            sock.shutdown(socket.SHUT_RDWR)
        return offer(others)

    monkeypatch.setattr(_shared_memory, "_offer", dies)
    ranks = [Joining(job) for job in jobs]
    with pytest.raises(PeerError, match=r"rank 0 \(host .*while the job was starting"):
        ranks[1].result()
    with pytest.raises(PeerError, match=r"rank 1 \(host .*while the job was starting"):
        ranks[0].result()


def test_the_mapping_is_shared() -> None:
    """One mapping of the test's own stands for what a rank has."""
    fds = _shared_memory._create(1)
    with mmap.mmap(fds[0], 0) as whole:
        memory = SharedMemory(fds, 4, [4])
        memory.slot(4, SLOTS + 1)[:4] = 7
        assert whole[4096 + SLOT_BYTES : 4096 + SLOT_BYTES + 5] == b"\7\7\7\7\0"
    memory.close()
    memory.close()
    assert memory.closed

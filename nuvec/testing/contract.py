"""`communicator_contract`: the test suite of a transport.

What `Communicator` promises, as cases that run on every rank of a group: values, bits, groups,
messages, mismatches, departures. A case that breaks the contract raises an AssertionError, or the
transport's own error where there should be none.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

from nuvec.core.errors import ArgumentError
from nuvec.distributed.communicator import Communicator
from nuvec.testing.contract_failures import FAILURES
from nuvec.testing.contract_large import LARGE_CASES
from nuvec.testing.contract_tools import Case, narrowed
from nuvec.testing.contract_values import VALUES

__all__ = ["CONTRACT", "MakeWorld", "communicator_contract", "on_processes", "on_threads"]

MakeWorld = Callable[[int], Sequence[Callable[[], Communicator]]]
"""``make(size)`` returns a function for each rank of a fresh group, which is called on that rank
and returns its communicator."""

Runner = Callable[[MakeWorld, int, Case, float], None]

CONTRACT: dict[str, Case] = {case.__name__: case for case in [*VALUES, *FAILURES, *LARGE_CASES]}
"""The cases, by name. Each wants a group of its own, since some break it."""


def communicator_contract(
    make: MakeWorld,
    sizes: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    processes: bool = False,
    cases: Iterable[str] | None = None,
    timeout: float = 120.0,
) -> list[str]:
    """Check that a transport keeps the contract of `Communicator`.

    make      -- ``make(size)`` prepares a fresh group and returns a function for each rank, which
                 is called on that rank and returns its communicator
    sizes     -- of the groups
    processes -- whether ranks are processes, forked for each case (else threads of this one)
    cases     -- the names of those to run, out of `CONTRACT`; by default all. The largest move
                 100 MB between two ranks
    timeout   -- seconds after which a rank that is still at a case counts as hanging

    Values are checked for every dtype, for sizes 0, 1, odd, 1,000,003 and 64 MB, for views that
    are not contiguous, and differ by rank and place; groups by splits in another order; messages by
    ranks that all send first; errors by what they name.

    Returns what was not checked because the transport declares to promise less
    (`Communicator.folds_in_rank_order`, `Communicator.sends_to_neighbours_only`), as sentences:
    none for one that promises all. Raises AssertionError naming the case, the size and the rank.
    ArgumentError (a TypeError and a ValueError) for sizes or cases there are not.

    >>> from nuvec.distributed.transports.local import local_world
    >>> def make(size):
    ...     return [lambda c=c: c for c in local_world(size, timeout=20)]
    >>> communicator_contract(make, sizes=(2, 3), cases=["sends_in_order", "propagates_nan"])
    []
    """
    names = list(CONTRACT if cases is None else cases)
    unknown = [name for name in names if name not in CONTRACT]
    if unknown or not names:
        raise ArgumentError(f"communicator_contract: no cases called {unknown}; see CONTRACT")
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise ArgumentError(f"communicator_contract: sizes must be from 1, got {sizes!r}")
    run: Runner = on_processes if processes else on_threads
    for size in sizes:
        for name in names:
            run(make, size, CONTRACT[name], timeout)
    less: list[str] = []
    on_threads(make, 1, lambda c: less.extend(narrowed(c)), timeout)
    return less


def _failed(case: Case, size: int, what: str) -> AssertionError:
    return AssertionError(f"{case.__name__}, group of size {size}: {what}")


def _run_rank(make_communicator: Callable[[], Communicator], case: Case) -> None:
    communicator = make_communicator()
    try:
        case(communicator)
    except BaseException as error:
        communicator.abort(f"the case failed with {error!r}")
        raise
    finally:
        communicator.close()


def on_threads(make: MakeWorld, size: int, case: Case, timeout: float = 120.0) -> None:
    """Run a case on the ranks of a fresh group, as threads; raises the first failure."""
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int, make_communicator: Callable[[], Communicator]) -> None:
        try:
            _run_rank(make_communicator, case)
        except BaseException as error:
            errors.append((rank, error))

    threads = [
        threading.Thread(target=run, args=given, daemon=True) for given in enumerate(make(size))
    ]
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        rank, error = errors[0]
        raise _failed(case, size, f"rank {rank} raised {error!r}") from error
    hanging = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if hanging:
        raise _failed(case, size, f"after {timeout:.0f} s ranks {hanging} have not ended")


def on_processes(make: MakeWorld, size: int, case: Case, timeout: float = 120.0) -> None:
    """Run a case on the ranks of a fresh group, as forked processes; raises the first failure."""
    ranks: dict[int, tuple[int, int]] = {}  # by the pipe that carries a rank's failure
    failures: list[str] = []
    deadline = time.monotonic() + timeout
    try:
        for rank, make_communicator in enumerate(make(size)):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                _be_rank(make_communicator, case, writing)
            os.close(writing)
            ranks[reading] = rank, pid
        texts = dict.fromkeys(ranks, b"")
        waiting = set(ranks)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for reading in select.select(list(waiting), [], [], left)[0]:
                data = os.read(reading, 1 << 16)
                texts[reading] += data
                if not data:
                    waiting.remove(reading)
                    rank, pid = ranks[reading]
                    status = os.waitpid(pid, 0)[1]
                    os.close(reading)
                    del ranks[reading]
                    text = texts[reading].decode(errors="replace")
                    if text or status:
                        failures.append(f"rank {rank} raised\n{text or f'(status {status})'}")
        if failures:
            raise _failed(case, size, failures[0])
        if ranks:
            hanging = [rank for rank, _ in ranks.values()]
            raise _failed(case, size, f"after {timeout:.0f} s ranks {hanging} have not ended")
    finally:
        for reading, (_, pid) in ranks.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reading)


def _be_rank(make_communicator: Callable[[], Communicator], case: Case, writing: int) -> None:
    """The life of a forked rank: it never returns."""
    try:
        _run_rank(make_communicator, case)
    except BaseException:
        os.write(writing, traceback.format_exc().encode()[-(1 << 15) :])
    finally:
        os._exit(0)

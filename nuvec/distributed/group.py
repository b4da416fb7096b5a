"""Groups of ranks, and the default one.

A `Group` pairs a communicator with the queue its communications enter. A process started by a
launcher is one rank; a process started by hand is alone; under `run_local` every thread is a rank.
"""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from nuvec.core import dtypes
from nuvec.core.array import eval as evaluate_trees
from nuvec.core.config import config
from nuvec.core.errors import (
    ArgumentError,
    ConcretizationError,
    ConfigurationError,
    DistributedError,
)
from nuvec.core.functions.stream import Stream, stream_set
from nuvec.core.interpreter import flush, queue_of
from nuvec.core.node import Node, context
from nuvec.core.profiler import recorded
from nuvec.core.queue import CommunicationQueue, process_queue
from nuvec.core.traceback import filtered, strip_error
from nuvec.distributed._lifeline import watch_launcher
from nuvec.distributed.backends import BackendName, is_available, join, requested
from nuvec.distributed.collectives.barrier import barrier_p, in_symbolic_trace
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.rendezvous import looked_for, withdraw
from nuvec.distributed.transports._checked import split_number
from nuvec.distributed.transports.local import local_world, unreceived
from nuvec.distributed.transports.single import SingleCommunicator
from nuvec.transforms.compile import GUARDS

__all__ = [
    "Group",
    "barrier",
    "default_group",
    "init",
    "is_available",
    "run_local",
    "set_default_group",
    "synchronize",
]

T = TypeVar("T")


class Group:
    """Some ranks that communicate. Compares and hashes by identity; a copy is the same group."""

    __slots__ = ("__weakref__", "communicator", "queue", "symbol")

    def __init__(
        self, communicator: Communicator, queue: CommunicationQueue, symbol: str = "world"
    ) -> None:
        self.communicator = communicator
        self.queue = queue
        self.symbol = symbol  # what it is called where a program is printed

    def rank(self) -> int:
        """This rank's number in the group, from 0."""
        return self.communicator.rank

    def size(self) -> int:
        """How many ranks the group has."""
        return self.communicator.size

    def split(self, color: int, key: int = -1) -> Group:
        """The group of the ranks that gave the same `color`; every rank of this group calls it.

        Its ranks are ordered by `key`, then by their order here; a negative `key` keeps the order.
        Runs at once, after the communications that are pending. Raises `TypeError` for what is not
        an integer, `ValueError` for what has more than 64 bits.
        """
        color, key = split_number("color", color), split_number("key", key)
        flush(self.queue)
        return Group(self.communicator.split(color, key), self.queue, "group")

    def barrier(self) -> None:
        """Run what is pending, then return when every rank of the group has called this.

        Inside compile it is recorded, and runs in its place; under vmap it runs once.
        """
        if in_symbolic_trace():
            barrier_p.bind(group=self)
            return
        flush(self.queue)
        with recorded("barrier", "communication", group=self.size()):
            self.communicator.barrier()

    def __copy__(self) -> Group:
        return self

    def __deepcopy__(self, memo: object) -> Group:
        return self

    def __reduce__(self) -> tuple[Callable[[], Group], tuple[()]]:
        """The default group pickles as the default group of whoever reads it."""
        if self is _current_group():
            return default_group, ()
        raise DistributedError(
            f"{self!r} cannot be pickled: its connections belong to this process. Only the default "
            "group can, which becomes the default group of the process that reads it; leave other "
            "groups out of what is saved, and make them again with split()"
        )

    def __repr__(self) -> str:
        return f"Group(rank={self.rank()}, size={self.size()}, transport={self.communicator.name})"


class _Defaults(threading.local):
    """The thread's own default group, which `run_local` sets."""

    group: Group | None = None


class _Process:
    """The default group of the process, and the lock that makes it once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.group: Group | None = None
        self.joined: Group | None = None
        """The group that `init` made; it stays when another one becomes the default."""
        self.backend = "any"
        """The backend it was asked to join by."""


_thread = _Defaults()
_process = _Process()


def init(strict: bool = False, backend: BackendName = "any") -> Group:
    """Join the job this process was started for, and make its group the default.

    backend -- the transport: ``"mesh"``, ``"ring"``, or another name of `BACKENDS`; ``"any"`` is
               what `NUVEC_BACKEND` names, else what suits the launcher

    Called again it returns the same group. Without a launcher's variables it is the group of this
    process alone, unless `strict` is true or a backend was asked for by name: then it raises
    `ConfigurationError` and says what was looked for. It raises too for the variables of a
    launcher that nuvec cannot read, rather than make each process a group; for a backend that is
    unknown or not installed; and for another backend than the one this process has joined by.

    A rank that has joined takes the job's variables, and the secret, out of `os.environ`: processes
    it starts are not ranks, and alone in their default group.
    """
    if _thread.group is not None and backend in ("any", "local"):
        return _thread.group
    name = requested(backend)
    if name == "local":
        raise ConfigurationError(
            "the local backend has its ranks in one process, as threads: "
            "run_local(fn, size=2) calls fn(group) on each"
        )
    with _process.lock:
        group = _process.joined
        if group is None or (group.communicator.name == "self" and (strict or name != "any")):
            group = _join(strict, name)
            _process.joined = group
            _process.group = group
            _process.backend = group.communicator.name if name == "any" else name
        elif name not in ("any", _process.backend):
            raise ConfigurationError(
                f"init(backend={name!r}): this process has joined its job already, over "
                f"{_process.backend}; the backend is chosen by the first call of init or, with "
                "NUVEC_BACKEND, for all of them"
            )
        return group


def _join(strict: bool, backend: str) -> Group:
    communicator = join(backend, config.timeout)
    if communicator is not None:
        watch_launcher(os.environ)
        group = Group(communicator, process_queue())
        withdraw(os.environ, group.rank(), group.size())
        atexit.register(_leave, group, os.getpid())
        return group
    if strict or backend != "any":
        raise ConfigurationError(
            "this process was not started as a rank of a job: looked for the environment "
            f"variables {looked_for()}. Start it with `nuvec.launch -n 2 script.py`"
        )
    group = Group(SingleCommunicator(), process_queue())
    atexit.register(_leave, group, os.getpid())
    return group


def _leave(group: Group, pid: int) -> None:
    """At exit: run what is pending, then leave in order. A failed rank says so to its peers."""
    if os.getpid() != pid:  # a forked child is not a rank
        return
    # Set when an exception ended the program (and by any mistake at an interactive prompt).
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):
        group.communicator.abort(f"failed with {type(error).__name__}: {error}")
        group.communicator.close()
        return
    pending = group.queue.pending()
    try:
        flush(group.queue)
    except BaseException as failure:
        # An exit function cannot change the exit code by raising, and this must not look like
        # success: others rely on the messages that were not sent.
        _print_failure(failure, pending)
        group.communicator.abort(f"failed at exit with {type(failure).__name__}: {failure}")
        group.communicator.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    group.communicator.close()


def _print_failure(failure: BaseException, pending: list[Node]) -> None:
    """The traceback of a communication that ran at exit: where it was recorded says more than
    the frames of an exit function."""
    if config.traceback == "full":
        traceback.print_exception(failure)
        return
    failed = (n for n in pending if getattr(n.primitive, "error", None) is failure)
    source = next((n.source for n in failed if n.source), None)
    where = f"recorded at {source}" if source else "recorded at a line that is not known"
    strip_error(failure)
    # The first line as Python's, for the launcher and others who look for it.
    lines = ["Traceback (most recent call last):\n"]
    lines.append(f"  a communication {where} and never evaluated, run at exit\n")
    own = traceback.format_exception(failure)
    lines += own[1:] if own[0].startswith("Traceback") else own
    print("".join(lines), end="", file=sys.stderr)


def default_group() -> Group:
    """The group that communications use when they are given none."""
    if _thread.group is not None:
        return _thread.group
    group = _process.group
    return init() if group is None else group


def group_or_default(name: str, group: Group | None) -> Group:
    """The group given to the function `name`, or the default one; `TypeError` for anything else."""
    if group is None:
        return default_group()
    if not isinstance(group, Group):
        raise TypeError(
            f"{name}: group is {group!r}, a {type(group).__name__}, and should be a Group, such as "
            "default_group() or one of its split()"
        )
    return group


def _current_group() -> Group | None:
    """The default group if there is one already: part of a compiled function's signature."""
    return _process.group if _thread.group is None else _thread.group


GUARDS.append(_current_group)


def set_default_group(group: Group | None) -> None:
    """Make `group` the default: of this thread inside `run_local`, else of the process.

    None outside `run_local` goes back to the group that `init` makes.
    """
    if group is not None and group_or_default("set_default_group", group).queue is None:
        raise DistributedError(
            f"set_default_group: {group!r} is the axis of a vmap, which exists only inside it: "
            "pass it to each communication, as in nv.distributed.all_sum(x, group)"
        )
    if _thread.group is not None:
        if group is None:
            raise ValueError("a rank of run_local always has a default group")
        _thread.group = group
        return
    with _process.lock:
        _process.group = _process.joined if group is None else group


def barrier(group: Group | None = None) -> None:
    """Return when every rank of the group has called this, after the communications pending.

    >>> import nuvec as nv
    >>> nv.distributed.barrier()
    """
    group_or_default("barrier", group).barrier()


def synchronize(group: Group | None = None) -> None:
    """Run every communication this rank has recorded and not run, over all its groups.

    >>> import nuvec as nv
    >>> nv.distributed.synchronize()
    """
    queue = group_or_default("synchronize", group).queue
    if queue is not None:  # the elements of a mapped axis send nothing
        flush(queue)


@filtered
def run_local(fn: Callable[[Group], T], size: int) -> list[T]:
    """Call ``fn(group)`` on `size` ranks that are threads of this process.

    The group is also each thread's default. Results are evaluated on their rank and returned in
    rank order. When ranks fail, the error that happened first is raised, with the others' as notes.
    DistributedError when a message was sent and never received.

    Transforms go inside `fn`, around the communications: what `fn` returns has its values, so that
    derivatives, vmap and compile cannot reach from outside into the ranks, which have ended.

    >>> import nuvec as nv
    >>> def gradient(group):
    ...     return nv.grad(lambda x: nv.distributed.all_sum(x * x, group))(nv.array(3.0))
    >>> nv.distributed.run_local(gradient, 2)
    [array(12., dtype=float32), array(12., dtype=float32)]
    """
    size = _checked_size(size)
    communicators = local_world(size, config.timeout)
    results: dict[int, T] = {}
    failures: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        communicator = communicators[rank]
        group = Group(communicator, CommunicationQueue())
        _thread.group = group
        try:
            with stream_set(Stream()):  # ranks start alike, as separate processes do
                result = fn(group)
                _refuse_derivatives(rank, group.queue)
                _evaluate_results(rank, result)
                flush(group.queue)
            results[rank] = result
        except BaseException as error:
            failures.append((rank, error))  # before the others can hear of it, so in order
            communicator.abort(f"failed with {type(error).__name__}: {error}")
        finally:
            communicator.close()
            group.queue.ended = True

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"nuvec rank {rank}", daemon=True)
        for rank in range(size)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        for communicator in communicators:
            communicator.abort("run_local was interrupted")
        raise
    if failures:
        rank, first = failures[0]
        first.add_note(f"raised on rank {rank} of {size} (run_local)")
        for other, error in failures[1:]:
            first.add_note(f"rank {other} raised {type(error).__name__}: {error}")
        raise first
    lost = unreceived(communicators)
    if lost:
        raise DistributedError(
            f"run_local: every rank has returned, and was never received: {'; '.join(lost)}. Each "
            "send needs its recv"
        )
    return [results[rank] for rank in range(size)]


def _checked_size(size: Any) -> int:
    try:
        number = -1 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = -1
    if number < 1:
        raise ArgumentError(f"run_local: size must be an integer of at least 1, got {size!r}")
    return number


def _refuse_derivatives(rank: int, queue: CommunicationQueue) -> None:
    """Raise where a transform around run_local would differentiate what a rank communicates."""
    for trace in context.traces:
        if trace.differentiates and any(_has_derivative(n, queue) for n in trace.effects):
            raise DistributedError(
                f"run_local inside {trace.name}: rank {rank} communicates, and derivatives cannot "
                "cross run_local, whose ranks end before they are taken. Put the transform inside "
                "the function that run_local calls, run_local(lambda group: nv.grad(f)(x), 2), or "
                "write stop_gradient on what is communicated"
            )


def _has_derivative(communication: Node, queue: CommunicationQueue) -> bool:
    active = communication.params.get("active") is not False
    inexact = any(dtypes.is_inexact(a.dtype) for a in communication.aval)
    return active and inexact and queue_of(communication) is queue


def _evaluate_results(rank: int, result: Any) -> None:
    try:
        evaluate_trees(result)
    except ConcretizationError as error:
        raise ConcretizationError(
            f"run_local evaluates what its ranks return, and of rank {rank} that has no value: "
            f"{error}. Transforms go inside the function that run_local calls: "
            "run_local(lambda group: nv.vmap(f)(x), 2)"
        ) from error

"""The launcher: ``python -m nuvec.launch -n 4 train.py args...``

It starts the ranks, shows their output, hands on its input and its signals, and makes sure that a
job ends as a whole: when one rank fails its traceback is shown first, the others are ended, and the
launcher exits with that rank's code. Nothing is left running or lying about afterwards. The ranks
are processes of this host, or of others, reached by ssh; for the MPI backend, mpirun's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import IO

from nuvec.core.errors import ConfigurationError
from nuvec.distributed._arguments import Options, parse
from nuvec.distributed._mpi import MpiMissing, mpi_command
from nuvec.distributed._output import RankStream, Screen
from nuvec.distributed._placement import DEFAULT_PORT, Seat, addresses_of, unreachable
from nuvec.distributed._processes import (
    Cleaner,
    Rank,
    RankProcess,
    rank_environment,
    read_pipe,
    why_not,
)
from nuvec.distributed._ssh import END_SECONDS, Host, hosts_of
from nuvec.distributed._stdin import Broadcast, Writer
from nuvec.distributed._wake import wakes
from nuvec.distributed.hostfile import format_hosts, parse_hosts
from nuvec.distributed.rendezvous import BACKEND

__all__ = ["main"]

GRACE_SECONDS = 5.0
"""How long ranks have to end after SIGTERM."""

SETTLE_SECONDS = 0.1
"""How long after the first failure others may still turn out to have failed before it."""

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that tell a job something (to save its state, say) and are not meant to end it."""

CAUSE_SECONDS = 2.0
"""How long to wait for the rank that failed by itself, when others say that they lost it."""


class _Launch:
    """One job being run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ranks: list[Rank] = []
        self.hosts: list[Host] = []
        """Those whose ranks are reached by ssh."""
        self.streams: dict[int, tuple[RankStream, RankStream]] = {}
        self.selector = selectors.PollSelector()
        self.screens = (
            Screen(1, options.prefix and not options.mpi),  # mpirun has its own prefix
            Screen(2, options.prefix and not options.mpi),
        )
        self.input: Broadcast | None = None
        self.pipes: list[IO[bytes]] = []
        """The output pipes of the ranks of this host."""
        self.caught: list[int] = []
        self.started = False
        self.gave_up: int | None = None
        """The exit code of a job that could not be started."""
        self.failed: list[Rank] = []
        """In the order in which they were seen to have failed."""
        self.first_failure: float | None = None
        self.culprit: Rank | None = None
        self.ending_since: float | None = None
        self.killed = False
        self.first_signal = 0

    def run(self) -> int:
        """Run the job to its end; the exit code."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.selector.close)
            cleanup.enter_context(wakes(self.selector, self.caught.append))
            if self.options.seats and not self.options.mpi:
                cleanup.callback(self._close_hosts)
                self._call_hosts()
            else:
                self._start_here(cleanup)
            while self.gave_up is None and not all(rank.has_exited() for rank in self.ranks):
                self._step()
            if self.gave_up is not None:
                return self.gave_up
            self._read_all(time.monotonic() + 0.2)
            self._judge(time.monotonic(), settled=True)
            for rank in sorted(self.ranks, key=lambda rank: rank is not self.culprit):
                for stream in self.streams[rank.rank]:
                    stream.finish()
            return self._exit_code()

    def _give_up(self, text: str, code: int) -> None:
        self.say(text, always=True)
        self.gave_up = code

    def _add_streams(self, number: int) -> None:
        holds = self.options.size > 1 and not self.options.mpi
        self.streams[number] = (
            RankStream(number, self.screens[0], holds_tracebacks=False),
            RankStream(number, self.screens[1], holds_tracebacks=holds),
        )

    # Starting on this host.

    def _start_here(self, cleanup: contextlib.ExitStack) -> None:
        options = self.options
        directory = tempfile.mkdtemp(prefix="nuvec-")  # mode 0700
        lifeline, held = os.pipe()
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        cleaner = Cleaner(directory)
        cleanup.callback(cleaner.close)
        cleanup.callback(os.close, held)
        cleanup.callback(os.close, lifeline)
        secret, job = secrets.token_hex(32), secrets.token_hex(8)
        inputs = []
        for number in range(1 if options.mpi else options.size):
            try:
                if options.mpi:
                    command, environment = mpi_command(options)
                    # mpirun ends its ranks in order, given the chance.
                    orphaned = signal.SIGTERM
                else:
                    command, orphaned = options.command, signal.SIGKILL
                    places = {"NUVEC_SOCKET_DIR": directory}
                    environment = rank_environment(
                        number, options.size, places, secret, job, options.environment
                    )
                rank = RankProcess(
                    number, command, environment, options.directory, lifeline, orphaned
                )
            except MpiMissing as error:
                return self._give_up(str(error), 127)
            except OSError as error:
                what, reason, code = why_not(error, command[0], options.directory)
                on = "" if what.startswith("--") else f" for rank {number}"
                return self._give_up(f"cannot start {what}{on}: {reason}", code)
            cleanup.callback(rank.end)
            if orphaned == signal.SIGKILL:
                cleaner.watch(rank.pid)
            self.ranks.append(rank)
            who = "mpirun" if options.mpi else f"rank {number}"
            self.say(f"started {who} as process {rank.pid}")
            self._add_streams(number)
            pipes = (rank.process.stdout, rank.process.stderr)
            for pipe, stream in zip(pipes, self.streams[number], strict=True):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                read = partial(self._read_output, pipe, stream)
                self.selector.register(pipe, selectors.EVENT_READ, read)
                self.pipes.append(pipe)
            assert rank.process.stdin is not None
            inputs.append(Writer(rank.process.stdin, self.selector))
        if options.mpi:
            inputs[0].close()
        else:
            self.input = Broadcast(self.selector, inputs)
        self.started = True

    # Starting on other hosts.

    def _call_hosts(self) -> None:
        """Have ssh start a helper on every host."""
        for number in range(self.options.size):
            self._add_streams(number)
        try:
            for host in hosts_of(self.options, self.streams, self.selector, self.say):
                self.hosts.append(host)
                self.ranks += host.ranks.values()
        except OSError as error:
            what, reason, code = why_not(error, self.options.ssh[0], None)
            return self._give_up(f"cannot start {what}: {reason}", code)
        self.ranks.sort(key=lambda rank: rank.rank)

    def _start_hosts(self, now: float) -> None:
        """Once all hosts have said where their ranks will listen, tell all of them."""
        for host in self.hosts:
            host.tick(now)
            if host.failure is not None:
                return self._give_up(*host.failure)
        if self.started or any(host.rows is None for host in self.hosts):
            return None
        rows = {number: row for host in self.hosts for number, row in (host.rows or {}).items()}
        hosts = format_hosts([rows[number] for number in range(self.options.size)])
        try:
            why = unreachable(parse_hosts(hosts, "of this job"))
        except ConfigurationError as error:
            why = str(error)
        if why:
            return self._give_up(why, 1)
        for host in self.hosts:
            host.start(hosts)
        self.input = Broadcast(self.selector, self.hosts)
        self.started = True
        return None

    def _close_hosts(self) -> None:
        for host in self.hosts:
            host.hang_up()
        deadline = time.monotonic() + END_SECONDS
        for host in self.hosts:
            host.close(deadline)

    # Running.

    def _step(self) -> None:
        now = time.monotonic()
        waits = [stream.waits() for pair in self.streams.values() for stream in pair]
        busy = any(waits) or self.first_failure is not None or self.ending_since is not None
        for key, _ in self.selector.select(0.05 if busy else 1.0):
            if key.fd in self.selector.get_map():  # an event before may have closed it
                key.data()
        if self.input is not None:
            self.input.balance()
        now = time.monotonic()
        for pair in self.streams.values():
            for stream in pair:
                # After a failure the culprit's traceback comes first; see _judge.
                if self.first_failure is None or self.culprit is not None:
                    stream.tick(now)
        while self.caught:
            self._pass_on(self.caught.pop(0))
        self._start_hosts(now)
        self._judge(now)
        self._escalate(now)

    def _read_output(self, pipe: IO[bytes], stream: RankStream) -> bool:
        data = read_pipe(pipe)
        if data is None:
            return False
        if not data:
            self.selector.unregister(pipe)
            self.pipes.remove(pipe)
            return False
        stream.feed(data)
        return True

    def _read_all(self, deadline: float) -> None:
        """Read what the ranks, all gone, have left in their pipes (a grandchild may hold them)."""
        while self.pipes and time.monotonic() < deadline:
            progress = False
            for pipe in list(self.pipes):
                progress = self.selector.get_key(pipe).data() or progress
            if not progress:
                time.sleep(0.01)

    # Ending.

    def _judge(self, now: float, settled: bool = False) -> None:
        """After a failure: find out whose it was, show it first, and end the others."""
        for rank in self.ranks:
            if rank.has_exited() and rank.exit_code and rank not in self.failed:
                self.failed.append(rank)
        if not self.failed or self.culprit is not None or self.ending_since is not None:
            return
        if self.first_failure is None:
            self.first_failure = now
        culprit = min(self.failed, key=self._innocence)  # of several the first
        patience = CAUSE_SECONDS if self._innocence(culprit) == 2 else SETTLE_SECONDS
        if not settled and now - self.first_failure < patience:
            return
        self.culprit = culprit
        for stream in self.streams[self.culprit.rank]:
            stream.finish()
        how = f"exited with {culprit.exit_code}"
        if culprit.lost:
            how = f"was lost: {culprit.lost}"
        elif culprit.killed_by is not None:
            how = f"was killed by {_signal_name(culprit.killed_by)}"
        who = "mpirun" if self.options.mpi else f"rank {culprit.rank}"
        self.say(f"{who} {how}; ending the job", always=True)
        self._end_all(now)

    def _innocence(self, rank: Rank) -> int:
        """Sorts the rank that failed by itself before those that only lost it."""
        lines = self.streams[rank.rank][1].tail.rstrip().splitlines()
        # Notes may follow the line that names the error; an error of a peer is named at its start.
        lost_peer = any(b"PeerError: " in line.partition(b" ")[0] + b" " for line in lines[-5:])
        return 0 if rank.killed_by is not None else 2 if lost_peer else 1

    def _end_all(self, now: float) -> None:
        if self.ending_since is None:
            self.ending_since = now
            for rank in self.ranks:
                rank.signal(signal.SIGTERM)

    def _escalate(self, now: float) -> None:
        if self.ending_since is None or now - self.ending_since <= GRACE_SECONDS:
            return
        if self.killed:
            if now - self.ending_since > GRACE_SECONDS + END_SECONDS:
                for host in self.hosts:  # one that does nothing any more
                    host.kill()
            return
        self.killed = True
        for rank in self.ranks:
            if not rank.has_exited():
                self.say(f"rank {rank.rank} did not end: killing it", always=True)
            rank.signal(signal.SIGKILL)

    def _pass_on(self, number: int) -> None:
        """A signal to the launcher is a signal to the job."""
        if not self.started:
            self._give_up(f"ended by {_signal_name(number)}", 128 + number)
            return
        if number in NOTICES:
            self.say(f"passing on {_signal_name(number)}")
            for rank in self.ranks:
                rank.signal(number)
            return
        if self.ending_since is not None:  # asked again: no more patience
            self.ending_since = time.monotonic() - GRACE_SECONDS
            return
        self.say(f"passing on {_signal_name(number)}")
        self.ending_since = time.monotonic()
        for rank in self.ranks:
            rank.signal(number)
        self.first_signal = number

    def _exit_code(self) -> int:
        if self.culprit is not None and self.culprit.exit_code:
            return self.culprit.exit_code
        codes = [rank.exit_code for rank in self.ranks if rank.exit_code]
        if self.first_signal and codes:
            return 128 + self.first_signal
        return codes[0] if codes else 0

    def say(self, text: str, always: bool = False) -> None:
        """A line of the launcher's own; without `always` only with ``--verbose``."""
        if always or self.options.verbose:
            screen = self.screens[1]
            start = b"\n" if screen.unfinished is not None else b""
            screen.unfinished = None
            # A path, unlike other text, may hold bytes that are not UTF-8.
            screen.write(start + f"nuvec.launch: {text}\n".encode(errors="surrogateescape"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _fill_standard_streams() -> None:
    """A stream that was closed (``>&-``) is the null device: else a pipe would take its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is fd
            assert null == fd


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher; returns its exit code."""
    _fill_standard_streams()
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.print_hostfile:
        seats = options.seats or [Seat("127.0.0.1")] * options.size
        try:
            addresses = addresses_of(seats, options.port or DEFAULT_PORT)
        except ConfigurationError as error:
            sys.stderr.write(f"nuvec.launch: {error}\n")
            return 2
        sys.stdout.write(format_hosts(addresses))
        return 0
    if options.backend is not None:
        options.environment.setdefault(BACKEND, options.backend)
    restarts = options.max_restarts
    while True:
        launch = _Launch(options)
        code = launch.run()
        # A job that never ran would not run the next time either.
        if code == 0 or not restarts or launch.first_signal or launch.gave_up is not None:
            return code
        restarts -= 1
        launch.say(f"starting again ({restarts} restarts left)", always=True)

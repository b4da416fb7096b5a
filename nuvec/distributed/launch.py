"""The launcher: ``python -m nuvec.launch -n 4 train.py args...``

It starts the ranks, shows their output, hands on its input and its signals, and makes sure that a
job ends as a whole: when one rank fails its traceback is shown first, the others are ended, and the
launcher exits with that rank's code. Nothing is left running or lying about afterwards.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO

from nuvec.distributed._arguments import Options, parse
from nuvec.distributed._output import RankStream, Screen
from nuvec.distributed._processes import Cleaner, RankProcess, rank_environment

__all__ = ["main"]

GRACE_SECONDS = 5.0
"""How long ranks have to end after SIGTERM."""

SETTLE_SECONDS = 0.1
"""How long after the first failure others may still turn out to have failed before it."""

CAUSE_SECONDS = 2.0
"""How long to wait for the rank that failed by itself, when others say that they lost it."""

_INPUT_LIMIT = 1 << 20
"""Unread input a rank may have before the launcher stops reading its own."""


class _Launch:
    """One job being run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ranks: list[RankProcess] = []
        self.streams: dict[int, tuple[RankStream, RankStream]] = {}
        self.selector = selectors.PollSelector()
        self.screens = (
            Screen(1, options.prefix),
            Screen(2, options.prefix),
        )
        self.input_fd: int | None = None
        self.input: dict[int, bytes] = {}
        """What each rank has not yet taken of the launcher's input; gone once it takes no more."""
        self.input_ended = False
        self.caught: list[int] = []
        self.first_failure: float | None = None
        self.culprit: RankProcess | None = None
        self.ending_since: float | None = None
        self.killed = False
        self.first_signal = 0

    def run(self) -> int:
        """Run the job to its end; the exit code."""
        directory = tempfile.mkdtemp(prefix="nuvec-")  # mode 0700
        lifeline, held = os.pipe()
        cleaner = Cleaner(directory, lifeline)
        try:
            try:
                self._start(directory, lifeline)
            except OSError as error:
                return self._cannot_start(error)
            while not self._all_exited():
                self._step()
            self._read_all(time.monotonic() + 0.2)
            self._judge(time.monotonic(), settled=True)
            for rank in sorted(self.ranks, key=lambda rank: rank is not self.culprit):
                for stream in self.streams[rank.rank]:
                    stream.finish()
            return self._exit_code()
        finally:
            for rank in self.ranks:
                rank.end()
            self.selector.close()
            os.close(lifeline)
            os.close(held)
            cleaner.wait()
            shutil.rmtree(directory, ignore_errors=True)

    def _all_exited(self) -> bool:
        return all(rank.has_exited() for rank in self.ranks)

    # Starting.

    def _start(self, directory: str, lifeline: int) -> None:
        options = self.options
        secret, job = secrets.token_hex(32), secrets.token_hex(8)
        for number in range(options.size):
            environment = rank_environment(
                number, options.size, directory, secret, job, options.environment
            )
            rank = RankProcess(number, options.command, environment, options.directory, lifeline)
            self.ranks.append(rank)
            self._say(f"started rank {number} as process {rank.pid}")
            streams = (
                RankStream(number, self.screens[0], holds_tracebacks=False),
                RankStream(number, self.screens[1], holds_tracebacks=options.size > 1),
            )
            self.streams[number] = streams
            pipes = (rank.process.stdout, rank.process.stderr)
            for pipe, stream in zip(pipes, streams, strict=True):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self.selector.register(pipe, selectors.EVENT_READ, stream)
            assert rank.process.stdin is not None
            os.set_blocking(rank.process.stdin.fileno(), False)
            self.input[number] = b""
        self._watch_input()

    def _cannot_start(self, error: OSError) -> int:
        """Say what could not be run; the exit code a shell would give."""
        directory, program = self.options.directory, self.options.command[0]
        if directory is not None and error.filename == directory:
            what = f"--cwd {directory}"
        else:
            what = f"{program} for rank {len(self.ranks)}"
        self._say(f"cannot start {what}: {error.strerror or error}", always=True)
        return 127 if isinstance(error, FileNotFoundError) else 126

    def _watch_input(self) -> None:
        try:
            fd = sys.stdin.fileno()
            # A background job must not read the terminal: it would be stopped.
            if os.isatty(fd) and os.tcgetpgrp(fd) != os.getpgrp():
                return
            self.selector.register(fd, selectors.EVENT_READ, "input")
            self.input_fd = fd
        except (OSError, ValueError, AttributeError):
            self.input_ended = True
            self._feed_input()

    # Running.

    def _step(self) -> None:
        now = time.monotonic()
        waits = [stream.waits() for pair in self.streams.values() for stream in pair]
        busy = any(waits) or self.first_failure is not None or self.ending_since is not None
        for key, _ in self.selector.select(0.05 if busy else 1.0):
            if isinstance(key.data, RankStream):
                self._read_output(key.fileobj, key.data)
            elif key.data == "wake":
                try:
                    os.read(key.fd, 4096)
                except BlockingIOError:
                    pass
            elif key.data == "input":
                self._read_input()
            else:
                self._feed_input()
        now = time.monotonic()
        for pair in self.streams.values():
            for stream in pair:
                # After a failure the culprit's traceback comes first; see _judge.
                if self.first_failure is None or self.culprit is not None:
                    stream.tick(now)
        while self.caught:
            self._pass_on(self.caught.pop(0))
        self._judge(now)
        self._escalate(now)

    def _read_output(self, pipe: object, stream: RankStream) -> bool:
        assert hasattr(pipe, "fileno")
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(pipe)
            return False
        stream.feed(data)
        return True

    def _unread_output(self) -> bool:
        return any(isinstance(key.data, RankStream) for key in self.selector.get_map().values())

    def _read_all(self, deadline: float) -> None:
        """Read what the ranks, all gone, have left in their pipes (a grandchild may hold them)."""
        while self._unread_output() and time.monotonic() < deadline:
            progress = False
            for key in list(self.selector.get_map().values()):
                if isinstance(key.data, RankStream):
                    progress = self._read_output(key.fileobj, key.data) or progress
            if not progress:
                time.sleep(0.01)

    def _read_input(self) -> None:
        assert self.input_fd is not None
        try:
            data = os.read(self.input_fd, 1 << 16)
        except OSError:
            data = b""
        if not data:
            self.input_ended = True
            self.selector.unregister(self.input_fd)
        for number in self.input:
            self.input[number] += data
        self._feed_input()

    def _feed_input(self) -> None:
        """Give every rank as much of the input as it takes."""
        for number in list(self.input):
            pipe = self.ranks[number].process.stdin
            assert pipe is not None
            try:
                if self.input[number]:
                    taken = os.write(pipe.fileno(), self.input[number])
                    self.input[number] = self.input[number][taken:]
            except BlockingIOError:
                pass
            except OSError:  # it reads no more
                self._end_input(number, pipe)
                continue
            if not self.input[number] and self.input_ended:
                self._end_input(number, pipe)
                continue
            watched = pipe in self.selector.get_map()
            if self.input[number] and not watched:
                self.selector.register(pipe, selectors.EVENT_WRITE, "feed")
            elif watched and not self.input[number]:
                self.selector.unregister(pipe)
        if self.input_fd is not None and not self.input_ended:
            full = any(len(data) > _INPUT_LIMIT for data in self.input.values())
            reading = self.input_fd in self.selector.get_map()
            if full and reading:
                self.selector.unregister(self.input_fd)
            elif not full and not reading:
                self.selector.register(self.input_fd, selectors.EVENT_READ, "input")

    def _end_input(self, number: int, pipe: IO[bytes]) -> None:
        del self.input[number]
        if pipe in self.selector.get_map():
            self.selector.unregister(pipe)
        pipe.close()

    # Ending.

    def _judge(self, now: float, settled: bool = False) -> None:
        """After a failure: find out whose it was, show it first, and end the others."""
        failed = [rank for rank in self.ranks if rank.has_exited() and rank.exit_code]
        if not failed or self.culprit is not None or self.ending_since is not None:
            return
        if self.first_failure is None:
            self.first_failure = now
        culprit = min(failed, key=self._innocence)
        patience = CAUSE_SECONDS if self._innocence(culprit) == 2 else SETTLE_SECONDS
        if not settled and now - self.first_failure < patience:
            return
        self.culprit = culprit
        for stream in self.streams[self.culprit.rank]:
            stream.finish()
        how = f"exited with {culprit.exit_code}"
        if culprit.killed_by is not None:
            how = f"was killed by {_signal_name(culprit.killed_by)}"
        self._say(f"rank {self.culprit.rank} {how}; ending the job", always=True)
        self._end_all(now)

    def _innocence(self, rank: RankProcess) -> int:
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
        if self.ending_since is None or self.killed or now - self.ending_since <= GRACE_SECONDS:
            return
        self.killed = True
        for rank in self.ranks:
            if not rank.has_exited():
                self._say(f"rank {rank.rank} did not end: killing it", always=True)
            rank.signal(signal.SIGKILL)

    def _pass_on(self, number: int) -> None:
        """A signal to the launcher is a signal to the job."""
        if self.ending_since is not None:  # asked again: no more patience
            self.ending_since = time.monotonic() - GRACE_SECONDS
            return
        self._say(f"passing on {_signal_name(number)}")
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

    def _say(self, text: str, always: bool = False) -> None:
        if always or self.options.verbose:
            screen = self.screens[1]
            start = b"\n" if screen.unfinished is not None else b""
            screen.unfinished = None
            screen.write(start + f"nuvec.launch: {text}\n".encode())


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
    launch = _Launch(parse(sys.argv[1:] if arguments is None else arguments))
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)

    def catch(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            launch.caught.append(number)

    # The wake-up socket makes the launcher look at once when a rank ends or a signal comes.
    old_wake = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
    old = {number: signal.signal(number, catch) for number in numbers}
    launch.selector.register(woken, selectors.EVENT_READ, "wake")
    try:
        return launch.run()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_wake)
        woken.close()
        wake.close()

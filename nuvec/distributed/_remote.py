"""The launcher's helper on another host: ``python -m nuvec.distributed._remote``, started by ssh.

It is told over its standard input what to run, the job's secret included, starts the ranks of this
host, and hands their output, their input and signals on as frames. When its input ends, the
launcher is gone, and so are then the ranks.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import IO, Any

from nuvec.core.errors import ConfigurationError
from nuvec.distributed import _control
from nuvec.distributed._control import Frame, Frames, pack
from nuvec.distributed._processes import (
    Cleaner,
    RankProcess,
    rank_environment,
    read_pipe,
    why_not,
)
from nuvec.distributed._stdin import Writer
from nuvec.distributed._wake import wakes
from nuvec.distributed.hostfile import format_hosts
from nuvec.distributed.meeting import free_port
from nuvec.distributed.transports.job import Address

REST_SECONDS = 0.2
"""How long to read on what the processes that an ended rank has started write."""

GRACE_SECONDS = 5.0
"""How long ranks have to end after SIGTERM when the launcher is gone."""


class _Helper:
    """The ranks of one host."""

    def __init__(self, directory: str, lifeline: int, cleaner: Cleaner) -> None:
        self.directory = directory
        self.cleaner = cleaner
        self.lifeline = lifeline
        self.selector = selectors.PollSelector()
        self.frames = Frames()
        self.job: dict[str, Any] = {}
        self.ranks: dict[int, RankProcess] = {}
        self.inputs: dict[int, Writer] = {}
        self.open: dict[int, int] = {}
        """How many of a rank's two output pipes have not ended."""
        self.told: set[int] = set()
        """The ranks whose end the launcher knows."""
        self.offered = self.taken = 0
        self.gone = False

    def run(self) -> None:
        """Serve until the launcher is gone."""
        self.selector.register(0, selectors.EVENT_READ, self.read)
        with wakes(self.selector, self.caught):
            self.write(_control.GREETING)
            while not self.gone:
                ending = any(r.has_exited() and n not in self.told for n, r in self.ranks.items())
                for key, _ in self.selector.select(0.05 if ending else 1.0):
                    key.data()
                self.acknowledge()
                for number, rank in self.ranks.items():
                    if number not in self.told and rank.has_exited():
                        self.report(number, rank)

    def caught(self, number: int) -> None:
        """Whoever ends the helper ends its ranks; the others learn of it from the launcher."""
        self.gone = True

    def end(self) -> None:
        """End what still runs."""
        for rank in self.ranks.values():
            rank.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while not all(r.has_exited() for r in self.ranks.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for rank in self.ranks.values():
            rank.end()

    def write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            self.gone = True

    def read(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except OSError:
            data = b""
        if not data:
            self.gone = True
        for frame in self.frames.feed(data):
            self.handle(frame)

    def handle(self, frame: Frame) -> None:
        if frame.kind == _control.JOB:
            self.job = frame.content()
            self.answer()
        elif frame.kind == _control.START:
            self.start(frame.content())
        elif frame.kind == _control.SIGNAL:
            if frame.rank in self.ranks:
                self.ranks[frame.rank].signal(frame.content())
        elif frame.kind == _control.INPUT:
            self.offered += len(frame.payload)
            for writer in self.inputs.values():
                writer.offer(frame.payload)
        elif frame.kind == _control.INPUT_END:
            for writer in self.inputs.values():
                writer.end()

    def answer(self) -> None:
        """Say where the ranks of this host will listen."""
        addresses = []
        try:
            seats = self.job["seats"]
            for index, (number, seat) in enumerate(seats):
                host = _number(seat["address"] or _reached() or seat["host"].rpartition("@")[2])
                path = os.path.join(self.directory, f"{number}.sock")
                port = seat["port"] or free_port(host, index, len(seats))
                addresses.append(Address(self.job["host"], path, (host, port)))
        except (ConfigurationError, OSError) as error:
            self.write(
                pack(_control.REFUSED, 0, {"message": f"ranks on {{host}}: {error}", "code": 1})
            )
            return
        self.write(pack(_control.READY, 0, format_hosts(addresses)))

    def start(self, hosts: str) -> None:
        path = os.path.join(self.directory, "hosts.json")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(hosts)
        job = self.job
        for number, _ in job["seats"]:
            environment = rank_environment(
                number,
                job["size"],
                {"NUVEC_HOSTFILE": path},
                job["secret"],
                job["name"],
                job["environment"],
                len(job["seats"]),
            )
            command, directory = job["command"], job["directory"]
            try:
                rank = RankProcess(number, command, environment, directory, self.lifeline)
            except OSError as error:
                what, reason, code = why_not(error, command[0], directory)
                text = f"{what} for rank {number} on {{host}}: {reason}"
                self.write(pack(_control.REFUSED, number, {"message": text, "code": code}))
                return
            self.ranks[number] = rank
            self.cleaner.watch(rank.pid)
            self.write(pack(_control.STARTED, number, rank.pid))
            process = rank.process
            assert process.stdin is not None
            self.inputs[number] = Writer(process.stdin, self.selector)
            self.open[number] = 2
            pipes = ((process.stdout, _control.OUT), (process.stderr, _control.ERR))
            for pipe, kind in pipes:
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                pass_on = partial(self.pass_on, number, pipe, kind)
                self.selector.register(pipe, selectors.EVENT_READ, pass_on)

    def pass_on(self, number: int, pipe: IO[bytes], kind: bytes) -> bool:
        """Send what the rank has written; whether there was any."""
        data = read_pipe(pipe)
        if data is None:
            return False
        if not data:
            self.selector.unregister(pipe)
            self.open[number] -= 1
            return False
        self.write(pack(kind, number, data))
        return True

    def acknowledge(self) -> None:
        """Say how much of the input all ranks have taken, so that no more than that is sent."""
        unread = max((writer.unread for writer in self.inputs.values()), default=0)
        taken = self.offered - unread
        if taken > self.taken:
            self.write(pack(_control.TAKEN, 0, taken - self.taken))
            self.taken = taken

    def report(self, number: int, rank: RankProcess) -> None:
        """Say how a rank has ended, after all that it wrote (a grandchild may hold its pipes)."""
        process = rank.process
        pipes = ((process.stdout, _control.OUT), (process.stderr, _control.ERR))
        deadline = time.monotonic() + REST_SECONDS
        for pipe, kind in pipes:
            assert pipe is not None
            while pipe in self.selector.get_map() and self.pass_on(number, pipe, kind):
                if time.monotonic() > deadline:
                    break
        how = {"code": rank.exit_code, "killed_by": rank.killed_by}
        self.write(pack(_control.EXITED, number, how))
        self.told.add(number)


def _reached() -> str:
    """The address of this host by which ssh reached it."""
    fields = os.environ.get("SSH_CONNECTION", "").split()
    return fields[2] if len(fields) == 4 else ""


def _number(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigurationError(f"the host {host!r} is unknown: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one launcher; the exit code."""
    directory = tempfile.mkdtemp(prefix="nuvec-")  # mode 0700
    lifeline, held = os.pipe()
    cleaner = Cleaner(directory)
    helper = _Helper(directory, lifeline, cleaner)
    try:
        helper.run()
    finally:
        helper.end()
        os.close(lifeline)
        os.close(held)
        cleaner.close()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

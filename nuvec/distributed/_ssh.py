"""Ranks on other hosts, over one ssh connection for each host.

ssh runs the launcher's helper there (`nuvec.distributed._remote`). Nothing of the job is on a
command line: what to run, and the secret, go over ssh's standard input, so that no shell has to
quote them and nobody can read them. When the connection ends, the helper ends its ranks; when a
helper or a connection is lost, so are its ranks here.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nuvec.distributed import _control
from nuvec.distributed._arguments import Options
from nuvec.distributed._control import Frame, Frames, pack
from nuvec.distributed._output import RankStream
from nuvec.distributed._placement import Seat
from nuvec.distributed._processes import die_with_parent, read_pipe
from nuvec.distributed._stdin import Writer
from nuvec.distributed.hostfile import parse_hosts
from nuvec.distributed.rendezvous import OWN
from nuvec.distributed.transports.job import Address

ANSWER_SECONDS = 30.0
"""How long a host may take to answer."""

END_SECONDS = 8.0
"""How long a host may take to end its ranks, which have 5 s."""

_WINDOW = 1 << 18
"""Input on its way to a host, so that signals never wait behind more than this."""

OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # never asks for a password: there may be nobody to answer
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


def ssh_command(
    ssh: Sequence[str], host: str, python: str, environment: Mapping[str, str]
) -> list[str]:
    """The command that runs the helper on a host; of ssh's options the user's come first, and win.

    `environment` is what the helper itself needs to be found.
    """
    words = (
        ["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []
    )
    # -P: what lies in the directory where the login starts is none of the helper's modules.
    words += [python, "-P", "-m", "nuvec.distributed._remote"]
    return [*ssh, *OPTIONS, "--", host, "exec " + shlex.join(words)]


def hosts_of(
    options: Options,
    streams: Mapping[int, tuple[RankStream, RankStream]],
    selector: selectors.BaseSelector,
    say: Callable[[str, bool], None],
) -> Iterator[Host]:
    """Connections to all hosts of a job, each with what it has to know of the job."""
    secret, name = secrets.token_hex(32), secrets.token_hex(8)
    settings = {
        variable: value
        for variable, value in os.environ.items()
        if variable.startswith("NUVEC_") and variable not in OWN
    }
    found = {n: os.environ[n] for n in ("PYTHONPATH",) if os.environ.get(n)}
    seats: dict[str, list[tuple[int, Seat]]] = {}
    for number, seat in enumerate(options.seats):
        seats.setdefault(seat.host, []).append((number, seat))
    for host, own in seats.items():
        job = {
            "host": host,
            "name": name,
            "secret": secret,
            "size": options.size,
            "seats": [(number, seat._asdict()) for number, seat in own],
            "command": options.command,
            "environment": {**settings, **found, **options.environment},
            "directory": options.directory or os.getcwd(),
        }
        command = ssh_command(options.ssh, host, options.python, found)
        yield Host(host, command, job, streams, selector, say)


class RemoteRank:
    """A rank on another host."""

    def __init__(self, rank: int, host: Host) -> None:
        self.rank = rank
        self.host = host
        self.exit_code: int | None = None
        self.killed_by: int | None = None
        self.lost = ""

    def has_exited(self) -> bool:
        return self.exit_code is not None

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            self.host.send(pack(_control.SIGNAL, self.rank, int(number)))


class Host:
    """The connection to one host."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        job: Mapping[str, Any],
        streams: Mapping[int, tuple[RankStream, RankStream]],
        selector: selectors.BaseSelector,
        say: Callable[[str, bool], None],
    ) -> None:
        """`job` is what the helper is told, with the ranks of this host as its ``seats``."""
        self.name = name
        self.ranks = {number: RemoteRank(number, self) for number, _ in job["seats"]}
        self.rows: dict[int, Address] | None = None
        """Where the host's ranks will listen, once it has said so."""
        self.failure: tuple[str, int] | None = None
        """Why its ranks cannot be started, and the exit code for that."""
        self._streams = streams
        self._selector = selector
        self._say = say
        self._started = time.monotonic()
        self._greeted = False
        self._noise = b""
        self._complaint = b""
        """What ssh itself has written, the last of it."""
        self._frames = Frames()
        self._input: list[bytes] = []
        self._input_ended = False
        self._on_its_way = 0
        self._program = command[0]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
            preexec_fn=die_with_parent(),
        )
        assert self.process.stdin is not None
        self._writer = Writer(self.process.stdin, selector)
        for pipe, read in ((self.process.stdout, self.read), (self.process.stderr, self.listen)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, read)
        self.send(pack(_control.JOB, 0, dict(job)))

    def send(self, frame: bytes) -> None:
        """Send a frame as soon as ssh takes it."""
        self._writer.offer(frame)

    def start(self, hosts: str) -> None:
        """Start its ranks; `hosts` is the job's host file."""
        self.send(pack(_control.START, 0, hosts))

    # The input of its ranks, as a `Taker`.

    @property
    def unread(self) -> int:
        return sum(map(len, self._input)) + self._on_its_way

    def offer(self, data: bytes) -> None:
        if not self._writer.closed:
            self._input.append(data)
            self._send_input()

    def end(self) -> None:
        self._input_ended = True
        self._send_input()

    def _send_input(self) -> None:
        while self._input and self._on_its_way < _WINDOW:
            data = self._input.pop(0)
            self._on_its_way += len(data)
            self.send(pack(_control.INPUT, 0, data))
        if self._input_ended and not self._input:
            self._input_ended = False
            self.send(pack(_control.INPUT_END))

    # What comes from it.

    def read(self) -> None:
        """Read what the helper says."""
        data = self._piece(self.process.stdout)
        if data is None:
            return
        if not data:
            self._lose()
            return
        if not self._greeted:
            self._noise += data
            before, greeting, data = self._noise.partition(_control.GREETING)
            if not greeting:
                return
            self._greeted = True
            if before.strip():
                self._say(f"{self.name}: {before.decode(errors='replace').strip()}", False)
        try:
            for frame in self._frames.feed(data):
                self._handle(frame)
        except (ValueError, KeyError) as error:
            self._say(f"{self.name} says what the launcher does not understand: {error!r}", True)
            self.kill()

    def listen(self) -> None:
        """Read what ssh itself says."""
        data = self._piece(self.process.stderr)
        if not data:
            return
        self._complaint = (self._complaint + data)[-4096:]
        text = data.decode(errors="replace").strip()
        self._say(f"{self.name}: {text}", self.rows is not None and bool(text))

    def _piece(self, pipe: Any) -> bytes | None:
        data = read_pipe(pipe)
        if data == b"":
            self._selector.unregister(pipe)
        return data

    def _handle(self, frame: Frame) -> None:
        if frame.kind in (_control.OUT, _control.ERR):
            self._streams[frame.rank][frame.kind == _control.ERR].feed(frame.payload)
        elif frame.kind == _control.TAKEN:
            self._on_its_way -= frame.content()
            self._send_input()
        elif frame.kind == _control.EXITED:
            rank, how = self.ranks[frame.rank], frame.content()
            rank.killed_by, rank.exit_code = how["killed_by"], how["code"]
        elif frame.kind == _control.STARTED:
            text = f"started rank {frame.rank} on {self.name} as process {frame.content()}"
            self._say(text, False)
        elif frame.kind == _control.READY:
            addresses = parse_hosts(frame.content(), f"of {self.name}")
            self.rows = dict(zip(self.ranks, addresses, strict=True))
        elif frame.kind == _control.REFUSED:
            how = frame.content()
            text = how["message"].replace("{host}", self.name, 1)
            self.failure = (f"cannot start {text}", how["code"])

    def _lose(self) -> None:
        """The connection has ended: whatever has not ended there before is lost."""
        try:
            code = self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        while self.process.stderr in self._selector.get_map():
            before = len(self._complaint)
            self.listen()
            if len(self._complaint) == before:
                break
        last = self._complaint.decode(errors="replace").strip() or "it said nothing"
        ended = "is still there" if code is None else f"ended with {code}"
        if self.rows is None and self.failure is None:
            text = f"cannot start ranks on {self.name}: {self._program} {ended}: {last}"
            if b"No module named" in self._complaint:
                text += ". nuvec has to be installed there, for the same Python (--python)"
            self.failure = (text, code if code and code > 0 else 255)
        for rank in self.ranks.values():
            if rank.exit_code is None:
                rank.lost = f"the connection to {self.name} has ended ({last.splitlines()[-1]})"
                rank.exit_code = 255

    def tick(self, now: float) -> None:
        """Give up on a host that does not answer."""
        if self.rows is None and self.failure is None and now - self._started > ANSWER_SECONDS:
            self.failure = (f"{self.name} has not answered within {ANSWER_SECONDS:.0f} s", 255)

    # The end.

    def hang_up(self) -> None:
        """Let the helper end."""
        self._writer.close()

    def kill(self) -> None:
        """End the connection at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def close(self, deadline: float) -> None:
        """Wait for the helper's end, not longer than that."""
        self.hang_up()
        if self.rows is None:  # it has no ranks to end
            self.kill()
        while self.process.poll() is None and time.monotonic() < deadline:
            # Read on: a helper that cannot write does not notice that it should end.
            if not read_pipe(self.process.stdout):  # type: ignore[arg-type]
                time.sleep(0.01)
        if self.process.poll() is None:
            self._say(f"{self.name} has not ended its ranks in time", True)
        self.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
            pipe.close()

"""The launcher's ranks as processes: started with their share of the machine, ended for sure."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

from nuvec.core.threads import cores
from nuvec.distributed._lifeline import VARIABLE
from nuvec.distributed.rendezvous import OWN

_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = (
    "NUVEC_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


class Rank(Protocol):
    """One rank of a job as the launcher sees it, on this host or on another."""

    rank: int
    exit_code: int | None
    """As a shell has it: 128 + signal for a rank that was killed."""
    killed_by: int | None
    """The signal; the exit code alone cannot tell, since a program may exit with any."""
    lost: str
    """How the connection to a rank on another host ended, if that is how the rank was lost."""

    def has_exited(self) -> bool:
        """Look whether the rank has ended."""

    def signal(self, number: int) -> None:
        """Send a signal to the rank and all it has started."""


def rank_environment(
    rank: int,
    size: int,
    places: Mapping[str, str],
    secret: str,
    job: str,
    extra: Mapping[str, str],
    local_size: int | None = None,
) -> dict[str, str]:
    """The environment of one rank, which is one of `local_size` on this host.

    `places` is the variable that says where the ranks are, `extra` what the user wants set.
    """
    environment = shared_environment(size if local_size is None else local_size, extra)
    environment.update(
        NUVEC_RANK=str(rank),
        NUVEC_WORLD_SIZE=str(size),
        NUVEC_SECRET=secret,
        NUVEC_JOB=job,
        **places,
    )
    return environment


def shared_environment(local_size: int, extra: Mapping[str, str]) -> dict[str, str]:
    """What all ranks have in common: this process's variables less those of an outer job."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    share = str(max(1, cores() // local_size))
    for name in _THREAD_VARIABLES:
        environment.setdefault(name, share)
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(extra)
    return environment


def die_with_parent(number: int = signal.SIGKILL) -> Callable[[], None] | None:
    """What a child runs before its program so that it does not outlive the launcher."""
    if not sys.platform.startswith("linux"):
        return None
    # Loaded before the fork: the child should do as little as possible.
    prctl = ctypes.CDLL(None).prctl
    launcher = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != launcher:  # it died before the request was made
            os._exit(1)

    return in_child


def why_not(error: OSError, program: str, directory: str | None) -> tuple[str, str, int]:
    """What could not be started, why, and the exit code a shell would give."""
    what = program
    if directory is not None and error.filename == directory:
        what = f"--cwd {directory}"
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return what, error.strerror or str(error), code


_CLEANER = """
trap '' INT TERM HUP QUIT
while read -r group; do case $group in end) groups= ;; *) groups="$groups $group" ;; esac; done
for group in $groups; do kill -s KILL -- "-$group"; done
rm -f -- "$0"/*.sock "$0"/hosts.json; rmdir -- "$0"
"""


def read_pipe(pipe: IO[bytes]) -> bytes | None:
    """What a rank has written, some of it; empty at the end, None where there is nothing yet."""
    try:
        return os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Cleaner:
    """Ends what ranks have started, and removes the job's socket directory, when the launcher is
    gone, however it went.

    A shell that reads a pipe which ends with the launcher; out of its process group and its
    terminal's reach. Where there is no shell, what a killed launcher leaves behind stays.
    """

    def __init__(self, directory: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        reading, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _CLEANER, directory],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            pass
        finally:
            os.close(reading)

    def watch(self, group: int) -> None:
        """Kill this process group too. The kernel ends a rank itself, not what it has started."""
        self._tell(str(group))

    def close(self) -> None:
        """Let it end; the process groups are gone, and their numbers may be those of others."""
        self._tell("end")
        os.close(self._pipe)
        if self._process is not None:
            self._process.wait()

    def _tell(self, line: str) -> None:
        try:
            os.write(self._pipe, f"{line}\n".encode())
        except OSError:  # there is no shell
            pass


class RankProcess:
    """One rank. Its process group holds whatever it starts, so that nothing is left behind."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str | None,
        lifeline: int | None = None,
        orphaned: int = signal.SIGKILL,
    ) -> None:
        """`lifeline` is the reading end of the pipe that ends with the launcher; `orphaned` the
        signal that the process then gets, where the kernel can send it."""
        self.rank = rank
        environment = dict(environment)
        environment.pop(VARIABLE, None)
        if lifeline is not None:
            environment[VARIABLE] = str(lifeline)
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
            pass_fds=() if lifeline is None else (lifeline,),
            preexec_fn=die_with_parent(orphaned),
        )
        self.exit_code: int | None = None
        self.killed_by: int | None = None
        self.lost = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_exited(self) -> bool:
        """Look whether the rank has ended, without yet giving its number back to the system."""
        if self.exit_code is None:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                by_signal = info.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                self.killed_by = info.si_status if by_signal else None
                self.exit_code = 128 + info.si_status if by_signal else info.si_status
        return self.exit_code is not None

    def signal(self, number: int) -> None:
        """Send a signal to the rank and all it has started."""
        # The process is reaped only in `end`, so the number cannot have been given to another.
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def end(self) -> None:
        """Kill whatever is left of the rank, and reap it."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass

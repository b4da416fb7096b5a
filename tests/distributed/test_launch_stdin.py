"""The launcher's input: a debugger in a rank, a terminal, and no input at all."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.test_launch import environment, launch

pytestmark = pytest.mark.timeout(60)

DEBUGGED = """
import os, pdb
rank = int(os.environ["NUVEC_RANK"])
secret = 40 + rank
if rank == 1 or "both" in os.sys.argv:
    pdb.set_trace()
print("went on", secret, flush=True)
"""


@pytest.fixture
def debugged(tmp_path: Path) -> str:
    path = tmp_path / "debugged.py"
    path.write_text(DEBUGGED)
    return str(path)


class Terminal:
    """A launcher in the foreground of a terminal, and somebody who types."""

    def __init__(self, *arguments: str) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            command = [sys.executable, "-m", "nuvec.launch", *arguments]
            os.execvpe(sys.executable, command, environment(NO_COLOR="1"))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        """Read until the text has come; what came after it is kept for the next."""
        deadline = time.monotonic() + seconds
        while text not in self.seen and time.monotonic() < deadline:
            try:
                self.seen += os.read(self.fd, 4096).decode()
            except OSError:
                break
        before, found, self.seen = self.seen.partition(text)
        assert found, f"{text!r} did not come: {before!r}"

    def end(self) -> int:
        """The launcher's exit code; it is killed if it does not end."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
        raise AssertionError("the launcher did not end")


def test_a_debugger_in_one_rank_over_a_terminal(debugged: str) -> None:
    terminal = Terminal("-n", "2", debugged)
    try:
        terminal.wait_for("(Pdb) ")
        terminal.type("p secret * 1000\n")
        terminal.wait_for("41000")
        terminal.wait_for("(Pdb) ")
        terminal.type("secret = 7\n")
        terminal.wait_for("(Pdb) ")
        terminal.type("continue\n")
        terminal.wait_for("went on 7")
    finally:
        code = terminal.end()
    assert code == 0


def test_a_debugger_in_every_rank_over_a_pipe(debugged: str) -> None:
    done = launch("-n", "3", debugged, "both", stdin="p secret * 1000\ncontinue\n")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert any(f"{40 + rank}000" in line for line in mine)
        assert any(f"went on {40 + rank}" in line for line in mine)


def test_the_end_of_a_terminals_input_reaches_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "reader.py"
    path.write_text(
        "import sys\nprint('ready', flush=True)\nprint('read', sys.stdin.read().split())"
    )
    terminal = Terminal("-n", "2", str(path))
    try:
        for _ in range(2):
            terminal.wait_for("ready")
        terminal.type("one two\n\x04")
        for _ in range(2):
            terminal.wait_for("read ['one', 'two']")
    finally:
        code = terminal.end()
    assert code == 0


def test_without_input_the_ranks_read_its_end(tmp_path: Path) -> None:
    path = tmp_path / "reader.py"
    path.write_text("import sys\nprint(repr(sys.stdin.read()))")
    for redirection in ("</dev/null", "<&-"):
        command = f"exec {sys.executable} -m nuvec.launch -n 2 {path} {redirection}"
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert sorted(done.stdout.splitlines()) == ["[0] ''", "[1] ''"], done.stderr


def test_a_job_that_reads_nothing_leaves_the_terminal_alone(tmp_path: Path) -> None:
    """In the background of a terminal a launcher that read from it would be stopped."""
    path = tmp_path / "quiet.py"
    path.write_text("import time\ntime.sleep(0.3)\nprint('done', flush=True)")
    inner = f"set -m; {sys.executable} -m nuvec.launch -n 2 {path} & wait $!; echo code $?"
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe("/bin/bash", ["bash", "-c", inner], environment())
    os.write(fd, b"typed\n")
    output = b""
    deadline = time.monotonic() + 20
    try:
        while b"code" not in output and time.monotonic() < deadline:
            output += os.read(fd, 4096)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)
    assert output.count(b"done") == 2 and b"code 0" in output

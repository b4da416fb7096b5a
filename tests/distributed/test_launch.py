"""The launcher as a user meets it: a command that runs a script on several ranks."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nuvec.distributed._arguments import parse
from nuvec.distributed._output import RankStream, Screen

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]

# What every script below begins with. Importing the transport alone keeps the tests quick.
PRELUDE = """
import os, signal, subprocess, sys, time
import numpy as np
from nuvec.distributed.rendezvous import find_job
from nuvec.distributed.transports.mesh import mesh_communicator
rank = int(os.environ["NUVEC_RANK"])
def join():
    return mesh_communicator(find_job(timeout=20))
"""


def environment(**variables: str) -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(ROOT), **variables)


def launch(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nuvec.launch", *arguments],
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=50,
    )


def run_source(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program that calls the launcher's `main` after changing something in it."""
    return subprocess.run(
        [sys.executable, "-c", source],
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nuvec.launch", *arguments],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process has ended (a zombie has) within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_ranks_talk_and_lines_are_prefixed(script: Callable[[str], str]) -> None:
    path = script(
        """
        c = join()
        print("sum", c.all_reduce("sum", [np.ones(2)])[0].tolist(), sys.argv[1:])
        c.close()
        """
    )
    done = launch("-n", "3", path, "-n", "--flag", "x")
    assert done.returncode == 0, done.stderr
    expected = [f"[{r}] sum [3.0, 3.0] ['-n', '--flag', 'x']" for r in range(3)]
    assert sorted(done.stdout.splitlines()) == expected


def test_options(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script(
        """
        print(os.getcwd(), os.environ["A"], os.environ["OMP_NUM_THREADS"],
              os.environ["OPENBLAS_NUM_THREADS"], os.environ["NUVEC_THREADS"])
        """
    )
    done = launch(
        "-n1",
        "--env",
        "A=b=c",
        "--cwd",
        str(tmp_path),
        "--no-prefix",
        "--verbose",
        path,
        OMP_NUM_THREADS="7",
    )
    cores = len(os.sched_getaffinity(0))
    own = os.environ.get("OPENBLAS_NUM_THREADS", str(cores))
    threads = os.environ.get("NUVEC_THREADS", str(cores))
    assert done.stdout == f"{tmp_path} b=c 7 {own} {threads}\n"
    assert "started rank 0 as process" in done.stderr
    done = launch("-n", "2", "-m", "platform", "--terse")
    assert done.returncode == 0 and done.stdout.startswith("[")


def test_the_command_line() -> None:
    options = parse(["-n", "2", "-m", "pkg.mod", "-n", "3"])
    assert options.size == 2 and options.command[-4:] == ["-m", "pkg.mod", "-n", "3"]
    assert parse(["-n2", "--python", "py", "a.py", "--cwd"]).command == ["py", "a.py", "--cwd"]
    assert parse(["-n", "2", "--", "true"]).command[-1] == "true"
    for wrong in ([], ["-n", "0", "a.py"], ["-n", "2"], ["-n", "2", "--env", "A", "a.py"]):
        with pytest.raises(SystemExit):
            parse(wrong)


def test_input_reaches_every_rank(script: Callable[[str], str]) -> None:
    path = script("print(input('name? '), len(sys.stdin.read()))")
    done = launch("-n", "2", path, stdin="me\n" + "x" * 500_000)
    assert sorted(done.stdout.splitlines()) == ["[0] name? me 500000", "[1] name? me 500000"]


def test_the_failing_ranks_traceback_comes_first(script: Callable[[str], str]) -> None:
    path = script(
        """
        c = join()
        if rank == 1:
            time.sleep(0.1)
            c.abort("failed")
            time.sleep(0.15)  # its own traceback comes last
            raise ValueError("the cause")
        c.barrier()
        """
    )
    done = launch("-n", "3", path)
    assert done.returncode == 1
    tracebacks = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert tracebacks[0] == "[1] ValueError: the cause"
    assert "nuvec.launch: rank 1 exited with 1" in done.stderr
    assert sum("PeerError" in line for line in tracebacks) == 2


def test_the_exit_code_is_the_failing_ranks(script: Callable[[str], str]) -> None:
    done = launch("-n", "2", script("sys.exit(7) if rank else time.sleep(30)"))
    assert done.returncode == 7


def test_a_killed_rank_ends_the_job(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script(
        """
        c = join()
        if rank == 0:
            child = subprocess.Popen(["sleep", "60"])
            print("child", child.pid, flush=True)
        print("pid", os.getpid(), flush=True)
        c.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            c.all_reduce("sum", [np.ones(1 << 20)])
        """
    )
    temporary = tmp_path / "t"
    temporary.mkdir()
    done = launch("-n", "3", path, TMPDIR=str(temporary))
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL" in done.stderr
    pids = [int(pid) for pid in re.findall(r"(?:pid|child) (\d+)", done.stdout)]
    assert len(pids) == 4 and all(gone(pid) for pid in pids)
    assert list(temporary.iterdir()) == []
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("nuvec")]


def test_a_rank_that_ignores_sigterm_is_killed(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        marker = os.path.join(os.environ["NUVEC_SOCKET_DIR"], "ready.sock")
        if rank == 0:
            open(marker, "w").close()
            time.sleep(60)
        while not os.path.exists(marker):
            time.sleep(0.01)
        sys.exit(3)
        """
    )
    source = (
        "import sys, nuvec.distributed.launch as l; l.GRACE_SECONDS = 0.3; "
        f"sys.exit(l.main(['-n', '2', {path!r}]))"
    )
    done = run_source(source)
    assert done.returncode == 3
    assert "rank 0 did not end: killing it" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(script: Callable[[str], str], number: signal.Signals) -> None:
    path = script(
        """
        def handler(number, frame):
            print("got", number, flush=True)
            sys.exit(0 if len(sys.argv) > 1 else 5)
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, handler)
        print("ready", flush=True)
        time.sleep(30)
        """
    )
    for arguments, code in ((["clean"], 0), ([], 128 + number)):
        job = start("-n", "2", path, *arguments)
        assert job.stdout is not None
        for _ in range(2):
            assert "ready" in job.stdout.readline()
        job.send_signal(number)
        out, _ = job.communicate(timeout=20)
        assert out.count(f"got {int(number)}") == 2
        assert job.returncode == code


def test_ranks_do_not_outlive_a_killed_launcher(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    path = script(
        """
        c = join()
        print("pid", os.getpid(), flush=True)
        time.sleep(60)
        """
    )
    temporary = tmp_path / "t"
    temporary.mkdir()
    job = start("-n", "2", path, TMPDIR=str(temporary))
    assert job.stdout is not None and job.stderr is not None
    pids = [int(job.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
    job.kill()
    job.wait()
    job.stdout.close()
    job.stderr.close()
    assert all(gone(pid) for pid in pids)
    assert list(temporary.iterdir()) == []


def test_the_reader_may_go_away(script: Callable[[str], str]) -> None:
    job = start("-n", "2", script("for i in range(20000): print(i)"))
    assert job.stdout is not None and job.stderr is not None
    job.stdout.readline()
    job.stdout.close()
    assert job.stderr.read() == ""
    job.stderr.close()
    assert job.wait(20) == 0


def test_groups_join_flush_and_say_why_they_failed(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import sys\n"
        "from nuvec.distributed import default_group, init\n"
        "group = default_group()\n"
        "assert init(strict=True, backend='mesh') is group\n"
        "print(group, group.split(0, -group.rank()).size())\n"
        "if sys.argv[1:] and group.rank() == 1: raise ValueError('on purpose')\n"
        "group.barrier()\n"
    )
    done = launch("-n", "2", str(path))
    assert done.returncode == 0, done.stderr
    lines = [f"[{r}] Group(rank={r}, size=2, transport=mesh) 2" for r in range(2)]
    assert sorted(done.stdout.splitlines()) == lines
    done = launch("-n", "2", str(path), "fail")
    assert done.returncode == 1
    assert "[1] ValueError: on purpose" in done.stderr
    assert "rank 1" in done.stderr and "failed with ValueError: on purpose" in done.stderr


def test_a_rank_notices_that_its_launcher_is_gone() -> None:
    """On systems without PR_SET_PDEATHSIG."""
    ours, theirs = os.pipe()
    source = (
        "import os, time; from nuvec.distributed._lifeline import watch_launcher; "
        "watch_launcher(os.environ); print('ready', flush=True); time.sleep(60)"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", source],
        env=environment(NUVEC_LIFELINE_FD=str(ours)),
        pass_fds=(ours,),
        stdout=subprocess.PIPE,
    )
    os.close(ours)
    assert rank.stdout is not None
    rank.stdout.readline()
    assert rank.poll() is None
    os.close(theirs)
    assert rank.wait(10) == -signal.SIGTERM
    rank.stdout.close()


def test_colour_and_progress_on_a_terminal(script: Callable[[str], str]) -> None:
    path = script(
        """
        if rank == 0:
            for i in range(3):
                print(f"\\r{i + 1}/3", end="", flush=True)
                time.sleep(0.05)
            print()
        """
    )
    master, slave = pty.openpty()
    job = subprocess.Popen(
        [sys.executable, "-m", "nuvec.launch", "-n", "2", path],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    output = b""
    with contextlib.suppress(OSError):  # how a pty ends
        while data := os.read(master, 4096):
            output += data
    os.close(master)
    assert job.wait(20) == 0
    assert output.count(b"\x1b[36m[0] \x1b[0m") >= 2
    assert b"1/3" in output and b"3/3\r\n" in output


def screen_of(path: Path, prefixed: bool = True) -> tuple[Screen, Callable[[], str]]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    return Screen(fd, prefixed), path.read_text


def test_unfinished_lines_of_two_ranks_do_not_mix(tmp_path: Path) -> None:
    screen, text = screen_of(tmp_path / "out")
    one, two = (RankStream(rank, screen, False) for rank in range(2))
    one.feed(b"(Pdb) ")
    assert text() == "" and one.waits()
    one.tick(time.monotonic() + 1)
    assert text() == "[0] (Pdb) "
    one.feed(b"answer\nnext")
    two.feed(b"hello\n")
    one.finish()
    assert text() == "[0] (Pdb) answer\n[1] hello\n[0] next\n"
    os.close(screen.fd)


def test_of_a_progress_bar_a_log_keeps_the_end(tmp_path: Path) -> None:
    screen, text = screen_of(tmp_path / "out")
    bar = RankStream(0, screen, False)
    for i in range(100):
        bar.feed(b"\r%d%%" % i)
    bar.feed(b"\r100%\r\n")
    bar.feed(b"dos\r\n")
    assert text() == "[0] 100%\n[0] dos\n"
    os.close(screen.fd)


def test_a_held_traceback_is_shown_in_the_end(tmp_path: Path) -> None:
    screen, text = screen_of(tmp_path / "out")
    stream = RankStream(1, screen, True)
    stream.feed(b"before\nTraceback (most recent call last):\n  File x\nValueError: y\n")
    assert text() == "[1] before\n"
    stream.tick(time.monotonic() + 3)
    assert text().endswith("[1]   File x\n[1] ValueError: y\n")
    os.close(screen.fd)


def test_a_line_without_end_does_not_stay_in_memory(tmp_path: Path) -> None:
    screen, text = screen_of(tmp_path / "out")
    stream = RankStream(0, screen, False)
    for _ in range(41):
        stream.feed(b"x" * (1 << 14))
    assert len(text()) > 30 << 14
    stream.feed(b"end\n")
    assert text() == "[0] " + "x" * (41 << 14) + "end\n"
    os.close(screen.fd)


def test_all_reaches_a_stream_that_somebody_has_made_non_blocking() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    screen, data = Screen(writing, False), b"0123456789abcdef" * (1 << 16)
    writer = threading.Thread(target=screen.write, args=(data,))
    writer.start()
    time.sleep(0.1)
    got = b""
    os.set_blocking(reading, False)
    while len(got) < len(data) and (writer.is_alive() or select.select([reading], [], [], 0)[0]):
        if select.select([reading], [], [], 0.1)[0]:
            got += os.read(reading, 1 << 16)
    writer.join()
    os.close(reading)
    os.close(writing)
    assert got == data

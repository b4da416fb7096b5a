"""The launcher at its edges: how it ends, what it cannot start, what its ranks start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.test_launch import PRELUDE as PRELUDE  # what `script` begins with
from tests.distributed.test_launch import environment, gone, launch, start

pytestmark = pytest.mark.timeout(60)


def test_nothing_is_left_of_a_launcher_killed_while_the_job_starts(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    """Before the ranks have met, the directory holds a socket that none of them removes."""
    path = script(
        """
        if rank == 0:
            print("pid", os.getpid(), os.environ["NUVEC_SOCKET_DIR"], flush=True)
            join()
        time.sleep(60)
        """
    )
    temporary = tmp_path / "t"
    temporary.mkdir()
    job = start("-n", "2", path, TMPDIR=str(temporary))
    assert job.stdout is not None and job.stderr is not None
    _, _, pid, directory = job.stdout.readline().split()
    deadline = time.monotonic() + 10
    while not os.listdir(directory) and time.monotonic() < deadline:
        time.sleep(0.01)
    job.kill()
    job.wait()
    job.stdout.close()
    job.stderr.close()
    assert gone(int(pid))
    while os.path.exists(directory) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("code", [200, 255, -1, 137])
def test_an_exit_code_is_not_taken_for_a_signal(script: Callable[[str], str], code: int) -> None:
    done = launch("-n", "2", script(f"sys.exit({code}) if rank else time.sleep(30)"))
    assert done.returncode == code % 256
    assert f"nuvec.launch: rank 1 exited with {code % 256}; ending the job" in done.stderr
    assert "killed" not in done.stderr


def test_what_cannot_be_started_is_said_in_a_line(tmp_path: Path) -> None:
    for arguments, code, message in (
        (["--python", "/nope", "a.py"], 127, "cannot start /nope for rank 0: No such file"),
        (["--cwd", "/nope", "a.py"], 127, "cannot start --cwd /nope: No such file"),
        (["--cwd", __file__, "a.py"], 126, f"cannot start --cwd {__file__}: Not a directory"),
        (["--python", str(tmp_path), "a.py"], 126, f"cannot start {tmp_path} for rank 0: Perm"),
    ):
        done = launch("-n", "2", *arguments)
        assert done.returncode == code
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith(f"nuvec.launch: {message}")


def test_standard_streams_may_be_closed(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script("print('out'); print('err', file=sys.stderr); c = join(); c.barrier(); c.close()")
    command = f"{sys.executable} -m nuvec.launch -n 2 {path}"
    for closed, out, err in ((">&-", "", "err"), ("2>&-", "out", ""), ("<&-", "out", "err")):
        done = subprocess.run(
            ["/bin/sh", "-c", f"{command} {closed}"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert done.returncode == 0
        for text, word in ((done.stdout, out), (done.stderr, err)):
            assert sorted(text.splitlines()) == [f"[{r}] {word}" for r in range(2) if word]


def test_a_quit_signal_ends_the_job_in_order(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print("ready", flush=True)
        time.sleep(30)
        """
    )
    temporary = tmp_path / "t"
    temporary.mkdir()
    job = start("-n", "2", path, TMPDIR=str(temporary))
    assert job.stdout is not None
    for _ in range(2):
        assert "ready" in job.stdout.readline()
    job.send_signal(signal.SIGQUIT)
    job.communicate(timeout=20)
    assert job.returncode == 128 + signal.SIGQUIT
    assert list(temporary.iterdir()) == []


CHILD = """
import os
from nuvec.distributed import default_group, init
print("child", default_group(), "NUVEC_SECRET" in os.environ)
try:
    init(strict=True)
except ValueError as error:
    print("strict", error)
"""

PARENT = """
import multiprocessing, os, subprocess, sys
import nuvec as nv
from nuvec.distributed import default_group, init

def spawned():
    print("spawned", default_group(), flush=True)

if __name__ == "__main__":
    group = default_group()
    subprocess.run([sys.executable, sys.argv[1]], check=True)
    child = multiprocessing.get_context("spawn").Process(target=spawned)
    child.start()
    child.join()
    print("parent", int(nv.distributed.all_sum(nv.array(1))), init(strict=True).size())
"""


def test_a_child_of_a_rank_is_not_a_rank(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent.py", tmp_path / "child.py"
    parent.write_text(PARENT)
    child.write_text(CHILD)
    done = launch("-n", "2", str(parent), str(child), SLURM_PROCID="0", SLURM_NTASKS="2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    alone = "Group(rank=0, size=1, transport=self)"
    for rank in range(2):
        assert f"[{rank}] child {alone} False" in lines
        assert f"[{rank}] spawned {alone}" in lines
        assert f"[{rank}] parent 2 2" in lines
        (strict,) = (line for line in lines if line.startswith(f"[{rank}] strict"))
        assert f"started by rank {rank} of 2 (pid" in strict and "is not a rank" in strict


def test_of_two_that_fail_the_first_is_named(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script(
        f"""
        mark = {str(tmp_path / "failed")!r}
        if rank == 1:
            time.sleep(0.3)
            open(mark, "w").close()
            os._exit(4)
        while not os.path.exists(mark):
            time.sleep(0.001)
        time.sleep(0.03)
        os._exit(5)
        """
    )
    done = launch("-n", "2", path)
    assert done.returncode == 4
    assert "rank 1 exited with 4; ending the job" in done.stderr


def test_a_killed_launcher_leaves_nothing_that_its_ranks_have_started(
    script: Callable[[str], str],
) -> None:
    path = script(
        """
        child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
        print("pid", child.pid, flush=True)
        time.sleep(60)
        """
    )
    job = start("-n", "2", path)
    assert job.stdout is not None and job.stderr is not None
    pids = [int(job.stdout.readline().split()[-1]) for _ in range(2)]
    job.kill()
    job.wait()
    job.stdout.close()
    job.stderr.close()
    assert all(gone(pid) for pid in pids)


def test_a_job_under_nohup_survives_a_hang_up(script: Callable[[str], str]) -> None:
    path = script("print('up', flush=True); time.sleep(1); print('survived')")
    words = ["nohup", sys.executable, "-m", "nuvec.launch", "-n", "1", path]
    job = subprocess.Popen(
        words,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout is not None and job.stdout.readline() == "[0] up\n"
    job.send_signal(signal.SIGHUP)
    assert job.communicate(timeout=20)[0] == "[0] survived\n"
    assert job.returncode == 0


def test_a_user_signal_reaches_the_ranks_and_does_not_end_them(
    script: Callable[[str], str],
) -> None:
    path = script(
        """
        signal.signal(signal.SIGUSR1, lambda *_: None)
        print("up", flush=True)
        signal.pause()
        time.sleep(0.2)
        print("saved")
        """
    )
    job = start("-n", "2", path)
    assert job.stdout is not None
    for _ in range(2):
        job.stdout.readline()
    time.sleep(0.2)
    job.send_signal(signal.SIGUSR1)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"]


def test_a_path_that_is_not_text_is_shown_as_it_is(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nuvec.launch", "-n", "1", "--cwd", b"/no\xff", "a.py"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 127
    assert done.stderr == b"nuvec.launch: cannot start --cwd /no\xff: No such file or directory\n"

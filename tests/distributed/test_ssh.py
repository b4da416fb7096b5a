"""Ranks on other hosts, over a real ssh server on loopback."""

from __future__ import annotations

import getpass
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from nuvec.distributed._ssh import OPTIONS, ssh_command
from tests.distributed.sshd import SshServer, find_sshd
from tests.distributed.test_launch import PRELUDE as PRELUDE  # what `script` begins with
from tests.distributed.test_launch import environment, gone, launch, run_source

pytestmark = pytest.mark.timeout(90)

BOTH = "127.0.0.1,127.0.0.2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    if find_sshd() is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip  # .ci/run installs it
        missing("there is no sshd here (Debian: apt-get install openssh-server)")
    server = SshServer(tmp_path_factory.mktemp("server"))
    yield server
    server.end()


def start(
    server: SshServer, *arguments: str, stdin: int | IO[bytes] = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nuvec.launch", "--ssh", server.ssh, *arguments],
        env=environment(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(job: subprocess.Popen[str], count: int) -> list[str]:
    assert job.stdout is not None
    return [job.stdout.readline() for _ in range(count)]


def numbers(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", text)]


def end(job: subprocess.Popen[str]) -> str:
    """Kill it if it still runs; what it wrote to stderr."""
    job.kill()
    _, err = job.communicate(timeout=20)
    return err


@pytest.mark.parametrize(
    ("arguments", "addresses"),
    [
        (["--hosts", BOTH], ["127.0.0.1", "127.0.0.2"]),
        (["--hosts", "localhost,127.0.0.2", "-n", "4"], ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2),
        # Names that only ssh's configuration knows: the address is the one by which it came.
        (["--hosts", "node2,node1,node2"], ["127.0.0.2", "127.0.0.1", "127.0.0.2"]),
    ],
)
def test_ranks_on_two_hosts_sum(
    server: SshServer, tmp_path: Path, arguments: list[str], addresses: list[str]
) -> None:
    path = tmp_path / "sum.py"
    path.write_text(
        "import json, os\n"
        "import nuvec as nv\n"
        "rows = json.load(open(os.environ['NUVEC_HOSTFILE']))['ranks']\n"
        "group = nv.distributed.init(strict=True)\n"
        "total = nv.distributed.all_sum(nv.full((3,), 10.0 ** group.rank()))\n"
        "print(total.tolist(), [row['tcp'].rpartition(':')[0] for row in rows])\n"
    )
    done = launch("--ssh", server.ssh, *arguments, str(path))
    assert done.returncode == 0, done.stderr
    size = len(addresses)
    total = [sum(10.0**rank for rank in range(size))] * 3
    expected = [f"[{rank}] {total} {addresses}" for rank in range(size)]
    assert sorted(done.stdout.splitlines()) == expected
    assert done.stderr == ""


def test_nothing_needs_quoting(
    server: SshServer, script: Callable[[str], str], tmp_path: Path
) -> None:
    path = script("print(ascii([sys.argv[1:], os.environ['A'], os.getcwd()]))")
    words = ["a b", "it's", '"', "line\nbreak", "$HOME `id` ; exit 3 &", "\\", "", "ü!", "-n", "*"]
    directory = tmp_path / "a 'strange' $place"
    directory.mkdir()
    value = "x = 'y'\n$HOME"
    options = ["--env", f"A={value}", "--cwd", str(directory)]
    done = launch("--ssh", server.ssh, "--hosts", BOTH, *options, path, *words)
    assert done.returncode == 0, done.stderr
    expected = ascii([words, value, str(directory)])
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {expected}" for rank in range(2)]


def test_the_secret_is_nowhere_to_be_read(server: SshServer, script: Callable[[str], str]) -> None:
    path = script(
        """
        hostfile = os.environ["NUVEC_HOSTFILE"]
        print(os.environ["NUVEC_SECRET"], hostfile, flush=True)
        c = join()
        input()
        """
    )
    job = start(server, "--hosts", BOTH, path)
    try:
        said = [line.split()[1:] for line in lines(job, 2)]
        (secret,) = {secret for secret, _ in said}
        assert len(secret) == 64
        seen = 0
        for file in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                words = Path(file).read_bytes()
            except OSError:
                continue
            seen += b"nuvec.distributed._remote" in words
            assert secret.encode() not in words
        assert seen >= 4  # ssh and the helper it runs, for each host
        for _, hostfile in said:
            assert os.stat(hostfile).st_mode & 0o777 == 0o600
            assert os.stat(os.path.dirname(hostfile)).st_mode & 0o777 == 0o700
            assert secret not in Path(hostfile).read_text()
        assert job.stdin is not None
        job.stdin.write("\n")
        _, err = job.communicate(timeout=20)
        assert job.returncode == 0, err
        assert not any(os.path.exists(os.path.dirname(hostfile)) for _, hostfile in said)
    finally:
        end(job)


def test_the_first_failure_is_shown_first_and_its_code_returned(
    server: SshServer, script: Callable[[str], str]
) -> None:
    path = script(
        """
        c = join()
        if rank == 1:
            print("pid", os.getpid(), flush=True)
            c.abort("failed")
            time.sleep(0.2)
            raise SystemExit(7) if sys.argv[1:] else ValueError("the cause")
        print("pid", os.getpid(), flush=True)
        c.barrier()
        """
    )
    done = launch("--ssh", server.ssh, "--hosts", BOTH, "--repeat-hosts", "2", path)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert errors[0] == "[1] ValueError: the cause" and len(errors) == 4
    assert "nuvec.launch: rank 1 exited with 1; ending the job" in done.stderr
    assert all(gone(pid) for pid in numbers(done.stdout))
    assert launch("--ssh", server.ssh, "--hosts", BOTH, path, "code").returncode == 7


def test_a_killed_rank_ends_the_job(server: SshServer, script: Callable[[str], str]) -> None:
    path = script(
        """
        child = subprocess.Popen(["sleep", "60"])
        print("pid", os.getpid(), "pid", child.pid, flush=True)
        c = join()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        c.barrier()
        """
    )
    done = launch("--ssh", server.ssh, "--hosts", BOTH, path)
    assert done.returncode == 128 + signal.SIGKILL
    assert "nuvec.launch: rank 1 was killed by SIGKILL; ending the job" in done.stderr
    pids = numbers(done.stdout)
    assert len(pids) == 4 and all(gone(pid) for pid in pids)


SLEEPER = """
child = subprocess.Popen(["sleep", "60"])
def handler(number, frame):
    print("got", number, flush=True)
    sys.exit(5)
signal.signal(signal.SIGINT, handler)
c = join()
print("pid", os.getpid(), "pid", child.pid, "helper", os.getppid(),
      os.path.dirname(os.environ["NUVEC_HOSTFILE"]), flush=True)
time.sleep(60)
"""


def test_signals_reach_the_ranks(
    server: SshServer, script: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 3_000_000)  # more than all pipes hold, and nobody reads it
    with open(path, "rb") as file:
        job = start(server, "--hosts", BOTH, script(SLEEPER), stdin=file)
    try:
        said = "".join(lines(job, 2))
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=20)
    finally:
        end(job)
    assert out.count("got 2") == 2, err
    assert job.returncode == 128 + signal.SIGINT
    assert all(gone(pid) for pid in numbers(said))


def test_ranks_do_not_outlive_a_killed_launcher(
    server: SshServer, script: Callable[[str], str]
) -> None:
    job = start(server, "--hosts", BOTH, script(SLEEPER))
    try:
        said = lines(job, 2)
    finally:
        end(job)
    pids = numbers("".join(said))
    assert len(pids) == 4 and all(gone(pid, 10) for pid in pids)
    deadline = time.monotonic() + 10
    directories = [line.split()[-1] for line in said]
    while any(map(os.path.exists, directories)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(os.path.exists, directories))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_connection_ends_the_job(
    server: SshServer, script: Callable[[str], str], number: int
) -> None:
    job = start(server, "--hosts", BOTH, script(SLEEPER))
    try:
        said = sorted(lines(job, 2))
        helper = int(said[1].split()[-2])
        os.kill(helper, number)
        _, err = job.communicate(timeout=20)
    finally:
        end(job)
    assert job.returncode == 255
    assert "rank 1 was lost: the connection to 127.0.0.2 has ended" in err
    assert all(gone(pid) for line in said for pid in numbers(line)[:1])


def test_the_input_reaches_every_rank(server: SshServer, script: Callable[[str], str]) -> None:
    path = script("print(input(), len(sys.stdin.read()))")
    text = "me\n" + "x" * 1_500_000
    done = launch("--ssh", server.ssh, "--hosts", BOTH, path, stdin=text)
    expected = [f"[{rank}] me 1500000" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == expected, done.stderr


def test_hosts_that_cannot_be_reached_are_named(
    server: SshServer, script: Callable[[str], str], tmp_path: Path
) -> None:
    """Each at once: nothing waits for a password or an answer that nobody can give."""
    path = script("print('never')")
    other = tmp_path / "config"
    text = Path(server.directory / "ssh_config").read_text()
    cases = {
        "no server": (text.replace(f"Port {server.port}", "Port 1"), "Connection refused"),
        "no key": (re.sub(".*IdentityFile.*", "  IdentityFile none", text), "Permission denied"),
        "strange": (re.sub(".*UserKnownHosts.*", "", text), "Host key verification failed"),
    }
    for config, message in cases.values():
        if "UserKnownHostsFile" not in config:
            config += "  UserKnownHostsFile /dev/null\n"
        other.write_text(config)
        begun = time.monotonic()
        done = launch("--ssh", f"ssh -F {other}", "--hosts", "node2", path)
        assert done.returncode == 255 and time.monotonic() - begun < 20
        assert done.stderr.startswith("nuvec.launch: cannot start ranks on node2: ssh ended with")
        assert message in done.stderr and done.stdout == ""
    done = launch("--ssh", server.ssh, "--hosts", "node1,nowhere.invalid", path)
    assert done.returncode == 255 and "never" not in done.stdout
    assert "cannot start ranks on nowhere.invalid: ssh ended with 255" in done.stderr
    assert "resolve" in done.stderr


def test_what_cannot_be_started_there_is_said(server: SshServer, tmp_path: Path) -> None:
    to_both = ("--ssh", server.ssh, "--hosts", BOTH)
    done = launch(*to_both, "--cwd", "/nope", "a.py")
    assert done.returncode == 127
    assert "cannot start --cwd /nope for rank " in done.stderr
    assert "on 127.0.0." in done.stderr and "No such file or directory" in done.stderr
    done = launch(*to_both, "--python", "/no/python", "a.py")
    assert done.returncode == 127
    assert "cannot start ranks on 127.0.0." in done.stderr and "/no/python" in done.stderr
    done = launch(*to_both, "--", "/no/program")
    assert done.returncode == 127 or "No such file" in done.stderr
    # A Python that has no nuvec.
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    done = launch(*to_both, "--python", str(bare), "a.py")
    assert done.returncode == 1 and "nuvec has to be installed there" in done.stderr
    done = launch("--ssh", "/no/ssh", "--hosts", BOTH, "a.py")
    assert done.returncode == 127 and "cannot start /no/ssh: No such file" in done.stderr


def test_a_busy_port_is_named(server: SshServer, script: Callable[[str], str]) -> None:
    done = launch(
        "--ssh", server.ssh, "--hosts", BOTH, "--starting-port", str(server.port),
        script("join()"), NUVEC_TIMEOUT="5",
    )  # fmt: skip
    assert done.returncode == 1
    assert f"127.0.0.1:{server.port} of rank 0 is already in use" in done.stderr


def test_host_files_with_addresses_and_ports(
    server: SshServer, script: Callable[[str], str], tmp_path: Path
) -> None:
    path = script(
        """
        c = join()
        print(c.all_reduce("sum", [np.ones(2)])[0].tolist(),
              json.load(open(os.environ["NUVEC_HOSTFILE"]))["ranks"][rank]["tcp"])
        """.replace("c = join()", "import json; c = join()")
    )
    hostfile = tmp_path / "hosts.json"
    for entries, first in (
        ([{"ssh": "node1", "ips": ["127.0.0.3"]}, {"ssh": "node2", "ips": []}], "127.0.0.3:"),
        (["node1", "node2"], "127.0.0.1:"),
        ({"ranks": [{"host": "node1"}, {"host": "node2"}]}, "127.0.0.1:"),
    ):
        hostfile.write_text(json.dumps(entries))
        done = launch("--ssh", server.ssh, "--hostfile", str(hostfile), path)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines())[0].startswith(f"[0] [2.0, 2.0] {first}")


def test_what_a_login_prints_is_not_taken_for_the_helper(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    """A stand-in for ssh, whose login talks, and another that never answers."""
    fake = tmp_path / "fake-ssh"
    fake.write_text('#!/bin/sh\necho "Welcome!"\nfor word; do :; done\nexec /bin/sh -c "$word"\n')
    fake.chmod(0o755)
    path = script("c = join(); print(rank)")
    done = launch("--ssh", str(fake), "--hosts", "localhost", "-n", "2", "--verbose", path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    assert "nuvec.launch: localhost: Welcome!" in done.stderr
    silent = tmp_path / "silent-ssh"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    source = (
        "import sys, nuvec.distributed._ssh as s, nuvec.distributed.launch as l; "
        "s.ANSWER_SECONDS = 0.5; s.END_SECONDS = l.END_SECONDS = 0.2; "
        f"sys.exit(l.main(['--ssh', {str(silent)!r}, '--hosts', 'far', {path!r}]))"
    )
    done = run_source(source)
    assert done.returncode == 255 and "far has not answered within" in done.stderr


def test_the_command_line_of_ssh() -> None:
    """No password is asked for, and what a user says of ssh's options comes first, and counts."""
    command = ssh_command(["ssh", "-o", "ConnectTimeout=3"], "u@h", "/a b/python", {"P": "it's"})
    assert command[:3] == ["ssh", "-o", "ConnectTimeout=3"] and "BatchMode=yes" in OPTIONS
    assert command[-3:-1] == ["--", "u@h"]
    helper = "-P -m nuvec.distributed._remote"
    assert command[-1] == f"""exec env 'P=it'"'"'s' '/a b/python' {helper}"""


def test_an_interrupt_while_hosts_are_called(tmp_path: Path) -> None:
    """No rank is there yet that could end."""
    silent = tmp_path / "silent-ssh"
    silent.write_text("#!/bin/sh\necho pid $$ >&2\nexec sleep 60\n")
    silent.chmod(0o755)
    command = [sys.executable, "-m", "nuvec.launch", "--ssh", str(silent), "--hosts", "far"]
    job = subprocess.Popen(
        [*command, "--verbose", "a.py"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stderr is not None
    (pid,) = numbers(job.stderr.readline())
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 128 + signal.SIGINT
    assert "nuvec.launch: ended by SIGINT" in err and gone(pid)


def test_a_host_under_two_names_is_said(server: SshServer, script: Callable[[str], str]) -> None:
    user = getpass.getuser()
    done = launch(
        "--ssh", server.ssh, "--hosts", f"node1,{user}@node1", "--starting-port", "23456",
        script(""),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("nuvec.launch: host file of this job: ranks 0 and 1 have the ")


def test_what_a_rank_has_started_does_not_keep_the_job(
    server: SshServer, script: Callable[[str], str]
) -> None:
    """It writes on and on; the rank has ended."""
    path = script(
        "subprocess.Popen(['yes', 'y' * 4000]); time.sleep(0.2); print('pid', os.getpid())"
    )
    begin = time.monotonic()
    done = launch("--ssh", server.ssh, "--hosts", "node1", path)
    assert done.returncode == 0, done.stderr
    assert "has not ended its ranks" not in done.stderr
    assert time.monotonic() - begin < 15

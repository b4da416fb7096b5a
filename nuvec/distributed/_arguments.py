"""The launcher's command line."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from nuvec.core.errors import ConfigurationError
from nuvec.distributed._placement import (
    Seat,
    seated,
    seats_of_file,
    seats_of_hosts,
    with_ports,
)
from nuvec.distributed.backends import BackendName

__all__ = ["Options", "parse"]


@dataclass
class Options:
    """What the command line says."""

    size: int
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    verbose: bool = False
    prefix: bool = True
    python: str = sys.executable
    backend: str | None = None
    seats: list[Seat] = field(default_factory=list)
    """Where each rank goes, by its number; empty for this host."""
    ssh: list[str] = field(default_factory=lambda: ["ssh"])
    port: int | None = None
    """The first port of each host, where the ports are not left to the hosts."""
    max_restarts: int = 0
    print_hostfile: bool = False

    @property
    def mpi(self) -> bool:
        """Whether mpirun starts the ranks."""
        return self.backend == "mpi"


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line. All that follows the script belongs to the script."""
    parser = argparse.ArgumentParser(
        prog="nuvec.launch",
        description="Run a script on several ranks, and end them all together.",
        usage="nuvec.launch -n N [options] script.py [args...]\n"
        "       nuvec.launch --hosts H1,H2 [options] script.py [args...]\n"
        "       nuvec.launch -n N [options] -m module [args...]",
        allow_abbrev=False,
    )
    parser.add_argument("-n", type=int, metavar="N", help="how many ranks")
    parser.add_argument(
        "--hosts", metavar="H1,H2", help="hosts that ssh reaches, one rank each; may be repeated"
    )
    parser.add_argument(
        "--hostfile", metavar="FILE", help="the same as JSON, with addresses and ports if needed"
    )
    parser.add_argument(
        "--repeat-hosts", type=int, metavar="K", help="K ranks on every host (with -n N: N in all)"
    )
    parser.add_argument(
        "--ssh", default="ssh", metavar="COMMAND", help='such as "ssh -p 2222 -i key"'
    )
    parser.add_argument(
        "--starting-port",
        type=int,
        metavar="PORT",
        help="where the first rank of every host listens, the others after it (default: free ones)",
    )
    parser.add_argument(
        "--backend",
        choices=[name for name in get_args(BackendName) if name != "local"],
        help="what the ranks communicate by; mpi starts them with mpirun, without input",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="start a job that failed again, K times at most",
    )
    parser.add_argument(
        "--print-hostfile", action="store_true", help="say where the ranks would be, and end"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="set a variable on every rank"
    )
    parser.add_argument("--cwd", metavar="DIR", help="the ranks' working directory")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs the script")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, not a script")
    parser.add_argument("--verbose", action="store_true", help="say what is started and ended")
    parser.add_argument(
        "--no-prefix", action="store_true", help="do not put the rank before each line"
    )
    own, rest = _split_arguments(list(arguments), parser)
    known = parser.parse_args(own)
    for name, number, least in (
        ("-n", known.n, 1),
        ("--repeat-hosts", known.repeat_hosts, 1),
        ("--max-restarts", known.max_restarts, 0),
        ("--starting-port", known.starting_port, 1),
    ):
        if number is not None and number < least:
            parser.error(f"{name} {number}: it should be at least {least}")
    try:
        seats = _seats(known, parser)
    except ConfigurationError as error:
        parser.error(str(error))
    ssh = shlex.split(known.ssh)
    if not ssh:
        parser.error("--ssh is empty")
    environment = {}
    for text in known.env:
        key, equals, value = text.partition("=")
        if not equals or not key:
            parser.error(f"--env {text!r} should be like --env NAME=value")
        environment[key] = value
    if known.module is not None:
        command = [known.python, "-m", known.module, *rest]
    elif not rest and known.print_hostfile:
        command = []
    elif not rest:
        parser.error("nothing to run: give a script, such as nuvec.launch -n 2 train.py")
    elif rest[0].endswith(".py") or shutil.which(rest[0]) is None:
        command = [known.python, *rest]
    else:
        command = rest
    return Options(
        size=len(seats) or known.n,
        command=command,
        environment=environment,
        # Absolute: to mpirun and to a login on another host a relative one would mean another.
        directory=None if known.cwd is None else os.path.join(os.getcwd(), known.cwd),
        verbose=known.verbose,
        prefix=not known.no_prefix,
        python=known.python,
        backend=known.backend,
        seats=seats,
        ssh=ssh,
        port=known.starting_port,
        max_restarts=known.max_restarts,
        print_hostfile=known.print_hostfile,
    )


def _seats(known: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Seat]:
    """Where the ranks go, if not on this host."""
    if known.hosts is not None and known.hostfile is not None:
        parser.error("--hosts and --hostfile: give one of them")
    if known.hosts is not None:
        seats = seats_of_hosts(known.hosts)
    elif known.hostfile is not None:
        seats = seats_of_file(known.hostfile)
    elif known.n is None:
        parser.error("how many ranks? -n 2, or --hosts h1,h2, or --hostfile hosts.json")
    elif known.repeat_hosts is not None:
        parser.error("--repeat-hosts is about --hosts or --hostfile: give one of them")
    elif known.starting_port is not None and not known.print_hostfile:
        parser.error("--starting-port: ranks of this host alone have no ports; give --hosts too")
    else:
        return []
    seats = seated(seats, known.n, known.repeat_hosts)
    return seats if known.starting_port is None else with_ports(seats, known.starting_port)


def _split_arguments(
    arguments: list[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """Cut before the script, or after ``-m module``; argparse alone would take its options."""
    flags = {"--verbose", "--no-prefix", "--print-hostfile", "-h", "--help"}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            return arguments[:position], arguments[position + 1 :]
        if not argument.startswith("-"):
            break
        takes_value = argument not in flags and "=" not in argument
        # -n4 and -mmodule carry their value along.
        takes_value = takes_value and (argument.startswith("--") or len(argument) == 2)
        position += 2 if takes_value else 1
        if argument.startswith("-m"):
            break
    return arguments[:position], arguments[position:]

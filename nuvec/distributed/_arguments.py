"""The launcher's command line."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

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


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line. All that follows the script belongs to the script."""
    parser = argparse.ArgumentParser(
        prog="nuvec.launch",
        description="Run a script on several ranks, and end them all together.",
        usage="nuvec.launch -n N [options] script.py [args...]\n"
        "       nuvec.launch -n N [options] -m module [args...]",
    )
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many ranks")
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
    if known.n < 1:
        parser.error(f"-n {known.n}: a job needs at least one rank")
    environment = {}
    for text in known.env:
        key, equals, value = text.partition("=")
        if not equals or not key:
            parser.error(f"--env {text!r} should be like --env NAME=value")
        environment[key] = value
    if known.module is not None:
        command = [known.python, "-m", known.module, *rest]
    elif not rest:
        parser.error("nothing to run: give a script, such as nuvec.launch -n 2 train.py")
    elif rest[0].endswith(".py") or shutil.which(rest[0]) is None:
        command = [known.python, *rest]
    else:
        command = rest
    return Options(known.n, command, environment, known.cwd, known.verbose, not known.no_prefix)


def _split_arguments(
    arguments: list[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """Cut before the script, or after ``-m module``; argparse alone would take its options."""
    flags = {"--verbose", "--no-prefix", "-h", "--help"}
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

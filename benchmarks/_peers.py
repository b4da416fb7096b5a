"""Finding the frameworks that nuvec is compared with, and talking to each in its own process.

Each peer lives in a virtual environment of its own, DIR/NAME, where DIR is $NUVEC_PEERS or
`.peers` in the checkout; `setup_peers.py` makes them.  `--peer NAME=PYTHON` names an interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from _worker import environment_of

CHECKOUT = Path(__file__).resolve().parent.parent
IN_THIS_ENVIRONMENT = ("nuvec", "numpy")


def peers_directory() -> Path:
    return Path(os.environ.get("NUVEC_PEERS") or CHECKOUT / ".peers")


def find_python(name: str, given: Mapping[str, str]) -> str | None:
    """The interpreter of a framework's environment; None when there is none."""
    if name in given:
        return given[name]
    owner = environment_of(name)
    if owner in IN_THIS_ENVIRONMENT:
        return sys.executable
    if owner in given:
        return given[owner]
    python = peers_directory() / owner / "bin" / "python"
    return str(python) if python.exists() else None


def parse_peers(options: Iterable[str]) -> dict[str, str]:
    """NAME=PYTHON options as a dict.  ValueError for another form or no such interpreter."""
    found = {}
    for option in options:
        name, equals, python = option.partition("=")
        if not (name and equals and python):
            raise ValueError(f"--peer {option}: give it as NAME=PYTHON, as in torch=/path/python")
        if shutil.which(python) is None:
            raise ValueError(f"--peer {option}: there is no interpreter {python}")
        found[name] = python
    return found


class WorkerError(RuntimeError):
    """A worker could not do what it was asked; the message has its own words."""


class Worker:
    """One framework's process.  Use it in a `with` block: leaving it ends the process."""

    def __init__(self, benchmark: str, name: str, python: str, threads: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, benchmark, "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment_for(name, threads),
        )

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.  WorkerError for a failure."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: what follows says so
        line = process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.name}: its process ended with code {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def environment_for(name: str, threads: int) -> dict[str, str]:
    """The same number of threads for everybody's linear algebra, and no accelerator."""
    environment = dict(os.environ)
    for library in ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "NUMEXPR"):
        environment[f"{library}_NUM_THREADS"] = str(threads)
    environment["JAX_PLATFORMS"] = "cpu"
    environment["NPROC"] = str(threads)  # read by XLA for the size of its pool
    if name == "jax" and threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    if environment_of(name) == "nuvec":
        environment["NUVEC_THREADS"] = str(threads)
    if environment_of(name) in IN_THIS_ENVIRONMENT:
        # This checkout, whether or not it is the one installed.
        paths = (str(CHECKOUT), environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment

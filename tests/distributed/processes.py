"""Ranks as processes that run the same program, for what threads cannot show: deaths, signals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, resource, signal, sys, time
import numpy as np
from nuvec.core.errors import *
from nuvec.distributed.rendezvous import find_job
from nuvec.distributed.transports.{0} import {0}_communicator as join
def say(*words):
    print(*words, flush=True)
"""


class Processes:
    """The ranks of a job on this host.

    timeout -- of the job, in seconds; with None the program does not begin with `c`, the rank's
               communicator, but makes it itself: `c = join(find_job(timeout=20))`
    """

    def __init__(
        self, size: int, program: str, transport: str, timeout: float | None = 20.0
    ) -> None:
        self.directory = tempfile.mkdtemp(prefix="nuvec-test-")
        environment = dict(
            os.environ,
            PYTHONPATH=str(ROOT),
            NUVEC_WORLD_SIZE=str(size),
            NUVEC_SOCKET_DIR=self.directory,
            NUVEC_SECRET="test secret",
        )
        source = PRELUDE.format(transport)
        if timeout is not None:
            source += f"c = join(find_job(timeout={timeout}))\n"
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", source + textwrap.dedent(program)],
                env=dict(environment, NUVEC_RANK=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def line(self, rank: int) -> str:
        """The next line that a rank prints."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def end(self) -> None:
        """End the ranks, whatever they are at."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

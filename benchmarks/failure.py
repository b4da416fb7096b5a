"""How fast a death is noticed, and what is left over afterwards.

    python benchmarks/failure.py [--size 4] [--repeats 3]

Starts a job with the launcher, kills one rank (SIGKILL) in the middle of 64 MB all_reduces, and
prints when each other rank raised PeerError, when the launcher had exited, and what of the job was
left in the temporary directory, in /dev/shm and in the process table.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = "NUVEC_FAILURE_BENCHMARK"

PROGRAM = """
import os, time
import numpy as np
from nuvec.core.errors import PeerError
from nuvec.distributed.rendezvous import find_job
from nuvec.distributed.transports.mesh import mesh_communicator

communicator = mesh_communicator(find_job())
x = np.ones(1 << 24, np.float32)
communicator.all_reduce("sum", [x])
print("pid", os.getpid(), flush=True)
try:
    while True:
        communicator.all_reduce("sum", [x])
except PeerError as error:
    print("raised", time.time(), error, flush=True)
    raise
"""


def marked_processes() -> list[int]:
    """The processes that carry this benchmark's mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def run_once(size: int) -> None:
    """Start one job, kill its rank 1, print what follows."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "program.py")
        script.write_text(PROGRAM)
        temporary = Path(directory, "tmp")
        temporary.mkdir()
        shared_before = set(os.listdir("/dev/shm"))
        launcher = subprocess.Popen(
            [sys.executable, "-m", "nuvec.launch", "-n", str(size), str(script)],
            env=dict(os.environ, PYTHONPATH=str(ROOT), TMPDIR=str(temporary), **{MARK: "1"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert launcher.stdout is not None
        pids: dict[int, int] = {}
        while len(pids) < size:
            rank, pid = re.findall(r"\d+", launcher.stdout.readline())
            pids[int(rank)] = int(pid)
        time.sleep(0.3)  # into the middle of a reduction
        killed = time.time()
        os.kill(pids[1], signal.SIGKILL)
        output, _ = launcher.communicate()
        exited = time.time()
        times = {
            int(rank): float(when) - killed
            for rank, when in re.findall(r"\[(\d+)\] raised ([\d.]+)", output)
        }
        raised = ", ".join(f"rank {r}: {1000 * t:.0f} ms" for r, t in sorted(times.items()))
        print(f"PeerError after SIGKILL of rank 1   {raised}")
        print(f"slowest of {len(times)} (of {size - 1})            {max(times.values()):.3f} s")
        print(
            f"launcher exited                     {exited - killed:.3f} s later, "
            f"code {launcher.returncode} (expected {128 + signal.SIGKILL})"
        )
        print(f"left in the temporary directory     {os.listdir(temporary) or 'nothing'}")
        print(
            f"left in /dev/shm                    "
            f"{sorted(set(os.listdir('/dev/shm')) - shared_before) or 'nothing'}"
        )
        print(f"left in the process table           {marked_processes() or 'nothing'}")


def main() -> None:
    """Read the command line and repeat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4, help="how many ranks")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for repeat in range(arguments.repeats):
        print(f"-- run {repeat + 1}: {arguments.size} ranks, 64 MB all_reduce")
        run_once(arguments.size)


if __name__ == "__main__":
    main()

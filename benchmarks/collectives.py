"""Sums over ranks of one machine: nuvec's transports, gloo, Open MPI and MLX's ring.

    python benchmarks/collectives.py [--ranks 2 4] [--only nuvec-shm gloo] [--sizes 1 1048576]
                                     [--rounds N] [--json FILE] [--peer NAME=PYTHON]

all_sum of float32, from 4 B to 64 MB.  Every peer's ranks run all the time, each peer in its own
environment, and take turns: in every round each peer does some sums of a size while the others
wait for theirs.  A sum's time is rank 0's for one call, evaluated; a round's is the median of its
calls.  All sums are compared before anything is timed.

The targets are those of nuvec's design: shm at most half of gloo's time at every size, and of
MPI's from 1 Mi elements on; ring at most gloo's from there on, and 0.3 of that of MLX's ring.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _peers import find_python, parse_peers
from _ranks import PEERS

RANKS = Path(__file__).resolve().parent / "_ranks.py"
SIZES = (1, 256, 4096, 65536, 1 << 20, 1 << 24)
LARGE = 1 << 20
PATIENCE = 120.0  # seconds for a job to start, and for a round
OWNERS = {"gloo": "torch", "mlx": "mlx", "mpi": "mpi"}
TARGETS = {
    ("nuvec-shm", "gloo"): (0.5, 1), ("nuvec-shm", "mpi"): (0.5, LARGE),
    ("nuvec-ring", "gloo"): (1.0, LARGE), ("nuvec-ring", "mlx"): (0.3, LARGE),
}  # fmt: skip


class Job:
    """The ranks of a peer, and the connections over which they are told what to do."""

    def __init__(self, peer: str, python: str, ranks: int, folder: Path) -> None:
        self.peer = peer
        path = str(folder / f"{peer}-{ranks}")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(ranks)
        self._server.settimeout(1)
        self._log = (folder / f"{peer}-{ranks}.log").open("w+")
        self._processes = [
            subprocess.Popen(
                command, env={**os.environ, **environment, "OMP_NUM_THREADS": "1",
                              "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            )
            for command, environment in commands(peer, python, ranks, path, folder)
        ]  # fmt: skip
        self._files: list[Any] = [None] * ranks
        for _ in range(ranks):
            connection = self._accept()
            connection.settimeout(PATIENCE)
            lines = connection.makefile("rw")
            self._files[json.loads(lines.readline())["rank"]] = lines

    def _accept(self) -> socket.socket:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and all(p.poll() is None for p in self._processes):
            try:
                return self._server.accept()[0]
            except TimeoutError:
                pass
        raise RuntimeError(f"{self.peer}: its ranks did not start\n{self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-3000:]

    def run(self, elements: int, calls: int) -> list[float]:
        """Rank 0's times of so many sums, in seconds."""
        for lines in self._files:
            print(json.dumps({"elements": elements, "calls": calls}), file=lines, flush=True)
        try:
            answers = [json.loads(lines.readline()) for lines in self._files]
        except (ValueError, TimeoutError):
            raise RuntimeError(f"{self.peer}: a rank ended or hangs\n{self.log()}") from None
        times: list[float] = answers[0]["times"]
        return times

    def end(self) -> None:
        for lines in self._files:
            if lines is not None:
                with contextlib.suppress(OSError):
                    lines.close()
        self._server.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()


def commands(
    peer: str, python: str, ranks: int, path: str, folder: Path
) -> Iterator[tuple[Sequence[str], dict[str, str]]]:
    """(command, environment) of the processes that make up a peer's job."""
    program = [str(RANKS), peer, path]
    if peer == "mpi":
        mpirun = str(Path(python).parent / "mpirun")
        options = ["--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
        yield [mpirun, *options, python, *program], {}
        return
    ports = free_ports(2 * ranks)
    if peer == "mlx":
        hosts = folder / f"mlx-{ranks}.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports[:ranks]]))
        for rank in range(ranks):
            yield [python, *program], {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
        return
    secret = secrets.token_hex(16)
    for rank in range(ranks):
        yield [python, *program], {
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ports[0]), "NUVEC_SECRET": secret,
        }  # fmt: skip


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            s = stack.enter_context(socket.socket())
            s.bind(("127.0.0.1", 0))
            found.append(s.getsockname()[1])
        return found


def calls_of(elements: int) -> int:
    return 30 if elements < 1 << 16 else 10 if elements < LARGE else 3


def measure(jobs: Sequence[Job], elements: int, rounds: int) -> dict[str, list[float]]:
    """For each peer, the median of each round, in seconds."""
    found: dict[str, list[float]] = {job.peer: [] for job in jobs}
    for job in jobs:
        job.run(elements, 1)
    for k in range(rounds):
        turn = k % len(jobs)
        for job in (*jobs[turn:], *jobs[:turn]):
            found[job.peer].append(statistics.median(job.run(elements, calls_of(elements))))
    return found


def ratios(mine: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of my time over the other's, round by round."""
    each = [a / b for a, b in zip(mine, other, strict=True)]
    low, median, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    return low, median, high


def report(ranks: int, elements: int, found: dict[str, list[float]]) -> list[dict[str, Any]]:
    size = 4 * elements
    text = f"{size} B" if size < 1 << 10 else f"{size >> 10} KiB" if size < 1 << 20 else (
        f"{size >> 20} MiB"
    )  # fmt: skip
    times = "  ".join(f"{p} {statistics.median(t) * 1e6:.0f}" for p, t in found.items())
    print(f"\n{ranks} ranks, {text}: medians in us: {times}")
    rows = []
    for name in found:
        if not name.startswith("nuvec-"):
            continue
        for peer in found:
            if peer.startswith("nuvec-"):
                continue
            low, median, high = ratios(found[name], found[peer])
            target, least = TARGETS.get((name, peer), (None, 0))
            verdict = ""
            if target is not None and elements >= least:
                verdict = f"{target}: {'met' if median <= target else 'MISSED'}"
            print(f"  {name:12} / {peer:5} {median:7.2f}  {low:.2f}-{high:.2f}  {verdict}")
            rows.append({
                "ranks": ranks, "elements": elements, "nuvec": name, "peer": peer,
                "ratio": median, "quartiles": [low, high], "target": verdict,
            })  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="elements")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    args = parser.parse_args()
    try:
        given = parse_peers(args.peer)
    except ValueError as error:
        parser.error(str(error))
    pythons = {}
    for peer in args.only:
        python = sys.executable if peer.startswith("nuvec-") else find_python(OWNERS[peer], given)
        if python is None:
            print(f"{peer} has no environment here: see setup_peers.py", file=sys.stderr)
        else:
            pythons[peer] = python
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for ranks in args.ranks:
            jobs: list[Job] = []
            try:
                for peer, python in pythons.items():
                    jobs.append(Job(peer, python, ranks, Path(name)))
                for elements in args.sizes:
                    rows += report(ranks, elements, measure(jobs, elements, args.rounds))
            finally:
                for job in jobs:
                    job.end()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

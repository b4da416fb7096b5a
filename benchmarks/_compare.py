"""A benchmark: the same work in nuvec and in its peers, in alternating rounds of one run.

    if __name__ == "__main__":
        sys.exit(main(__file__, __doc__, CASES, FRAMEWORKS))

Before anything is timed all results are compared.  In every round each framework takes its turn,
in an order that rotates, so whatever else the machine does falls on all of them alike; a ratio is
the median over the rounds of nuvec's time over the peer's time in the same round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _peers import Worker, WorkerError, find_python, parse_peers
from _worker import Framework, decode, serve


@dataclass(frozen=True)
class Case:
    """name   -- the key of its task in every framework
    text      -- what it measures, in words
    divisor   -- what a call's time is divided by (the number of operations, say)
    unit      -- "us", "ms" or "s", of a call divided so
    targets   -- by peer: the largest ratio of nuvec's time to the peer's that is aimed at
    tolerance -- how closely results must agree, relative to 1 + their size
    """

    name: str
    text: str
    divisor: int = 1
    unit: str = "ms"
    targets: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 1e-4


_UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0}


def main(
    benchmark: str, text: str | None, cases: Sequence[Case], frameworks: Mapping[str, Framework]
) -> int:
    """Run as a benchmark, or as one framework's worker; the process's exit code."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", nargs="+", choices=list(frameworks), help="with nuvec")
    parser.add_argument("--case", nargs="+", choices=[case.name for case in cases])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a framework's turn")
    parser.add_argument("--threads", type=int, default=1, help="of everybody's linear algebra")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument("--worker", choices=list(frameworks), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args.worker, frameworks[args.worker])
        return 0
    try:
        given = parse_peers(args.peer)
    except ValueError as error:
        parser.error(str(error))
    wanted = [name for name in frameworks if name in ("nuvec", *(args.only or frameworks))]
    chosen = [case for case in cases if case.name in (args.case or [case.name])]
    report: dict[str, Any] = {
        "machine": f"{_processor()}, Python {platform.python_version()}",
        "threads": args.threads,
        "versions": {},
        "missing": [],
        "cases": {},
    }
    pythons = {name: find_python(name, given) for name in wanted}
    report["missing"] = [name for name, python in pythons.items() if python is None]
    try:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(Worker(benchmark, name, python, args.threads))
                for name, python in pythons.items()
                if python is not None
            ]
            report["versions"] = {w.name: w.ask("version")["version"] for w in workers}
            _print_head(report)
            for case in chosen:
                figures = _measure(case, workers, args.rounds, args.seconds)
                report["cases"][case.name] = figures
                _print_case(case, figures, report["missing"])
            report["peak_mb"] = {w.name: round(w.ask("memory")["peak_mb"], 1) for w in workers}
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _measure(
    case: Case, workers: Sequence[Worker], rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Every framework's times for one case, by name: prepared, compared, then timed in turns."""
    prepared = {}
    for worker in workers:
        answer = worker.ask("prepare", case=case.name, seconds=seconds)
        if "missing" not in answer:
            prepared[worker] = answer
    results = {worker.name: decode(a["result"]) for worker, a in prepared.items()}
    _compare(case, results)
    times: dict[str, list[float]] = {worker.name: [] for worker in prepared}
    order = list(prepared)
    for _ in range(rounds):
        for worker in order:
            times[worker.name].append(worker.ask("round", case=case.name)["seconds"])
        order = order[1:] + order[:1]
    figures = {}
    for worker, answer in prepared.items():
        own = times[worker.name]
        figures[worker.name] = {
            "seconds": _spread(own),
            "ratio": _spread([a / b for a, b in zip(times["nuvec"], own, strict=True)]),
            "first": answer["first"],
            "rounds": own,
        }
    return figures


def _compare(case: Case, results: Mapping[str, np.ndarray]) -> None:
    """Raise WorkerError unless all results agree with the first framework's."""
    (reference, expected), *others = results.items()
    for name, result in others:
        if result.shape != expected.shape:
            raise WorkerError(
                f"{case.name}: {name} gives {result.size} numbers, {reference} {expected.size}"
            )
        error = np.max(np.abs(result - expected) / (1 + np.abs(expected)), initial=0.0)
        if not error <= case.tolerance:
            raise WorkerError(
                f"{case.name}: {name} differs from {reference} by {error:.1e}, "
                f"more than {case.tolerance:.0e}; nothing was timed"
            )


def _spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles around it."""
    low, middle, high = (
        statistics.quantiles(values, method="inclusive") if len(values) > 1 else values * 3
    )
    return {"median": middle, "low": low, "high": high}


def _print_head(report: Mapping[str, Any]) -> None:
    print(report["machine"])
    versions = ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    print(f"{versions}; threads: {report['threads']}")
    for name in report["missing"]:
        print(f"missing: {name} (setup_peers.py {name} makes it, or --peer {name}=PYTHON)")


def _print_case(
    case: Case, figures: Mapping[str, Mapping[str, Any]], missing: Sequence[str]
) -> None:
    scale = _UNITS[case.unit] / case.divisor
    print(f"\n{case.name}: {case.text}")
    head = f"{case.unit:>9} {'quartiles':>19} {'nuvec / it':>11} {'quartiles':>13}  target"
    print(f"  {'':10} {head}")
    for name, figure in figures.items():
        own, ratio = figure["seconds"], figure["ratio"]
        row = f"  {name:10} {own['median'] * scale:9.3f} "
        row += f"{own['low'] * scale:9.3f}-{own['high'] * scale:<9.3f} "
        if name != "nuvec":
            row += f"{ratio['median']:11.2f} {ratio['low']:6.2f}-{ratio['high']:<6.2f}"
        if name in case.targets:
            target = case.targets[name]
            row += f"  {target:.2f}: {'met' if ratio['median'] <= target else 'MISSED'}"
        print(row.rstrip())
    for name in missing:
        target = case.targets.get(name)
        unknown = "" if target is None else f"; its target of {target:.2f} is not measured"
        print(f"  {name:10}   missing{unknown}")
    sys.stdout.flush()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

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
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    unit      -- "us", "ms" or "s", of a call divided so; or "MB"
    targets   -- by peer: the largest ratio of nuvec's time to the peer's that is aimed at
    tolerance -- how closely results must agree, relative to their size and to the root mean
                 square of the array they are in
    same_bits -- sets of frameworks whose results must be the same to the last bit
    """

    name: str
    text: str
    divisor: int = 1
    unit: str = "ms"
    targets: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 1e-4
    same_bits: Sequence[Collection[str]] = ()


UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0, "MB": 1.0}


def main(
    benchmark: str, text: str | None, cases: Sequence[Case], frameworks: Mapping[str, Framework]
) -> int:
    """Run as a benchmark, or as one framework's worker; the process's exit code."""
    parser = parser_for(text, cases, frameworks)
    args = parser.parse_args()
    if args.worker:
        serve(args.worker, frameworks[args.worker])
        return 0
    try:
        report = run(benchmark, args, cases, interpreters(parser, args, frameworks))
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["failed"] else 0


def parser_for(
    text: str | None, cases: Sequence[Case], frameworks: Iterable[str], threads: int = 1
) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", nargs="+", choices=list(frameworks), help="with nuvec")
    parser.add_argument("--case", nargs="+", choices=[case.name for case in cases])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a framework's turn")
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"of everybody ({threads} by default)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument("--worker", choices=list(frameworks), help=argparse.SUPPRESS)
    return parser


def interpreters(
    parser: argparse.ArgumentParser, args: argparse.Namespace, frameworks: Iterable[str]
) -> dict[str, str | None]:
    """The Python of every framework that was asked for; None where there is none."""
    try:
        given = parse_peers(args.peer)
    except ValueError as error:
        parser.error(str(error))
    wanted = [name for name in frameworks if name in ("nuvec", *(args.only or frameworks))]
    return {name: find_python(name, given) for name in wanted}


def run(
    benchmark: str,
    args: argparse.Namespace,
    cases: Sequence[Case],
    pythons: Mapping[str, str | None],
) -> dict[str, Any]:
    """Measure the cases chosen, printing each; everything that was measured, and what failed."""
    report: dict[str, Any] = {
        "machine": f"{_processor()}, Python {platform.python_version()}",
        "threads": args.threads,
        "versions": {},
        "missing": [name for name, python in pythons.items() if python is None],
        "cases": {},
        "failed": {},
    }
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(benchmark, name, python, args.threads))
            for name, python in pythons.items()
            if python is not None
        ]
        report["versions"] = {w.name: w.ask("version")["version"] for w in workers}
        _print_head(report)
        for case in cases:
            if case.name not in (args.case or [case.name]):
                continue
            try:
                figures = _measure(case, workers, args.rounds, args.seconds)
            except WorkerError as error:
                report["failed"][case.name] = str(error)
                print(error, file=sys.stderr, flush=True)
                continue
            report["cases"][case.name] = figures
            print_case(case, figures, report["missing"])
        report["peak_mb"] = {w.name: round(w.ask("memory")["peak_mb"], 1) for w in workers}
    return report


def _measure(
    case: Case, workers: Sequence[Worker], rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Every framework's times for one case, by name: prepared, compared, then timed in turns."""
    prepared = {}
    for worker in workers:
        answer = worker.ask("prepare", case=case.name, seconds=seconds)
        if "missing" not in answer:
            prepared[worker] = answer
    if not prepared:
        raise WorkerError(f"{case.name}: no framework that is here can do it")
    results = {worker.name: decode(a["result"]) for worker, a in prepared.items()}
    _compare(case, results)
    _compare_bits(case, {worker.name: a["bits"] for worker, a in prepared.items()})
    times: dict[str, list[float]] = {worker.name: [] for worker in prepared}
    order = list(prepared)
    for _ in range(rounds):
        for worker in order:
            times[worker.name].append(worker.ask("round")["seconds"])
        order = order[1:] + order[:1]
    figures = {}
    for worker, answer in prepared.items():
        own = times[worker.name]
        figure = {"seconds": spread(own), "first": answer["first"], "rounds": own}
        if "nuvec" in times:
            ratios = [a / b for a, b in zip(times["nuvec"], own, strict=True)]
            figure["ratio"] = spread(ratios)
        figures[worker.name] = figure
    return figures


def _compare(case: Case, results: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Raise WorkerError unless all results agree with the first framework's."""
    (reference, expected), *others = results.items()
    sizes = [array.size for array in expected]
    for name, result in others:
        own = [array.size for array in result]
        if own != sizes:
            raise WorkerError(f"{case.name}: {name} gives {own} numbers, {reference} {sizes}")
        for i, (a, b) in enumerate(zip(result, expected, strict=True)):
            scale = np.abs(b) + np.sqrt(np.mean(b**2)) if b.size else b
            # Where all of an array is 0, all of the other must be.
            error = np.max(np.abs(a - b) / np.where(scale == 0, 1e-300, scale), initial=0.0)
            if not error <= case.tolerance:
                raise WorkerError(
                    f"{case.name}: {name} differs from {reference} by {error:.1e} in array {i} of "
                    f"its result, more than {case.tolerance:.0e}; nothing was timed"
                )


def _compare_bits(case: Case, bits: Mapping[str, str]) -> None:
    """Raise WorkerError unless results that must be the same are."""
    for names in case.same_bits:
        first, *others = [name for name in bits if name in names] or [""]
        for name in others:
            if bits[name] != bits[first]:
                raise WorkerError(
                    f"{case.name}: {name} and {first} differ in some bits of their results, and "
                    "must not; nothing was timed"
                )


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles around it."""
    low, middle, high = (
        statistics.quantiles(values, method="inclusive") if len(values) > 1 else [*values] * 3
    )
    return {"median": middle, "low": low, "high": high}


def _print_head(report: Mapping[str, Any]) -> None:
    print(report["machine"])
    versions = ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    print(textwrap.fill(f"{versions}; threads: {report['threads']}", 100))
    for name in report["missing"]:
        print(f"missing: {name} (setup_peers.py {name} makes it, or --peer {name}=PYTHON)")


def print_case(
    case: Case, figures: Mapping[str, Mapping[str, Any]], missing: Sequence[str]
) -> None:
    scale = UNITS[case.unit] / case.divisor
    print(f"\n{case.name}: {case.text}")
    head = f"{case.unit:>9} {'quartiles':>19} {'nuvec / it':>11} {'quartiles':>13}  target"
    width = max([13, *map(len, figures)])
    print(f"  {'':{width}} {head}")
    for name, figure in figures.items():
        own = figure["megabytes" if case.unit == "MB" else "seconds"]
        ratio = figure.get("ratio")
        row = f"  {name:{width}} {own['median'] * scale:9.3f} "
        row += f"{own['low'] * scale:9.3f}-{own['high'] * scale:<9.3f} "
        if name != "nuvec" and ratio:
            row += f"{ratio['median']:11.2f} {ratio['low']:6.2f}-{ratio['high']:<6.2f}"
        if name in case.targets and ratio:
            target = case.targets[name]
            row += f"  {target:.2f}: {'met' if ratio['median'] <= target else 'MISSED'}"
        print(row.rstrip())
    for name in missing:
        target = case.targets.get(name)
        unknown = "" if target is None else f"; its target of {target:.2f} is not measured"
        print(f"  {name:{width}}   missing{unknown}")
    sys.stdout.flush()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

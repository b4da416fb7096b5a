"""Compiled programs: nuvec against jax (jit), torch (eager), mlx (compile) and autograd.

Twelve workloads (workloads/, one file each), and what a framework costs before it is warm:

import      of the framework, NumPy's own included, in fresh processes
first_step  from the inputs to the result of the first training step of `mlp`: trace, compile, run
memory      the peak of a process that trains it for 50 steps

    python benchmarks/setup_peers.py          # once: torch, autograd, jax, mlx in .peers/
    python benchmarks/compare.py [--rounds N] [--json FILE] [--chart FILE.svg]
    python benchmarks/compare.py --case gelu mlp --only jax

The same mathematics and inputs in float32 everywhere, each framework in its own process, with the
same number of threads (all cores by default); results agree to 1e-4 before anything is timed.
What a framework cannot do, or not in reasonable time, is left out.  The chart needs matplotlib.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _compare import Case, interpreters, parser_for, print_case, run, spread
from _fresh import MODULES, measure_fresh
from _peers import WorkerError
from _summary import draw_chart, geometric_means, print_means, print_table
from _worker import serve
from workloads import FRAMEWORKS, NAMES, framework, module

IMPORT_TARGET = 0.150  # seconds beyond NumPy's
OPTIONAL = ("torch-compile",)
WORKLOADS = [
    Case(name, (w := module(name)).TEXT, unit=w.UNIT, targets={"jax": w.TARGET} if w.TARGET else {})
    for name in NAMES
]
FRESH = [
    Case("import", "the import, in fresh processes"),
    Case("first_step", "from the inputs to the first step of mlp, after the import",
         targets={"jax": 0.15}),
    Case("memory", "peak memory of 50 steps of mlp, the whole process",
         unit="MB", targets={"jax": 1 / 3}),
]  # fmt: skip


def main() -> int:
    cases = [*WORKLOADS, *FRESH]
    parser = parser_for(__doc__, cases, FRAMEWORKS, threads=os.cpu_count() or 1)
    parser.add_argument("--torch-compile", action="store_true", help="as one more framework")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="SVG or PNG")
    args = parser.parse_args()
    if args.worker:
        serve(args.worker, framework(args.worker))
        return 0
    extra = OPTIONAL if args.torch_compile else ()
    wanted = [n for n in FRAMEWORKS if n not in OPTIONAL or n in (*extra, *(args.only or ()))]
    if args.only:
        args.only += extra
    pythons = interpreters(parser, args, wanted)
    try:
        report = run(__file__, args, WORKLOADS, pythons)
        fresh = [c for c in FRESH if c.name in (args.case or [c.name])]
        if fresh:
            _run_fresh(report, fresh, pythons, args.rounds)
    except (WorkerError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print_table(report, cases)
    report["geometric_means"] = geometric_means(report, WORKLOADS)
    print_means(report["geometric_means"])
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.chart:
        draw_chart(report, WORKLOADS, args.chart)
    return 1 if report["failed"] else 0


def _run_fresh(
    report: dict[str, Any], cases: list[Case], pythons: Mapping[str, str | None], rounds: int
) -> None:
    """Measure what needs fresh processes, print it, and add it to the report."""
    present = {n: python for n, python in pythons.items() if python is not None and n in MODULES}
    figures = measure_fresh(present, report["threads"], rounds)
    for case in cases:
        kind = "megabytes" if case.unit == "MB" else "seconds"
        own = figures[case.name]
        report["cases"][case.name] = {
            name: {
                kind: spread(values),
                "ratio": spread([a / b for a, b in zip(own["nuvec"], values, strict=True)]),
                "rounds": values,
            }
            for name, values in own.items()
        }
        print_case(case, report["cases"][case.name], report["missing"])
        if case.name == "import":
            pairs = zip(own["nuvec"], figures["numpy"]["nuvec"], strict=True)
            beyond = spread([a - b for a, b in pairs])
            report["cases"]["import"]["nuvec"]["beyond_numpy"] = beyond
            numpy = statistics.median(figures["numpy"]["nuvec"])
            verdict = "met" if beyond["median"] <= IMPORT_TARGET else "MISSED"
            low, middle, high = (beyond[k] * 1e3 for k in ("low", "median", "high"))
            print(
                f"  beyond numpy's {numpy * 1e3:.1f} ms: {middle:.1f} ms, quartiles "
                f"{low:.1f}-{high:.1f}; target {IMPORT_TARGET * 1e3:.0f}: {verdict}"
            )


if __name__ == "__main__":
    sys.exit(main())

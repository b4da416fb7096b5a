"""What each pass of compile buys: nuvec with all of them, and without each one.

    python benchmarks/passes.py [--rounds N] [--json FILE] [--markdown [FILE]]
    python benchmarks/passes.py --docs      # puts the table into docs/compile.md
    python benchmarks/passes.py --case gelu --only nuvec-without-fuse

The twelve workloads of compare.py; each variant has a process of its own, and they take turns in
every round.  A figure is the time without the pass over the time with all.  The pass "overlap" has
no column: it moves communications, and these workloads have none.  "unroll" changes the program of
pairwise alone, so that its other rows show how much two processes differ in the same program.

Results agree to 1e-6 before anything is timed.  They are the same to the last bit among those that
add up sums over a group's rows tile by tile, and among those that do not (without "partial_sums",
without "fuse", without any).  Without "simplify" other sums may do so, to other last bits; the
variant without any holds it to the same bits where none does.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _compare import UNITS, Case, interpreters, parser_for, run, spread
from _peers import CHECKOUT, WorkerError
from _worker import Framework, serve
from workloads import NAMES, Tasks, module

PASSES = ("simplify", "unroll", "fuse", "partial_sums", "threads", "in_place", "arena")
PREFIX = "nuvec-without-"
VARIANTS = {
    "nuvec": frozenset[str](),
    **{PREFIX + name: frozenset((name,)) for name in PASSES},
    PREFIX + "any": frozenset((*PASSES, "overlap")),
}
"""By the name of the variant, the passes that are left out."""

SAME_BITS = (
    ("nuvec", *(PREFIX + name for name in ("unroll", "threads", "in_place", "arena"))),
    tuple(PREFIX + name for name in ("fuse", "partial_sums", "any")),
)
CASES = [
    Case(name, w.TEXT, unit=w.UNIT, tolerance=1e-6, same_bits=SAME_BITS)
    for name in NAMES
    if (w := module(name)).TARGET
]
DOCUMENT = CHECKOUT / "docs" / "compile.md"
BEGIN = "<!-- the table of benchmarks/passes.py --docs -->"
END = "<!-- its end -->"


def framework(name: str) -> Framework:
    """nuvec's tasks, compiled without the passes that the variant leaves out."""

    def build() -> Tasks:
        import nuvec as nv
        from nuvec.core.config import PASSES as ALL

        assert {*ALL} == {*PASSES, "overlap"}, "a new pass needs a column here"
        nv.config.passes = frozenset(ALL) - VARIANTS[name]
        return Tasks("nuvec")

    return build


def main() -> int:
    parser = parser_for(__doc__, CASES, list(VARIANTS), threads=os.cpu_count() or 1)
    parser.add_argument(
        "--markdown", nargs="?", const="-", metavar="FILE", help="the table; no FILE: printed"
    )
    parser.add_argument("--docs", action="store_true", help=f"the table in docs/{DOCUMENT.name}")
    args = parser.parse_args()
    if args.docs and (args.case or args.only):
        parser.error("--docs wants the whole table: leave out --case and --only")
    if args.worker:
        serve(args.worker, framework(args.worker))
        return 0
    try:
        report = run(__file__, args, CASES, interpreters(parser, args, list(VARIANTS)))
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    report["rounds"] = args.rounds
    report["without_over_with"] = ratios(report)
    print_table(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.markdown == "-":
        print("\n" + markdown(report))
    elif args.markdown:
        Path(args.markdown).write_text(markdown(report) + "\n")
    if report["failed"]:
        return 1
    if args.docs:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(with_table(text, markdown(report)), encoding="utf-8")
    return 0


def ratios(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By workload and variant: the time without the pass over the time with all, with quartiles;
    and the geometric means of the medians, as one workload more."""
    found: dict[str, dict[str, Any]] = {}
    for case, figures in report["cases"].items():
        whole = figures["nuvec"]["rounds"]
        found[case] = {
            name: spread([b / a for a, b in zip(whole, figure["rounds"], strict=True)])
            for name, figure in figures.items()
            if name != "nuvec"
        }
    if found:
        found["geometric mean"] = {
            name: {"median": _mean([row[name]["median"] for row in found.values()])}
            for name in next(iter(found.values()))
        }
    return found


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def print_table(report: Mapping[str, Any]) -> None:
    names = [name for name in report["versions"] if name != "nuvec"]
    print("\nthe time without a pass / the time with all, quartiles")
    print(f"{'':14}" + "".join(f"  {name.removeprefix(PREFIX):15}" for name in names).rstrip())
    for case, row in report["without_over_with"].items():
        print(f"{case:14}" + "".join(f"  {_cell(row[name]):15}" for name in names).rstrip())
    for name, text in report["failed"].items():
        print(f"{name:14}  FAILED: {text}")
    print('"overlap" moves communications, which no workload has: it is left out of this table.')


def _cell(ratio: Mapping[str, float]) -> str:
    text = f"{ratio['median']:.2f}"
    return text if "low" not in ratio else f"{text} {ratio['low']:.2f}-{ratio['high']:.2f}"


def markdown(report: Mapping[str, Any]) -> str:
    """The table for docs: the medians."""
    names = [name for name in report["versions"] if name != "nuvec"]
    heads = ["", "with all", *(name.removeprefix(PREFIX) for name in names)]
    lines = [_line(heads), _line(["---"] + ["--:"] * (len(names) + 1))]
    units = {case.name: case.unit for case in CASES}
    for case, row in report["without_over_with"].items():
        own = ""
        if case in units:
            median = report["cases"][case]["nuvec"]["seconds"]["median"]
            time = median * UNITS[units[case]]
            own = f"{time:.0f} {units[case]}" if time >= 100 else f"{time:.3g} {units[case]}"
        lines.append(_line([case, own, *(f"{row[name]['median']:.2f}" for name in names)]))
    where = f"{report['machine']}, threads: {report['threads']}"
    where += f"; medians of {report['rounds']} rounds."
    if report["threads"] == 1:
        where += ' (One thread: "threads" changes nothing.)'
    return "\n".join([*lines, "", where])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def with_table(text: str, table: str) -> str:
    """A document with the table in the place of the one it has."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())

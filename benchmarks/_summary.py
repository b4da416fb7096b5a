"""The end of a comparison: one table of ratios, their geometric means, and a chart of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _compare import UNITS, Case

Report = Mapping[str, Any]
MEANS = {"jax": 1.0, "torch": 0.8}
"""The targets of the geometric means, over the cases that have a target."""


def print_table(report: Report, cases: Sequence[Case]) -> None:
    """A row for each case: nuvec's time, and its ratio to each peer's with quartiles."""
    measured = [c for c in cases if "nuvec" in report["cases"].get(c.name, {})]
    peers = [name for name in report["versions"] if name != "nuvec"]
    width = max([len(c.name) for c in cases], default=0)
    print(f"\nnuvec's time / its time, quartiles\n{'':{width}} {'nuvec':>12}", end="")
    print("".join(f"  {name:22}" for name in peers).rstrip())
    for case in measured:
        figures = report["cases"][case.name]
        own = figures["nuvec"]["megabytes" if case.unit == "MB" else "seconds"]["median"]
        row = f"{case.name:{width}} {own * UNITS[case.unit] / case.divisor:9.3f} {case.unit:>2}"
        for name in peers:
            row += f"  {_cell(figures.get(name), case.targets.get(name)):22}"
        print(row.rstrip())
    for name, text in report["failed"].items():
        print(f"{name:{width}} FAILED: {text}")


def _cell(figure: Mapping[str, Any] | None, target: float | None) -> str:
    if figure is None:
        return "-"
    ratio = figure["ratio"]
    text = f"{ratio['median']:.2f} {ratio['low']:.2f}-{ratio['high']:.2f}"
    if target is not None:
        text += f" {_verdict(ratio['median'], target)}"
    return text


def _verdict(value: float, target: float) -> str:
    return f"{'met' if value <= target else 'MISSED'} {target:.2f}"


def geometric_means(report: Report, cases: Sequence[Case]) -> dict[str, Any]:
    """By peer: the mean, the number of cases, the target.  Cases without a target do not count."""
    means = {}
    for name, target in MEANS.items():
        logs = [
            math.log(figures[name]["ratio"]["median"])
            for case in cases
            if case.targets
            and name in (figures := report["cases"].get(case.name, {}))
            and "ratio" in figures[name]
        ]
        if logs:
            mean = math.exp(sum(logs) / len(logs))
            means[name] = {"mean": mean, "cases": len(logs), "target": target}
    return means


def print_means(means: Mapping[str, Mapping[str, Any]]) -> None:
    for name, row in means.items():
        verdict = _verdict(row["mean"], row["target"])
        print(f"geometric mean of {row['cases']} against {name}: {row['mean']:.2f} {verdict}")


def draw_chart(report: Report, cases: Sequence[Case], file: Path) -> None:
    """Bars of the ratios to jax and torch on a logarithmic scale; the format is the file's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    peers = [name for name in MEANS if name in report["versions"]]
    shown = [c for c in cases if "nuvec" in report["cases"].get(c.name, {})]
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.45 * len(shown)), layout="constrained")
    height = 0.8 / max(1, len(peers))
    for i, name in enumerate(peers):
        for row, case in enumerate(shown):
            if name not in report["cases"][case.name]:
                continue
            ratio = report["cases"][case.name][name]["ratio"]
            middle, place = ratio["median"], row - 0.4 + (i + 0.5) * height
            reach = [[middle - ratio["low"]], [ratio["high"] - middle]]
            # A bar begins at 1, as long: to the left nuvec is the faster one.
            axes.barh(
                place, middle - 1, height * 0.92, left=1, color=f"C{i}",
                xerr=reach, error_kw={"elinewidth": 0.8, "ecolor": "0.3"},
            )  # fmt: skip
            side = "left" if middle >= 1 else "right"
            end = ratio["high"] * 1.05 if middle >= 1 else ratio["low"] / 1.05
            axes.text(end, place, f"{middle:.2g}", va="center", ha=side, fontsize=8)
            if name in case.targets:
                line = [case.targets[name]] * 2
                axes.plot(line, [row - 0.45, row + 0.05], color="black", linewidth=1.5)
        axes.barh(0, 0, color=f"C{i}", label=f"{name} {report['versions'][name]}")
    if any(c.targets for c in shown):
        axes.plot([], [], color="black", linewidth=1.5, label="target (against jax)")
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.3, high * 1.3)
    axes.set_yticks(range(len(shown)), [c.name for c in shown])
    axes.invert_yaxis()
    axes.set_xlabel("nuvec's time / its time (left of 1: nuvec is faster)")
    axes.set_title(f"{report['machine']}, {report['threads']} threads", fontsize=9)
    axes.legend(fontsize=8, loc="best")
    axes.grid(axis="x", which="both", alpha=0.2)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)

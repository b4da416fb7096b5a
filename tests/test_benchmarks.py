"""The benchmarks' machinery: they run, say what is missing, and time nothing that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

# A benchmark with a peer that computes something slightly else.
PROGRAM = """
import sys
sys.path.insert(0, {benchmarks!r})
import numpy as np
from _compare import Case, main

def right():
    return {{"square": lambda: np.arange(4.0) ** 2}}

def wrong():
    return {{"square": lambda: np.arange(4.0) ** 2.001}}

if __name__ == "__main__":
    sys.exit(main(__file__, "", [Case("square", "squares")], {{"nuvec": right, "numpy": wrong}}))
"""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100,
        env={"PATH": "", **environment},
    )  # fmt: skip


def test_overhead_runs_and_reports_missing_peers(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(
        BENCHMARKS / "overhead.py", "--rounds", "1", "--seconds", "0.001", "--json", report,
        NUVEC_PEERS=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "missing: torch" in done.stdout
    figures = json.loads(report.read_text())
    assert figures["missing"] == ["torch", "autograd", "jax", "mlx"]
    assert set(figures["cases"]) == {"forward", "gradient"}


def test_a_wrong_result_is_not_timed(tmp_path: Path) -> None:
    benchmark = tmp_path / "benchmark.py"
    benchmark.write_text(PROGRAM.format(benchmarks=str(BENCHMARKS)))
    done = run(benchmark, "--rounds", "1", "--seconds", "0.001")
    assert done.returncode == 1
    assert "numpy differs from nuvec" in done.stderr
    assert "quartiles" not in done.stdout


# Two frameworks whose large arrays differ in a few places, and agree in a second case.
LARGE = """
import sys
sys.path.insert(0, {benchmarks!r})
import numpy as np
from _compare import Case, main

def framework(wrong):
    large = np.arange(100_000.0)
    if wrong:
        large[::50] *= 1.01
    small = {{"value": np.float32(2), "gradients": [large[:3], (large[:0],)]}}
    return lambda: {{"large": lambda: [large], "small": lambda: small}}

if __name__ == "__main__":
    cases = [Case("large", "wrong"), Case("small", "right")]
    sys.exit(main(__file__, "", cases, {{"nuvec": framework(False), "numpy": framework(True)}}))
"""


def test_one_wrong_case_does_not_end_the_others(tmp_path: Path) -> None:
    benchmark, report = tmp_path / "benchmark.py", tmp_path / "report.json"
    benchmark.write_text(LARGE.format(benchmarks=str(BENCHMARKS)))
    done = run(benchmark, "--rounds", "1", "--seconds", "0.001", "--json", report)
    assert done.returncode == 1
    assert "large: numpy differs from nuvec by" in done.stderr
    figures = json.loads(report.read_text())
    assert set(figures["cases"]) == {"small"}
    assert set(figures["failed"]) == {"large"}


# Two frameworks whose results agree but for the sign of a zero.
BITS = """
import sys
sys.path.insert(0, {benchmarks!r})
import numpy as np
from _compare import Case, main

def framework(zero):
    return lambda: {{"zero": lambda: np.array([1.0, zero]), "any": lambda: np.array([1.0, zero])}}

if __name__ == "__main__":
    cases = [Case("zero", "the same", same_bits=[("nuvec", "numpy")]), Case("any", "about")]
    sys.exit(main(__file__, "", cases, {{"nuvec": framework(0.0), "numpy": framework(-0.0)}}))
"""


def test_where_bits_must_be_the_same_they_are_compared(tmp_path: Path) -> None:
    benchmark, report = tmp_path / "benchmark.py", tmp_path / "report.json"
    benchmark.write_text(BITS.format(benchmarks=str(BENCHMARKS)))
    done = run(benchmark, "--rounds", "1", "--seconds", "0.001", "--json", report)
    assert done.returncode == 1
    assert "zero: numpy and nuvec differ in some bits" in done.stderr
    figures = json.loads(report.read_text())
    assert set(figures["cases"]) == {"any"} and set(figures["failed"]) == {"zero"}


def test_passes_runs_and_its_table_is_that_of_the_docs(tmp_path: Path) -> None:
    """With the same columns, and a row for each of the twelve workloads."""
    table, report = tmp_path / "table.md", tmp_path / "report.json"
    done = run(
        BENCHMARKS / "passes.py", "--rounds", "2", "--seconds", "0.001", "--threads", "1",
        "--case", "logistic", "hessian", "--markdown", table, "--json", report,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (BENCHMARKS.parent / "docs" / "compile.md").read_text(encoding="utf-8")
    own, documented = table.read_text().splitlines(), text.splitlines()
    start = documented.index(own[0])
    rows = documented[start + 2 : documented.index("", start)]
    names = [row.split(" | ")[0].strip("| ") for row in rows]
    assert len(names) == 13 and {"logistic", "hessian", "geometric mean"} <= set(names)
    figures = json.loads(report.read_text())
    for case in ("logistic", "hessian"):
        times = {name: f["rounds"] for name, f in figures["cases"][case].items()}
        ratios = [b / a for a, b in zip(times["nuvec"], times["nuvec-without-arena"], strict=True)]
        found = figures["without_over_with"][case]["nuvec-without-arena"]["median"]
        assert abs(found - sum(ratios) / 2) < 1e-9
        assert any(line.startswith(f"| {case} | ") for line in own)


def test_the_table_of_the_docs_is_written_whole_or_not_at_all() -> None:
    before = (BENCHMARKS.parent / "docs" / "compile.md").read_bytes()
    done = run(BENCHMARKS / "passes.py", "--docs", "--case", "logistic")
    assert done.returncode == 2
    assert "--docs wants the whole table" in done.stderr
    assert (BENCHMARKS.parent / "docs" / "compile.md").read_bytes() == before


def test_plan_memory_runs(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(
        BENCHMARKS / "plan_memory.py", "--case", "hessian", "--threads", "1", "--json", report
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "differs by" in done.stdout
    assert json.loads(report.read_text())["cases"]["hessian"]["met"]


def test_soak_runs_a_little(tmp_path: Path) -> None:
    """Whether memory stays is for tests/transforms/test_memory.py; here, that it is watched."""
    report = tmp_path / "report.json"
    done = run(
        BENCHMARKS / "soak.py", "--steps", "40", "--warm-up", "10", "--threads", "1",
        "--json", report,
    )  # fmt: skip
    assert "GROWS" in done.stdout or done.returncode == 0, done.stderr
    for loop, own in json.loads(report.read_text()).items():
        assert len(own["resident"]) == 30, loop
        assert own["last"] < own["first"] < 0.1, f"{loop} does not train"


def test_collectives_runs_and_reports_missing_peers(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(
        BENCHMARKS / "collectives.py", "--ranks", "2", "--sizes", "1", "100000", "--rounds", "2",
        "--only", "nuvec-mesh", "nuvec-shm", "nuvec-ring", "gloo", "--json", report,
        NUVEC_PEERS=str(tmp_path), PYTHONPATH=str(BENCHMARKS.parent),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gloo has no environment here: see setup_peers.py" in done.stderr
    assert json.loads(report.read_text()) == []  # nobody to compare with
    for size in ("4 B", "390 KiB"):
        assert f"2 ranks, {size}: medians in us: nuvec-mesh" in done.stdout


def test_a_malformed_peer_is_refused() -> None:
    done = run(BENCHMARKS / "overhead.py", "--peer", "torch")
    assert done.returncode == 2
    assert "NAME=PYTHON" in done.stderr


def test_import_time_runs() -> None:
    done = run(BENCHMARKS / "import_time.py", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "beyond numpy" in done.stdout

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


def test_a_malformed_peer_is_refused() -> None:
    done = run(BENCHMARKS / "overhead.py", "--peer", "torch")
    assert done.returncode == 2
    assert "NAME=PYTHON" in done.stderr


def test_import_time_runs() -> None:
    done = run(BENCHMARKS / "import_time.py", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "beyond numpy" in done.stdout

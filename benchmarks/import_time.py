"""What `import nuvec` costs beyond `import numpy`: time and memory, in fresh processes.

    python benchmarks/import_time.py [--rounds N] [--json FILE]

The two alternate, so whatever else the machine does falls on both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from _peers import CHECKOUT

TARGET_MS = 150
PROGRAM = """
import resource, time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure(
    module: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> tuple[float, float]:
    """One import in a fresh process: milliseconds, and the peak memory of the process in MB."""
    if environment is None:
        paths = (str(CHECKOUT), os.environ.get("PYTHONPATH"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [python, "-c", PROGRAM.format(module=module)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, peak = map(float, done.stdout.split())
    return seconds * 1e3, peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    parser = argparse.ArgumentParser(description="What import nuvec costs beyond import numpy.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    measure("nuvec")  # compiles the bytecode and warms the file cache
    runs = [(measure("numpy"), measure("nuvec")) for _ in range(args.rounds)]
    report = {}
    for index, (quantity, unit) in enumerate((("time", "ms"), ("peak memory", "MB"))):
        numpy, nuvec = ([run[which][index] for run in runs] for which in (0, 1))
        beyond = [b - a for a, b in zip(numpy, nuvec, strict=True)]
        report[quantity] = {
            "unit": unit,
            "numpy": statistics.median(numpy),
            "nuvec": statistics.median(nuvec),
            "beyond": statistics.median(beyond),
            "lowest": min(beyond),
            "highest": max(beyond),
        }
    for quantity, row in report.items():
        print(
            f"{quantity:12} numpy {row['numpy']:6.1f} {row['unit']}, nuvec {row['nuvec']:6.1f}, "
            f"beyond numpy {row['beyond']:6.1f} (from {row['lowest']:.1f} to {row['highest']:.1f})"
        )
    met = report["time"]["beyond"] <= TARGET_MS
    print(f"target: at most {TARGET_MS} ms beyond numpy: {'met' if met else 'MISSED'}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

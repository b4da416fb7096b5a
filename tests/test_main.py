"""`python -m nuvec` prints what a bug report needs."""

from __future__ import annotations

import subprocess
import sys


def test_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nuvec"], capture_output=True, text=True, check=True, timeout=60
    )
    for word in ("nuvec", "numpy", "python", "BLAS", "threads", "transport local", "transport shm"):
        assert word in done.stdout

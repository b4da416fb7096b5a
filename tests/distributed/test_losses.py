"""The same training, over every transport: the losses of each step are the same."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits.py"

pytestmark = pytest.mark.timeout(240)


def losses(*command: str) -> np.ndarray:
    """Of `examples/digits.py`, started by this command."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "losses.json"
        done = subprocess.run(
            [*command, str(DIGITS), "--losses", str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "on 2 ranks" in done.stdout
        assert "parameters bit-identical on all ranks: yes" in done.stdout
        return np.array(json.loads(path.read_text()))


def launched(backend: str) -> np.ndarray:
    launch = [sys.executable, "-m", "nuvec.launch", "-n", "2"]
    return losses(*launch, "--backend", backend)


@functools.cache
def expected() -> np.ndarray:
    return launched("mesh")


@pytest.mark.parametrize(
    "backend",
    [
        "ring",
        "shm",
        pytest.param("mpi", marks=pytest.mark.mpi),
        pytest.param("gloo", marks=pytest.mark.gloo),
    ],
)
def test_under_the_launcher(backend: str) -> None:
    np.testing.assert_allclose(launched(backend), expected(), rtol=0, atol=1e-6)


@pytest.mark.mpi
def test_under_mpirun() -> None:
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or "mpirun"
    command = [mpirun, "-n", "2", "--oversubscribe", "--bind-to", "none", sys.executable]
    np.testing.assert_allclose(losses(*command), expected(), rtol=0, atol=1e-6)

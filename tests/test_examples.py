"""The example that the README starts with keeps its promises, on one process and on several."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
DIGITS = CHECKOUT / "examples" / "digits.py"


def train(ranks: int, losses: Path) -> tuple[str, np.ndarray]:
    """Run the example; what it printed, and the loss of every step."""
    launch = [sys.executable, "-m", "nuvec.launch", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [*(launch or [sys.executable]), DIGITS, "--losses", losses],
        capture_output=True, text=True, timeout=100, cwd=CHECKOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, np.array(json.loads(losses.read_text()))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray]:
    return train(1, tmp_path_factory.mktemp("digits") / "losses.json")


def test_digits_learns(alone: tuple[str, np.ndarray]) -> None:
    printed, losses = alone
    accuracy = re.search(r"test accuracy ([\d.]+)%", printed)
    assert accuracy is not None
    assert float(accuracy[1]) >= 97
    assert losses[-23:].mean() < losses[:23].mean() / 10


@pytest.mark.parametrize("ranks", [2, 3])
def test_digits_is_the_same_on_many(
    ranks: int, alone: tuple[str, np.ndarray], tmp_path: Path
) -> None:
    printed, losses = train(ranks, tmp_path / "losses.json")
    assert f"on {ranks} ranks" in printed
    assert "parameters bit-identical on all ranks: yes" in printed
    np.testing.assert_allclose(losses, alone[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("ranks", "tensor"), [(1, 1), (2, 2), (4, 2)])
def test_tensor_parallel_equals_the_dense_run(ranks: int, tensor: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nuvec.launch", "-n", str(ranks),
         CHECKOUT / "examples" / "tensor_parallel.py", "--tensor", str(tensor), "--epochs", "3"],
        capture_output=True, text=True, timeout=100, cwd=CHECKOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ranks // tensor} x {tensor} ranks" in done.stdout
    assert "the sharded run equals the dense one" in done.stdout


def test_the_data_is_what_its_readme_says() -> None:
    readme = (DIGITS.parent / "data" / "README.md").read_text(encoding="utf-8")
    data = np.load(DIGITS.parent / "data" / "digits.npz")
    assert data["images"].shape == (1797, 8, 8)
    assert data["images"].dtype == data["labels"].dtype == np.uint8
    assert (data["images"].min(), data["images"].max()) == (0, 16)
    counts = np.bincount(data["labels"])
    assert ", ".join(map(str, counts[:-1])) + f" and {counts[-1]} of each" in readme

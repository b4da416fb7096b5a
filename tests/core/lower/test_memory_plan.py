"""The peak of memory that a plan predicts is what a run of it takes, tiles and threads included.

Each program runs in a process of its own: memory that tiles share is kept from program to program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.test_benchmarks import BENCHMARKS, run

# Large enough for groups of tiles, whose scratch counts.
SIZES: Mapping[str, Mapping[str, int]] = {
    "gelu": {"size": 2**20},
    "softmax": {"rows": 1024, "classes": 1000},
    "layer_norm": {"rows": 1024, "width": 1024},
    "adam": {"width": 257},
    "mlp": {"features": 300, "hidden": 512, "classes": 10, "batch": 128},
    "pairwise": {"points": 1000, "features": 16},
    "convnet": {"batch": 16, "size": 28, "channels": 16, "classes": 10},
}


@pytest.mark.parametrize("name", SIZES)
def test_prediction(name: str) -> None:
    # One thread: whether a second one gets a tile, and memory for it, is a matter of luck.
    done = run(
        BENCHMARKS / "plan_memory.py", "--worker", name, "--sizes", json.dumps(SIZES[name]),
        NUVEC_THREADS="1", PYTHONPATH=str(BENCHMARKS.parent),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["measured"] > 2**20
    assert found["predicted"] == pytest.approx(found["measured"], rel=0.1)
    assert found["loops"], "nothing ran in tiles"

"""Nothing happens at import beyond definitions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# Watches an import from within: what it opens, reads and changes.
WATCHER = """
import json, os, signal, sys, threading, warnings
import numpy as np

read, events = [], []
original = type(os.environ).__getitem__

def recording(environ, key):
    read.append(key)
    return original(environ, key)

def audit(event, args):
    if event.startswith(("socket.", "subprocess.", "os.fork", "os.posix_spawn", "os.system")):
        events.append(event)
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        events.append(f"open {args[0]}")

def settings():
    return {
        "numpy errors": np.geterr(),
        "numpy print options": repr(np.get_printoptions()),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "interrupt handler": repr(signal.getsignal(signal.SIGINT)),
        "warning filters": repr(warnings.filters),
        "except hook": repr(sys.excepthook),
        "thread except hook": repr(threading.excepthook),
        "environment": dict(os.environ),
    }

import opt_einsum, ml_dtypes  # the dependencies' own doings are not ours
before, loaded = settings(), set(sys.modules)
type(os.environ).__getitem__ = recording
sys.addaudithook(audit)
import nuvec
type(os.environ).__getitem__ = original
after = settings()
print(json.dumps({
    "events": events,
    "read": read,
    "threads": [t.name for t in threading.enumerate() if t is not threading.main_thread()],
    "changed": [name for name in before if before[name] != after[name]],
    "modules": sorted(set(sys.modules) - loaded),
}))
"""

HEAVY = {
    "asyncio", "autograd", "hypothesis", "IPython", "jax", "matplotlib", "mlx", "mpi4py",
    "multiprocessing", "pandas", "pytest", "safetensors", "scipy", "torch", "tqdm", "unittest",
}  # fmt: skip


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHER], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_opens_no_socket_process_or_file(seen: dict[str, Any]) -> None:
    assert seen["events"] == []


def test_starts_no_thread(seen: dict[str, Any]) -> None:
    assert seen["threads"] == []


def test_reads_no_settings_from_the_environment(seen: dict[str, Any]) -> None:
    ours = ("NUVEC", "MLX_", "RANK", "WORLD_SIZE", "MASTER_", "SLURM", "OMPI", "PMI")
    assert [name for name in seen["read"] if name.startswith(ours)] == []


def test_changes_no_global_setting(seen: dict[str, Any]) -> None:
    assert seen["changed"] == []


def test_loads_nothing_heavy(seen: dict[str, Any]) -> None:
    assert {name.partition(".")[0] for name in seen["modules"]} & HEAVY == set()

"""What holds for the whole suite: its options, its settings, and that it leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# Before NumPy is loaded: tests run in parallel, and a BLAS that takes every core for each of
# them is several times slower than one thread each.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# Every IR that a test or a process started by one records is checked, after every pass.
os.environ.setdefault("NUVEC_CHECK_IR", "1")

import pytest  # noqa: E402

from nuvec.core import threads  # noqa: E402
from nuvec.core.primitive import TABLE  # noqa: E402

SHARED_MEMORY = Path("/dev/shm")
GRACE = 5.0  # seconds a thread or a process may take to end after the last test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", action="store_true", help="run the soaks and the long fuzz runs as well"
    )


PACKAGES = {"mpi": "mpi4py", "gloo": "torch"}  # what tests with these marks need


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked slow, and what needs a package of another environment (.ci/run has
    one for each), visibly: it counts as deselected, not as skipped."""
    absent = {mark for mark, name in PACKAGES.items() if importlib.util.find_spec(name) is None}
    if not config.getoption("--slow"):
        absent.add("slow")
    out = [item for item in items if any(map(item.get_closest_marker, absent))]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]


@pytest.fixture(scope="session")
def slow(request: pytest.FixtureRequest) -> bool:
    """Whether --slow was given, for tests that have a short size and a long one."""
    return bool(request.config.getoption("--slow"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After the last test no child process, thread or shared memory of its own is left."""
    before = set(_leftovers())
    yield
    threads.close()
    deadline = time.monotonic() + GRACE
    left = set(_leftovers()) - before
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        # Something that is gone once is gone: parallel runs make segments of their own.
        left &= set(_leftovers())
    assert not left, "the tests left behind: " + ", ".join(sorted(left))


def _leftovers() -> Iterator[str]:
    for thread in threading.enumerate():
        # Threads that Python did not start belong to the test runner; nuvec's pool of compute
        # threads lives as long as the process, as BLAS's own does.
        if not isinstance(thread, threading._DummyThread) and not _pooled(thread):
            yield f"thread {thread.name!r}"
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended while we looked
        name, _, rest = text.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid():
            yield f"process {stat.parent.name} ({_command(stat.parent) or name}, state {state})"
    if SHARED_MEMORY.is_dir():
        for segment in SHARED_MEMORY.iterdir():
            # Python's semaphores (sem.*) and other programs' segments are not ours.
            if segment.name.startswith("nuvec"):
                yield f"shared memory {segment}"


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _pooled(thread: threading.Thread) -> bool:
    return thread.name.startswith("nuvec-pool")


@pytest.fixture
def own_primitives() -> Iterator[None]:
    """Takes what a test has declared out of the table again."""
    before = set(TABLE)
    yield
    for name in set(TABLE) - before:
        del TABLE[name]

"""What the tests of the distributed module share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import Processes


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    """Starts ranks as `Processes` does, and ends them after the test."""
    started: list[Processes] = []

    def start(size: int, program: str, transport: str, **options: Any) -> Processes:
        started.append(Processes(size, program, transport, **options))
        return started[-1]

    yield start
    for job in started:
        job.end()


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes a program, after what its module calls PRELUDE; returns the file's path."""

    def write(source: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(getattr(request.module, "PRELUDE", "") + textwrap.dedent(source))
        return str(path)

    return write

"""What the tests of the distributed module share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

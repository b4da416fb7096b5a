"""Ranks as threads, and what the contract's cases are written with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nuvec.distributed.communicator import Communicator
from nuvec.testing.contract import MakeWorld
from nuvec.testing.contract_tools import (
    BFLOAT16,
    DTYPES,
    LARGE,
    SHAPES,
    Case,
    raises,
    reductions,
    reference,
    same_bits,
    values,
)

__all__ = [
    "BFLOAT16",
    "DTYPES",
    "LARGE",
    "SHAPES",
    "Case",
    "MakeWorld",
    "on_ranks",
    "raises",
    "reductions",
    "reference",
    "same_bits",
    "values",
]


def on_ranks(make_world: MakeWorld, size: int, body: Callable[[Communicator], Any]) -> list[Any]:
    """Run `body` on every rank; returns results by rank, raises the first error."""
    factories = make_world(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        communicator = None
        try:
            communicator = factories[rank]()
            results[rank] = body(communicator)
        except BaseException as error:
            errors.append(error)
            if communicator is not None:
                communicator.abort(f"test failed: {error!r}")
        finally:
            if communicator is not None:
                communicator.close()

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results

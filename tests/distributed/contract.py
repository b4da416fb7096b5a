"""The contract of `Communicator` as tests that any transport can be put through.

`communicator_contract(make_world, size)` runs all of it. `make_world(size)` returns one function a
rank, each of which is called on that rank's own thread and returns its communicator.
"""

from __future__ import annotations

from tests.distributed.contract_failures import FAILURES
from tests.distributed.contract_tools import Case, MakeWorld, on_ranks
from tests.distributed.contract_values import VALUES

CASES: dict[str, Case] = {case.__name__: case for case in [*VALUES, *FAILURES]}


def communicator_contract(make_world: MakeWorld, size: int) -> None:
    """Run every case on a fresh world of `size` ranks; raises the first error."""
    for case in CASES.values():
        on_ranks(make_world, size, case)

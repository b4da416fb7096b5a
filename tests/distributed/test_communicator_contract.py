"""Every transport against the contract, at every size."""

from __future__ import annotations

import pytest

from tests.distributed.contract import CASES
from tests.distributed.worlds import TIMEOUT, TRANSPORTS, on_ranks

IN_PROCESSES = ["ring-tcp"]
"""Those that test_contract.py puts through the same cases, as processes."""

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transport", [t for t in TRANSPORTS if t not in IN_PROCESSES])
@pytest.mark.parametrize("case", CASES)
def test_contract(case: str, transport: str, size: int) -> None:
    on_ranks(TRANSPORTS[transport](TIMEOUT), size, CASES[case])

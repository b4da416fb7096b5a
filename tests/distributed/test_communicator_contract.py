"""Every transport against the contract, at every size."""

from __future__ import annotations

import pytest

from tests.distributed.contract import CASES
from tests.distributed.contract_tools import on_ranks
from tests.distributed.worlds import TIMEOUT, TRANSPORTS

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", CASES)
def test_contract(case: str, transport: str, size: int) -> None:
    on_ranks(TRANSPORTS[transport](TIMEOUT), size, CASES[case])

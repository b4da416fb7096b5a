"""The contract's cases that are quick enough to run over and over."""

from __future__ import annotations

from nuvec.testing.contract import CONTRACT
from nuvec.testing.contract_large import LARGE_CASES
from nuvec.testing.contract_tools import Case

CASES: dict[str, Case] = {name: case for name, case in CONTRACT.items() if case not in LARGE_CASES}

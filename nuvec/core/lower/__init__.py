"""IR -> NumPy program: simplify, schedule, plan, emit."""

from nuvec.core.lower import lazy as lazy  # evaluation uses it from here on
from nuvec.core.lower.arena import owns_memory
from nuvec.core.lower.placement import Memory
from nuvec.core.lower.program import (
    Cost,
    Plan,
    lower,
    lower_donating,
    lower_into,
    run_without_nans,
)

__all__ = [
    "Cost", "Memory", "Plan", "lower", "lower_donating", "lower_into", "owns_memory",
    "run_without_nans",
]  # fmt: skip

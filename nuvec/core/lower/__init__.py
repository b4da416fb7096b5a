"""IR -> NumPy program: simplify, schedule, plan, emit."""

from nuvec.core.lower.plan import Memory
from nuvec.core.lower.program import Cost, Plan, lower, lower_donating, lower_into

__all__ = ["Cost", "Memory", "Plan", "lower", "lower_donating", "lower_into"]

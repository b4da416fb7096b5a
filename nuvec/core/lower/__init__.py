"""IR -> NumPy program: simplify, schedule, plan, emit."""

from nuvec.core.lower.plan import Memory
from nuvec.core.lower.program import Cost, Plan, lower

__all__ = ["Cost", "Memory", "Plan", "lower"]

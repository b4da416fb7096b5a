"""Linear algebra."""

from nuvec.core.functions.norm import norm

__all__ = ["norm"]

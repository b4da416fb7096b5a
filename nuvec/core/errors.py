"""Every error nuvec raises on purpose.

All derive from `NuvecError`, so one `except` clause catches them, and each also derives from
the built-in a NumPy user would expect (`ValueError` for shapes, `TypeError` for dtypes, ...),
so code that was written for NumPy keeps catching what it caught.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "ArgumentError",
    "AxisError",
    "ConcretizationError",
    "ConfigurationError",
    "DistributedError",
    "DtypeError",
    "IRError",
    "LeakedTracerError",
    "MismatchError",
    "NanError",
    "NuvecError",
    "OutOfBoundsError",
    "PeerError",
    "ShapeError",
    "TreeError",
]


class NuvecError(Exception):
    """The root of nuvec's errors.

    line -- the user's line that led to it, "file.py:12 (in f)", where the function that was
            called notes it; the message ends with it
    """

    line: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.line is None or self.line in text else f"{text} [{self.line}]"


class ArgumentError(NuvecError, TypeError, ValueError):
    """An argument, no array, of a kind or value that the function does not accept.

    NumPy raises TypeError for some of these and ValueError for others; this is both."""


class ShapeError(NuvecError, ValueError):
    """Operands whose shapes do not fit each other or the operation."""


class DtypeError(NuvecError, TypeError):
    """A dtype the operation does not accept."""


class AxisError(NuvecError, np.exceptions.AxisError):
    """An axis the array does not have."""


class TreeError(NuvecError, ValueError):
    """Pytrees whose structures differ, or a structure that cannot be a pytree."""


class OutOfBoundsError(NuvecError, IndexError):
    """An index outside the array, known when the operation is recorded."""


class ConcretizationError(NuvecError, TypeError):
    """A value was asked of an array that only stands for one (a placeholder of a trace)."""


class LeakedTracerError(NuvecError, RuntimeError):
    """An array of a finished trace was used outside of it."""


class NanError(NuvecError, FloatingPointError):
    """An equation made a NaN of operands that had none, while `config.debug_nans` was on."""


class IRError(NuvecError, AssertionError):
    """An ill-formed IR: a defect in a pass or a rule, not in the user's program."""


class DistributedError(NuvecError, RuntimeError):
    """Something that concerns a group of ranks; also what a broken group raises afterwards."""


class PeerError(DistributedError, ConnectionError):
    """A peer died, left, fell silent or gave up. Names the rank, its host and the operation."""


class MismatchError(DistributedError, ValueError):
    """Ranks of one group made different calls. Names both sides."""


class ConfigurationError(NuvecError, ValueError):
    """Settings (environment, host file, arguments) that are missing, malformed or contradictory."""

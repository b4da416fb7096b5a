"""Every row of every file here, for the tests that are generated from them."""

from __future__ import annotations

import importlib
import pkgutil

import tests.cases
from tests.cases.case import Case


def all_rows() -> list[Case]:
    """The rows of array primitives and composites; collectives have a table of their own."""
    rows = []
    for info in pkgutil.iter_modules(tests.cases.__path__):
        module = importlib.import_module(f"tests.cases.{info.name}")
        rows += [row for row in getattr(module, "CASES", []) if isinstance(row, Case)]
    return rows

"""What the text of a program is written with: names, numbers, comments, and lines that fit."""

from __future__ import annotations

import itertools
import keyword
import re
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import IR, Eqn, Var
from nuvec.core.printer import format_value
from nuvec.core.traceback import assigned_name

WIDTH = 100  # of a line of code
_SUFFIX = re.compile(r"\W")


def plain(name: str) -> str:
    """A name with underscores in the place of what no name has."""
    return _SUFFIX.sub("_", name)


class Names:
    """Names that are unique in the program and mean what the user called the values."""

    def __init__(self) -> None:
        self.taken = set(keyword.kwlist) | set(dir(__builtins__)) | {"np", "program"}

    def new(self, wish: str) -> str:
        name = plain(wish)
        if not name.isidentifier() or name.startswith("__"):
            name = f"v_{name}".rstrip("_")
        if name in self.taken:
            stem = name.rstrip("_")
            name = next(n for k in itertools.count(1) if (n := f"{stem}_{k}") not in self.taken)
        self.taken.add(name)
        return name

    def numbered(self, letter: str, start: int) -> str:
        name = next(n for k in itertools.count(start) if (n := f"{letter}{k}") not in self.taken)
        self.taken.add(name)
        return name


def assigned(ir: IR) -> dict[Var, str]:
    """What the user's code calls results: the last equation of an assignment makes its value."""
    found: dict[Var, str] = {}
    for eqn, following in itertools.zip_longest(ir.eqns, ir.eqns[1:]):
        last = following is None or following.source != eqn.source
        name = assigned_name(eqn.source) if last and eqn.source else ""
        if name and len(eqn.outputs) == 1:
            found[eqn.outputs[0]] = name
    return found


def comment(eqn: Eqn) -> str:
    """What an equation makes, and the user's line."""
    avals = ", ".join(str(v.aval) for v in eqn.outputs)
    where = f"  {eqn.source}" if eqn.source else ""
    return f"  # {avals}{where}".rstrip(" #")


def is_plain_value(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return all(is_plain_value(v) for v in value)
    if kind is float:
        return value == value and abs(value) != float("inf")
    return value is None or kind in (bool, int, str)


def describe(value: Any) -> str:
    text = format_value(value)
    return text if len(text) < 80 and "\n" not in text else type(value).__name__


def dtype_text(dtype: np.dtype) -> str:
    return "bool" if dtypes.is_bool(dtype) else (
        "ml_dtypes.bfloat16" if dtype == dtypes.bfloat16 else f"np.{dtypes.name(dtype)}"
    )  # fmt: skip


def number_text(value: Any) -> str:
    """A literal's value as text that gives it back."""
    if isinstance(value, np.bool_):
        return str(bool(value))
    return str(value)


def folded(line: str) -> list[str]:
    """A line whose code is too long, with the arguments of its call on lines of their own."""
    code, mark, rest = line.partition("  # ")
    start, stop = code.find("("), code.rfind(")")
    if len(code) <= WIDTH or start < 0:
        return [line]
    indent = " " * (len(code) - len(code.lstrip()))
    lines, last = [code[: start + 1] + mark + rest], ""
    for part in _parts(code[start + 1 : stop]):
        if last and len(indent) + 4 + len(last) + len(part) >= WIDTH:
            lines.append(f"{indent}    {last.rstrip()}")
            last = ""
        last += part
    return [*lines, f"{indent}    {last}", indent + code[stop:]]


def _parts(text: str) -> list[str]:
    """Arguments with the commas (or conditions with the "and") behind them."""
    parts, depth, start = [], 0, 0
    for k, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if not depth and (letter == "," or text[k - 3 : k + 1] == "and "):
            parts.append(text[start : k + 1].lstrip() + ("" if letter == " " else " "))
            start = k + 1
    return [*parts, text[start:].lstrip()]

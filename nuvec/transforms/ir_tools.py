"""make_ir: look at what a function records."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from nuvec.core import dot, html, tree  # noqa: F401 (they give an IR its views)
from nuvec.core.array import Array, operand
from nuvec.core.ir import IR, Eqn, sub_irs
from nuvec.core.recording import trace_ir
from nuvec.core.traceback import filtered, format_user_frame
from nuvec.transforms.grad import name_of
from nuvec.transforms.vmap import bind_arguments


def label_leaves(paths: list[Any], labels: list[str], name: str) -> list[str]:
    """The readable place of each leaf of (args, kwargs): "argument 'x'['w'] of f"."""
    found = []
    for path, _ in paths:
        first, second, *rest = path
        key = labels[second.index] if first.index == 0 else second.key
        found.append(f"argument {key!r}{tree.keystr(tuple(rest))} of {name}")
    return found


@filtered
def make_ir(f: Callable[..., Any]) -> Callable[..., IR]:
    """A function that takes `f`'s arguments and returns the IR `f` records on them.

    Arguments are Arrays, NumPy arrays, Python scalars, or trees of them.  Arrays that `f` captures
    come first among the IR's inputs.  Values are named after the arguments and, in `f`'s own
    file, after the variables that lines like `y = nv.sin(x)` assign.

    The IR prints as text that `nuvec.core.parser.parse` reads back, shows in notebooks as a view
    that folds, and `ir.to_dot()` is its graph for Graphviz.

    >>> import nuvec as nv
    >>> print(nv.make_ir(lambda x: nv.sin(x) * 2)(nv.ones(3)))
    { lambda x:float32[3] .
      let a:float32[3] = sin x
          b:float32[3] = multiply a 2.0
      in (b) }
    """

    @wraps(f)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> IR:
        args, kwargs, labels = bind_arguments(f, args, kwargs)
        paths, structure = tree.flatten_with_path((args, kwargs))
        names = label_leaves(paths, labels, name_of(f))
        arrays = [operand(leaf, k) for (_, leaf), k in zip(paths, names, strict=True)]

        def function(*inputs: Array) -> list[Array]:
            a, k = tree.unflatten(structure, inputs)
            return [operand(o, "an output") for o in tree.leaves(f(*a, **k))]

        avals = [a.aval for a in arrays]
        ir, _ = trace_ir(
            function, avals, f"make_ir of {name_of(f)}", names, by_handle=True, late=True
        )
        _name_locals(ir, _file_of(f), format_user_frame())
        return ir

    return wrapped


def _file_of(f: Callable[..., Any]) -> str:
    try:
        return inspect.unwrap(f).__code__.co_filename
    except AttributeError:
        return ""


_SOURCE = re.compile(r"(?P<file>.*):(?P<line>\d+) \(in (?P<function>.*)\)")
_ASSIGNMENT = re.compile(r"\s*(?P<names>[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=(?!=)")


def _name_locals(ir: IR, file: str, caller: str | None) -> None:
    """Name what an assignment's line computed last after the variable it assigns.

    Nothing of this is known while recording: the line is read from the function's file.  What the
    line that called make_ir assigns is the IR."""
    last: dict[str, Eqn] = {}
    for eqn in ir.eqns:
        for inner in sub_irs(eqn.params):
            _name_locals(inner, file, caller)
        if eqn.source is not None:
            last[eqn.source] = eqn
    for source, eqn in last.items():
        place = _SOURCE.fullmatch(source)
        if place is None or source == caller or place["file"] != os.path.basename(file):
            continue
        # A lambda's line assigns the function, or what is made of its result.
        if place["function"] in ("<lambda>", "<module>"):
            continue
        line = _ASSIGNMENT.match(linecache.getline(file, int(place["line"])))
        names = line["names"].replace(" ", "").split(",") if line else []
        if len(names) == len(eqn.outputs):
            for var, name in zip(eqn.outputs, names, strict=True):
                var.hint = var.hint or name

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
from nuvec.core.ir import IR, Eqn, held_irs
from nuvec.core.recording import trace_ir
from nuvec.core.traceback import filtered, format_user_frame
from nuvec.transforms.arguments import arrays_of, bind_arguments, label_of, require_function
from nuvec.transforms.grad import name_of


def label_leaves(paths: list[Any], labels: list[str], name: str) -> list[str]:
    """The readable place of each leaf of (args, kwargs): "argument 'x'['w'] of f"."""
    return [f"{label_of(path, labels)} of {name}" for path, _ in paths]


@filtered
def make_ir(f: Callable[..., Any]) -> Callable[..., IR]:
    """A function that takes `f`'s arguments and returns the IR `f` records on them.

    Arguments are Arrays, NumPy arrays, Python scalars, or trees of them.  Arrays that `f` captures
    come first among the IR's inputs.  Values are named after the arguments and, in `f`'s own
    file, after the variables that lines like `y = nv.sin(x)` assign.

    The IR prints as text, which `nuvec.core.parser.parse` reads back to the same program: with
    control flow, custom rules (function, forward and backward as programs of their own, a rule that
    calls itself by its number) and checkpoint's named policies.  Four things do not come back:

    - groups, written `@world`: they are passed, as in `parse(text, groups={"world": group})`
    - functions of yours that are parameters, as a policy of your own for checkpoint: parse names
      them in an IRError
    - the values of constants of more than 64 elements: print with `ir.to_text(constants="full")`,
      which writes their bytes
    - which of the many NaNs a scalar literal is, beyond its sign

    It shows in notebooks as a view that folds, and `ir.to_dot()` is its graph for Graphviz.

    >>> import nuvec as nv
    >>> print(nv.make_ir(lambda x: nv.sin(x) * 2)(nv.ones(3)))
    { lambda x:float32[3] .
      let a:float32[3] = sin x
          b:float32[3] = multiply a 2.0
      in (b) }
    """

    require_function("make_ir", f)
    what = f"make_ir of {name_of(f)}"

    @wraps(f)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> IR:
        args, kwargs, labels = bind_arguments(f, args, kwargs, what)
        paths, structure = tree.flatten_with_path((args, kwargs))
        names = label_leaves(paths, labels, name_of(f))
        arrays = [operand(leaf, f"{what}: {label_of(path, labels)}") for path, leaf in paths]

        def function(*inputs: Array) -> list[Array]:
            a, k = tree.unflatten(structure, inputs)
            leaves, out = tree.flatten(f(*a, **k))
            return arrays_of(leaves, out, lambda p: f"{what}: output{tree.keystr(p)}")

        avals = [a.aval for a in arrays]
        ir, _ = trace_ir(function, avals, what, names, by_handle=True, late=True)
        _name_locals(ir, _file_of(f), format_user_frame(), set())
        return ir

    return wrapped


def _file_of(f: Callable[..., Any]) -> str:
    try:
        return inspect.unwrap(f).__code__.co_filename
    except AttributeError:
        return ""


_SOURCE = re.compile(r"(?P<file>.*):(?P<line>\d+) \(in (?P<function>.*)\)")
_ASSIGNMENT = re.compile(r"\s*(?P<names>[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=(?!=)")


def _name_locals(ir: IR, file: str, caller: str | None, seen: set[int]) -> None:
    """Name what an assignment's line computed last after the variable it assigns.

    Nothing of this is known while recording: the line is read from the function's file.  What the
    line that called make_ir assigns is the IR."""
    last: dict[str, Eqn] = {}
    for eqn in ir.eqns:
        for _, inner in held_irs(eqn, seen):
            _name_locals(inner, file, caller, seen)
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

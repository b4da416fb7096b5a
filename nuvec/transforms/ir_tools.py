"""make_ir: look at what a function records."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array, operand
from nuvec.core.ir import IR
from nuvec.core.recording import trace_ir
from nuvec.core.traceback import filtered
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
    come first among the IR's inputs.

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
        return trace_ir(
            function, avals, f"make_ir of {name_of(f)}", names, by_handle=True, late=True
        )[0]

    return wrapped

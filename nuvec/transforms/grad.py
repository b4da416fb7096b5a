"""Reverse mode: vjp, grad and value_and_grad, on the backward walk."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import ArgumentError, DtypeError
from nuvec.core.node import Node, Trace
from nuvec.core.primitive import identity_input, local_handle
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import (
    arrays_of,
    integers,
    names_in,
    positions_of,
    require_function,
)
from nuvec.transforms.backward import Recording
from nuvec.transforms.jvp import match_leaves


@filtered
def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `f` at `primals` and the function that pulls cotangents back through it.

    Returns (output, vjp_fn), and the auxiliary output third with `has_aux`.  `vjp_fn(cotangent)`
    takes a tree like the output's and returns a tuple of trees like the primals; integer leaves
    get None.  It may be called any number of times.  None in the place of a leaf, or of the whole
    output where that is one array, is a cotangent of zero; integer and boolean outputs, which have
    no derivative, take None or zeros of such a dtype.

    >>> import nuvec as nv
    >>> y, pull = nv.vjp(lambda x: x * x, nv.array([1.0, 2.0]))
    >>> pull(nv.array([1.0, 1.0]))
    (array([2., 4.], dtype=float32),)
    """
    require_function("vjp", f)
    return vjp_as(f"vjp of {name_of(f)}", f, primals, has_aux)


def vjp_as(name: str, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> Any:
    """vjp, for itself and for what is made of it; errors begin with `name`."""
    recording = Recording(f, name, has_aux)
    leaves, structure = tree.flatten(primals)
    arrays = arrays_of(leaves, structure, lambda p: f"{name}: primals{tree.keystr(p)}")
    inputs: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs.extend([identity_input(trace, a) for a in arrays])
        return tree.unflatten(structure, inputs), {}

    recording.run(arguments, inputs)

    def vjp_fn(*given: Any, **named: Any) -> Any:
        cotangent = only_argument(name, given, named)
        avals = [n.aval for n in recording.nodes]
        pulled = recording.pull(
            match_leaves(
                recording.name, "output", "cotangent", recording.structure, cotangent, avals
            )
        )
        return tree.unflatten(structure, pulled)

    out = tree.unflatten(recording.structure, [Array(n) for n in recording.nodes])
    vjp_fn = filtered(vjp_fn)
    return (out, vjp_fn, recording.aux) if has_aux else (out, vjp_fn)


def only_argument(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The cotangent that the function `name` made was called with; ArgumentError for others."""
    values = [*given, *named.values()]
    if len(values) != 1 or not set(named) <= {"cotangent"}:
        keywords = f", and the keywords {sorted(named)}" if named else ""
        raise ArgumentError(
            f"{name}: the function it made takes one argument, a cotangent: a tree like the "
            f"output. It was given {len(given)}{keywords}"
        )
    return values[0]


def name_of(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)


Argnums = int | Sequence[int]


@filtered
def value_and_grad(
    f: Callable[..., Any],
    argnums: Argnums | None = None,
    argnames: str | Sequence[str] = (),
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that returns `f`'s value and its gradient.

    f        -- returns a real scalar (or `(scalar, aux)` with `has_aux`)
    argnums  -- the positional argument(s) to differentiate: an integer gives one gradient, a
                sequence a tuple of them.  0 when neither argnums nor argnames is given
    argnames -- keyword argument(s) to differentiate, besides; their gradients come as a dict,
                after those of argnums when both are given

    The result returns (value, gradient), or ((value, aux), gradient).  Raises TypeError when the
    output is no real scalar or an argument to differentiate holds a leaf that is not floating.

    >>> import nuvec as nv
    >>> nv.value_and_grad(lambda x: (x * x).sum())(nv.array([1.0, 2.0]))
    (array(5., dtype=float32), array([2., 4.], dtype=float32))
    """
    return _differentiated("value_and_grad", f, argnums, argnames, has_aux)


def _differentiated(
    kind: str, f: Callable[..., Any], argnums: Argnums | None, argnames: str | Sequence[str],
    has_aux: bool,
) -> Callable[..., Any]:  # fmt: skip
    """value_and_grad; errors name it `kind`."""
    require_function(kind, f)
    name = f"{kind} of {name_of(f)}"
    keywords = names_in(f"{name}: argnames", argnames)
    if argnums is None:
        argnums = () if keywords else 0
    numbers = integers(f"{name}: argnums", argnums)
    only = not isinstance(argnums, Sequence)

    @wraps(f)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        positions = positions_of(name, numbers, args, "arguments passed by keyword go in argnames")
        for k in keywords:
            if k not in kwargs:
                raise ArgumentError(
                    f"{name}: argnames={k!r} must be passed by keyword; got keywords "
                    f"{sorted(kwargs)}"
                )
        inputs: list[Array] = []
        structures: list[Any] = []

        kept: list[tuple[Array, Node]] = []

        def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
            fresh, named = list(args), dict(kwargs)
            for n in positions:
                fresh[n] = _input(trace, args[n], label_at(f, n), inputs, structures)
            for k in keywords:
                named[k] = _input(trace, kwargs[k], f"argument {k!r}", inputs, structures)
            for n, a in enumerate(args):
                if n not in positions:
                    fresh[n] = _local(a, kept)
            for k, a in kwargs.items():
                if k not in keywords:
                    named[k] = _local(a, kept)
            return tuple(fresh), named

        recording = Recording(f, name, has_aux)
        try:
            recording.run(arguments, inputs)
        finally:
            for handle, node in reversed(kept):  # a handle may be there twice
                handle._node = node
        value = _scalar_output(recording)
        pulled = recording.pull([literal(1.0, value.dtype)])
        gradients, start = [], 0
        for s in structures:
            gradients.append(tree.unflatten(s, pulled[start : start + s.num_leaves]))
            start += s.num_leaves
        by_position: Any = gradients[0] if only else tuple(gradients[: len(positions)])
        by_name = dict(zip(keywords, gradients[len(positions) :], strict=True))
        if not keywords:
            result = by_position
        elif not positions:
            result = by_name
        else:
            result = (by_position, by_name)
        return ((value, recording.aux), result) if has_aux else (value, result)

    return wrapped


@filtered
def grad(
    f: Callable[..., Any],
    argnums: Argnums | None = None,
    argnames: str | Sequence[str] = (),
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that returns `f`'s gradient; with `has_aux`, (gradient, aux).

    Takes what `value_and_grad` takes.

    >>> import nuvec as nv
    >>> nv.grad(nv.sin)(0.0)
    array(1., dtype=float32)
    """
    both = _differentiated("grad", f, argnums, argnames, has_aux)

    @wraps(f)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def label_at(f: Any, position: int) -> str:
    """What messages call the positional argument there."""
    try:
        names = list(inspect.signature(f).parameters)
        return f"argument {names[position]!r}"
    except (TypeError, ValueError, IndexError):
        return f"argument {position}"


def _input(trace: Trace, value: Any, label: str, inputs: list[Array], structures: list[Any]) -> Any:
    """Fresh inputs for one argument; its leaves must be floating unless a Module allows others."""
    paths, structure = tree.flatten_with_path(value)
    structures.append(structure)
    lenient = getattr(type(value), "integer_leaves_have_no_gradient", False)
    fresh = []
    for path, leaf in paths:
        where = f"{trace.name}: {label}{tree.keystr(path)}"
        array = operand(leaf, where)
        if not dtypes.is_inexact(array.dtype) and not lenient:
            raise DtypeError(
                f"{where} is {array.aval}, and a gradient needs floating-point inputs. Convert it "
                "with .astype(nv.float32), or leave the argument out of argnums"
            )
        fresh.append(identity_input(trace, array))
    inputs.extend(fresh)
    return tree.unflatten(structure, fresh)


def _local(value: Any, kept: list[tuple[Array, Node]]) -> Any:
    """An argument that is not differentiated, as the function gets it: what is assigned to its
    arrays (`x[i] = v`) stays local.  An Array gets a handle of its own; those in a container, which
    stays the caller's, since the function may write to it, get nodes of their own meanwhile, and
    `kept` says what to give back to whom."""
    if type(value) is Array:
        return local_handle(value)
    for handle in tree.leaves(value):
        if isinstance(handle, Array):
            kept.append((handle, handle._node))
            handle._node = local_handle(handle)._node
    return value


def _scalar_output(recording: Recording) -> Array:
    nodes = recording.nodes
    alone = len(nodes) == 1 and recording.structure == tree.structure(0)
    if alone and not nodes[0].aval.shape and dtypes.is_floating(nodes[0].aval.dtype):
        return Array(nodes[0])
    got = tree.unflatten(recording.structure, [str(n.aval) for n in nodes])
    if len(nodes) > 1:
        hint = "use has_aux=True to return more"
    elif not nodes:
        hint = "it needs a return statement"
    elif nodes[0].aval.shape:
        hint = "reduce it, as with .sum() or .mean()"
    elif recording.structure != tree.structure(0):
        hint = "return the scalar itself, not a container of it"
    elif dtypes.is_complex(nodes[0].aval.dtype):
        hint = "take the real part, or use vjp"
    else:
        hint = "convert it with .astype(nv.float32)"
    raise DtypeError(
        f"{recording.name} needs a function that returns a real scalar; it returned {got}: {hint}"
    )

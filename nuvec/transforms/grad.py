"""Reverse mode: a walk that carries cotangents from outputs to inputs; vjp and grad."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import DtypeError, NuvecError, ShapeError, TreeError
from nuvec.core.node import Node, Trace, observed_effects, open_trace
from nuvec.core.ops.arithmetic import add, masked_product, multiply, negative
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.shape import unbroadcast
from nuvec.core.primitive import (
    MARK,
    MINUS_ONE,
    NOT_DIFFERENTIABLE,
    ONE,
    PROJECTION,
    ZERO,
    identity_input,
    local_handle,
)  # fmt: skip
from nuvec.core.traceback import filtered
from nuvec.core.walk import Step, marked_graph
from nuvec.transforms.jvp import is_active, split_aux, tied

Cotangents = dict[Node, Any]


def backward_walk(trace: Trace, steps: Sequence[Step], cotangents: Cotangents) -> None:
    """Carry cotangents backward through a recorded graph; those of the inputs are left in
    `cotangents`.

    Every communication is walked, in exactly the reverse order, its missing cotangents zeros: so
    all ranks agree on what is sent whatever each rank's outputs depend on."""
    masked: set[Node] = set()  # nodes whose cotangent may hold structural zeros

    def give(node: Node, c: Array, may_mask: bool) -> None:
        before = cotangents.get(node)
        cotangents[node] = c if before is None else add(before, c)
        if may_mask:
            masked.add(node)

    take = cotangents.pop
    for node, inputs in reversed(steps):
        primitive = node.primitive
        c = take(node, None)
        if c is None and not primitive.effect and primitive is not MARK:
            continue
        may_mask = node in masked if masked else False
        if primitive.derivatives is not None:
            _elementwise(trace, node, inputs, c, may_mask, give)
        elif primitive is PROJECTION:
            many = cotangents.setdefault(inputs[0], [None] * len(inputs[0].aval))
            many[node.params["index"]] = c
            if may_mask:
                masked.add(inputs[0])
        elif primitive is MARK:
            _mark(trace, node, inputs, c or [None] * len(node.aval), may_mask, give)
        elif primitive.multiple:
            _multiple(trace, node, inputs, c or [None] * len(node.aval), may_mask, give)
        elif primitive.vjp is NOT_DIFFERENTIABLE:
            continue
        elif primitive.vjp is None:
            raise NuvecError(f"{primitive.name} has no vjp rule; give its Primitive one")
        else:
            may_mask = may_mask or primitive.selects
            out = Array(node)
            operands = [Array(i) for i in inputs]
            for i, source in enumerate(inputs):
                if is_active(source, trace):
                    ci = primitive.vjp(i, c, out, *operands, **node.params)
                    if ci is not None:
                        give(source, ci, may_mask)


Give = Callable[[Node, Array, bool], None]


def _elementwise(
    trace: Trace, node: Node, inputs: tuple[Node, ...], c: Array, may_mask: bool, give: Give
) -> None:
    """Cotangent times partial derivative, summed over what was broadcast."""
    primitive = node.primitive
    operands: list[Array] | None = None
    hands_zeros = may_mask or primitive.selects
    for i, derivative in enumerate(primitive.derivatives):
        source = inputs[i]
        marks = source.marks
        if marks is None or trace not in marks:
            continue
        if derivative is ONE:
            ci = c
        elif derivative is MINUS_ONE:
            ci = negative(c)
        elif derivative is ZERO or derivative is NOT_DIFFERENTIABLE:
            continue
        else:
            if not dtypes.is_inexact(source.aval.dtype):
                continue
            if operands is None:
                operands = [Array(n) for n in inputs]
            d = derivative(Array(node), *operands, **node.params)
            ci = masked_product(c, d) if may_mask else multiply(c, d)
        if ci._node.aval.shape != source.aval.shape:
            ci = unbroadcast(ci, source.aval.shape)
        give(source, ci, hands_zeros)


def _mark(
    trace: Trace, node: Node, inputs: tuple[Node, ...], cs: list[Any], may_mask: bool, give: Give
) -> None:
    count = node.params["count"]
    for source, c in zip(inputs, cs, strict=False):  # what closures over the trace brought in
        if c is not None and is_active(source, trace):
            give(source, c, may_mask)
    if node.params["trace"] is trace:
        operands = inputs[count:]
        for source, c in zip(operands, node.params["linear"](cs), strict=True):
            if c is not None and is_active(source, trace):
                give(source, c, may_mask)


def _multiple(
    trace: Trace, node: Node, inputs: tuple[Node, ...], cs: list[Any], may_mask: bool, give: Give
) -> None:
    primitive = node.primitive
    operands = [Array(i) for i in inputs]
    if primitive.split is not None:
        results = _pull_again(node, operands, cs)
    elif primitive.vjp is NOT_DIFFERENTIABLE:
        return
    else:
        if primitive.effect:
            if node.params.get("active") is False:
                return
            cs = [
                zeros_of(a) if c is None and dtypes.is_inexact(a.dtype) else c
                for c, a in zip(cs, node.aval, strict=True)
            ]
        outs = [
            Array(Node(PROJECTION, (node,), {"index": k}, a, node.marks))
            for k, a in enumerate(node.aval)
        ]
        results = primitive.vjp(cs, outs, *operands, **node.params)
    for source, c in zip(inputs, results, strict=True):
        if c is not None and is_active(source, trace):
            give(source, c, may_mask)


def _pull_again(node: Node, operands: list[Array], cs: list[Any]) -> list[Array | None]:
    """An equation that holds IRs and was recorded where the trace did not see it (the forward of a
    custom rule that closes over traced values): record it anew, with its residuals."""
    inputs: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs.extend([identity_input(trace, a) for a in operands])
        return tuple(inputs), {}

    record = node.primitive.inline or node.primitive.bind
    recording = _Recording(lambda *xs: record(*xs, **node.params), "a call", False)
    recording.run(arguments, inputs)
    return list(recording.pull(cs))


class _Recording:
    """A function's recording under a reverse-mode trace: outputs, and the graph to walk back."""

    def __init__(self, f: Callable[..., Any], name: str, has_aux: bool) -> None:
        self.f = f
        self.name = name
        self.has_aux = has_aux

    def run(self, arguments: Callable[[Trace], tuple[tuple[Any, ...], dict[str, Any]]],
            inputs: list[Array]) -> None:  # fmt: skip
        with open_trace("vjp", self.name) as trace:
            args, kwargs = arguments(trace)
            self.inputs = [a._node for a in inputs]  # now: `x[i] = v` in f points x elsewhere
            result, self.aux = split_aux(self.f(*args, **kwargs), self.has_aux)
            leaves, self.structure = tree.flatten(result)
            self.nodes = [operand(x, f"an output of {self.name}")._node for x in leaves]
            self.trace = trace
            self.steps = marked_graph(trace, [*self.nodes, *trace.effects], set(self.inputs))
            self.effects = list(trace.effects)

    def pull(self, cotangents: Sequence[Array | None]) -> list[Array]:
        """The inputs' cotangents, tied to every communication forward and backward."""
        carried: Cotangents = {}
        for node, c in zip(self.nodes, cotangents, strict=True):
            if c is not None and is_active(node, self.trace):
                carried[node] = c if node not in carried else add(carried[node], c)
        with observed_effects() as effects:
            backward_walk(self.trace, self.steps, carried)
        results = [carried.get(n) for n in self.inputs]
        filled = [
            (zeros_of(n.aval) if dtypes.is_inexact(n.aval.dtype) else None) if c is None else c
            for c, n in zip(results, self.inputs, strict=True)
        ]
        return tied(filled, effects or self.effects)


@filtered
def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `f` at `primals` and the function that pulls cotangents back through it.

    Returns (output, vjp_fn), and the auxiliary output third with `has_aux`.  `vjp_fn(cotangent)`
    takes a tree like the output's and returns a tuple of trees like the primals; integer leaves
    get None.  It may be called any number of times.

    >>> import nuvec as nv
    >>> y, pull = nv.vjp(lambda x: x * x, nv.array([1.0, 2.0]))
    >>> pull(nv.array([1.0, 1.0]))
    (array([2., 4.], dtype=float32),)
    """
    recording = _Recording(f, f"vjp of {name_of(f)}", has_aux)
    paths, structure = tree.flatten_with_path(primals)
    inputs: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for path, leaf in paths:
            inputs.append(identity_input(trace, operand(leaf, f"vjp: primals{tree.keystr(path)}")))
        return tree.unflatten(structure, inputs), {}

    recording.run(arguments, inputs)

    def vjp_fn(cotangent: Any) -> Any:
        pulled = recording.pull(_match_cotangents(recording, cotangent))
        return tree.unflatten(structure, pulled)

    out = tree.unflatten(recording.structure, [Array(n) for n in recording.nodes])
    vjp_fn = filtered(vjp_fn)
    return (out, vjp_fn, recording.aux) if has_aux else (out, vjp_fn)


def _match_cotangents(recording: _Recording, cotangent: Any) -> list[Array | None]:
    leaves, structure = tree.flatten(cotangent, is_leaf=lambda c: c is None)
    expected = recording.structure
    if len(leaves) != expected.num_leaves:
        raise TreeError(
            f"{recording.name}: the cotangent has structure {structure} and the output {expected};"
            " they must be the same (None where an output has no cotangent)"
        )
    matched: list[Array | None] = []
    for i, (c, node) in enumerate(zip(leaves, recording.nodes, strict=True)):
        if c is None or not dtypes.is_inexact(node.aval.dtype):
            matched.append(None)
            continue
        array = operand(c, f"{recording.name}: cotangent {i}")
        if array.shape != node.aval.shape:
            raise ShapeError(
                f"{recording.name}: output {i} has shape {node.aval.shape} and its cotangent "
                f"{array.shape}"
            )
        if array.dtype != node.aval.dtype:
            if not array.aval.weak:
                raise DtypeError(
                    f"{recording.name}: output {i} is {node.aval} and its cotangent {array.aval}; "
                    f"convert it with .astype({dtypes.name(node.aval.dtype)!r})"
                )
            array = array.astype(node.aval.dtype)
        matched.append(array)
    return matched


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
    if not callable(f):
        raise TypeError(f"value_and_grad takes a function, got {type(f).__name__}")
    keywords = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    if argnums is None:
        argnums = () if keywords else 0
    only = isinstance(argnums, int)
    numbers: tuple[int, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(f)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        positions = [_position(n, args, f) for n in numbers]
        for k in keywords:
            if k not in kwargs:
                raise TypeError(
                    f"grad of {name_of(f)}: argnames={k!r} must be passed by keyword; got "
                    f"keywords {sorted(kwargs)}"
                )
        inputs: list[Array] = []
        structures: list[Any] = []

        def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
            fresh = [local_handle(a) if isinstance(a, Array) else a for a in args]
            for n in positions:
                fresh[n] = _input(trace, args[n], _label(f, n), inputs, structures)
            named = {
                k: local_handle(a) if isinstance(a, Array) else a for k, a in kwargs.items()
            }
            for k in keywords:
                named[k] = _input(trace, kwargs[k], f"argument {k!r}", inputs, structures)
            return tuple(fresh), named

        recording = _Recording(f, f"grad of {name_of(f)}", has_aux)
        recording.run(arguments, inputs)
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
    both = value_and_grad(f, argnums, argnames, has_aux)

    @wraps(f)
    @filtered
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def _position(n: int, args: tuple[Any, ...], f: Any) -> int:
    if not isinstance(n, int) or not -len(args) <= n < len(args):
        raise TypeError(
            f"grad of {name_of(f)}: argnums={n} names no positional argument; the call has "
            f"{len(args)} (arguments passed by keyword go in argnames)"
        )
    return n % len(args)


def _label(f: Any, position: int) -> str:
    try:
        names = list(inspect.signature(f).parameters)
        return f"argument {names[position]!r}"
    except (TypeError, ValueError, IndexError):
        return f"argument {position}"


def _input(
    trace: Trace, value: Any, label: str, inputs: list[Array], structures: list[Any]
) -> Any:
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


def _scalar_output(recording: _Recording) -> Array:
    nodes = recording.nodes
    alone = len(nodes) == 1 and recording.structure == tree.structure(0)
    if alone and not nodes[0].aval.shape and dtypes.is_floating(nodes[0].aval.dtype):
        return Array(nodes[0])
    got = tree.unflatten(recording.structure, [str(n.aval) for n in nodes])
    hint = "use has_aux=True to return more" if len(nodes) > 1 else (
        "reduce it, as with .sum() or .mean()" if nodes and nodes[0].aval.shape else
        "take the real part, or use vjp"
    )
    raise DtypeError(
        f"{recording.name} needs a function that returns a real scalar; it returned {got}: {hint}"
    )

"""The backward walk: it carries cotangents from outputs to inputs over a recorded graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.node import Node, Trace, observed_effects, open_trace
from nuvec.core.ops.along import add_along_p
from nuvec.core.ops.arithmetic import add, masked_product, multiply, negative
from nuvec.core.ops.differentiation import is_zeros, zeros_of
from nuvec.core.ops.shape import unbroadcast
from nuvec.core.primitive import (
    MARK,
    MINUS_ONE,
    NOT_DIFFERENTIABLE,
    ONE,
    PROJECTION,
    ZERO,
    identity_input,
)
from nuvec.core.walk import Step, marked_graph
from nuvec.transforms.arguments import arrays_of
from nuvec.transforms.jvp import (
    fitting,
    fitting_list,
    is_active,
    like,
    not_a_derivative,
    split_aux,
    tied,
)

Cotangents = dict[Node, Any]


def backward_walk(trace: Trace, steps: Sequence[Step], cotangents: Cotangents) -> None:
    """Carry cotangents backward through a recorded graph; those of the inputs are left in
    `cotangents`.

    Every communication is walked, in exactly the reverse order, its missing cotangents zeros: so
    all ranks agree on what is sent whatever each rank's outputs depend on."""
    masked: set[Node] = set()  # nodes whose cotangent may hold structural zeros

    def give(source: Node, c: Any, may_mask: bool) -> None:
        if type(c) is not Array or c._node.aval is not source.aval:
            c = fitting(node, "cotangent", c, source.aval, "the operand")
        before = cotangents.get(source)
        cotangents[source] = c if before is None else _sum(before, c)
        if may_mask:
            masked.add(source)

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


def _sum(a: Array, b: Array) -> Array:
    """The sum of two cotangents.  One that is zeros with at most one number added to each, as
    reading one element of each line makes it, is added to the other where its numbers are.  (Many
    numbers for one place are summed up by themselves first: small ones must not vanish, one by
    one, in a large sum.)"""
    for sparse, other in ((b, a), (a, b)):
        node = sparse._node
        if node.primitive is add_along_p and node.inputs:
            base, index = node.inputs[0], node.inputs[1]
            one = index.aval.shape[node.params["axis"]] == 1
            if one and base.primitive is None and is_zeros(base.value):
                rest = [Array(i) for i in node.inputs[1:]]
                return node.primitive.bind(other, *rest, **node.params)
    return add(a, b)


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
            same = source.aval.shape == node.aval.shape
            ci = negative(c if same else unbroadcast(c, source.aval.shape))  # the sum is smaller
        elif derivative is ZERO or derivative is NOT_DIFFERENTIABLE:
            continue
        else:
            if not dtypes.is_inexact(source.aval.dtype):
                continue
            if operands is None:
                operands = [Array(n) for n in inputs]
            d = derivative(Array(node), *operands, **node.params)
            there, shape, whole = c, source.aval.shape, node.aval.shape
            if shape != whole and not may_mask and c.shape == whole and _fits(d, shape):
                there = unbroadcast(c, shape)  # the derivative is the same along these axes
            try:
                ci = masked_product(c, d) if may_mask else multiply(there, d)
            except (TypeError, ValueError) as error:
                raise not_a_derivative(node, d, error) from error
        if ci._node.aval.shape != source.aval.shape and ci.shape == node.aval.shape:
            ci = unbroadcast(ci, source.aval.shape)
        give(source, ci, hands_zeros)


def _fits(d: Any, shape: tuple[int, ...]) -> bool:
    """Whether a derivative is an array that broadcasts to a shape."""
    found = getattr(d, "shape", None)
    return (
        isinstance(found, tuple) and len(found) <= len(shape)
        and all(n in (1, m) for n, m in zip(found[::-1], shape[::-1], strict=False))
    )  # fmt: skip


def _mark(
    trace: Trace, node: Node, inputs: tuple[Node, ...], cs: list[Any], may_mask: bool, give: Give
) -> None:
    count = node.params["count"]
    for source, c in zip(inputs, cs, strict=False):  # what closures over the trace brought in
        if c is not None and is_active(source, trace):
            give(source, c, may_mask)
    if node.params["trace"] is trace:
        operands = inputs[count:]
        found = node.params["linear"](cs)
        results = fitting_list(node, "cotangent", found, [i.aval for i in operands])
        for source, c in zip(operands, results, strict=True):
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
        found = primitive.vjp(cs, outs, *operands, **node.params)
        results = fitting_list(node, "cotangent", found, [i.aval for i in inputs])
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
    recording = Recording(lambda *xs: record(*xs, **node.params), "a call", False)
    recording.run(arguments, inputs)
    return list(recording.pull(cs))


class Recording:
    """A function's recording under a differentiating trace: outputs, and the graph to walk."""

    def __init__(self, f: Callable[..., Any], name: str, has_aux: bool, mode: str = "vjp") -> None:
        self.f = f
        self.name = name
        self.has_aux = has_aux
        self.mode = mode

    def run(self, arguments: Callable[[Trace], tuple[tuple[Any, ...], dict[str, Any]]],
            inputs: list[Array]) -> None:  # fmt: skip
        with open_trace(self.mode, self.name) as trace:
            args, kwargs = arguments(trace)
            self.inputs = [a._node for a in inputs]  # now: `x[i] = v` in f points x elsewhere
            result, self.aux = split_aux(self.name, self.f(*args, **kwargs), self.has_aux)
            leaves, self.structure = tree.flatten(result)
            outs = arrays_of(
                leaves, self.structure, lambda p: f"{self.name}: output{tree.keystr(p)}"
            )
            self.nodes = [x._node for x in outs]
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
            None if c is None and not dtypes.is_inexact(n.aval.dtype) else like(n.aval, c)
            for c, n in zip(results, self.inputs, strict=True)
        ]
        return tied(filled, effects or self.effects)

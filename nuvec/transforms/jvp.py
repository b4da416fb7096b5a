"""Forward mode: a walk that carries tangents from inputs to outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, NuvecError, ShapeError, TreeError
from nuvec.core.ir import Aval
from nuvec.core.node import Node, Trace, observed_effects, open_trace
from nuvec.core.ops.arithmetic import add, masked_product, multiply, negative
from nuvec.core.ops.build import converted
from nuvec.core.ops.differentiation import depends_p, zeros_of
from nuvec.core.ops.shape import broadcast_to_p
from nuvec.core.primitive import (
    MARK,
    MINUS_ONE,
    NOT_DIFFERENTIABLE,
    ONE,
    PROJECTION,
    ZERO,
    Primitive,
    identity_input,
)  # fmt: skip
from nuvec.core.traceback import filtered
from nuvec.core.walk import Step, marked_graph
from nuvec.transforms.arguments import arrays_of, require_function

Tangent = Array | None  # None is zero


def is_active(node: Node, trace: Trace) -> bool:
    """Whether a node has a derivative with respect to the trace's inputs."""
    marks = node.marks
    return marks is not None and trace in marks and dtypes.is_inexact(node.aval.dtype)


def linear_jvp(
    primitive: Primitive, tangents: Sequence[Tangent], operands: Sequence[Array],
    params: dict[str, Any],
) -> Tangent:  # fmt: skip
    """The jvp of a linear primitive: itself on the tangents."""
    which = primitive.linear_operands
    moving = [i for i, t in enumerate(tangents) if t is not None and (which is None or i in which)]
    if not moving:
        return None
    if primitive.linear == "joint":
        joint = range(len(operands)) if which is None else which
        inputs = list(operands)
        for i in joint:
            if dtypes.is_inexact(operands[i].dtype):
                t = tangents[i]
                inputs[i] = zeros_of(operands[i].aval) if t is None else t
        return primitive.bind(*inputs, **params)
    total: Tangent = None
    for i in moving:
        term = primitive.bind(*operands[:i], tangents[i], *operands[i + 1 :], **params)  # type: ignore[arg-type]
        total = term if total is None else add(total, term)
    return total


def forward_walk(trace: Trace, steps: Sequence[Step], tangents: dict[Node, Array]) -> None:
    """Carry tangents through a recorded graph; `tangents` is filled in.

    Every communication is walked, its missing tangents sent as zeros, so that all ranks agree on
    what is sent whatever depends on their own inputs."""
    masked: set[Node] = set()  # tangents that may hold structural zeros
    tuples: dict[Node, list[Tangent]] = {}
    for node, inputs in steps:
        primitive = node.primitive
        if primitive is PROJECTION:
            many = tuples.get(inputs[0])
            tangent = many[node.params["index"]] if many is not None else None
            if tangent is not None:
                tangents[node] = tangent
            continue
        moving = [tangents.get(i) for i in inputs]
        still = all(t is None for t in moving)
        if primitive is MARK:
            tuples[node] = _mark_jvp(trace, node, inputs, moving)
            continue
        if primitive.effect:
            if node.params.get("active") is not False:
                moving = [
                    zeros_of(i.aval) if t is None and dtypes.is_inexact(i.aval.dtype) else t
                    for t, i in zip(moving, inputs, strict=True)
                ]
                outs = [Array(Node(PROJECTION, (node,), {"index": k}, a, node.marks))
                        for k, a in enumerate(node.aval)]  # fmt: skip
                operands = [Array(i) for i in inputs]
                found = primitive.jvp(moving, outs, *operands, **node.params)
                tuples[node] = fitting_list(node, "tangent", found, node.aval)
            continue
        if still:
            continue
        result = _rule(trace, node, inputs, moving, masked)
        if primitive.multiple:
            tuples[node] = fitting_list(node, "tangent", result, node.aval)
        elif result is not None:
            if type(result) is not Array or result._node.aval is not node.aval:
                result = fitting(node, "tangent", result, node.aval, "its result")
            tangents[node] = result


def fitting(node: Node, kind: str, found: Any, expected: Aval, of: str) -> Array:
    """The tangent or cotangent (`kind`) that a rule of `node` returned, checked against what it
    belongs to; a weak one takes its dtype.

    The walks call it where the two avals are not one object, so the check costs them nothing."""
    says = f"{_rule_name(node, kind)} returned a {kind} that is"
    try:
        array = operand(found, f"what {_rule_name(node, kind)} returned")
    except (TypeError, ValueError) as error:
        raise DtypeError(
            f"{says} a {type(found).__name__}, and {of} is {expected}: it must be an Array of "
            f"that shape and dtype, or None for zero ({error})"
        ) from error
    got = array.aval
    if got.shape != expected.shape:
        raise ShapeError(f"{says} {got}, and {of} is {expected}: their shapes must be equal")
    if got.dtype != expected.dtype:
        if not got.weak:
            raise DtypeError(
                f"{says} {got}, and {of} is {expected}: their dtypes must be equal; convert it "
                f"with .astype({dtypes.name(expected.dtype)!r})"
            )
        array = array.astype(expected.dtype)
    return array


def fitting_list(node: Node, kind: str, found: Any, expected: Sequence[Aval]) -> list[Tangent]:
    """The same for a rule that returns a list with one (or None) for each of `expected`."""
    of = "result" if kind == "tangent" else "operand"
    if not isinstance(found, list | tuple) or len(found) != len(expected):
        got = f"{len(found)}" if isinstance(found, list | tuple) else f"a {type(found).__name__}"
        raise TreeError(
            f"{_rule_name(node, kind)} must return a list with a {kind} (or None) for each of the "
            f"{len(expected)} {of}s, and it returned {got}"
        )
    return [
        t
        if t is None or (type(t) is Array and t._node.aval is a) or not dtypes.is_inexact(a.dtype)
        else fitting(node, kind, t, a, f"{of} {i}")
        for i, (t, a) in enumerate(zip(found, expected, strict=True))
    ]


def _rule_name(node: Node, kind: str) -> str:
    primitive = node.primitive
    if primitive is MARK:
        return f"the linear part of {node.params['name']}"
    rule = "jvp" if kind == "tangent" else "vjp"
    if primitive.derivatives is not None:
        rule = "derivatives"
    elif primitive.transpose is not None and kind == "cotangent":
        rule = "transpose"
    return f"the {rule} of {primitive.name}"


def _rule(
    trace: Trace, node: Node, inputs: tuple[Node, ...], moving: list[Tangent], masked: set[Node]
) -> Any:
    primitive, params = node.primitive, node.params
    operands = [Array(i) for i in inputs]
    may_mask = primitive.selects or any(
        i in masked for i, t in zip(inputs, moving, strict=True) if t is not None
    )
    if may_mask:
        masked.add(node)
    if primitive.derivatives is not None:
        return _elementwise(node, operands, moving, masked, inputs)
    if primitive.linear is not None and primitive.jvp is None:
        return linear_jvp(primitive, moving, operands, params)
    if primitive.split is not None:
        return _push_again(node, operands, moving)
    if primitive.jvp is NOT_DIFFERENTIABLE:
        return [None] * len(node.aval) if primitive.multiple else None
    if primitive.jvp is None:
        raise NuvecError(f"{primitive.name} has no jvp rule; give its Primitive one")
    if not primitive.multiple and not dtypes.is_inexact(node.aval.dtype):
        return None
    return primitive.jvp(moving, Array(node), *operands, **params)


def _push_again(node: Node, operands: list[Array], moving: list[Tangent]) -> list[Tangent]:
    """An equation that holds IRs and was recorded where the trace did not see it (the forward of a
    custom rule that closes over traced values): record it anew, with its residuals."""
    with open_trace("jvp", "a call") as trace:
        inputs = [identity_input(trace, a) for a in operands]
        outs = (node.primitive.inline or node.primitive.bind)(*inputs, **node.params)
        nodes = [o._node for o in outs]
        steps = marked_graph(trace, [*nodes, *trace.effects], {i._node for i in inputs})
    tangents = {i._node: t for i, t in zip(inputs, moving, strict=True) if t is not None}
    forward_walk(trace, steps, tangents)
    return [tangents.get(n) if is_active(n, trace) else None for n in nodes]


def _elementwise(
    node: Node, operands: list[Array], moving: list[Tangent], masked: set[Node],
    inputs: tuple[Node, ...],
) -> Tangent:  # fmt: skip
    """Sum over operands of tangent times partial derivative."""
    total: Tangent = None
    out = Array(node)
    for t, derivative, i in zip(moving, node.primitive.derivatives, inputs, strict=True):
        if t is None or derivative is ZERO or derivative is NOT_DIFFERENTIABLE:
            continue
        if derivative is ONE:
            term = t
        elif derivative is MINUS_ONE:
            term = negative(t)
        else:
            product = masked_product if i in masked else multiply
            d = derivative(out, *operands, **node.params)
            try:
                term = product(t, d)
            except (TypeError, ValueError) as error:
                raise not_a_derivative(node, d, error) from error
        total = term if total is None else add(total, term)
    if total is None or total._node.aval.shape == node.aval.shape:
        return total
    if not _broadcasts(total.shape, out.shape):
        return total  # which is refused as the rule's
    return broadcast_to_p.bind(total, shape=out.shape)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(n in (1, m) for n, m in pairs)


def not_a_derivative(node: Node, d: Any, error: Exception) -> NuvecError:
    """The error for a partial derivative that a tangent or cotangent cannot be multiplied by."""
    got = d.aval if isinstance(d, Array) else f"a {type(d).__name__}"
    kind = ShapeError if isinstance(error, ValueError) else DtypeError
    return kind(
        f"the derivatives of {node.primitive.name} returned {got}, and its result is {node.aval}: "
        f"a derivative is an Array that broadcasts to the result ({error})"
    )


def _mark_jvp(
    trace: Trace, node: Node, inputs: tuple[Node, ...], moving: list[Tangent]
) -> list[Tangent]:
    count = node.params["count"]
    own = moving[:count]  # by closures over the same trace, or of other traces' marks
    if node.params["trace"] is not trace:
        return own
    result = fitting_list(node, "tangent", node.params["linear"](moving[count:]), node.aval)
    return [
        a if b is None else b if a is None else add(a, b) for a, b in zip(own, result, strict=True)
    ]


def like(a: Aval, t: Tangent) -> Array:
    """A tangent or cotangent of what has this aval: weak where that is, zeros where it is None."""
    if t is None:
        return zeros_of(a)
    return t if t._node.aval.weak is a.weak else converted(t, a.dtype, a.weak)


def tied(arrays: list[Any], effects: list[Node]) -> list[Any]:
    """`arrays`, each depending on the last of some communications: evaluating any one runs them
    all, since the queue keeps their order."""
    last = next((e for e in reversed(effects) if e.aval), None)  # a mark may have no results
    if last is None:
        return arrays
    token = Array(Node(PROJECTION, (last,), {"index": 0}, last.aval[0], last.marks))
    return [None if a is None else depends_p.bind(a, token) for a in arrays]


@filtered
def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """The value of `f` at `primals` and its derivative along `tangents`.

    Returns (output, output tangent), and the auxiliary output third with `has_aux`.  `tangents`
    has the structure, shapes and dtypes of `primals`, or None for a leaf that does not move;
    integer and boolean leaves, which have no derivative, take None or zeros of such a dtype.
    Integer outputs have zero tangents.  Raises TreeError, ShapeError or DtypeError when primals
    and tangents do not match.

    >>> import nuvec as nv
    >>> nv.jvp(lambda x: x * x, (3.0,), (1.0,))
    (array(9., dtype=float32), array(6., dtype=float32))
    """
    require_function("jvp", f)
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise TreeError(
            f"jvp takes tuples of primals and of tangents, got {type(primals).__name__} and "
            f"{type(tangents).__name__}: write nv.jvp(f, (x,), (dx,))"
        )
    with open_trace("jvp", f"jvp of {_name(f)}") as trace:
        inputs, moving, structure = _match(trace, tuple(primals), tuple(tangents))
        stop = {i._node for i in inputs}  # now: `x[i] = v` in f points x elsewhere
        result = f(*tree.unflatten(structure, inputs))
        result, aux = split_aux(trace.name, result, has_aux)
        leaves, out_structure = tree.flatten(result)
        outs = arrays_of(leaves, out_structure, lambda p: f"{trace.name}: output{tree.keystr(p)}")
        nodes = [o._node for o in outs]
        recorded = list(trace.effects)
        steps = marked_graph(trace, [*nodes, *recorded], stop)
    with observed_effects() as effects:
        forward_walk(trace, steps, moving)
    moved = [moving.get(n) if is_active(n, trace) else None for n in nodes]
    moved = tied(
        [like(n.aval, t) for t, n in zip(moved, nodes, strict=True)],
        effects or recorded,
    )
    out = tree.unflatten(out_structure, [Array(n) for n in nodes])
    tangent_out = tree.unflatten(out_structure, moved)
    return (out, tangent_out, aux) if has_aux else (out, tangent_out)


def matching_leaves(what: str, structure: Any, given: Any) -> list[Any]:
    """The leaves of a tree that must have `structure`, where None may stand for a leaf."""
    try:
        leaves = tree.flatten_up_to(structure, given)
    except TreeError as error:
        raise TreeError(f"{what} have another structure: {error}") from None
    for leaf in leaves:
        if leaf is not None and tree.structure(leaf) != _LEAF:
            raise TreeError(
                f"{what} have another structure: expected {structure}, got {tree.structure(given)}"
            )
    return leaves


_LEAF = tree.structure(0)


def match_leaves(
    name: str, owner: str, kind: str, structure: Any, given: Any, avals: Sequence[Aval]
) -> list[Array | None]:
    """The leaves of a tree of tangents or cotangents (`kind`), checked against what they belong to
    (`owner`): a weak scalar takes its dtype, None is zero, and of an integer or boolean, which
    has no derivative, only None or zeros of such a dtype can be given (None is returned)."""
    found: list[Array | None] = []
    leaves = matching_leaves(f"{name}: the {kind}s", structure, given)
    paths = structure.paths()
    for leaf, a, path in zip(leaves, avals, paths, strict=True):
        if leaf is None:
            found.append(None)
            continue
        where = f"{name}: {owner}{tree.keystr(path)}"
        array = operand(leaf, f"{name}: the {kind} of {owner}{tree.keystr(path)}")
        if array.shape != a.shape:
            raise ShapeError(
                f"{where} has shape {a.shape} and its {kind} {array.shape}; they must be equal"
            )
        if not dtypes.is_inexact(a.dtype):
            _refuse_moving(where, kind, a, array)
            found.append(None)
            continue
        found.append(in_dtype(array, a, f"{where} is {a} and its {kind} {array.aval}"))
    return found


def in_dtype(array: Array, a: Aval, says: str) -> Array:
    """A tangent or cotangent in the dtype of what it belongs to, which only a weak one may lack:
    of others, DtypeError begins with what `says`."""
    if array.dtype == a.dtype:
        return array
    if not array.aval.weak:
        raise DtypeError(f"{says}; convert it with .astype({dtypes.name(a.dtype)!r})")
    return array.astype(a.dtype)


def _refuse_moving(where: str, kind: str, a: Aval, given: Array) -> None:
    """Raise where what is given for an integer or boolean, which does not move, is not zero.  A
    value that is not known without evaluating is not asked for."""
    node = given._node
    if dtypes.is_inexact(given.dtype) or (node.value is not None and np.any(node.value)):
        got = given.aval if dtypes.is_inexact(given.dtype) else f"{given.aval} and not zero"
        raise DtypeError(
            f"{where} is {a}, which has no derivative, and its {kind} is {got}: pass None, or "
            f"zeros of dtype {dtypes.name(a.dtype)}; or make it a floating-point array"
        )


def split_aux(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """(output, aux) of a function's result."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise TreeError(
            f"{name}: with has_aux=True the function must return a pair (output, aux), and it "
            f"returned {type(result).__name__}"
        )
    return result


def _name(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _match(
    trace: Trace, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[list[Array], dict[Node, Array], Any]:
    """Fresh inputs for the primals, and the tangents by input node."""
    leaves, structure = tree.flatten(primals)
    if len(primals) != len(tangents):
        raise TreeError(
            f"jvp: {len(primals)} primals but {len(tangents)} tangents; give one for each primal, "
            "None where it does not move"
        )
    arrays = arrays_of(leaves, structure, lambda p: f"jvp: primals{tree.keystr(p)}")
    avals = [a.aval for a in arrays]
    given = match_leaves("jvp", "primals", "tangent", structure, tangents, avals)
    inputs = [identity_input(trace, a) for a in arrays]
    moving = {x._node: t for x, t in zip(inputs, given, strict=True) if t is not None}
    return inputs, moving, structure

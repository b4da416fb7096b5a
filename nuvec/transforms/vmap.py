"""Batching: a walk that gives every recorded value a batch axis where it needs one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import NuvecError, ShapeError, TreeError
from nuvec.core.ir import IR, aval, has_effect
from nuvec.core.node import Node, open_trace, traces_set
from nuvec.core.ops.batching import batch_elementwise, batch_first
from nuvec.core.ops.build import normalize_axis
from nuvec.core.ops.shape import broadcast_to, move_axis
from nuvec.core.primitive import IDENTITY, MARK, PLACEHOLDER, PROJECTION, local_handle, placeholder
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.core.walk import Step, marked_graph

Batched = tuple[Array, int | None]  # an array and its batch axis; None: the same for all elements


def batching_walk(
    steps: Sequence[Step], size: int, environment: dict[Node, Batched], index: Node | None
) -> None:
    """Record a graph again with batch axes; `environment` is filled in.  `index` is the node that
    stands for the element's index, where random draws asked for it."""
    tuples: dict[Node, list[Batched]] = {}

    def read(node: Node) -> Batched:
        found = environment.get(node)
        return (Array(node), None) if found is None else found

    for node, inputs in steps:
        primitive = node.primitive
        if node in environment:
            continue
        if primitive is IDENTITY:
            environment[node] = read(inputs[0])
            continue
        if primitive is MARK:  # the identity for everyone but its own trace
            tuples[node] = [read(n) for n in inputs[: node.params["count"]]]
            continue
        if primitive is PROJECTION:
            environment[node] = tuples[inputs[0]][node.params["index"]]
            continue
        if primitive is PLACEHOLDER:
            if node is index:
                environment[node] = (from_numpy(np.arange(size, dtype=np.int32)), 0)
                continue
            raise NuvecError(f"{node.params['name']} was used outside the function it belongs to")
        pairs = [read(n) for n in inputs]
        arrays = [a for a, _ in pairs]
        axes = tuple([axis for _, axis in pairs])
        outs: Any
        out_axes: Any
        alone = all(axis is None for axis in axes)
        # A communication takes the whole batch even so: its operand may be mapped on other ranks.
        if alone and not has_effect(primitive, node.params):
            outs = primitive.bind(*arrays, **node.params)
            out_axes = [None] * len(node.aval) if primitive.multiple else None
        elif primitive.vmap is not None:
            outs, out_axes = primitive.vmap(size, axes, *arrays, **node.params)
        elif primitive.kind == "elementwise" or primitive.derivatives is not None:
            outs, out_axes = batch_elementwise(primitive, size, axes, arrays, node.params)
        else:
            raise NuvecError(f"{primitive.name} has no vmap rule; give its Primitive one")
        if primitive.multiple:
            tuples[node] = list(zip(outs, out_axes, strict=True))
        else:
            environment[node] = (outs, out_axes)


def run_batched(
    function: Callable[..., Sequence[Array]],
    arrays: Sequence[Array],
    axes: Sequence[int | None],
    size: int,
    name: str,
    names: Sequence[str] | None = None,
) -> list[Batched]:
    """Record `function` on unbatched placeholders, then batch the recording."""
    with open_trace("vmap", name) as trace:
        inputs: list[Array] = []
        environment: dict[Node, Batched] = {}
        for i, (array, axis) in enumerate(zip(arrays, axes, strict=True)):
            if axis is None:
                inputs.append(Array(array._node))
                continue
            shape = array.shape[:axis] + array.shape[axis + 1 :]
            label = names[i] if names else f"argument {i} of {name}"
            node = placeholder(trace, aval(shape, array.dtype, array.aval.weak), label)
            inputs.append(Array(node))
            environment[node] = (array, axis)
        outs = function(*inputs)
        nodes = [o._node for o in outs]
        steps = marked_graph(trace, [*nodes, *trace.effects])
        index = trace.captures.get("index", (None, None))[1]
    batching_walk(steps, size, environment, index)
    return [environment[n] if n in environment else (Array(n), None) for n in nodes]


def batched_ir(
    ir: IR, size: int, axes: tuple[int | None, ...], out_batched: tuple[bool, ...] | None = None
) -> tuple[IR, tuple[bool, ...]]:
    """An IR over batches: batched inputs have the batch at their axis, batched outputs at axis 0.

    Returns it and which outputs are batched; `out_batched` makes more of them so.  Cached."""
    key = ("batched", size, axes, out_batched)
    found = ir.derived.get(key)
    if found is None:
        avals = [
            v.aval if axis is None else aval(
                (*v.aval.shape[:axis], size, *v.aval.shape[axis:]), v.aval.dtype, v.aval.weak
            )
            for v, axis in zip(ir.inputs, axes, strict=True)
        ]  # fmt: skip
        which: list[bool] = []

        def function(*arrays: Array) -> list[Array]:
            pairs = run_batched(lambda *xs: replay(ir, xs), arrays, axes, size, "vmap")
            outs = []
            for i, (out, axis) in enumerate(pairs):
                batched = axis is not None or (out_batched is not None and out_batched[i])
                which.append(batched)
                outs.append(batch_first(out, axis, size) if batched else out)
            return outs

        with traces_set(()):  # an IR is closed: what happens to be open does not concern it
            batched, captures = trace_ir(function, avals, "vmap")
        assert not captures
        found = ir.remember(key, (batched, tuple(which)))
    return found


@filtered
def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """`f` mapped over an axis of its arguments, in one go.

    in_axes  -- the axis to map: an integer or None (not mapped) for all arguments, or a tuple with
                an entry an argument, each an integer, None or a tree that is a prefix of the
                argument; or a dict by argument name (those not named are not mapped)
    out_axes -- where the mapped axis goes in each output, likewise; None for an output that is the
                same for every element

    Keyword arguments are bound to `f`'s signature.  The sizes of all mapped axes must be equal:
    ShapeError lists them when they are not.

    >>> import nuvec as nv
    >>> nv.vmap(nv.dot)(nv.ones((2, 3)), nv.ones((2, 3)))
    array([3., 3.], dtype=float32)
    """
    if not callable(f):
        raise TypeError(f"vmap takes a function, got {type(f).__name__}")
    name = f"vmap of {_name(f)}"

    @wraps(f)
    @filtered
    def mapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, labels = bind_arguments(f, args, kwargs)
        prefix = _argument_axes(in_axes, args, kwargs, labels, name)
        arguments = (args, kwargs)
        paths, structure = tree.flatten_with_path(arguments)
        spec = tree.broadcast_prefix(prefix, structure)
        leaves = [leaf for _, leaf in paths]
        where = [_where(path, labels) for path, _ in paths]
        arrays: list[Any] = []
        axes: list[int | None] = []
        for leaf, axis, label in zip(leaves, spec, where, strict=True):
            if axis is None:
                arrays.append(leaf)  # whatever it is, it is passed as it is
                axes.append(None)
                continue
            array = operand(leaf, f"{name}: {label}")
            if not isinstance(axis, int) or isinstance(axis, bool):
                raise TypeError(f"{name}: in_axes for {label} must be an integer, got {axis!r}")
            arrays.append(array)
            axes.append(normalize_axis(axis, array.ndim, f"{name}: in_axes for {label}"))
        size = _common_size(name, arrays, axes, where)
        mapped_at = [i for i, axis in enumerate(axes) if axis is not None]
        out_structure: list[Any] = []

        def function(*inputs: Array) -> list[Array]:
            fresh = [local_handle(x) if isinstance(x, Array) else x for x in arrays]
            for i, x in zip(mapped_at, inputs, strict=True):
                fresh[i] = x
            a, k = tree.unflatten(structure, fresh)
            found, s = tree.flatten(f(*a, **k))
            out_structure.append(s)
            return [operand(o, f"an output of {name}") for o in found]

        pairs = run_batched(
            function, [arrays[i] for i in mapped_at], [axes[i] for i in mapped_at], size, name,
            [f"{where[i]} of {_name(f)}" for i in mapped_at],
        )  # fmt: skip
        return _place_outputs(pairs, out_structure[0], out_axes, size, name)

    return mapped


def bind_arguments(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """Arguments bound to a signature: those passed by keyword become positional where they can.

    Returns (args, kwargs, the names of args)."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return args, kwargs, [f"argument {i}" for i in range(len(args))]
    bound = signature.bind(*args, **kwargs)
    labels: list[str] = []
    for k, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            labels += [f"{k}[{i}]" for i in range(len(bound.args) - len(labels))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            labels.append(k)
    return bound.args, dict(bound.kwargs), labels[: len(bound.args)]


def _argument_axes(
    in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any], labels: list[str], name: str
) -> Any:
    """in_axes as a prefix of (args, kwargs)."""
    if isinstance(in_axes, dict):
        unknown = sorted(set(in_axes) - set(labels) - set(kwargs))
        if unknown:
            raise TreeError(
                f"{name}: in_axes names {unknown}, and the arguments are {[*labels, *kwargs]}"
            )
        return (
            tuple(in_axes.get(k) for k in labels),
            {k: in_axes.get(k) for k in kwargs},
        )
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if isinstance(in_axes, tuple):
        if len(in_axes) != len(args):
            raise TreeError(
                f"{name}: in_axes has {len(in_axes)} entries for {len(args)} positional arguments "
                f"({', '.join(labels)}); give one an argument, or a dict by name"
            )
        return (in_axes, dict.fromkeys(kwargs, 0))
    return ((in_axes,) * len(args), dict.fromkeys(kwargs, in_axes))


def _where(path: Any, labels: list[str]) -> str:
    """The readable place of a leaf in (args, kwargs): "argument 'x'['w']"."""
    first, second, *rest = path
    key = labels[second.index] if first.index == 0 else second.key
    return f"argument {key!r}{tree.keystr(tuple(rest))}"


def _common_size(
    name: str, arrays: Sequence[Any], axes: Sequence[int | None], where: Sequence[str]
) -> int:
    sizes = {
        label: (axis, a.shape[axis])
        for a, axis, label in zip(arrays, axes, where, strict=True)
        if axis is not None
    }
    if not sizes:
        raise ShapeError(f"{name}: nothing is mapped; give an argument an axis in in_axes")
    if len({n for _, n in sizes.values()}) > 1:
        listed = "; ".join(f"{k}: axis {a}, size {n}" for k, (a, n) in sizes.items())
        raise ShapeError(f"{name}: mapped axes must have one size, and they have: {listed}")
    return next(iter(sizes.values()))[1]


def _place_outputs(
    pairs: list[Batched], structure: Any, out_axes: Any, size: int, name: str
) -> Any:
    spec = tree.broadcast_prefix(out_axes, structure)
    outs = []
    for i, ((out, axis), target) in enumerate(zip(pairs, spec, strict=True)):
        if target is None:
            if axis is not None:
                raise ShapeError(
                    f"{name}: out_axes is None for output {i}, which differs between the mapped "
                    "elements; give it an axis"
                )
            outs.append(out)
            continue
        rank = out.ndim + (axis is None)
        target = normalize_axis(target, rank, f"{name}: out_axes")
        if axis is None:
            out, axis = broadcast_to(out, (size, *out.shape)), 0
        outs.append(move_axis(out, axis, target))
    return tree.unflatten(structure, outs)


def _name(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)

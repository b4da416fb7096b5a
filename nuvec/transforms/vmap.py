"""Batching: a walk that gives every recorded value a batch axis where it needs one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import ArgumentError, NuvecError
from nuvec.core.ir import IR, aval, has_effect
from nuvec.core.node import Node, open_trace, traces_set
from nuvec.core.ops.batching import batch_elementwise, batch_first
from nuvec.core.ops.build import normalize_axis
from nuvec.core.primitive import (
    IDENTITY,
    MARK,
    NOT_BATCHABLE,
    PLACEHOLDER,
    PROJECTION,
    local_handle,
    placeholder,
)  # fmt: skip
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.core.walk import Step, marked_graph
from nuvec.transforms.arguments import arrays_of, bind_arguments, label_of, require_function
from nuvec.transforms.axis import Axis, axis_of, new_axis, walked_axis, walking
from nuvec.transforms.mapped import argument_axes, place_outputs, size_of
from nuvec.transforms.separate import (
    MOST,
    batch_separately,
    in_rank_order,
    is_separate,
    separates,
)  # fmt: skip

Batched = tuple[Array, int | None]  # an array and its batch axis; None: the same for all elements


def batching_walk(
    steps: Sequence[Step], size: int, environment: dict[Node, Batched], index: Node | None,
    axis: Axis | None = None,
) -> None:  # fmt: skip
    """Record a graph again with batch axes; `environment` is filled in.  `index` is the node that
    stands for the element's index, where random draws asked for it.  Communications over the group
    that is `axis` become what they are along the batch."""
    with walking(axis):
        _walk(steps, size, environment, index, axis)


def _walk(
    steps: Sequence[Step], size: int, environment: dict[Node, Batched], index: Node | None,
    axis: Axis | None,
) -> None:  # fmt: skip
    tuples: dict[Node, list[Batched]] = {}

    def laid_out(x: Array, batch: int | None, view: bool) -> Batched:
        return (x, batch) if axis is None or size > MOST else in_rank_order(x, batch, view)

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
        axes = tuple([a for _, a in pairs])
        outs: Any
        out_axes: Any
        alone = all(a is None for a in axes)
        over = axis_of(node.params) if primitive.effect else None
        if over is not None and over == axis:
            if primitive.axis is None:
                raise NuvecError(
                    f"{primitive.name} has no rule for a group that is a mapped axis; give its "
                    "Primitive one (axis=)"
                )
            outs, out_axes = primitive.axis(size, axes, *arrays, **node.params)
        # A communication takes the whole batch even so: its operand may be mapped on other ranks
        # (but not on the elements of another mapped axis, which all run this code).
        elif alone and (over is not None or not has_effect(primitive, node.params)):
            outs = primitive.bind(*arrays, **node.params)
            out_axes = [None] * len(node.aval) if primitive.multiple else None
        elif primitive.vmap is NOT_BATCHABLE:
            raise NuvecError(
                f"{primitive.name} cannot be mapped by vmap: its Primitive says "
                "vmap=NOT_BATCHABLE. Use nv.map, which runs it for one element after the other"
            )
        elif axis is not None and is_separate(primitive, size, node.aval):
            outs, out_axes = batch_separately(primitive, size, axes, arrays, node.params)
        elif primitive.vmap is not None:
            outs, out_axes = primitive.vmap(size, axes, *arrays, **node.params)
        else:  # elementwise
            outs, out_axes = batch_elementwise(primitive, size, axes, arrays, node.params)
        if primitive.multiple:
            tuples[node] = [laid_out(x, a, False) for x, a in zip(outs, out_axes, strict=True)]
        else:
            environment[node] = laid_out(outs, out_axes, primitive.kind == "view")


def run_batched(
    function: Callable[..., Sequence[Array]],
    arrays: Sequence[Array],
    axes: Sequence[int | None],
    size: int,
    name: str,
    names: Sequence[str] | None = None,
    mapped: Axis | None = None,
) -> list[Batched]:
    """Record `function` on unbatched placeholders, then batch the recording.  `mapped` is the
    axis's name and size, when it has a name."""
    with open_trace("vmap", name) as trace:
        trace.axis = mapped
        inputs: list[Array] = []
        environment: dict[Node, Batched] = {}
        for i, (array, axis) in enumerate(zip(arrays, axes, strict=True)):
            if axis is None:
                inputs.append(Array(array._node))
                continue
            if mapped is not None and size <= MOST:
                array, axis = in_rank_order(array, axis)[0], 0
            shape = array.shape[:axis] + array.shape[axis + 1 :]
            label = names[i] if names else f"argument {i} of {name}"
            node = placeholder(trace, aval(shape, array.dtype, array.aval.weak), label)
            inputs.append(Array(node))
            environment[node] = (array, axis)
        outs = function(*inputs)
        nodes = [o._node for o in outs]
        steps = marked_graph(trace, [*nodes, *trace.effects])
        index = trace.captures.get("index", (None, None))[1]
    batching_walk(steps, size, environment, index, mapped)
    return [environment[n] if n in environment else (Array(n), None) for n in nodes]


def batched_ir(
    ir: IR, size: int, axes: tuple[int | None, ...], out_batched: tuple[bool, ...] | None = None
) -> tuple[IR, tuple[bool, ...]]:
    """An IR over batches: batched inputs have the batch at their axis, batched outputs at axis 0.

    Returns it and which outputs are batched; `out_batched` makes more of them so.  Cached."""
    mapped = walked_axis() if ir.effect or separates(size) else None
    key = ("batched", size, axes, out_batched, mapped if ir.effect else mapped is not None)
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
            pairs = run_batched(
                lambda *xs: replay(ir, xs), arrays, axes, size, "vmap", mapped=mapped
            )
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
def vmap(
    f: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable = None,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """`f` mapped over an axis of its arguments, in one go.

    in_axes   -- the axis to map: an integer or None (not mapped) for all arguments; or a tuple
                 with an entry an argument, each an integer, None or a tree that is a prefix of the
                 argument; or a dict by argument name (those not named are not mapped).  With an
                 integer or a tuple, arguments passed by keyword beyond it are mapped over axis 0
    out_axes  -- where the mapped axis goes in each output, likewise; None for an output that is
                 the same for every element
    axis_name -- a name for the axis: inside `f`, `nv.distributed.axis_group(axis_name)` is the
                 group whose ranks are the elements, for every collective of nv.distributed
    axis_size -- how many elements; needed where nothing is mapped, checked otherwise

    Keyword arguments are bound to `f`'s signature.  Functions that draw random numbers without a
    key draw others for every element.

    Raises ShapeError when the mapped axes have not all one size (it lists them), AxisError for an
    axis an argument or output does not have, TreeError when in_axes or out_axes is not a prefix of
    what it describes.

    >>> import nuvec as nv
    >>> nv.vmap(nv.dot)(nv.ones((2, 3)), nv.ones((2, 3)))
    array([3., 3.], dtype=float32)
    >>> def centred(x):
    ...     group = nv.distributed.axis_group("batch")
    ...     return x - nv.distributed.all_sum(x, group) / group.size()
    >>> nv.vmap(centred, axis_name="batch")(nv.array([1.0, 2.0, 6.0]))
    array([-2., -1.,  3.], dtype=float32)
    """
    require_function("vmap", f)
    name = f"vmap of {_name(f)}"
    try:
        hash(axis_name)
    except TypeError:
        raise ArgumentError(f"{name}: axis_name must be hashable, got {axis_name!r}") from None
    return vmap_as(name, f, in_axes, out_axes, axis_name, axis_size)


def vmap_as(
    name: str, f: Callable[..., Any], in_axes: Any, out_axes: Any = 0,
    axis_name: Hashable | None = None, axis_size: int | None = None,
    labels: Sequence[str] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """vmap, for itself and for what is made of it: errors begin with `name`, and call the
    positional arguments `labels` where they are not to be called as `f` does."""

    @wraps(f)
    @filtered
    def mapped(*args: Any, **kwargs: Any) -> Any:
        positional = len(args)
        args, kwargs, known = bind_arguments(f, args, kwargs, name)
        called = known if labels is None else list(labels)
        paths, structure = tree.flatten_with_path((args, kwargs))
        spec = argument_axes(in_axes, args, kwargs, called, positional, name)
        leaves = [leaf for _, leaf in paths]
        where = [label_of(path, called) for path, _ in paths]
        arrays: list[Any] = []
        axes: list[int | None] = []
        for leaf, axis, label in zip(leaves, spec, where, strict=True):
            if axis is None:
                arrays.append(leaf)  # whatever it is, it is passed as it is
                axes.append(None)
                continue
            array = operand(leaf, f"{name}: {label}")
            arrays.append(array)
            axes.append(normalize_axis(axis, array.ndim, f"{name}: in_axes for {label}"))
        size = size_of(name, arrays, axes, where, axis_size)
        named = None if axis_name is None else new_axis(axis_name, size)
        mapped_at = [i for i, axis in enumerate(axes) if axis is not None]
        out_structure: list[Any] = []

        def function(*inputs: Array) -> list[Array]:
            fresh = [local_handle(x) if isinstance(x, Array) else x for x in arrays]
            for i, x in zip(mapped_at, inputs, strict=True):
                fresh[i] = x
            a, k = tree.unflatten(structure, fresh)
            found, s = tree.flatten(f(*a, **k))
            out_structure.append(s)
            return arrays_of(found, s, lambda p: f"{name}: output{tree.keystr(p)}")

        pairs = run_batched(
            function, [arrays[i] for i in mapped_at], [axes[i] for i in mapped_at], size, name,
            [f"{where[i]} of {_name(f)}" for i in mapped_at], named,
        )  # fmt: skip
        return place_outputs(pairs, out_structure[0], out_axes, size, name)

    return mapped


def _name(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)


__all__ = ["batched_ir", "batching_walk", "run_batched", "vmap"]

"""linearize and linear_transpose: the linear function that is a derivative, and its transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import NuvecError
from nuvec.core.node import Node, Trace, observed_effects
from nuvec.core.ops.differentiation import depends_p, optimization_barrier_p, zeros_of
from nuvec.core.primitive import IDENTITY, MARK, MINUS_ONE, ONE, PROJECTION, identity_input
from nuvec.core.traceback import filtered
from nuvec.core.walk import Step
from nuvec.transforms.backward import Recording
from nuvec.transforms.jvp import forward_walk, is_active, match_leaves, tied


class _Linear:
    """A function recorded once at a point: its derivative there, pushed any number of times."""

    def __init__(self, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> None:
        self.name = f"linearize of {getattr(f, '__name__', type(f).__name__)}"
        paths, self.structure = tree.flatten_with_path(primals)
        inputs: list[Array] = []

        def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
            inputs.extend(
                identity_input(trace, operand(leaf, f"{self.name}: primals{tree.keystr(path)}"))
                for path, leaf in paths
            )
            return tree.unflatten(self.structure, inputs), {}

        self.recording = Recording(f, self.name, has_aux, mode="jvp")
        self.recording.run(arguments, inputs)

    def push(self, *tangents: Any) -> Any:
        """The output tangents for tangents of the primals."""
        recording = self.recording
        avals = [n.aval for n in recording.inputs]
        given = match_leaves(self.name, "primals", "tangent", self.structure, tangents, avals)
        moving: dict[Node, Array] = {
            n: t for n, t in zip(recording.inputs, given, strict=True) if t is not None
        }
        with observed_effects() as effects:
            forward_walk(recording.trace, recording.steps, moving)
        moved = [
            moving[n] if is_active(n, recording.trace) and n in moving else zeros_of(n.aval)
            for n in recording.nodes
        ]
        return tree.unflatten(recording.structure, tied(moved, effects or recording.effects))


@filtered
def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `f` at `primals` and its derivative there, as a linear function.

    Returns (output, f_jvp), and the auxiliary output third with `has_aux`.  `f_jvp(*tangents)`
    takes tangents like the primals and returns the output's; it may be called any number of
    times, and mapped and compiled: `f` itself is evaluated once.

    >>> import nuvec as nv
    >>> y, push = nv.linearize(nv.sin, 0.0)
    >>> push(2.0)
    array(2., dtype=float32)
    """
    linear = _Linear(f, primals, has_aux)
    recording = linear.recording
    out = tree.unflatten(recording.structure, [Array(n) for n in recording.nodes])
    push = filtered(linear.push)
    return (out, push, recording.aux) if has_aux else (out, push)


@filtered
def linear_transpose(f: Callable[..., Any], *primals: Any) -> Callable[[Any], Any]:
    """The transpose of a linear function.

    Of `primals` only shapes and dtypes count.  The result takes a cotangent like `f`'s output and
    returns a tuple of them like the primals: <c, f(x)> = <transpose(c), x>, without conjugation.
    Raises NuvecError that names an operation that is not linear; calls, loops and joins with
    constants are taken to be.

    >>> import nuvec as nv
    >>> nv.linear_transpose(lambda x: 3 * x[::2], nv.zeros(4))(nv.array([1.0, 2.0]))
    (array([3., 0., 6., 0.], dtype=float32),)
    """
    name = f"linear_transpose of {getattr(f, '__name__', type(f).__name__)}"
    paths, structure = tree.flatten_with_path(primals)
    inputs: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for path, leaf in paths:
            a = operand(leaf, f"{name}: primals{tree.keystr(path)}").aval
            inputs.append(identity_input(trace, zeros_of(a)))
        return tree.unflatten(structure, inputs), {}

    recording = Recording(f, name, False)
    recording.run(arguments, inputs)
    _check_linear(recording.trace, recording.steps, name)

    @filtered
    def transposed(cotangent: Any) -> Any:
        avals = [n.aval for n in recording.nodes]
        given = match_leaves(name, "output", "cotangent", recording.structure, cotangent, avals)
        return tree.unflatten(structure, recording.pull(given))

    return transposed


_PASSES_ON = (IDENTITY, PROJECTION, MARK, depends_p, optimization_barrier_p)


def _check_linear(trace: Trace, steps: Sequence[Step], name: str) -> None:
    """Raise unless every recorded equation is linear in what depends on the inputs."""
    for node, inputs in steps:
        primitive = node.primitive
        # What is inside calls and loops (marks) is not looked at.
        if primitive in _PASSES_ON or primitive.effect:
            continue
        active = [i for i, n in enumerate(inputs) if is_active(n, trace)]
        if not active:
            continue
        if primitive.derivatives is not None:
            passes = all(primitive.derivatives[i] in (ONE, MINUS_ONE) for i in active)
            offset = len(active) < len(inputs) and primitive.name in ("add", "subtract")
            if passes and not offset:
                continue
        which = primitive.linear_operands
        listed = which is None or all(i in which for i in active)
        if primitive.linear == "joint" and listed:
            continue
        if primitive.linear == "each" and listed and len(active) == 1:
            continue
        if primitive.name == "convert_dtype":
            continue
        raise NuvecError(
            f"{name}: the function is not linear in its arguments: {primitive.name} of "
            f"{', '.join(str(n.aval) for n in inputs)} is not"
        )

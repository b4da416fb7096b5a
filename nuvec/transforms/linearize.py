"""linearize and linear_transpose: the linear function that is a derivative, and its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, DtypeError, NuvecError
from nuvec.core.ir import aval
from nuvec.core.node import Node, Trace, observed_effects, open_trace
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.primitive import identity_input, placeholder
from nuvec.core.recording import close, replay
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import arrays_of, require_function
from nuvec.transforms.backward import Recording
from nuvec.transforms.grad import only_argument
from nuvec.transforms.jvp import forward_walk, is_active, like, match_leaves, tied
from nuvec.transforms.linearity import LINEAR, dependence_of_constant, first_fault


class _Linear:
    """A function recorded once at a point: its derivative there, pushed any number of times."""

    def __init__(
        self, name: str, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool
    ) -> None:
        self.name = name
        leaves, self.structure = tree.flatten(primals)
        arrays = arrays_of(leaves, self.structure, lambda p: f"{name}: primals{tree.keystr(p)}")
        inputs: list[Array] = []

        def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
            inputs.extend([identity_input(trace, a) for a in arrays])
            return tree.unflatten(self.structure, inputs), {}

        self.recording = Recording(f, self.name, has_aux, mode="jvp")
        self.recording.run(arguments, inputs)

    def push(self, *tangents: Any, **named: Any) -> Any:
        """The output tangents for tangents of the primals."""
        recording = self.recording
        count = len(self.structure.children)
        if named or len(tangents) != count:
            keywords = f", and the keywords {sorted(named)}" if named else ""
            raise ArgumentError(
                f"{self.name}: the function it made takes one tangent for each primal, {count}. "
                f"It was given {len(tangents)}{keywords}"
            )
        avals = [n.aval for n in recording.inputs]
        given = match_leaves(self.name, "primals", "tangent", self.structure, tangents, avals)
        moving: dict[Node, Array] = {
            n: t for n, t in zip(recording.inputs, given, strict=True) if t is not None
        }
        with observed_effects() as effects:
            forward_walk(recording.trace, recording.steps, moving)
        moved = [
            like(n.aval, moving.get(n) if is_active(n, recording.trace) else None)
            for n in recording.nodes
        ]
        return tree.unflatten(recording.structure, tied(moved, effects or recording.effects))


@filtered
def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `f` at `primals` and its derivative there, as a linear function.

    Returns (output, f_jvp), and the auxiliary output third with `has_aux`.  `f_jvp(*tangents)`
    takes tangents like the primals (or None for a leaf that does not move) and returns the
    output's; it may be called any number of times, and mapped and compiled: `f` itself is evaluated
    once.

    >>> import nuvec as nv
    >>> y, push = nv.linearize(nv.sin, 0.0)
    >>> push(2.0)
    array(2., dtype=float32)
    """
    require_function("linearize", f)
    return linearize_as(f"linearize of {_name(f)}", f, primals, has_aux)


def linearize_as(name: str, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> Any:
    """linearize, for itself and for what is made of it; errors begin with `name`."""
    linear = _Linear(name, f, primals, has_aux)
    recording = linear.recording
    out = tree.unflatten(recording.structure, [Array(n) for n in recording.nodes])
    push = filtered(linear.push)
    return (out, push, recording.aux) if has_aux else (out, push)


@filtered
def linear_transpose(f: Callable[..., Any], *primals: Any) -> Callable[[Any], Any]:
    """The transpose of a linear function.

    Of `primals` only shapes and dtypes count; they are real or complex floating-point arrays, or
    trees of them.  The result takes a cotangent like `f`'s output and returns a tuple of them like
    the primals: <c, f(x)> = <transpose(c), x>, without conjugation.

    `f` is recorded once and judged equation by equation, inside compiled functions, loops,
    branches and custom functions too.  Raises NuvecError for the first that is not linear, and
    where what depends on the primals is joined with a constant that is not zero;
    ConcretizationError where `f` asks for a value that depends on them; DtypeError for primals
    that are not floating-point.

    >>> import nuvec as nv
    >>> nv.linear_transpose(lambda x: 3 * x[::2], nv.zeros(4))(nv.array([1.0, 2.0]))
    (array([3., 0., 6., 0.], dtype=float32),)
    """
    require_function("linear_transpose", f)
    called = _name(f)
    name = f"linear_transpose of {called}"
    paths, structure = tree.flatten_with_path(primals)
    labels = [f"primals{tree.keystr(path)}" for path, _ in paths]
    avals = []
    for label, (_, leaf) in zip(labels, paths, strict=True):
        a = operand(leaf, f"{name}: {label}").aval
        if not dtypes.is_inexact(a.dtype):
            raise DtypeError(
                f"{name}: {label} is {a}, and a linear function takes floating-point arrays: "
                "convert it with .astype(nv.float32), or let the function close over it"
            )
        avals.append(aval(a.shape, a.dtype))
    with open_trace("linear", name) as trace:
        inputs = [
            placeholder(trace, a, f"{label} of {called}")
            for a, label in zip(avals, labels, strict=True)
        ]
        leaves, out_structure = tree.flatten(f(*tree.unflatten(structure, map(Array, inputs))))
        outs = arrays_of(leaves, out_structure, lambda p: f"{name}: output{tree.keystr(p)}")
        ir, captures = close(trace, inputs, outs)
    constants = [dependence_of_constant(c) for c in captures]
    over_complex = any(dtypes.is_complex(a.dtype) for a in avals)
    fault = first_fault(ir, [*constants, *(LINEAR for _ in inputs)], complex=over_complex)
    if fault is not None:
        raise NuvecError(f"{name}: the function is not linear in its arguments: {fault}")
    moving: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        moving.extend([identity_input(trace, zeros_of(a)) for a in avals])
        return (*captures, *moving), {}

    recording = Recording(lambda *arrays: replay(ir, arrays), name, False)
    recording.run(arguments, moving)

    @filtered
    def transposed(*args: Any, **named: Any) -> Any:
        cotangent = only_argument(name, args, named)
        given = match_leaves(name, "output", "cotangent", out_structure, cotangent, ir.out_avals)
        return tree.unflatten(structure, recording.pull(given))

    return transposed


def _name(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)

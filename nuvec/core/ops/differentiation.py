"""stop_gradient and depends: identities that differentiation and ordering see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, operand
from nuvec.core.ir import Aval, aval
from nuvec.core.node import LITERAL, Node, constant
from nuvec.core.primitive import ZERO, Primitive
from nuvec.core.traceback import filtered

stop_gradient_p = Primitive(
    "stop_gradient", lambda x: x, lambda x: x, "view", derivatives=(ZERO,)
)  # fmt: skip


@filtered
def stop_gradient(x: Any) -> Any:
    """`x` (an Array or a tree of them) as a constant for differentiation.

    Written directly on the operand of a collective, it also takes that communication out of
    differentiation; write it so on every rank.

    >>> import nuvec as nv
    >>> nv.grad(lambda x: x * nv.stop_gradient(x))(3.0)
    array(3., dtype=float32)
    """
    paths, structure = tree.flatten_with_path(x)
    operands = [operand(leaf, f"stop_gradient: x{tree.keystr(path)}") for path, leaf in paths]
    return tree.unflatten(structure, [stop_gradient_p.bind(a) for a in operands])


def _after(name: str) -> Primitive:
    """A primitive f(x, *others) that is x, evaluated after the others."""

    def vmap(
        size: int, axes: Sequence[int | None], x: Array, *others: Array
    ) -> tuple[Array, int | None]:
        return primitive.bind(x, *others), axes[0]

    primitive = Primitive(
        name,
        lambda x, *others: x,
        lambda x, *others: x,
        "other",
        jvp=lambda tangents, out, x, *others: tangents[0],
        vjp=lambda i, c, out, x, *others: c if i == 0 else None,
        vmap=vmap,
    )
    return primitive


depends_p = _after("depends")
# The same, but no pass looks through it: what is computed from its result is computed after the
# others, and is not merged with the same equations elsewhere.
optimization_barrier_p = _after("optimization_barrier")


def depends(x: Any, on: Any) -> Any:
    """`x` (an Array or a tree), such that evaluating it also evaluates everything in `on`.

    It orders what data flow does not: MLX's `mx.depends`.

    >>> import nuvec as nv
    >>> y = nv.depends(nv.ones(2), nv.zeros(3))
    """
    others = [operand(leaf, "depends' second argument") for leaf in tree.leaves(on)]
    if not others:
        return x
    return tree.map(lambda leaf: depends_p.bind(operand(leaf, "depends' operand"), *others), x)


def zeros_of(a: Aval) -> Array:
    """Zeros of an aval, without memory: a broadcast scalar."""
    zero = np.zeros((), a.dtype)
    if not a.shape:
        return Array(Node(None, (), LITERAL, aval((), a.dtype), None, zero[()]))
    return Array(constant(np.broadcast_to(zero, a.shape), aval(a.shape, a.dtype)))


def is_zeros(value: Any) -> bool:
    """Whether a value is what `zeros_of` makes: looked at without reading an array."""
    if value is None or any(value.strides):
        return False
    return not value.size or not value[(0,) * value.ndim].tobytes().strip(b"\0")

"""send and recv, which are each other's transpose."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DistributedError, ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.batching import batch_first
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered
from nuvec.distributed.axis_group import AxisGroup
from nuvec.distributed.collectives.common import (
    Tangents,
    buffers,
    communicate,
    inexact,
    located,
    present,
    rank_of,
    spread,
)  # fmt: skip
from nuvec.distributed.group import Group, group_or_default

Specs = tuple[tuple[tuple[int, ...], np.dtype], ...]


def _refuse_axis(name: str, group: AxisGroup) -> NoReturn:
    raise DistributedError(
        f"{name} over the mapped axis {group.axis.name!r}: every element runs the same code, so "
        "all of them would name the same partner. Say who sends to whom with "
        "nv.distributed.permute(x, [(src, dst), ...], group)"
    )


def _specs(avals: Sequence[Aval]) -> Specs:
    return tuple((a.shape, a.dtype) for a in avals)


# send: its cotangent is that of its own result and what the receiver's cotangent sends back


def _send_rule(*avals: Aval, group: Group, active: bool, dst: int) -> tuple[Aval, ...]:
    return avals


def _send_lower(*values: Any, group: Group, active: bool, dst: int) -> tuple[Any, ...]:
    group.communicator.send(buffers(values), dst)
    return values


def _send_jvp(
    tangents: Tangents, outs: Sequence[Array], *operands: Array, **params: Any
) -> list[Array | None]:
    which = inexact(operands)
    if not which:
        return [None] * len(operands)
    found = send_p.bind(*present(tangents, which), **params)
    return spread(found, which, len(operands))


def _send_vjp(
    cs: Tangents, outs: Sequence[Array], *operands: Array, group: Group, active: bool, dst: int
) -> list[Array | None]:
    which = inexact(operands)
    if not which:
        return [None] * len(operands)
    specs = _specs([operands[i].aval for i in which])
    back = recv_p.bind(specs=specs, group=group, active=True, src=dst)
    found = [add(c, b) for c, b in zip(present(cs, which), back, strict=True)]
    return spread(found, which, len(operands))


def _send_vmap(size: int, axes: Sequence[int | None], *operands: Array, **params: Any) -> Any:
    moved = [batch_first(x, a, size) for x, a in zip(operands, axes, strict=True)]
    return send_p.bind(*moved, **params), [0] * len(moved)


send_p: Primitive = Primitive(
    "send", _send_lower, _send_rule, "effect", jvp=_send_jvp, vjp=_send_vjp, vmap=_send_vmap,
    axis=lambda size, axes, *operands, group, **params: _refuse_axis("send", group),
    linear="joint", multiple=True, effect=True,
)  # fmt: skip


@filtered
def send(x: Any, dst: int, group: Group | None = None) -> Any:
    """Send `x` (an Array or a tree) to rank `dst`; returns `x`.

    It is sent in program order with the rank's other communications, whether or not the result is
    used.  In a group of two or more a rank may send to itself.
    """
    group = _group_of_several("send", group)
    return communicate(send_p, x, group, dst=rank_of("send", dst, group))


# recv: its cotangent goes back to the sender


def _recv_rule(*, specs: Specs, group: Group, active: bool, src: int) -> tuple[Aval, ...]:
    return tuple(aval(shape, dtype) for shape, dtype in specs)


def _recv_lower(*, specs: Specs, group: Group, active: bool, src: int) -> tuple[Any, ...]:
    return tuple(group.communicator.recv(list(specs), src))


def _inexact_specs(specs: Specs) -> tuple[list[int], Specs]:
    which = [i for i, (_, dtype) in enumerate(specs) if dtypes.is_inexact(dtype)]
    return which, tuple(specs[i] for i in which)


def _recv_jvp(
    tangents: Tangents, outs: Sequence[Array], *, specs: Specs, group: Group, active: bool, src: int
) -> list[Array | None]:
    which, moving = _inexact_specs(specs)
    if not which:
        return [None] * len(specs)
    found = recv_p.bind(specs=moving, group=group, active=active, src=src)
    return spread(found, which, len(specs))


def _recv_vjp(
    cs: Tangents, outs: Sequence[Array], *, specs: Specs, group: Group, active: bool, src: int
) -> list[Array | None]:
    which, _ = _inexact_specs(specs)
    if which:
        send_p.bind(*present(cs, which), group=group, active=True, dst=src)
    return []


def _recv_vmap(
    size: int, axes: Sequence[int | None], *, specs: Specs, **params: Any
) -> tuple[list[Array], list[int]]:
    batched = tuple(((size, *shape), dtype) for shape, dtype in specs)
    return recv_p.bind(specs=batched, **params), [0] * len(specs)


recv_p: Primitive = Primitive(
    "recv", _recv_lower, _recv_rule, "effect", jvp=_recv_jvp, vjp=_recv_vjp, vmap=_recv_vmap,
    axis=lambda size, axes, *operands, group, **params: _refuse_axis("recv", group),
    linear="joint", multiple=True, effect=True,
)  # fmt: skip


@filtered
def recv(shape: Sequence[int], dtype: Any, src: int, group: Group | None = None) -> Array:
    """What rank `src` sent to this rank: an array of `shape` and `dtype`.

    Raises MismatchError when the message is another one, PeerError when `src` has gone, ShapeError
    for a shape or rank that cannot be.
    """
    group = _group_of_several("recv", group)
    src = rank_of("recv", src, group)
    spec = (_sizes(shape), dtypes.as_dtype(dtype))
    (out,) = located(recv_p.bind(specs=(spec,), group=group, active=True, src=src))
    return out


def _sizes(shape: Any) -> tuple[int, ...]:
    """A shape that the user gave: an integer or a sequence of them, none negative."""
    try:
        sizes: tuple[int, ...] = (operator.index(shape),)
    except TypeError:
        try:
            sizes = tuple([operator.index(n) for n in shape])
        except TypeError:
            raise ShapeError(
                f"recv: shape is {shape!r}, and should be an integer or a sequence of integers"
            ) from None
    if any(n < 0 for n in sizes):
        raise ShapeError(f"recv: shape {sizes} has a negative size")
    return sizes


@filtered
def recv_like(x: Any, src: int, group: Group | None = None) -> Any:
    """What rank `src` sent, in the structure, shapes and dtypes of `x` (an Array or a tree)."""
    group = _group_of_several("recv_like", group)
    src = rank_of("recv_like", src, group)
    leaves, structure = tree.flatten(x)
    avals = [operand(leaf, "recv_like's template").aval for leaf in leaves]
    if not avals:
        return x
    outs = located(recv_p.bind(specs=_specs(avals), group=group, active=True, src=src))
    return tree.unflatten(structure, outs)


def _group_of_several(name: str, group: Group | None) -> Group:
    group = group_or_default(name, group)
    if isinstance(group, AxisGroup):
        _refuse_axis(name, group)
    if group.size() == 1:
        raise DistributedError(
            f"{name}: this group has one rank, and there is no other to talk to; start several "
            "with `nuvec.launch -n 2 script.py` or nv.distributed.run_local"
        )
    return group

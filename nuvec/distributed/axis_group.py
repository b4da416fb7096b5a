"""A group whose ranks are the elements of a mapped axis.

Inside `vmap(f, axis_name="batch")` every element runs the same program on its own data, as the
ranks of a job do.  Communications over the axis are recorded like any others, with the same
rules; when vmap batches the recording, each becomes what its record's `axis` rule says: a fold, a
gather or a permutation along the batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DistributedError, LeakedTracerError
from nuvec.core.functions.ranges import arange
from nuvec.core.ir import Aval, aval
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.group import Group
from nuvec.transforms.axis import SILENT, Axis, open_axes
from nuvec.transforms.compile import GUARDS

# A compiled function that asks for an axis has its size in its shapes.
GUARDS.append(open_axes)


class AxisGroup(Group):
    """The elements of a mapped axis as the ranks of a group; made by `axis_group`.

    Two are equal when they stand for the same axis."""

    __slots__ = ("axis",)
    queue = None  # type: ignore[assignment]  # what is recorded here is never sent

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    @property
    @filtered
    def communicator(self) -> Communicator:  # type: ignore[override]
        raise LeakedTracerError(
            f"a communication over the mapped axis {self.axis.name!r} was kept from inside the "
            "vmap and used outside of it, where the axis does not exist: return the result from "
            "the mapped function instead"
        )

    @property
    def symbol(self) -> str:  # type: ignore[override]
        return f"axis_{self.axis.name}"

    @filtered
    def rank(self) -> Any:
        """The element's index: a traced int32 scalar, another one for every element."""
        self.check_open("rank()")
        (index,) = axis_index_p.bind(group=self)
        return index

    def size(self) -> int:
        """How many elements the axis has."""
        return self.axis.size

    @filtered
    def split(self, color: int, key: int = -1) -> Group:
        raise DistributedError(
            f"split of the mapped axis {self.axis.name!r}: reshape the batch to two axes and nest "
            "two vmaps, each with a name of its own"
        )

    @filtered
    def barrier(self) -> None:
        """Nothing: the elements are computed together."""
        self.check_open("barrier")

    def check_open(self, what: str) -> None:
        """Raise unless the vmap whose axis this is is being traced."""
        if self.axis not in open_axes():
            raise DistributedError(
                f"{what}: the mapped axis {self.axis.name!r} exists only inside the vmap that "
                "names it; call nv.distributed.axis_group in the mapped function"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxisGroup) and self.axis == other.axis

    def __hash__(self) -> int:
        return hash(self.axis)

    def __repr__(self) -> str:
        return f"AxisGroup({self.axis.name!r}, size={self.axis.size})"


@filtered
def axis_group(name: Hashable) -> AxisGroup:
    """The group whose ranks are the elements of the vmap that was given `axis_name=name`.

    `size()` is the number of elements and `rank()` the element's index, a traced int32 scalar.
    Every collective of `nv.distributed` takes it as its group; results, bits and gradients are
    those of as many ranks.  So a program for many ranks runs, and is tested, in one process.
    (For up to 16 elements, local sums and products are computed one element after the other, as
    ranks compute them; for more, and in derivatives taken outside of the vmap, the batch at once,
    which can differ in their last bits.  A gradient that nothing contributes to may be zero with
    the other sign.)
    send and recv name one partner for every rank, which here all elements would share: use
    `permute`.

    Raises DistributedError outside such a vmap.

    >>> import nuvec as nv
    >>> def program(x):
    ...     group = nv.distributed.axis_group("ranks")
    ...     return nv.distributed.all_sum(x * group.rank(), group)
    >>> nv.vmap(program, axis_name="ranks")(nv.array([1.0, 2.0, 3.0]))
    array([8., 8., 8.], dtype=float32)
    """
    axes = open_axes()
    for axis in reversed(axes):
        if axis.name == name:
            return AxisGroup(axis)
    known = ", ".join(repr(a.name) for a in axes) or "none"
    raise DistributedError(
        f"axis_group({name!r}): no vmap around this call has that axis_name (those that are open: "
        f"{known}); call it inside nv.vmap(f, axis_name={name!r})"
    )


def _index_rule(*, group: AxisGroup) -> tuple[Aval, ...]:
    return (aval((), dtypes.int32),)


def _index_lower(*, group: AxisGroup) -> tuple[Any, ...]:
    raise AssertionError(group.communicator)  # raises: it has none


def _index_axis(
    size: int, axes: Sequence[int | None], *, group: AxisGroup
) -> tuple[list[Array], list[int]]:
    return [arange(size, dtype=dtypes.int32)], [0]


# An effect although it sends nothing: it belongs to its vmap as communications do.
axis_index_p: Primitive = Primitive(
    "axis_index", _index_lower, _index_rule, "effect",
    jvp=lambda tangents, outs, **params: [None],
    vjp=lambda cs, outs, **params: [],
    vmap=lambda size, axes, **params: (axis_index_p.bind(**params), [None]),
    axis=_index_axis, multiple=True, effect=True,
)  # fmt: skip

SILENT.add(axis_index_p)

__all__ = ["AxisGroup", "axis_group", "axis_index_p"]

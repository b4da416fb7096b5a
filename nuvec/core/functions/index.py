"""Reading a NumPy index: what `x[index]` means for an array of some shape.

It is read in two steps.  First every axis is cut by its slice (an integer cuts it to one item) and
the result reshaped: axes of integers go, `None` adds axes of size 1.  What remains to index then
are whole axes of this view, with integer arrays.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import ConcretizationError, DtypeError, OutOfBoundsError, ShapeError
from nuvec.core.functions.creation import asarray
from nuvec.core.ops.bounds import check_bounds
from nuvec.core.ops.indexing import gathered_shape, index_place
from nuvec.core.ops.structure import Ints
from nuvec.core.size import slice_indices


class Index(NamedTuple):
    """What an index means for an array of some shape.

    start, stop, step -- the slice of every axis
    whole   -- whether these take everything in order
    view    -- the shape it is then reshaped to
    axes    -- the axes of the view that arrays index
    arrays  -- those integer arrays; each is a NumPy array of checked values or an Array
    shape   -- the shape that gather gives: the arrays' axes where NumPy puts them in the view
    permutation -- from there to the result; None where that is the same
    place   -- where the axes of the arrays stand in the result
    """

    start: Ints
    stop: Ints
    step: Ints
    whole: bool
    view: Ints
    axes: Ints
    arrays: tuple[Any, ...]
    shape: Ints
    permutation: Ints | None
    place: int


def index_of(shape: Ints, index: Any) -> Index:
    """As `read_index`, remembering what integers, slices, None and "..." mean."""
    entries = index if type(index) is tuple else (index,)
    key: list[Any] = []
    for e in entries:
        kind = type(e)
        if kind is slice:
            for bound in (e.start, e.stop, e.step):
                if bound is not None and type(bound) is not int:
                    return read_index(shape, index)
            key.append((e.start, e.stop, e.step))  # slices have no hash before Python 3.12
        elif kind is int or e is None or e is Ellipsis:
            key.append(e)
        else:
            return read_index(shape, index)
    return _remembered(shape, tuple(key))


@functools.lru_cache(maxsize=4096)
def _remembered(shape: Ints, key: tuple[Any, ...]) -> Index:
    return read_index(shape, tuple(slice(*e) if type(e) is tuple else e for e in key))


def read_index(shape: Ints, index: Any, checked: bool = True) -> Index:
    """Make sense of a NumPy index.  `checked` says to refuse integers out of bounds now; slices
    never are.  Raises OutOfBoundsError, DtypeError and ShapeError."""
    entries = _expand(shape, index if type(index) is tuple else (index,))
    bounds: list[tuple[int, int, int]] = []
    view: list[int] = []
    axes: list[int] = []
    arrays: list[Any] = []
    unchecked: list[tuple[np.ndarray, int]] = []
    kinds = ""  # "a" for what NumPy counts as an advanced index, "." for an axis in between
    for entry in entries:
        axis = len(bounds)
        if entry is None:
            view.append(1)
            kinds += "."
        elif entry is Ellipsis:
            kinds += "e"  # separates even when it stands for no axis
        elif isinstance(entry, slice):
            taken = _taken(entry, shape[axis])
            bounds.append((taken.start, taken.stop, taken.step) if taken else (0, 0, 1))
            view.append(len(taken))
            kinds += "."
        elif isinstance(entry, int):
            n = shape[axis]
            if not -n <= entry < n:
                raise OutOfBoundsError(
                    f"index {entry} is out of bounds for axis {axis} with size {n}, of an array "
                    f"of shape {shape}"
                )
            bounds.append((entry % n, entry % n + 1, 1))
            kinds += "a"
        else:
            array, consumes = entry
            if consumes:
                bounds.append((0, shape[axis], 1))
                if checked and type(array) is np.ndarray:
                    unchecked.append((array, axis))
            axes.append(len(view))
            arrays.append(array)
            view.append(shape[axis] if consumes else 1)
            kinds += "a"
    start, stop, step = (tuple(b[k] for b in bounds) for k in range(3))
    whole = all(b == (0, n, 1) for b, n in zip(bounds, shape, strict=True))
    if not arrays:
        after = tuple(view)
        return Index(start, stop, step, whole, after, (), (), after, None, 0)
    first, last = kinds.find("a"), kinds.rfind("a")
    together = set(kinds[first : last + 1]) == {"a"}
    place = kinds[:first].count(".") if together else 0
    index_shape = _broadcast(arrays)
    if 0 not in index_shape:  # where they select nothing together, NumPy allows any
        for array, axis in unchecked:
            check_bounds(array, axis, shape[axis], shape)
    gathered = gathered_shape(tuple(view), index_shape, tuple(axes))
    permutation = _permutation(len(gathered), index_place(tuple(axes)), place, len(index_shape))
    return Index(start, stop, step, whole, tuple(view), tuple(axes), tuple(arrays), gathered,
                 permutation, place)  # fmt: skip


class InvalidIndexError(DtypeError, IndexError):
    """An index of a type that indexes nothing: NumPy raises IndexError, or TypeError in slices."""


def _taken(entry: slice, size: int) -> range:
    """The positions a slice takes."""
    try:
        return range(*slice_indices(entry, size))
    except ConcretizationError:
        raise
    except TypeError:
        given = next(
            b for b in (entry.start, entry.stop, entry.step)
            if b is not None and not hasattr(type(b), "__index__")
        )  # fmt: skip
        raise InvalidIndexError(
            f"the bounds of a slice are integers or None, got {given!r}; convert it with int()"
        ) from None
    except ValueError:
        raise ShapeError(
            "a slice's step is 0, which never gets from its start to its stop; use 1, or another "
            "step"
        ) from None


def _permutation(ndim: int, source: int, destination: int, count: int) -> Ints | None:
    """The order of axes that moves `count` neighbours; None when they stay."""
    if source == destination or not count:
        return None
    block = range(source, source + count)
    order = [a for a in range(ndim) if a not in block]
    order[destination:destination] = block
    return tuple(order)


def _expand(shape: Ints, index: tuple[Any, ...]) -> list[Any]:
    """The entries of an index: None, slices, integers, (array, consumes) pairs, and an ellipsis
    followed by the slices it stands for.  A mask becomes the arrays of its true positions."""
    entries = [_entry(e) for e in index]
    used = sum(_consumes(e) for e in entries)
    if used > len(shape):
        raise OutOfBoundsError(
            f"too many indices for an array of shape {shape}: {len(shape)} dimensions, and the "
            f"index needs {used}"
        )
    missing = [slice(None)] * (len(shape) - used)
    expanded: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is Ellipsis:
            if any(e is Ellipsis for e in expanded):
                raise OutOfBoundsError("an index can have only one ellipsis ('...')")
            expanded += [entry, *missing]
            axis += len(missing)
        elif isinstance(entry, np.ndarray) and entry.dtype == np.bool_:
            expanded += _mask(entry, shape, axis)
            axis += entry.ndim
        elif isinstance(entry, np.ndarray | Array):
            expanded.append((entry, True))
            axis += 1
        else:
            expanded.append(entry)
            axis += _consumes(entry)
    return expanded if any(e is Ellipsis for e in expanded) else expanded + missing


def _consumes(entry: Any) -> int:
    """How many axes an entry indexes."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, np.ndarray) and entry.dtype == np.bool_ else 1


def _entry(entry: Any) -> Any:
    """One entry: None, Ellipsis, a slice, an integer, an integer array or a NumPy mask."""
    if type(entry) is int or entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, bool | np.bool_):
        return np.asarray(entry)
    if isinstance(entry, list | tuple):
        entry = asarray(entry) if _holds_arrays(entry) else np.asarray(entry)
        if isinstance(entry, np.ndarray) and not entry.size:
            entry = entry.astype(np.intp)  # NumPy makes [] a float array
    if isinstance(entry, Array) or hasattr(entry, "__nuvec_array__"):
        entry = operand(entry)
        if dtypes.is_integer(entry.dtype):
            return entry
        if dtypes.is_bool(entry.dtype):
            return _concrete(entry)
        raise InvalidIndexError(index_message(dtypes.name(entry.dtype)))
    if isinstance(entry, np.ndarray | np.generic):
        if entry.dtype == np.bool_:
            return np.asarray(entry)
        if entry.dtype.kind not in "iu":
            raise InvalidIndexError(index_message(str(entry.dtype)))
        if not entry.ndim:
            return int(entry)
        if entry.dtype == np.uint64 and entry.size and entry.max() > np.iinfo(np.intp).max:
            raise OutOfBoundsError(f"index {entry.max()} is out of bounds")
        return np.array(entry, np.intp)  # a copy: its owner may write to it
    try:
        return operator.index(entry)
    except TypeError:
        raise InvalidIndexError(index_message(f"{type(entry).__name__} {entry!r}")) from None


def _holds_arrays(entry: Any) -> bool:
    if isinstance(entry, list | tuple):
        return any(_holds_arrays(e) for e in entry)
    return isinstance(entry, Array)


def index_message(given: str) -> str:
    return (
        "an index is made of integers, slices, None, '...', integer arrays and boolean masks, "
        f"got {given}; convert a float with int(i) or i.astype(nv.int32)"
    )


def _concrete(mask: Array) -> np.ndarray:
    try:
        return np.asarray(mask._value())
    except ConcretizationError as error:
        raise ConcretizationError(
            f"a boolean mask {mask.aval} as an index selects as many elements as it has true "
            "values, so the shape of the result needs its values, and here it has none. Use "
            "nv.where(mask, x, y), or x.at[mask].set(scalar), which keep the shape of x, or take "
            f"the mask outside. ({error})"
        ) from None


def _mask(mask: np.ndarray, shape: Ints, axis: int) -> list[Any]:
    """The positions a mask selects, an integer array for every axis it covers."""
    if not mask.ndim:
        return [(np.zeros(int(mask), np.intp), False)]
    covered = shape[axis : axis + mask.ndim]
    if len(covered) < mask.ndim:
        raise OutOfBoundsError(
            f"too many indices for an array of shape {shape}: a mask of shape {mask.shape} stands "
            f"at axis {axis}"
        )
    if mask.shape != covered:
        raise OutOfBoundsError(
            f"a mask of shape {mask.shape} does not fit the axes of size {covered} it indexes, of "
            f"an array of shape {shape}: a mask has exactly the sizes of the axes it selects from"
        )
    return [(positions, True) for positions in mask.nonzero()]


def _broadcast(arrays: Sequence[Any]) -> Ints:
    shapes = [a.shape for a in arrays]
    if all(s == shapes[0] for s in shapes):
        return tuple(shapes[0])
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise OutOfBoundsError(
            f"index arrays of shapes {' and '.join(map(str, shapes))} do not broadcast together: "
            "they select element by element. For all combinations index one axis at a time, "
            "x[i][:, j], or give i an axis: x[i[:, None], j]"
        ) from None

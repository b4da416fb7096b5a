"""NumPy indexing: `x[index]`, `x[index] = v` and `take`, made of slices, gather and scatter.

An index is read in two steps.  First every axis is cut by its slice (an integer cuts it to one
item) and the result reshaped: axes of integers go, `None` adds axes of size 1.  What remains to
index then are whole axes of this view, with integer arrays: a gather.  Writing goes the same way
back.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import ConcretizationError, DtypeError, OutOfBoundsError, ShapeError
from nuvec.core.functions.creation import asarray
from nuvec.core.ops.arithmetic import remainder
from nuvec.core.ops.build import as_operand, normalize_axis
from nuvec.core.ops.indexing import (
    check_bounds, gather_p, gathered_shape, index_place, scatter_set_p, update_slice_p,
)  # fmt: skip
from nuvec.core.ops.selection import clip, where
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, transpose_p
from nuvec.core.ops.structure import Ints, slice_axis, slice_shape, slice_with
from nuvec.core.traceback import filtered

# Reading an index


class Index(NamedTuple):
    """What an index means for an array of some shape.

    start, stop, step -- the slice of every axis
    view    -- the shape it is then reshaped to
    axes    -- the axes of the view that arrays index
    arrays  -- those integer arrays; each is a NumPy array of checked values or an Array
    place   -- where the axes of the arrays stand in the result
    """

    start: Ints
    stop: Ints
    step: Ints
    view: Ints
    axes: Ints
    arrays: tuple[Any, ...]
    place: int

    @property
    def natural(self) -> Ints:
        """The shape gather gives."""
        if not self.axes:
            return self.view
        return gathered_shape(self.view, self.index_shape, self.axes)

    @property
    def index_shape(self) -> Ints:
        return np.broadcast_shapes(*[a.shape for a in self.arrays])

    @property
    def permutation(self) -> Ints | None:
        """From what gather gives to the result; None where they are the same."""
        if not self.axes or self.place == index_place(self.axes):
            return None
        rank, natural = len(self.index_shape), index_place(self.axes)
        if not rank:
            return None
        total = rank + len(self.view) - len(self.axes)
        block = range(natural, natural + rank)
        order = [a for a in range(total) if a not in block]
        order[self.place : self.place] = block
        return tuple(order)


def read_index(shape: Ints, index: Any, checked: bool = True) -> Index:
    """Make sense of a NumPy index.  `checked` says to refuse integers out of bounds now; slices
    never are.  Raises OutOfBoundsError, DtypeError and ShapeError."""
    entries = _expand(shape, index if type(index) is tuple else (index,))
    start, stop, step = [], [], []
    view: list[int] = []
    axes: list[int] = []
    arrays: list[Any] = []
    kinds = ""  # "a" for what NumPy counts as an advanced index, "." for an axis in between
    for entry in entries:
        axis = len(start)
        if entry is None:
            view.append(1)
            kinds += "."
        elif entry is Ellipsis:
            kinds += "e"  # separates even when it stands for no axis
        elif isinstance(entry, slice):
            bounds = entry.indices(shape[axis])
            if not range(*bounds):
                bounds = (0, 0, 1)
            start.append(bounds[0]), stop.append(bounds[1]), step.append(bounds[2])
            view.append(len(range(*bounds)))
            kinds += "."
        elif isinstance(entry, int):
            n = shape[axis]
            if not -n <= entry < n:
                raise OutOfBoundsError(
                    f"index {entry} is out of bounds for axis {axis} with size {n}, of an array "
                    f"of shape {shape}"
                )
            start.append(entry % n), stop.append(entry % n + 1), step.append(1)
            kinds += "a"
        else:
            array, consumes = entry
            if consumes:
                start.append(0), stop.append(shape[axis]), step.append(1)
                if checked and isinstance(array, np.ndarray):
                    check_bounds(array, axis, shape[axis], shape)
            axes.append(len(view))
            arrays.append(array)
            view.append(shape[axis] if consumes else 1)
            kinds += "a"
    if arrays:
        _check_broadcast(arrays)
    first = kinds.find("a")
    together = set(kinds[first : kinds.rfind("a") + 1]) <= {"a"}
    place = kinds[:first].count(".") if arrays and together else 0
    return Index(
        tuple(start), tuple(stop), tuple(step), tuple(view), tuple(axes), tuple(arrays), place
    )


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
        raise DtypeError(_index_message(dtypes.name(entry.dtype)))
    if isinstance(entry, np.ndarray | np.generic):
        if entry.dtype == np.bool_:
            return np.asarray(entry)
        if entry.dtype.kind not in "iu":
            raise DtypeError(_index_message(str(entry.dtype)))
        if not entry.ndim:
            return int(entry)
        if entry.dtype == np.uint64 and entry.size and entry.max() > np.iinfo(np.intp).max:
            raise OutOfBoundsError(f"index {entry.max()} is out of bounds")
        return np.array(entry, np.intp)  # a copy: its owner may write to it
    try:
        return operator.index(entry)
    except TypeError:
        raise DtypeError(_index_message(f"{type(entry).__name__} {entry!r}")) from None


def _holds_arrays(entry: Any) -> bool:
    if isinstance(entry, list | tuple):
        return any(_holds_arrays(e) for e in entry)
    return isinstance(entry, Array)


def _index_message(given: str) -> str:
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


def _check_broadcast(arrays: Sequence[Any]) -> None:
    shapes = [a.shape for a in arrays]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        raise OutOfBoundsError(
            f"index arrays of shapes {' and '.join(map(str, shapes))} do not broadcast together: "
            "they select element by element. For all combinations index one axis at a time, "
            "x[i][:, j], or give i an axis: x[i[:, None], j]"
        ) from None


# Reading and writing at an Index


def index_operands(index: Index) -> list[Array]:
    """The index arrays as operands."""
    return [
        from_numpy(a, copy=False) if isinstance(a, np.ndarray) else a for a in index.arrays
    ]


def view_of(x: Array, index: Index) -> Array:
    """`x` cut and reshaped: what the arrays of the index then index."""
    x = slice_with(x, index.start, index.stop, index.step)
    return x if x.shape == index.view else reshape_p.bind(x, shape=index.view)


def read(x: Array, index: Index, mode: str = "raise") -> Array:
    """`x[index]`; with mode "drop", zero where an index is out of bounds."""
    x = view_of(x, index)
    if index.axes:
        x = gather_p.bind(x, *index_operands(index), axes=index.axes, mode=mode)
        permutation = index.permutation
        if permutation is not None:
            x = transpose_p.bind(x, permutation=permutation)
    return x


def write(x: Array, index: Index, view: Array) -> Array:
    """`x` with what `view_of` cuts from it replaced."""
    if index.start == (0,) * x.ndim and index.stop == x.shape and set(index.step) <= {1}:
        return view if view.shape == x.shape else reshape_p.bind(view, shape=x.shape)
    bounds = {"start": index.start, "stop": index.stop, "step": index.step}
    shape = slice_shape(**bounds)
    if view.shape != shape:
        view = reshape_p.bind(view, shape=shape)
    return update_slice_p.bind(x, view, **bounds)


def is_unique(index: Index) -> bool:
    """Whether it is known that no two positions of the index are the same."""
    if not all(isinstance(a, np.ndarray) for a in index.arrays):
        return False
    sizes = [index.view[a] for a in index.axes]
    if 0 in sizes:
        return True
    inside = [a % n for a, n in zip(index.arrays, sizes, strict=True)]
    linear = np.ravel_multi_index(np.broadcast_arrays(*inside), sizes)
    return np.unique(linear).size == linear.size


def natural_value(value: Any, x: Array, index: Index, name: str) -> Array:
    """A value to be written to `x[index]`: in x's dtype, in the shape and order of the gather."""
    value = cast_value(value, x, name)
    permutation = index.permutation
    natural = index.natural
    target = natural if permutation is None else tuple(natural[p] for p in permutation)
    value = broadcast_value(value, target, x, name)
    if permutation is not None:
        inverse = tuple(map(permutation.index, range(len(permutation))))
        value = transpose_p.bind(value, permutation=inverse)
    return value


def broadcast_value(value: Array, target: Ints, x: Array, name: str) -> Array:
    shape = value.shape
    while len(shape) > len(target) and shape[0] == 1:  # NumPy lets go of leading ones here
        shape = shape[1:]
    try:
        fits = np.broadcast_shapes(shape, target) == target
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name}: a value of shape {value.shape} does not broadcast to {target}, the shape of "
            f"what the index selects from an array of shape {x.shape}"
        )
    if shape != value.shape:
        value = reshape_p.bind(value, shape=shape)
    return value if shape == target else broadcast_to_p.bind(value, shape=target)


def _rank(dtype: np.dtype) -> int:
    if dtypes.is_bool(dtype):
        return 0
    if dtypes.is_integer(dtype):
        return 2 if dtypes.is_signed(dtype) else 1
    return 4 if dtypes.is_complex(dtype) else 3


def cast_value(value: Any, x: Array, name: str) -> Array:
    """A value in the dtype of the array it is written into.  Widths may change; a kind that holds
    more (float into int, complex into float, signed into unsigned) is refused."""
    value = asarray(value) if isinstance(value, list | tuple) else operand(value, f"{name}'s value")
    weak_int = value.aval.weak and dtypes.is_integer(value.dtype) and dtypes.is_integer(x.dtype)
    if _rank(value.dtype) > _rank(x.dtype) and not weak_int:
        wanted = dtypes.name(value.dtype)
        raise DtypeError(
            f"{name}: {value.aval} cannot be written into {x.aval} without losing what it is. "
            f"Convert the array first, x = x.astype(nv.{wanted}), or the value, "
            f"v.astype(nv.{dtypes.name(x.dtype)})"
        )
    return as_operand(value, x.dtype)


# Public


@filtered
def getitem(x: Any, index: Any) -> Array:
    """`x[index]` with NumPy's rules: integers, slices, `None`, `...`, integer arrays and lists
    (which broadcast together), boolean masks.

    Raises OutOfBoundsError (an IndexError) for an integer out of bounds: now when it is a Python
    or NumPy value, when the result is evaluated when it is an Array.  A boolean mask must have
    its values, for the result's shape depends on them: ConcretizationError inside vmap and
    compile.

    >>> import nuvec as nv
    >>> x = nv.array([[1, 2, 3], [4, 5, 6]])
    >>> x[:, [0, 2]]
    array([[1, 3],
           [4, 6]], dtype=int32)
    """
    if type(x) is not Array:
        x = operand(x, "the indexed array")
    if type(index) is int and x.ndim:
        n = x.shape[0]
        if -n <= index < n:
            item = slice_axis(x, 0, index % n, index % n + 1)
            return reshape_p.bind(item, shape=x.shape[1:])
    return read(x, read_index(x.shape, index))


def mask_of(x: Array, index: Any) -> Array | None:
    """The mask, where the index is nothing but one that fits the leading axes of `x`."""
    if type(index) is tuple and len(index) == 1:
        index = index[0]
    if not isinstance(index, Array | np.ndarray) or not dtypes.is_bool(index.dtype):
        return None
    if not index.ndim or index.shape != x.shape[: index.ndim]:
        return None
    return operand(index)


def write_mask(x: Array, mask: Array, value: Array) -> Array:
    """`x` with `value` where `mask` (on the leading axes) is true."""
    mask = reshape_p.bind(mask, shape=mask.shape + (1,) * (x.ndim - mask.ndim))
    return where(mask, value, x)


@filtered
def setitem_value(x: Array, index: Any, value: Any) -> Array:
    """The new value of `x` for the statement `x[index] = value`.

    `value` is broadcast to the shape of `x[index]` and converted to x's dtype; of several values
    for one element the last one stays.  A mask with a value that does not depend on its true
    positions needs no values, so it works inside vmap and compile.  Raises as `getitem`,
    ShapeError when `value` does not broadcast, and DtypeError when x's dtype is of a kind that
    cannot hold it (float into int).
    """
    mask = mask_of(x, index)
    if mask is not None:
        cast = cast_value(value, x, "x[mask] = v")
        if cast.ndim <= x.ndim - mask.ndim:
            cast = broadcast_value(cast, x.shape[mask.ndim :], x, "x[mask] = v")
            return write_mask(x, mask, cast)
    read_as = read_index(x.shape, index)
    value = natural_value(value, x, read_as, "x[i] = v")
    return put(x, read_as, value)


def put(x: Array, index: Index, value: Array, mode: str = "raise") -> Array:
    """`x` with a natural value at an index."""
    if index.axes:
        value = scatter_set_p.bind(
            view_of(x, index), value, *index_operands(index),
            axes=index.axes, mode=mode, unique=is_unique(index),
        )  # fmt: skip
    return write(x, index, value)


@filtered
def take(x: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Array:
    """The items of `x` along `axis` at `indices`, an integer array of any shape, as `np.take`.

    Without an axis `x` is flattened.  mode "raise" refuses indices out of bounds, "wrap" takes
    them modulo the size, "clip" takes the nearest item (so negative ones are the first).

    >>> import nuvec as nv
    >>> nv.take(nv.array([10, 20, 30]), nv.array([2, 0]))
    array([30, 10], dtype=int32)
    """
    x = operand(x, "take's operand")
    if axis is None:
        x, axis = reshape_p.bind(x, shape=(x.size,)), 0
    axis = normalize_axis(axis, x.ndim, "take")
    n = x.shape[axis]
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"take: mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    if not isinstance(indices, Array):
        indices = np.asarray(indices)
        if not indices.size:
            indices = indices.astype(np.intp)
    if not dtypes.is_integer(indices.dtype):
        raise DtypeError(_index_message(str(indices.dtype)))
    if mode != "raise":
        if not n and indices.size:
            raise OutOfBoundsError(f"take: axis {axis} of shape {x.shape} has no items to take")
        indices = _into_range(indices, n, mode)
    return read(x, read_index(x.shape, (slice(None),) * axis + (indices,)))


def _into_range(indices: Any, n: int, mode: str) -> Any:
    """Indices made to lie in [0, n), in a dtype that can tell them apart."""
    if isinstance(indices, np.ndarray):
        wide = indices.astype(np.intp)
        return wide % max(n, 1) if mode == "wrap" else np.clip(wide, 0, max(n - 1, 0))
    wide_array = as_operand(indices, dtypes.int64)
    if mode == "wrap":
        return remainder(wide_array, max(n, 1))
    return clip(wide_array, 0, max(n - 1, 0))

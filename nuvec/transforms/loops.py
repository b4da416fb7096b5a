"""Loops made of scan and while_loop: fori_loop, map, associative_scan."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy, literal, operand
from nuvec.core.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError, TreeError
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.build import converted, normalize_axis
from nuvec.core.ops.comparison import less
from nuvec.core.ops.shape import move_axis, reshape
from nuvec.core.ops.structure import concatenate, flip
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import arrays_of, call, require_function
from nuvec.transforms.bodies import CARRIED, Names, same_structure
from nuvec.transforms.scan import scan_as
from nuvec.transforms.vmap import vmap
from nuvec.transforms.while_loop import while_as


@filtered
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any, *,
    unroll: int | bool = 1,
) -> Any:  # fmt: skip
    """`for i in range(lower, upper): carry = body_fun(i, carry)`, from `init`; the last carry.

    lower, upper -- integer scalars from -2^63 to 2^63 - 1.  Where their values are known (Python
                    integers, arrays outside of compile, vmap, checkpoint and bodies of control
                    flow) the loop is a scan, differentiable in both modes, that draws from the
                    default random stream as a Python loop does; where not, a while_loop, which has
                    forward mode alone, and a random stream of its own
    body_fun     -- returns a carry of the structure, shapes and dtypes of `init`; `i` is an int32
                    (int64 where the bounds need it)
    unroll       -- as scan's, for known bounds

    Random draws without a key are the Python loop's where the bounds are known; where not, they
    are while_loop's, from a stream of the loop's own.

    Raises DtypeError and ShapeError for bounds that are not integer scalars.

    >>> import nuvec as nv
    >>> nv.fori_loop(1, 5, lambda i, c: c * i, 1)
    array(24, dtype=int32)
    """
    require_function("fori_loop", body_fun, "body_fun")

    def next_of(i: Array, carry: Any) -> Any:
        return call(body_fun, (i, carry), "fori_loop calls body_fun with (i, carry)")

    bounds = [_bound(b, name) for b, name in ((lower, "lower"), (upper, "upper"))]
    first, end = _known(bounds[0]), _known(bounds[1])
    if first is None or end is None:
        return _traced_fori(bounds[0], bounds[1], next_of, init)
    weak = all(isinstance(b, int) for b in bounds)
    dtype = _index_dtype(bounds)
    numbers = from_numpy(np.arange(first, max(first, end), dtype=dtype))

    def step(carry: Any, i: Array) -> Any:
        # Python integers are weak: so is what counts between them.
        return next_of(converted(i, i.dtype, True) if weak else i, carry), None

    return scan_as(_FORI, step, init, numbers, unroll=unroll)[0]


# As the scan it is, and as the while_loop, whose carry is the index, its bound and the user's.
_FORI = Names("fori_loop", (((0,), "carry"), ((1,), "i")), (((0,), "the next carry"),))
_TRACED_FORI = Names(
    "fori_loop", (((0, 0), "i"), ((0, 1), "upper"), ((0, 2), "carry")), (((2,), "the next carry"),)
)


def _bound(value: Any, name: str) -> Any:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return value
    array = operand(value, f"fori_loop's {name}")
    if array.shape != () or not dtypes.is_integer(array.dtype):
        kind = ShapeError if array.shape else DtypeError
        raise kind(f"fori_loop: {name} must be an integer scalar, got {array.aval}")
    return array


def _known(bound: Any) -> int | None:
    if not isinstance(bound, Array):
        return operator.index(bound)
    try:
        return int(bound.item())
    except ConcretizationError:
        return None


def _index_dtype(bounds: Sequence[Any]) -> np.dtype:
    """int32 where that holds the bounds, whatever their dtypes are: the index is computed with."""

    def fits(b: Any) -> bool:
        if isinstance(b, int):
            return -(2**31) <= b < 2**31
        return bool(np.can_cast(b.dtype, dtypes.int32))

    return dtypes.int32 if all(fits(b) for b in bounds) else dtypes.int64


def _traced_fori(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any) -> Any:
    dtype = _index_dtype((lower, upper))
    first, end = (
        literal(b, dtype) if isinstance(b, int) else converted(operand(b), dtype)
        for b in (lower, upper)
    )

    structure = tree.structure(init)
    init = tree.unflatten(structure, _FORI.init(init))

    def step(state: Any) -> Any:
        i, end, carry = state
        following = body_fun(i, carry)
        same_structure("fori_loop", structure, tree.structure(following), CARRIED)
        return add(i, 1), end, following

    def going(state: Any) -> Array:
        return less(state[0], state[1])

    return while_as(_TRACED_FORI, going, step, (first, end, init))[2]


@filtered
def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` applied to every slice of `xs` along its leading axis, one after the other; stacked.

    xs         -- an array or a tree of them, with one leading size
    batch_size -- how many slices go through `vmap(f)` at once (which draws other random numbers
                  for each); one at a time when None, as in a Python loop

    Unlike vmap, at most `batch_size` elements' intermediate values are in memory at a time.

    >>> import nuvec as nv
    >>> nv.map(lambda x: x * x, nv.arange(4))
    array([0, 1, 4, 9], dtype=int32)
    """

    require_function("map", f)

    def one(carry: Any, x: Any) -> Any:
        return carry, call(f, (x,), "map calls its function with (x)")

    if batch_size is None:
        return scan_as(_MAP, one, None, xs)[1]
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ArgumentError(f"map: batch_size must be an integer >= 1, got {batch_size!r}")
    leaves, structure = tree.flatten(xs)
    leaves = arrays_of(leaves, structure, lambda p: f"map: xs{tree.keystr(p)}")
    xs = tree.unflatten(structure, leaves)
    sizes = {x.shape[0] if x.shape else -1 for x in leaves}
    if len(sizes) != 1 or -1 in sizes:
        raise ShapeError(
            "map: xs must have arrays of one leading size, got shapes "
            + (", ".join(str(x.shape) for x in leaves) or "of none")
        )
    (size,) = sizes
    whole = size // batch_size * batch_size
    mapped = vmap(f)
    parts = []
    if whole or not size:
        blocks = tree.map(
            lambda x: reshape(x[:whole], (whole // batch_size, batch_size, *x.shape[1:])), xs
        )
        found = scan_as(_MAP, lambda carry, x: (carry, mapped(x)), None, blocks)[1]
        parts.append(tree.map(lambda y: reshape(y, (whole, *y.shape[2:])), found))
    if whole < size:
        parts.append(mapped(tree.map(lambda x: x[whole:], xs)))
    return parts[0] if len(parts) == 1 else tree.map(lambda *ys: concatenate(ys), *parts)


_MAP = Names("map", (((1,), "x"),), (((1,), "output"),))


@filtered
def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All prefixes `elems[0], fn(elems[0], elems[1]), ...` along `axis`, in logarithmic depth.

    fn      -- associative: `fn(fn(a, b), c) == fn(a, fn(b, c))`.  It is given slices of many
               elements along `axis` at once, as trees of the structure of `elems`
    elems   -- an array or a tree of them, of one size along `axis`
    reverse -- from the last element to the first: `fn` gets what lies behind first, as JAX's

    Raises TreeError when `fn` changes the structure, ShapeError when it changes shapes.

    >>> import nuvec as nv
    >>> nv.associative_scan(nv.add, nv.arange(5))
    array([ 0,  1,  3,  6, 10], dtype=int32)
    """
    require_function("associative_scan", fn)
    leaves, structure = tree.flatten(elems)
    places = [tree.keystr(p) for p in structure.paths()]
    arrays = arrays_of(leaves, structure, lambda p: f"associative_scan: elems{tree.keystr(p)}")
    if not arrays:
        raise TreeError("associative_scan: elems has no arrays")
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ArgumentError(f"associative_scan: axis must be an integer, got {axis!r}")
    axes = [
        normalize_axis(axis, x.ndim, f"associative_scan: elems{place}")
        for x, place in zip(arrays, places, strict=True)
    ]
    moved = [move_axis(x, a, 0) for x, a in zip(arrays, axes, strict=True)]
    if len({x.shape[0] for x in moved}) > 1:
        raise ShapeError(
            f"associative_scan: sizes along axis {axis} differ: "
            + ", ".join(f"elems{p}: {x.shape}" for p, x in zip(places, arrays, strict=True))
        )

    def combine(a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
        """fn on elements whose axis is in front, as it sees them: along `axis`."""
        back = [
            tree.unflatten(structure, [move_axis(x, 0, k) for x, k in zip(side, axes, strict=True)])
            for side in (a, b)
        ]
        says = "associative_scan calls fn with two trees like elems"
        found, out = tree.flatten(call(fn, back, says))
        if out != structure:
            raise TreeError(
                f"associative_scan: fn must return the structure of elems, {structure}, and it "
                f"returned {out}"
            )
        outs = arrays_of(
            found, structure, lambda p: f"associative_scan: fn's output{tree.keystr(p)}"
        )
        for x, y, place in zip(tree.leaves(back[0]), outs, places, strict=True):
            if x.shape != y.shape or (x.dtype != y.dtype and not x.aval.weak):
                raise (ShapeError if x.shape != y.shape else DtypeError)(
                    f"associative_scan: fn must keep shapes and dtypes, and of {x.aval} in "
                    f"elems{place} it made {y.aval}"
                )
        return [move_axis(x, k, 0) for x, k in zip(outs, axes, strict=True)]

    if reverse:
        moved = [flip(x, 0) for x in moved]
    prefixes = _prefixes(combine, moved)
    if reverse:
        prefixes = [flip(x, 0) for x in prefixes]
    return tree.unflatten(
        structure, [move_axis(x, 0, k) for x, k in zip(prefixes, axes, strict=True)]
    )


def _prefixes(
    combine: Callable[[Sequence[Array], Sequence[Array]], list[Array]], xs: Sequence[Array]
) -> list[Array]:
    """Pairs are combined, their prefixes found, and those in between made from these."""
    size = xs[0].shape[0]
    if size < 2:
        return list(xs)
    pairs = combine([x[0 : size - 1 : 2] for x in xs], [x[1::2] for x in xs])
    odd = _prefixes(combine, pairs)
    if size == 2:
        even: list[Array] = []
    else:
        rest = [x[2::2] for x in xs]
        count = rest[0].shape[0]
        even = combine([x[:count] for x in odd], rest)
    return [
        _interleaved(x[:1], o, even[k] if even else None)
        for k, (x, o) in enumerate(zip(xs, odd, strict=True))
    ]


def _interleaved(first: Array, odd: Array, even: Array | None) -> Array:
    """first, odd[0], even[0], odd[1], even[1], ..."""
    if even is None:
        return concatenate([first, odd])
    count, shape = even.shape[0], odd.shape[1:]
    both = concatenate(
        [reshape(odd[:count], (count, 1, *shape)), reshape(even, (count, 1, *shape))], axis=1
    )
    parts = [first, reshape(both, (2 * count, *shape))]
    if odd.shape[0] > count:
        parts.append(odd[count:])
    return concatenate(parts)

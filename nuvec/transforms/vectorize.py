"""vectorize: a function of arrays of fixed rank, over every further axis its arguments have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any

from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, ShapeError, TreeError
from nuvec.core.ops.shape import reshape
from nuvec.core.primitive import local_handle
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import bind_arguments, require_function, signature_of
from nuvec.transforms.grad import name_of
from nuvec.transforms.vmap import vmap_as

Dims = tuple[str, ...]  # the names of the core dimensions of one argument or output

_CORE = re.compile(r"\(\s*((?:\w+\s*,\s*)*\w+)?\s*,?\s*\)")


def parse_signature(signature: str) -> tuple[list[Dims], list[Dims]]:
    """The core dimensions of arguments and outputs: "(n,m),(m)->(n)"."""
    sides = signature.split("->")
    if len(sides) != 2:
        raise ArgumentError(
            f"vectorize: signature {signature!r} must have one '->', as in '(n,m),(m)->(n)'"
        )
    return _parse_side(sides[0], signature), _parse_side(sides[1], signature)


def _parse_side(text: str, signature: str) -> list[Dims]:
    found: list[Dims] = []
    place = 0
    text = text.strip()
    while place < len(text):
        match = _CORE.match(text, place)
        if match is None:
            raise ArgumentError(
                f"vectorize: cannot read {text[place:]!r} in signature {signature!r}; arguments "
                "are parentheses with names or sizes between commas, as in '(n,m),(m)->(n)'"
            )
        found.append(tuple(d.strip() for d in (match.group(1) or "").split(",") if d.strip()))
        place = match.end()
        rest = re.match(r"\s*,\s*", text[place:])
        if rest is None and text[place:].strip():
            raise ArgumentError(
                f"vectorize: expected a comma before {text[place:]!r} in signature {signature!r}"
            )
        place += rest.end() if rest else len(text) - place
    return found


@filtered
def vectorize(
    pyfunc: Callable[..., Any],
    *,
    excluded: Collection[int | str] = frozenset(),
    signature: str | None = None,
) -> Callable[..., Any]:
    """`pyfunc`, written for arrays of fixed rank, over all leading axes its arguments have.

    signature -- the core dimensions `pyfunc` works on, as "(n,m),(m)->(n)"; scalars without one.
                 Equal names are equal sizes, a number is a size.  All axes before them are loop
                 dimensions, which broadcast against each other as NumPy's do
    excluded  -- a set of positions and names of arguments that are passed as they are; each may
                 be passed by position or by keyword, whichever way it is named here

    Each loop dimension becomes a vmap, so `pyfunc` is called once and must not depend on values.
    Arguments may be passed by keyword: the signature's arguments are `pyfunc`'s, in its order,
    without those excluded or left out; keyword-only ones come last.

    Raises ShapeError when an argument has fewer axes than its core dimensions, sizes of one name
    differ, loop dimensions do not broadcast, or an output is not as the signature says: it names
    the argument and the dimension.  ValueError when the signature cannot be read, or `pyfunc` has
    no argument that is excluded.

    >>> import nuvec as nv
    >>> matvec = nv.vectorize(nv.dot, signature="(n,m),(m)->(n)")
    >>> matvec(nv.ones((5, 1, 2, 3)), nv.ones((4, 3))).shape
    (5, 4, 2)
    """
    require_function("vectorize", pyfunc)
    if signature is not None and not isinstance(signature, str):
        raise ArgumentError(f"vectorize: signature must be a string, got {signature!r}")
    parsed = None if signature is None else parse_signature(signature)
    name = f"vectorize of {name_of(pyfunc)}"
    fixed = _fixed(name, pyfunc, excluded)

    @wraps(pyfunc)
    @filtered
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, labels = bind_arguments(pyfunc, args, kwargs, name)
        moving: dict[int | str, str] = {  # where each argument is that has loop dimensions
            i: label for i, label in enumerate(labels) if i not in fixed and label not in fixed
        }
        moving |= {k: k for k in kwargs if k not in fixed}
        given: dict[int | str, Any] = dict(enumerate(args))
        given.update(kwargs)
        names = list(moving.values())
        arrays = [operand(given[place], f"{name}: {label}") for place, label in moving.items()]
        inputs, outputs = ([()] * len(arrays), None) if parsed is None else parsed
        if len(inputs) != len(arrays):
            raise ArgumentError(
                f"{name}: signature {signature!r} has {len(inputs)} arguments, and the call "
                f"{len(arrays)} ({', '.join(names)})"
            )
        sizes = _core_sizes(name, arrays, names, inputs)
        loops = [a.shape[: a.ndim - len(core)] for a, core in zip(arrays, inputs, strict=True)]
        loop = _broadcast(name, loops, names)

        def core(*xs: Array) -> Any:
            # Handles of their own: what pyfunc assigns to an argument stays local to it.
            values = given | dict(zip(moving, xs, strict=True))
            values = {k: local_handle(v) if isinstance(v, Array) else v for k, v in values.items()}
            named = {k: values[k] for k in kwargs}
            result = pyfunc(*[values[i] for i in range(len(args))], **named)
            return _checked(name, result, outputs, sizes)

        core.__name__ = name_of(pyfunc)
        return _mapped(name, core, arrays, names, loops, loop)

    return vectorized


def _fixed(
    name: str, pyfunc: Callable[..., Any], excluded: Collection[int | str]
) -> frozenset[int | str]:
    """The excluded arguments, by position and by name: each in both ways, where it has both."""
    if isinstance(excluded, str) or not isinstance(excluded, Collection):
        raise ArgumentError(
            f"{name}: excluded must be a set of positions and argument names, got {excluded!r}; "
            f"write {{{excluded!r}}}"
        )
    for e in excluded:
        if isinstance(e, bool) or not isinstance(e, int | str) or (isinstance(e, int) and e < 0):
            raise ArgumentError(f"{name}: excluded must be positions or argument names, got {e!r}")
    signature = signature_of(pyfunc)
    if signature is None:
        return frozenset(excluded)
    parameters = signature.parameters
    kinds = [p.kind for p in parameters.values()]
    names = [k for k, p in parameters.items() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    wrong = [
        e for e in excluded
        if (e not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds
            if isinstance(e, str)
            else e >= len(names) and inspect.Parameter.VAR_POSITIONAL not in kinds)
    ]  # fmt: skip
    if wrong:
        raise ArgumentError(
            f"{name}: excluded={set(excluded)!r} names {wrong!r}, and the arguments are "
            f"{list(parameters)}"
        )
    both = {names[e] for e in excluded if isinstance(e, int) and e < len(names)}
    return frozenset(excluded) | both


def _core_sizes(
    name: str, arrays: Sequence[Array], names: Sequence[str], inputs: Sequence[Dims]
) -> dict[str, tuple[int, str]]:
    """The size of each core dimension, and who gave it."""
    sizes: dict[str, tuple[int, str]] = {}
    for a, label, dims in zip(arrays, names, inputs, strict=True):
        if a.ndim < len(dims):
            raise ShapeError(
                f"{name}: {label} has shape {a.shape}, and its core dimensions "
                f"({','.join(dims)}) need at least {len(dims)} axes"
            )
        for dim, size in zip(dims, a.shape[a.ndim - len(dims) :], strict=True):
            _agree(name, label, dim, size, sizes)
    return sizes


def _agree(name: str, label: str, dim: str, size: int, sizes: dict[str, tuple[int, str]]) -> None:
    expected, by = (int(dim), "the signature") if dim.isdecimal() else sizes.get(dim, (size, label))
    if size != expected:
        raise ShapeError(
            f"{name}: core dimension {dim!r} has size {size} in {label} and {expected} in {by}"
        )
    sizes.setdefault(dim, (size, label))


def _broadcast(
    name: str, loops: Sequence[tuple[int, ...]], names: Sequence[str]
) -> tuple[int, ...]:
    rank = max((len(s) for s in loops), default=0)
    found = []
    for d in range(-rank, 0):
        size, by = 1, ""
        for shape, label in zip(loops, names, strict=True):
            if -d > len(shape) or shape[d] == 1:
                continue
            if by and shape[d] != size:
                raise ShapeError(
                    f"{name}: loop dimension {d} has size {size} in {by} and {shape[d]} in "
                    f"{label}; sizes must be 1 or equal"
                )
            size, by = shape[d], label
        found.append(size)
    return tuple(found)


def _mapped(
    name: str, core: Callable[..., Any], arrays: Sequence[Array], names: Sequence[str],
    loops: Sequence[tuple[int, ...]], loop: tuple[int, ...],
) -> Any:  # fmt: skip
    """`core` under one vmap a loop dimension, which maps the arguments that have it."""
    function = core
    rank = len(loop)
    has = [  # by argument: whether it has each of the loop dimensions in full
        [d >= rank - len(s) and s[d - rank] == loop[d] for d in range(rank)] for s in loops
    ]
    for d in reversed(range(rank)):
        in_axes = tuple(0 if h[d] else None for h in has)
        function = vmap_as(name, function, in_axes, labels=names)
    squeezed = []
    for a, s, h in zip(arrays, loops, has, strict=True):
        kept = tuple(n for d, n in zip(range(rank - len(s), rank), s, strict=True) if h[d])
        squeezed.append(reshape(a, (*kept, *a.shape[len(s) :])))
    return function(*squeezed)


def _checked(
    name: str, result: Any, outputs: list[Dims] | None, sizes: dict[str, tuple[int, str]]
) -> Any:
    """The function's result, each output with the core dimensions of the signature."""
    many = tuple(result) if isinstance(result, tuple | list) else (result,)
    if outputs is None:
        outputs = [()] * len(many)
    if len(many) != len(outputs):
        raise TreeError(
            f"{name}: the function returned {len(many)} outputs, and the signature has "
            f"{len(outputs)}"
        )
    sizes = dict(sizes)
    for i, (o, dims) in enumerate(zip(many, outputs, strict=True)):
        label = f"output {i}"
        out = operand(o, f"{name}: {label}")
        if out.ndim != len(dims):
            raise ShapeError(
                f"{name}: {label} has shape {out.shape} for one element, and its core dimensions "
                f"are ({','.join(dims)})"
            )
        for dim, size in zip(dims, out.shape, strict=True):
            _agree(name, label, dim, size, sizes)
    return many if isinstance(result, tuple | list) else result

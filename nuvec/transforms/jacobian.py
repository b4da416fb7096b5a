"""Jacobians and Hessians: a derivative applied to every basis vector at once, by vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import DtypeError
from nuvec.core.ir import Aval
from nuvec.core.ops.shape import reshape
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import integers, positions_of, require_function
from nuvec.transforms.grad import Argnums, label_at, name_of, vjp_as
from nuvec.transforms.linearize import linearize_as
from nuvec.transforms.vmap import vmap


def _basis(avals: Sequence[Aval]) -> list[Array]:
    """The standard basis of the space of some arrays, stacked: one [n, *shape] for each, n being
    the number of elements of all of them."""
    total = sum(a.size for a in avals)
    found, start = [], 0
    for a in avals:
        block = np.zeros((total, a.size), a.dtype)
        block[start : start + a.size] = np.eye(a.size, dtype=np.float32)
        found.append(from_numpy(block.reshape(total, *a.shape), copy=False))
        start += a.size
    return found


def _split_columns(x: Array, avals: Sequence[Aval], structure: Any, front: int) -> Any:
    """Cut the axis of basis vectors (the last) into the arrays it enumerates."""
    parts, start = [], 0
    for a in avals:
        part = x[..., start : start + a.size]
        parts.append(reshape(part, (*x.shape[:front], *a.shape)))
        start += a.size
    return tree.unflatten(structure, parts)


def _avals(where: Sequence[str], value: Sequence[Any], holomorphic: bool) -> list[Aval]:
    """The avals of leaves that are to be differentiated, or are the results."""
    avals = []
    for what, leaf in zip(where, value, strict=True):
        a = operand(leaf, what).aval
        wanted = dtypes.is_complex if holomorphic else dtypes.is_floating
        if not wanted(a.dtype):
            kind = "complex" if holomorphic else "real floating-point"
            if holomorphic:
                hint = "leave out holomorphic=True, or convert it with .astype(nv.complex64)"
            elif dtypes.is_complex(a.dtype):
                hint = (
                    "pass holomorphic=True where the function is holomorphic, else make it one of "
                    "real and imaginary parts"
                )
            else:
                hint = "convert it with .astype(nv.float32)"
            raise DtypeError(f"{what} is {a}; a Jacobian needs {kind} arrays: {hint}")
        avals.append(a)
    return avals


def _inputs(name: str, f: Any, values: tuple[Any, ...], places: Sequence[int], holomorphic: bool
            ) -> tuple[list[Aval], Any]:  # fmt: skip
    """The avals and the structure of the arguments to differentiate."""
    leaves, structure = tree.flatten(values)
    labels = [label_at(f, p) for p in places]
    where = [f"{name}: {labels[p[0].index]}{tree.keystr(p[1:])}" for p in structure.paths()]
    return _avals(where, leaves, holomorphic), structure


def _outputs(name: str, out: Any, holomorphic: bool) -> tuple[list[Aval], Any]:
    leaves, structure = tree.flatten(out)
    where = [f"{name}: output{tree.keystr(p)}" for p in structure.paths()]
    return _avals(where, leaves, holomorphic), structure


_HINT = "pass it by position"


def _with_arguments(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[int]
) -> Callable[..., Any]:
    def only(*values: Any) -> Any:
        fresh = list(args)
        for place, value in zip(places, values, strict=True):
            fresh[place] = value
        return f(*fresh, **kwargs)

    return only


@filtered
def jacfwd(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Jacobian of `f` by forward mode: best where the inputs are fewer than the outputs.

    The result has `f`'s output structure; each leaf of shape [*out] becomes a tree like the
    argument, with leaves of shape [*out, *in] (a tuple of such trees for a sequence of argnums).
    With `has_aux`, (Jacobian, aux).  Real inputs, unless `holomorphic`.  The tangents of all basis
    vectors are pushed at once, by vmap.

    >>> import nuvec as nv
    >>> nv.jacfwd(lambda x: x * x)(nv.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    return _jacfwd("jacfwd", f, argnums, has_aux, holomorphic)


def _jacfwd(
    kind: str, f: Callable[..., Any], argnums: Argnums, has_aux: bool, holomorphic: bool
) -> Callable[..., Any]:
    """jacfwd; errors name it `kind`."""
    require_function(kind, f)
    name = f"{kind} of {name_of(f)}"
    numbers, single = integers(f"{name}: argnums", argnums), not isinstance(argnums, Sequence)

    @wraps(f)
    @filtered
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places = positions_of(name, numbers, args, _HINT)
        values = tuple(args[p] for p in places)
        avals, structure = _inputs(name, f, values, places, holomorphic)
        found = linearize_as(name, _with_arguments(f, args, kwargs, places), values, has_aux)
        out, push = found[0], found[1]
        _outputs(name, out, holomorphic)
        size = sum(a.size for a in avals)
        columns = vmap(push, out_axes=-1, axis_size=size)(*tree.unflatten(structure, _basis(avals)))

        def columns_of(x: Array) -> Any:
            cut = _split_columns(x, avals, structure, x.ndim - 1)
            return cut[0] if single else cut

        result = tree.map(columns_of, columns)
        return (result, found[2]) if has_aux else result

    return jacobian


@filtered
def jacrev(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Jacobian of `f` by reverse mode: best where the outputs are fewer than the inputs.

    Takes and returns what `jacfwd` does.  The cotangents of all basis vectors are pulled at once,
    by vmap.

    >>> import nuvec as nv
    >>> nv.jacrev(lambda x: x * x)(nv.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    return _jacrev("jacrev", f, argnums, has_aux, holomorphic)


def _jacrev(
    kind: str, f: Callable[..., Any], argnums: Argnums, has_aux: bool, holomorphic: bool
) -> Callable[..., Any]:
    """jacrev; errors name it `kind`."""
    require_function(kind, f)
    name = f"{kind} of {name_of(f)}"
    numbers, single = integers(f"{name}: argnums", argnums), not isinstance(argnums, Sequence)

    @wraps(f)
    @filtered
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places = positions_of(name, numbers, args, _HINT)
        values = tuple(args[p] for p in places)
        _inputs(name, f, values, places, holomorphic)
        found = vjp_as(name, _with_arguments(f, args, kwargs, places), values, has_aux)
        out, pull = found[0], found[1]
        avals, structure = _outputs(name, out, holomorphic)
        size = sum(a.size for a in avals)
        rows = vmap(pull, axis_size=size)(tree.unflatten(structure, _basis(avals)))
        leaves, in_structure = tree.flatten(rows[0] if single else rows)
        cut, start = [], 0
        for a in avals:
            block = [reshape(x[start : start + a.size], (*a.shape, *x.shape[1:])) for x in leaves]
            cut.append(tree.unflatten(in_structure, block))
            start += a.size
        result = tree.unflatten(structure, cut)
        return (result, found[2]) if has_aux else result

    return jacobian


@filtered
def hessian(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Hessian of `f`: `jacfwd` of `jacrev`.

    For a scalar function of an array of shape [*in]: shape [*in, *in].

    >>> import nuvec as nv
    >>> nv.hessian(lambda x: (x**3).sum())(nv.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    first = _jacrev("hessian", f, argnums, has_aux, holomorphic)
    return _jacfwd("hessian", first, argnums, has_aux, holomorphic)

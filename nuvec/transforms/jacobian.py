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
from nuvec.transforms.grad import Argnums, name_of, positions_of
from nuvec.transforms.grad import vjp as vjp_of
from nuvec.transforms.linearize import linearize
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


def _avals(what: str, value: Any, holomorphic: bool) -> tuple[list[Aval], Any]:
    """The avals of a tree whose leaves are to be differentiated, or are the results."""
    paths, structure = tree.flatten_with_path(value)
    avals = []
    for path, leaf in paths:
        a = operand(leaf, f"{what}{tree.keystr(path)}").aval
        wanted = dtypes.is_complex if holomorphic else dtypes.is_floating
        if not wanted(a.dtype):
            kind = "complex" if holomorphic else "real floating-point"
            hint = (
                "holomorphic=True is for complex ones"
                if dtypes.is_complex(a.dtype)
                else "convert it with .astype(nv.float32)"
            )
            raise DtypeError(
                f"{what}{tree.keystr(path)} is {a}; a Jacobian needs {kind} arrays: {hint}"
            )
        avals.append(a)
    return avals, structure


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

    @wraps(f)
    @filtered
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places, single = positions_of(argnums, args, f)
        values = tuple(args[p] for p in places)
        what = f"jacfwd of {name_of(f)}: an argument"
        avals, structure = _avals(what, values, holomorphic)
        found = linearize(_with_arguments(f, args, kwargs, places), *values, has_aux=has_aux)
        out, push = found[0], found[1]
        _avals(f"jacfwd of {name_of(f)}: the output", out, holomorphic)
        columns = vmap(push, out_axes=-1)(*tree.unflatten(structure, _basis(avals)))

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

    @wraps(f)
    @filtered
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places, single = positions_of(argnums, args, f)
        values = tuple(args[p] for p in places)
        _avals(f"jacrev of {name_of(f)}: an argument", values, holomorphic)
        found = vjp_of(_with_arguments(f, args, kwargs, places), *values, has_aux=has_aux)
        out, pull = found[0], found[1]
        avals, structure = _avals(f"jacrev of {name_of(f)}: the output", out, holomorphic)
        rows = vmap(pull)(tree.unflatten(structure, _basis(avals)))
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
    first = jacrev(f, argnums, has_aux=has_aux, holomorphic=holomorphic)
    return jacfwd(first, argnums, has_aux=has_aux, holomorphic=holomorphic)

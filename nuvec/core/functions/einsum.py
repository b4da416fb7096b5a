"""einsum: Einstein summation as a sequence of matrix products.

Each operand is first tidied: a repeated label becomes a diagonal, an axis of size 1 whose label
has another size elsewhere goes (it broadcasts), and what nobody else needs is summed.  Then pairs
of operands are contracted in the order that opt_einsum finds from the shapes: labels that both
have and nobody needs later are contracted, those needed later are batch axes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import opt_einsum

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.functions.structure import diagonal, permute
from nuvec.core.ops.arithmetic import multiply
from nuvec.core.ops.build import as_operand, promote_operands
from nuvec.core.ops.contraction import dot_general_p
from nuvec.core.ops.reduction import any_p
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, sum_p
from nuvec.core.traceback import filtered

Labels = tuple[str, ...]
Shape = tuple[int, ...]


class Subscripts(NamedTuple):
    """inputs -- the labels of every operand's axes; output -- those of the result; sizes"""

    inputs: tuple[Labels, ...]
    output: Labels
    sizes: dict[str, int]


# Reading subscripts


def _sublist_text(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """The text form of einsum(x, [0, 1], y, [1, 2], [0, 2])."""
    pairs = len(args) // 2
    operands, lists = list(args[0 : 2 * pairs : 2]), list(args[1 : 2 * pairs : 2])
    output = args[-1] if len(args) % 2 else None
    everything = lists if output is None else [*lists, output]
    names: dict[Any, str] = {}
    distinct = {entry for labels in everything for entry in labels if entry is not Ellipsis}
    for entry in sorted(distinct):
        names[entry] = opt_einsum.get_symbol(len(names))
    text = ["".join("..." if e is Ellipsis else names[e] for e in labels) for labels in everything]
    if output is None:
        return ",".join(text), operands
    return ",".join(text[:-1]) + "->" + text[-1], operands


@functools.lru_cache(maxsize=1024)
def _parse(text: str, shapes: tuple[Shape, ...]) -> Subscripts:
    """Labels for every axis.  The axes of an ellipsis get labels of their own ("...0", "...1",
    counted from the right), which makes the rest of einsum free of them."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ShapeError(
            f"einsum {text!r} names {len(terms)} operands, and {len(shapes)} are given, of shapes "
            f"{' and '.join(map(str, shapes))}"
        )
    inputs = tuple(_labels(t, text, s) for t, s in zip(terms, shapes, strict=True))
    sizes: dict[str, int] = {}
    owner: dict[str, Shape] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            known = sizes.get(label, 1)
            if n != known and 1 not in (n, known):
                raise ShapeError(
                    f"einsum {text!r}: label {label!r} has size {known} in an operand of shape "
                    f"{owner[label]} and size {n} in one of shape {shape}; an index has one size "
                    "everywhere (or 1, which broadcasts). Use another label, or transpose"
                )
            if label not in sizes or known == 1:
                sizes[label], owner[label] = n, shape
    hidden = {l for labels in inputs for l in labels if l[0] == "."}
    dots = sorted(hidden, key=lambda l: -int(l[3:]))
    if arrow:
        output = _output_labels(right, text, tuple(dots), sizes)
    else:
        flat = [l for labels in inputs for l in labels if l[0] != "."]
        output = (*dots, *sorted({l for l in flat if flat.count(l) == 1}))
    return Subscripts(inputs, output, sizes)


def _labels(term: str, text: str, shape: Shape) -> Labels:
    before, ellipsis, after = term.partition("...")
    for name in before + after:
        if not name.isalpha():
            raise ValueError(f"einsum {text!r}: {name!r} in {term!r} is no label; use letters")
    named = len(before) + len(after)
    hidden = len(shape) - named
    if hidden < 0 or (hidden and not ellipsis):
        raise ShapeError(
            f"einsum {text!r}: {term!r} names {named} axes, and the operand of shape {shape} has "
            f"{len(shape)}" + ("" if ellipsis or hidden < 0 else "; '...' stands for the others")
        )
    return (*before, *(f"...{k}" for k in reversed(range(hidden))), *after)


def _output_labels(term: str, text: str, dots: Labels, sizes: dict[str, int]) -> Labels:
    before, ellipsis, after = term.partition("...")
    output = (*before, *(dots if ellipsis else ()), *after)
    for label in output:
        if label not in sizes:
            raise ValueError(f"einsum {text!r}: {label!r} of the output is in no operand")
        if output.count(label) > 1:
            raise ValueError(f"einsum {text!r}: {label!r} stands twice in the output")
    if dots and not ellipsis:
        raise ShapeError(
            f"einsum {text!r}: '...' stands for axes that the output drops; write '...' there too"
        )
    return output


# The path


@functools.lru_cache(maxsize=1024)
def _path(
    inputs: tuple[Labels, ...], output: Labels, sizes: tuple[tuple[str, int], ...], optimize: Any
) -> tuple[tuple[int, ...], ...]:
    """The order of contractions, as opt_einsum gives it: positions taken out of the list of
    operands, the result appended."""
    count = len(inputs)
    if count <= 2:
        return (tuple(range(count)),)
    if optimize is False:
        return ((0, 1), *((0, n) for n in range(count - 2, 0, -1)))
    known = dict(sizes)
    symbols = {label: opt_einsum.get_symbol(i) for i, label in enumerate(known)}
    text = ",".join("".join(symbols[l] for l in labels) for labels in inputs)
    text += "->" + "".join(symbols[l] for l in output)
    shapes = [tuple(known[l] for l in labels) for labels in inputs]
    method = "auto" if optimize is True else optimize
    path, _ = opt_einsum.contract_path(text, *shapes, optimize=method, shapes=True)
    return tuple(tuple(step) for step in path)


# Contracting


class _Term(NamedTuple):
    """An array and the labels of its axes."""

    array: Array
    labels: Labels


def _tidy(term: _Term, sizes: dict[str, int], needed: frozenset[str]) -> _Term:
    """A term without repeated labels, broadcast axes and labels that nobody else needs."""
    array, labels = term
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            array = diagonal(_equal_sizes(array, a, b), 0, a, b)
            labels = (*(l for k, l in enumerate(labels) if k not in (a, b)), label)
    keep = [k for k, l in enumerate(labels) if array.shape[k] == sizes[l]]
    if len(keep) != len(labels):
        labels = tuple(labels[k] for k in keep)
        array = reshape_p.bind(array, shape=tuple(array.shape[k] for k in keep))
    alone = tuple(k for k, l in enumerate(labels) if l not in needed)
    if alone:
        array = _sum(array, alone)
        labels = tuple(l for l in labels if l in needed)
    return _Term(array, labels)


def _equal_sizes(array: Array, a: int, b: int) -> Array:
    """The array with a diagonal's two axes of one size: 1 broadcasts."""
    n = max(array.shape[a], array.shape[b])
    shape = tuple(n if k in (a, b) else m for k, m in enumerate(array.shape))
    return array if shape == array.shape else broadcast_to_p.bind(array, shape=shape)


def _sum(array: Array, axes: tuple[int, ...]) -> Array:
    if dtypes.is_bool(array.dtype):
        return any_p.bind(array, axes=axes)
    return sum_p.bind(array, axes=axes)


def _contract_pair(x: _Term, y: _Term, needed: frozenset[str], output: Labels) -> _Term:
    """The product of two terms, summed over what nobody else needs."""
    shared = [l for l in x.labels if l in y.labels]
    summed = [l for l in shared if l not in needed]
    batch = [l for l in shared if l in needed]
    if not summed:
        # Nothing to sum: an elementwise product, laid out as the result wants it.
        order = [l for l in output if l in x.labels or l in y.labels]
        order += [l for l in dict.fromkeys(x.labels + y.labels) if l not in order]
        labels = tuple(order)
        return _Term(multiply(_align(x, labels), _align(y, labels)), labels)
    array = dot_general_p.bind(
        x.array,
        y.array,
        contract=(tuple(map(x.labels.index, summed)), tuple(map(y.labels.index, summed))),
        batch=(tuple(map(x.labels.index, batch)), tuple(map(y.labels.index, batch))),
    )
    free = [l for t in (x, y) for l in t.labels if l not in shared]
    return _Term(array, (*batch, *free))


def _align(term: _Term, labels: Labels) -> Array:
    """A term with its axes in the order of `labels`, of size 1 where it has none."""
    array = permute(term.array, tuple(term.labels.index(l) for l in labels if l in term.labels))
    sizes = iter(array.shape)
    shape = tuple(next(sizes) if l in term.labels else 1 for l in labels)
    return array if shape == array.shape else reshape_p.bind(array, shape=shape)


def _run(operands: Sequence[Array], parsed: Subscripts, optimize: Any) -> Array:
    sizes, output = parsed.sizes, parsed.output
    terms = [_Term(x, labels) for x, labels in zip(operands, parsed.inputs, strict=True)]
    for k, term in enumerate(terms):
        others = (t.labels for j, t in enumerate(terms) if j != k)
        terms[k] = _tidy(term, sizes, frozenset(output).union(*others))
    path = _path(tuple(t.labels for t in terms), output, tuple(sizes.items()), optimize)
    for step in path:
        taken = [terms[k] for k in step]
        terms = [t for k, t in enumerate(terms) if k not in step]
        needed = frozenset(output).union(*(t.labels for t in terms))
        term = taken[0]
        for n, other in enumerate(taken[1:], start=2):
            later = needed.union(*(t.labels for t in taken[n:]))
            term = _contract_pair(term, other, later, output)
            term = _tidy(term, sizes, later)
        terms.append(term)
    (term,) = terms
    return permute(term.array, tuple(map(term.labels.index, output)))


@filtered
def einsum(*args: Any, optimize: Any = True, preferred_element_type: Any = None) -> Array:
    """Products of operands summed over labelled axes, as `np.einsum`.

    `einsum("ij,jk->ik", x, y)`, or with lists of labels `einsum(x, [0, 1], y, [1, 2], [0, 2])`.
    Labels that are not in the output are summed; without "->" the output has, sorted, the labels
    that stand once.  A label repeated in an operand takes its diagonal, "..." stands for further
    axes, which broadcast.  Each contraction of two operands is a matrix product; their order
    comes from opt_einsum (`optimize`: True, False for left to right, a path, or the name of one
    of its methods).  float16 and bfloat16 accumulate in float32.

    Raises ShapeError that names the label and its sizes when they differ.

    >>> import nuvec as nv
    >>> x, y = nv.ones((2, 3)), nv.ones((3, 4))
    >>> nv.einsum("ij,jk->ik", x, y).shape
    (2, 4)
    """
    _, operands, parsed = _read(args)
    arrays = promote_operands("einsum", operands)
    if preferred_element_type is not None:
        dtype = dtypes.as_dtype(preferred_element_type)
        arrays = [as_operand(x, dtype) for x in arrays]
    if isinstance(optimize, list | tuple):
        listed = [p for p in optimize if not isinstance(p, str)]
        optimize = tuple(tuple(p) for p in listed)
    return _run(arrays, parsed, optimize)


def _read(args: tuple[Any, ...]) -> tuple[str, list[Any], Subscripts]:
    if not args:
        raise TypeError("einsum needs subscripts and operands: nv.einsum('ij,jk->ik', x, y)")
    if isinstance(args[0], str):
        text, operands = args[0], list(args[1:])
    else:
        text, operands = _sublist_text(args)
    if not operands:
        raise TypeError(f"einsum {text!r} needs operands")
    shapes = tuple(tuple(np.shape(x)) if not isinstance(x, Array) else x.shape for x in operands)
    return text, operands, _parse(text, shapes)


@filtered
def einsum_path(*args: Any, optimize: Any = True) -> tuple[list[Any], str]:
    """The order of contractions `einsum` would use, and a description, as `np.einsum_path`.

    >>> import nuvec as nv
    >>> path, text = nv.einsum_path("ij,jk,kl->il", nv.ones((2, 3)), nv.ones((3, 4)),
    ...                             nv.ones((4, 5)))
    >>> path
    ['einsum_path', (0, 1), (0, 1)]
    """
    text, operands, _ = _read(args)
    shapes = [tuple(np.shape(x)) if not isinstance(x, Array) else x.shape for x in operands]
    method = "auto" if optimize is True else optimize
    path, info = opt_einsum.contract_path(text, *shapes, optimize=method, shapes=True)
    return ["einsum_path", *[tuple(p) for p in path]], str(info)

"""What transforms are given: functions, their arguments, and which of them are meant.

Errors name the transform that the user called, and what would be right.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, NuvecError
from nuvec.core.pytree import Path, keystr


def require_function(name: str, f: Any, role: str = "") -> None:
    """Raise ArgumentError unless `f`, which the user gave to `name` (as its `role`), can be
    called."""
    if not callable(f):
        given = f" as {role}" if role else ""
        raise ArgumentError(f"{name} takes a function{given}, got {type(f).__name__}")


def integers(what: str, value: Any) -> tuple[int, ...]:
    """An integer or a sequence of them (argnums), as a tuple; ArgumentError for others."""
    given = value if isinstance(value, Sequence) else (value,)
    try:
        if any(isinstance(n, bool | str) for n in given):
            raise TypeError
        return tuple([operator.index(n) for n in given])
    except TypeError:
        raise ArgumentError(
            f"{what} must be an integer or a sequence of integers, got {value!r}"
        ) from None


def names_in(what: str, value: Any) -> tuple[str, ...]:
    """A name or a collection of them (argnames), as a tuple; ArgumentError for others."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence | set | frozenset) or not all(
        isinstance(k, str) for k in given
    ):
        raise ArgumentError(f"{what} must be a name or a sequence of names, got {value!r}")
    return tuple(given)


def arrays_of(leaves: Sequence[Any], structure: Any, where: Callable[[Path], str]) -> list[Array]:
    """The leaves of a tree as Arrays.  `where` says what the error for one that is none calls the
    leaf at a path."""
    try:
        return [leaf if type(leaf) is Array else operand(leaf) for leaf in leaves]
    except NuvecError:  # paths cost time: they are looked up for the message alone
        pairs = zip(leaves, structure.paths(), strict=True)
        return [operand(leaf, where(path)) for leaf, path in pairs]


def signature_of(f: Any) -> inspect.Signature | None:
    """A function's signature; None where it has none, as some written in C."""
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


def check_positions(
    option: str, signature: inspect.Signature | None, numbers: Sequence[int]
) -> None:
    """Raise for positions (the value of `option`) of arguments that a function does not have."""
    kinds = [] if signature is None else [p.kind for p in signature.parameters.values()]
    if signature is None or inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    count = sum(k <= inspect.Parameter.POSITIONAL_OR_KEYWORD for k in kinds)
    wrong = [n for n in numbers if not -count <= n < count]
    if wrong:
        raise ArgumentError(f"{option}={wrong}, and it has {count} positional arguments")


def check_names(option: str, signature: inspect.Signature | None, names: Iterable[str]) -> None:
    """Raise for names (the value of `option`) of arguments that a function does not have."""
    kinds = [] if signature is None else [p.kind for p in signature.parameters.values()]
    if signature is None or inspect.Parameter.VAR_KEYWORD in kinds:
        return
    unknown = sorted(set(names) - set(signature.parameters))
    if unknown:
        raise ArgumentError(
            f"{option}={unknown}, and its arguments are {list(signature.parameters)}"
        )


def labels_of(f: Any, args: Sequence[Any]) -> list[str]:
    """What messages call the positional arguments of a call."""
    signature = signature_of(f)
    if signature is None:
        return [f"argument {i}" for i in range(len(args))]
    names = [
        k for k, p in signature.parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    return [*names, *(f"args[{i}]" for i in range(len(args)))][: max(len(args), len(names))]


def bind_arguments(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """Arguments bound to a signature: those passed by keyword become positional where they can.

    Returns (args, kwargs, the names of args).  `name` is the transform's, for the error that says
    that they do not fit."""
    signature = signature_of(f)
    if signature is None:
        return args, kwargs, labels_of(f, args)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{name}: {error}; it takes {signature}") from None
    labels: list[str] = []
    for k, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            labels += [f"{k}[{i}]" for i in range(len(bound.args) - len(labels))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            labels.append(k)
    return bound.args, dict(bound.kwargs), labels[: len(bound.args)]


def label_of(path: Path, labels: Sequence[str]) -> str:
    """The readable place of a leaf in (args, kwargs): "argument 'x'['w']"."""
    first, second, *rest = path
    key = labels[second.index] if first.index == 0 else second.key
    place = key if key.startswith("argument ") else f"argument {key!r}"
    return f"{place}{keystr(rest)}"


def positions_of(name: str, argnums: tuple[int, ...], args: Sequence[Any], hint: str) -> list[int]:
    """The positions that argnums names in a call of what `name` made."""
    for n in argnums:
        if not -len(args) <= n < len(args):
            raise ArgumentError(
                f"{name}: argnums={n} names no positional argument; the call has {len(args)} "
                f"({hint})"
            )
    places = [n % len(args) for n in argnums]
    if len(set(places)) != len(places):
        raise ArgumentError(f"{name}: argnums={argnums} names an argument twice")
    return places


def call(f: Callable[..., Any], args: Sequence[Any], says: str) -> Any:
    """`f(*args)`.  Where `f` takes another number of arguments, an error that begins with `says`:
    who calls it, and with what."""
    try:
        return f(*args)
    except TypeError as error:
        wrong = None if isinstance(error, NuvecError) else _misfit(f, args)
        if wrong is None:
            raise
        raise ArgumentError(f"{says}: {wrong}") from None


def _misfit(f: Callable[..., Any], args: Sequence[Any]) -> str | None:
    """Why `f` does not take these arguments; None when it does, or does not say."""
    signature = signature_of(f)
    try:
        if signature is not None:
            signature.bind(*args)
    except TypeError as error:
        return f"{error}; it takes {signature}"
    return None

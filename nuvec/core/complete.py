"""What a primitive's record must have: its kinds, the values that stand for a rule, the check; and
what `bind` takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from nuvec.core.array import Array
from nuvec.core.errors import ArgumentError

if TYPE_CHECKING:
    from nuvec.core.primitive import Primitive


class _Explicit:
    """A named value that a record has instead of a rule."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


NOT_DIFFERENTIABLE = _Explicit("NOT_DIFFERENTIABLE")  # the output is an integer, boolean or key
ZERO = _Explicit("ZERO")  # a derivative that is zero wherever it exists (floor, sign)
ONE = _Explicit("ONE")  # d(x + y)/dx
MINUS_ONE = _Explicit("MINUS_ONE")  # d(x - y)/dy
NOT_BATCHABLE = _Explicit("NOT_BATCHABLE")  # vmap is an error, or never meets it

Kind = Literal[
    "elementwise",  # each output element depends on the operands' elements at its own position
    "reduction",  # folds axes away
    "view",  # rearranges elements without arithmetic
    "contraction",  # sums products: matrix multiplication and its kin
    "gather",  # indexed reads and writes
    "random",  # draws from a key
    "call",  # holds IRs
    "effect",  # communicates
    "other",
]


# A primitive's name in the text of an IR: identifiers with dots between them.
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def check_name(name: object) -> None:
    """Raise ArgumentError unless text can carry a primitive's name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ArgumentError(
            f"Primitive({name!r}): its name must be a str of identifiers with dots between them, "
            "as in 'mylib.softplus', so that the text of an IR is read back"
        )


def check_complete(p: Primitive) -> None:
    """Raise ArgumentError (a ValueError), naming what is missing or amiss, unless a record has
    all its rules."""

    def refuse(what: str) -> NoReturn:
        raise ArgumentError(f"Primitive({p.name!r}): {what}")

    if p.kind not in get_args(Kind):
        refuse(f"kind={p.kind!r} is none of {', '.join(map(repr, get_args(Kind)))}")
    for rule in ("lower", "shape_rule"):
        if not callable(getattr(p, rule)):
            refuse(f"{rule} must be a function, got {getattr(p, rule)!r}")
    for rule in ("transpose", "jvp", "vjp", "vmap", "axis", "guard", "split", "inline", "tile",
                 "memory"):  # fmt: skip
        found = getattr(p, rule)
        explicit = found is (NOT_BATCHABLE if rule == "vmap" else NOT_DIFFERENTIABLE)
        if found is not None and not callable(found) and not explicit:
            refuse(f"{rule} must be a function, got {found!r}")
    if p.updates is not None and not p.out:
        refuse("updates= is for a lower that takes the operand as out=: give it out=True, too")
    if p.derivatives is not None:
        if not isinstance(p.derivatives, tuple):
            refuse(
                "derivatives must be a tuple with an entry for each operand, got "
                f"{p.derivatives!r}; write derivatives=(d,) for one operand"
            )
        named = (ONE, MINUS_ONE, ZERO, NOT_DIFFERENTIABLE)
        for i, d in enumerate(p.derivatives):
            if not callable(d) and not any(d is e for e in named):
                refuse(
                    f"derivative {i} is {d!r}; it must be derivative(out, *operands), or ONE, "
                    "MINUS_ONE, ZERO or NOT_DIFFERENTIABLE"
                )
    elif p.split is None:
        forward = p.linear if p.jvp is None else p.jvp
        modes = {"forward": forward, "reverse": p.vjp}
        missing = [mode for mode, rule in modes.items() if rule is None]
        if missing and p.kind == "elementwise":
            refuse(
                f"it has no rule for {' and '.join(missing)} mode. An elementwise primitive has "
                "derivatives=, an entry for each operand (NOT_DIFFERENTIABLE for one that can "
                "have none, ZERO where it is zero), or both jvp= and vjp="
            )
        if missing:
            refuse(
                f"it has no rule for {' and '.join(missing)} mode. Give it transpose= (if it is "
                "linear) or both jvp= and vjp=; where the result has no derivative, "
                "jvp=NOT_DIFFERENTIABLE and vjp=NOT_DIFFERENTIABLE"
            )
    if (p.jvp is NOT_DIFFERENTIABLE) != (p.vjp is NOT_DIFFERENTIABLE):
        refuse("jvp and vjp must both be NOT_DIFFERENTIABLE, or both be rules")
    if p.vmap is None and p.kind != "elementwise" and p.derivatives is None:
        refuse(
            "it has no vmap rule, which only an elementwise primitive may leave out. Give it "
            "vmap=, or vmap=NOT_BATCHABLE where there can be none"
        )


def check_operands(p: Primitive, arrays: Sequence[Any]) -> None:
    """Raise ArgumentError unless all operands are Arrays."""
    for i, a in enumerate(arrays):
        if not isinstance(a, Array):
            raise ArgumentError(
                f"{p.name}.bind takes Arrays, and operand {i} is a {type(a).__name__}: {a!r:.80}. "
                "Convert it first, with nv.array(x), or in the operation around bind with "
                "nuvec.core.array.operand(x)"
            ) from None


def check_params(p: Primitive, params: dict[str, Any]) -> None:
    """Raise ArgumentError for a parameter that is not static."""
    for name, value in params.items():
        where = f"{p.name}: the parameter {name}"
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Array):
                raise ArgumentError(
                    f"{where} holds an Array, {part.aval}; parameters are static, so pass it as an "
                    "operand"
                )
        try:
            hash(value)
        except TypeError as error:
            raise ArgumentError(
                f"{where} must be hashable, got {value!r} ({error}); write a tuple instead of a "
                "list, and pass arrays as operands"
            ) from None

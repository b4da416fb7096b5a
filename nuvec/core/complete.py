"""What a primitive's record must have: its kinds, the values that stand for a rule, the check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

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


def check_complete(p: Primitive) -> None:
    """Raise ValueError, naming what is missing or amiss, unless a record has all its rules."""

    def refuse(what: str) -> None:
        raise ValueError(f"Primitive({p.name!r}): {what}")

    if p.kind not in get_args(Kind):
        refuse(f"kind={p.kind!r} is none of {', '.join(map(repr, get_args(Kind)))}")
    for rule in ("lower", "shape_rule"):
        if not callable(getattr(p, rule)):
            refuse(f"{rule} must be a function, got {getattr(p, rule)!r}")
    for rule in ("transpose", "jvp", "vjp", "vmap", "axis", "split", "inline"):
        found = getattr(p, rule)
        explicit = found is (NOT_BATCHABLE if rule == "vmap" else NOT_DIFFERENTIABLE)
        if found is not None and not callable(found) and not explicit:
            refuse(f"{rule} must be a function, got {found!r}")
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

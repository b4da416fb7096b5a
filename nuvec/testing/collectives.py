"""Check of collectives: the adjoint identity over a whole group, batching, compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.array import eval as evaluate
from nuvec.core.config import config
from nuvec.core.errors import ArgumentError
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.exponential import sin
from nuvec.distributed.group import Group, run_local, synchronize
from nuvec.testing.communications import recorded
from nuvec.testing.compare import (
    CheckFailure,
    call_of,
    close,
    difference,
    inner,
    inputs_shown,
    natural,
    numpy_leaves,
    program_of,
    random_like,
    same_bits,
)  # fmt: skip
from nuvec.testing.derivatives import STEP
from nuvec.testing.order import (
    backward_calls,
    expected_order,
    forward_calls,
    operation,
)
from nuvec.transforms.arguments import integers, require_function
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import vjp
from nuvec.transforms.ir_tools import make_ir
from nuvec.transforms.jvp import jvp
from nuvec.transforms.vmap import vmap

World = Callable[[Callable[[Group], Any], int], list[Any]]
Operands = Sequence[Any] | Callable[[int, int], Sequence[Any]]
Leaves = list[Array]
Map = Callable[..., Leaves]  # of inexact leaves to inexact leaves
BATCH = 3


@dataclass(frozen=True)
class _Role:
    """How one rank differs from the others: its operand is a constant, or its result unused."""

    kind: str = "all alike"
    rank: int = -1

    def __str__(self) -> str:
        return {"all alike": "all ranks alike", "constant": f"rank {self.rank}'s operand constant",
                "ignores": f"rank {self.rank} ignoring the result"}[self.kind]  # fmt: skip


def check_collective(
    fn: Callable[..., Any], operands: Operands, sizes: Sequence[int] = (1, 2, 3, 4), *,
    seed: int = 0, rtol: float = 1e-12, order: int = 2, world: World = run_local,
    timeout: float = 20,
) -> None:  # fmt: skip
    """Check a function that communicates, on groups of several sizes, in float64.

    fn       -- `fn(group, *args)`, called on every rank; returns an Array or a tree of them
    operands -- the arguments, or `operands(rank, size)` that makes each rank's: arrays or trees.
                Inexact leaves give shape and kind (real or complex) and get random values;
                others are passed as they are
    sizes    -- of the groups
    rtol     -- for the adjoint identity
    timeout  -- seconds after which ranks that wait for each other count as hanging
    world    -- `world(program, size)` runs `program(group)` on every rank and returns the results

    The adjoint identity: over all ranks, the sum of <c_r, (J dx)_r> equals that of
    <(J^T c)_r, dx_r>; also when one rank's operand is a constant, when one rank ignores the result,
    and for the derivative itself (`order=2`: both modes over both modes).  Forward mode is compared
    with finite differences, Hessian-vector products are symmetric, vmap equals a loop for every
    batch axis, also of and under the derivative, compile equals the interpreter bit for bit, and
    every transform communicates what it should, each once and in order (see testing/order.py).

    Raises AssertionError with the program, the two values and the largest difference; an error
    raised by a rank (a mismatch, a hang that timed out, a rule's error) is its cause.
    ArgumentError (a TypeError and a ValueError) when it is itself called with something else.

    >>> import nuvec as nv
    >>> nv.testing.check_collective(lambda g, x: nv.distributed.all_sum(x, g), (nv.ones(2),), (2,))
    """
    require_function("check_collective", fn)
    if natural("check_collective: order", order, 1) > 2:
        raise ArgumentError(f"check_collective: order must be 1 or 2, got {order!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ArgumentError(f"check_collective: timeout must be positive seconds, got {timeout!r}")
    for size in _sizes(sizes):
        check = _Check(fn, operands, size, seed, rtol, world, timeout)
        check.examine()
        roles = [_Role()]
        if size > 1:
            roles += [_Role(kind, r) for kind in ("constant", "ignores") for r in (0, size - 1)]
        for role in roles:
            check.adjoint(role, _plain)
            check.finite_differences(role, _plain)
            if order > 1:
                for curved in (_gradient, _tangent):
                    check.adjoint(role, curved)
                check.symmetric(role)
                check.finite_differences(role, _gradient)
        check.communications()
        for role in roles[:3]:
            check.batching(role, order)
        check.compilation()


# The maps that are checked: the function, its gradient, its tangent.  Each takes a function of
# inexact leaves and a random generator, and returns a map of leaves and a point to check it at.


def _plain(f: Map, x: Leaves, generator: np.random.Generator) -> tuple[Map, Leaves]:
    return f, x


def _gradient(f: Map, x: Leaves, generator: np.random.Generator) -> tuple[Map, Leaves]:
    curved = _curved(f)
    n = len(x)
    c = [random_like(o, generator) for o in curved(*x)]
    return lambda *v: list(vjp(curved, *v[:n])[1](list(v[n:]))), [*x, *c]


def _tangent(f: Map, x: Leaves, generator: np.random.Generator) -> tuple[Map, Leaves]:
    curved = _curved(f)
    n = len(x)
    t = [random_like(a, generator) for a in x]
    return lambda *v: jvp(curved, tuple(v[:n]), tuple(v[n:]))[1], [*x, *t]


def _curved(f: Map) -> Map:
    """`f` between two functions that bend, so that it has second derivatives."""
    return lambda *x: [sin(o) for o in f(*[a * a for a in x])]


Derived = Callable[[Map, Leaves, np.random.Generator], tuple[Map, Leaves]]


@dataclass
class _Check:
    fn: Callable[..., Any]
    operands: Operands
    size: int
    seed: int
    rtol: float
    world: World
    timeout: float

    def arguments(self, rank: int) -> tuple[Any, ...]:
        """Rank's arguments, random in float64 where inexact."""
        given = self.operands
        args = given(rank, self.size) if callable(given) else given
        call_of("check_collective", lambda *args: None, args)
        generator = np.random.Generator(np.random.PCG64([self.seed, rank]))

        def draw(leaf: Any) -> Array:
            x = np.asarray(operand(leaf, "an operand of the function checked"))
            if not dtypes.is_inexact(x.dtype):
                return from_numpy(x)
            drawn = generator.uniform(0.5, 2, x.shape) * generator.choice([-1, 1], x.shape)
            if dtypes.is_complex(x.dtype):
                drawn = drawn + 1j * generator.uniform(0.5, 2, x.shape)
            return from_numpy(np.asarray(drawn))

        return tree.map(draw, tuple(args))

    def examine(self) -> None:
        """Raise ArgumentError where there is nothing to check: that is no rule's fault."""
        for rank in range(self.size):
            leaves = tree.leaves(self.arguments(rank))
            if not any(dtypes.is_inexact(x.dtype) for x in leaves):
                raise ArgumentError(
                    f"check_collective: no operand of rank {rank} is floating or complex (got "
                    f"{', '.join(repr(x.aval) for x in leaves)}), so there is nothing to "
                    "differentiate"
                )

        def outputs(group: Group) -> bool:
            outs = tree.leaves(self.fn(group, *self.arguments(group.rank())))
            found = [operand(o, "a result of the function checked") for o in outs]
            evaluate(found)
            return any(dtypes.is_inexact(o.dtype) for o in found)

        if not all(self.run("the function itself", outputs)):
            raise ArgumentError(
                "check_collective: the function returns nothing floating or complex, so there is "
                "nothing to differentiate; return what it communicates"
            )

    def function(self, group: Group, role: _Role) -> tuple[Map, Leaves]:
        """This rank's function of its inexact leaves, and where to evaluate it."""
        leaves, structure = tree.flatten(self.arguments(group.rank()))
        which = [i for i, x in enumerate(leaves) if dtypes.is_inexact(x.dtype)]
        special = group.rank() == role.rank

        def f(*moving: Array) -> Leaves:
            full = list(leaves)
            if not (special and role.kind == "constant"):
                for i, x in zip(which, moving, strict=True):
                    full[i] = x
            outs = tree.leaves(self.fn(group, *tree.unflatten(structure, full)))
            outs = [o for o in outs if dtypes.is_inexact(o.dtype)]
            return [zeros_of(o.aval) for o in outs] if special and role.kind == "ignores" else outs

        return f, [leaves[i] for i in which]

    def run(self, what: str, program: Callable[[Group], Any]) -> list[Any]:
        """Run a program on all ranks; what goes wrong there fails the check."""
        try:
            with config.override(timeout=self.timeout):
                return self.world(program, self.size)
        except Exception as error:
            raise CheckFailure(
                f"{what}, {self.size} ranks, raised {type(error).__name__}: {error}\nlook at: the "
                f"rules of the primitives below\n{self.program()}"
            ) from error

    def program(self) -> str:
        """What rank 0 records, and every rank's arguments."""

        def show(group: Group) -> str:
            return program_of(lambda *args: self.fn(group, *args), self.arguments(group.rank()))

        try:
            lines = [f"on rank 0:\n{self.world(show, self.size)[0]}"]
        except Exception as error:
            lines = [f"(no program: {type(error).__name__}: {error})"]
        for r in range(self.size):
            lines += [f"rank {r}, {shown}" for shown in inputs_shown(self.arguments(r))]
        return "\n".join(lines)

    def fail(self, what: str, look_at: str, **values: Any) -> CheckFailure:
        lines = [f"{what}, {self.size} ranks", f"look at: {look_at}", self.program()]
        return CheckFailure("\n".join(lines + [f"{k}: {v}" for k, v in values.items()]))

    def generator(self, group: Group, salt: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, group.rank(), salt]))

    def adjoint(self, role: _Role, derived: Derived) -> None:
        what = f"adjoint identity{_of(derived)} with {role}"

        def program(group: Group) -> Any:
            f, x = derived(*self.function(group, role), self.generator(group, 1))
            generator = self.generator(group, 2)
            v = [random_like(a, generator) for a in x]
            out, moved = jvp(f, tuple(x), tuple(v))
            c = [random_like(o, generator) for o in out]
            _, pull = vjp(f, *x)
            pulled = pull(c)
            evaluate(moved, pulled)
            return (inner(_values(c), _values(moved)), inner(_values(pulled), _values(v)),
                    [np.shape(a) for a in pulled] == [a.shape for a in x])  # fmt: skip

        results = self.run(what, program)
        forward, backward = [np.sum([r[i] for r in results], axis=0) for i in (0, 1)]
        apart = abs(forward[0] - backward[0])
        if not all(r[2] for r in results) or not apart <= self.rtol * max(
            forward[1], backward[1], 1e-3
        ):
            raise self.fail(
                f"{what} does not hold (difference {apart:.3g})", "the vjp and jvp rules",
                forward=f"sum over ranks of <c, J dx> = {float(forward[0])}",
                backward=f"sum over ranks of <J^T c, dx> = {float(backward[0])}",
            )  # fmt: skip

    def finite_differences(self, role: _Role, derived: Derived) -> None:
        what = f"forward mode{_of(derived)} against finite differences with {role}"

        def program(group: Group) -> Any:
            f, x = derived(*self.function(group, role), self.generator(group, 1))
            v = [random_like(a, self.generator(group, 3)) for a in x]
            _, moved = jvp(f, tuple(x), tuple(v))
            evaluate(moved)
            plus, minus = [
                numpy_leaves(f(*[a + sign * STEP * t for a, t in zip(x, v, strict=True)]))
                for sign in (1, -1)
            ]
            return _values(moved), [(p - m) / (2 * STEP) for p, m in zip(plus, minus, strict=True)]

        for rank, (moved, expected) in enumerate(self.run(what, program)):
            for a, b in zip(moved, expected, strict=True):
                scale = float(np.max(np.abs(b), initial=1.0))
                if not close(a, np.asarray(b), 1e-6, 1e-6 * scale):
                    raise self.fail(
                        f"{what} on rank {rank} (largest difference {difference(a, b):.3g})",
                        "the jvp rule", jvp=a, finite_differences=b,
                    )  # fmt: skip

    def symmetric(self, role: _Role) -> None:
        what = f"symmetry of the Hessian with {role}"

        def program(group: Group) -> Any:
            f, x = self.function(group, role)
            gradient, point = _gradient(f, x, self.generator(group, 1))
            c = point[len(x) :]
            generator = self.generator(group, 4)
            u, v = [[random_like(a, generator) for a in x] for _ in range(2)]
            hv, hu = [jvp(lambda *x: gradient(*x, *c), tuple(x), tuple(t))[1] for t in (v, u)]
            evaluate(hv, hu)
            return inner(_values(u), _values(hv)), inner(_values(v), _values(hu))

        results = self.run(what, program)
        one, other = [np.sum([r[i] for r in results], axis=0) for i in (0, 1)]
        if not abs(one[0] - other[0]) <= self.rtol * max(one[1], other[1], 1e-3):
            raise self.fail(what, "the rules of what the vjp rule records",
                            uHv=float(one[0]), vHu=float(other[0]))  # fmt: skip

    def communications(self) -> None:
        """What each transform communicates, and in which order: the recorded forward is the
        forward, tangents follow in the same order, cotangents in the reverse order; batches and
        compiled programs do what the program does."""
        what = "communications"

        def program(group: Group) -> Any:
            group, calls = recorded(group)
            f, x = self.function(group, _Role())
            known = expected_order(make_ir(f)(*x))
            compiled, curved = compile(f), compile(lambda *x: vjp(f, *x)[1](list(f(*x))))
            compiled(*x), curved(*x)
            out, pull = vjp(f, *x)
            evaluate(out)

            def log(run: Callable[[], Any]) -> list[str]:
                synchronize(group)
                calls.clear()
                evaluate(run())
                synchronize(group)
                return list(calls)

            plain = log(lambda: f(*x))
            logs = {
                "vjp": (log(lambda: vjp(f, *x)[0]), plain),
                "compile": (log(lambda: compiled(*x)), plain),
                "compiled vjp": (
                    log(lambda: curved(*x)), log(lambda: vjp(f, *x)[1](list(f(*x)))),
                ),
            }  # fmt: skip
            forward = log(lambda: jvp(f, tuple(x), tuple(x)))
            logs["jvp"] = (forward[: len(plain)], plain)  # the tangents' communications come after
            if known:
                tangents = [operation(c) for c in forward[len(plain) :]]
                logs["tangents"] = (tangents, forward_calls(plain))
                backward = [operation(c) for c in log(lambda: pull(out))]
                logs["cotangents"] = (backward, backward_calls(plain))
                stacked = _stacked([x] * BATCH, (0,) * len(x))
                batched = log(lambda: vmap(f)(*stacked))
                logs["vmap"] = ([operation(c) for c in batched], [operation(c) for c in plain])
            return logs

        for rank, logs in enumerate(self.run(what, program)):
            for name, (found, expected) in logs.items():
                if found != expected:
                    raise self.fail(
                        f"{what} of {name} on rank {rank}",
                        "the rules of the communications, and the order they are bound in",
                        **{name: found, "expected": expected},
                    )

    def batching(self, role: _Role, order: int) -> None:
        axes = max((x.ndim for x in self._leaves() if dtypes.is_inexact(x.dtype)), default=0) + 1
        for axis in range(axes):
            for derived in (_plain, _gradient, _tangent)[: None if order > 1 else 1]:
                self._batching(role, axis, derived)
            if order > 1:
                self._gradient_of_vmap(role, axis)

    def _leaves(self) -> list[Array]:
        return tree.leaves(self.arguments(0))

    def _batching(self, role: _Role, axis: int, derived: Derived) -> None:
        what = f"vmap over axis {axis}{_of(derived)} with {role}"

        def program(group: Group) -> Any:
            f, x = derived(*self.function(group, role), self.generator(group, 1))
            elements = [[a * (1 + k / 8) for a in x] for k in range(BATCH)]
            axes = tuple(min(axis, a.ndim) for a in x)
            stacked = _stacked(elements, axes)
            found = vmap(f, in_axes=axes)(*stacked)
            again = compile(vmap(f, in_axes=axes))(*stacked)
            loop = [f(*e) for e in elements]
            evaluate(found, loop)
            each = [np.stack([np.asarray(e[i]) for e in loop]) for i in range(len(found))]
            return _values(found), each, _values(again)

        self._compare(what, "the vmap rule", "vmap", "loop", self.run(what, program))

    def _gradient_of_vmap(self, role: _Role, axis: int) -> None:
        what = f"gradient of vmap over axis {axis} with {role}"

        def program(group: Group) -> Any:
            f, x = self.function(group, role)
            curved = _curved(f)
            elements = [[a * (1 + k / 8) for a in x] for k in range(BATCH)]
            axes = tuple(min(axis, a.ndim) for a in x)
            outs = [curved(*e) for e in elements]
            c = [[random_like(o, self.generator(group, 5 + k)) for o in out]
                 for k, out in enumerate(outs)]  # fmt: skip
            loop = [vjp(curved, *e)[1](ck) for e, ck in zip(elements, c, strict=True)]
            _, pull = vjp(vmap(curved, in_axes=axes), *_stacked(elements, axes))
            found = pull(_stacked(c, (0,) * len(outs[0])))
            evaluate(loop, found)
            each = [np.stack([np.asarray(e[i]) for e in loop], axes[i]) for i in range(len(found))]
            return _values(found), each, None

        self._compare(what, "the vmap and vjp rules", "gradient of vmap", "loop",
                      self.run(what, program))  # fmt: skip

    def compilation(self) -> None:
        for derived in (_plain, _gradient, _tangent):
            what = f"compile{_of(derived)}"

            def program(group: Group, derived: Derived = derived) -> Any:
                f, x = derived(*self.function(group, _Role()), self.generator(group, 1))
                expected = f(*x)
                evaluate(expected)
                compiled = compile(f)
                compiled(*x)
                found = _values(compiled(*x))
                return found, _values(expected), _values(expected)

            self._compare(what, "the compile passes", "compiled", "interpreted",
                          self.run(what, program))  # fmt: skip

    def _compare(self, what: str, look: str, name: str, other: str, results: list[Any]) -> None:
        """Each rank's (found, expected, the bits found should have or None)."""
        for rank, (found, expected, bits) in enumerate(results):
            for a, b in zip(found, expected, strict=True):
                if a.dtype != b.dtype or not close(a, b, 1e-12, 1e-12):
                    raise self.fail(
                        f"{what} on rank {rank} (largest difference {difference(a, b):.3g})", look,
                        **{name: a, other: b},
                    )  # fmt: skip
            for a, b in zip(found, bits or [], strict=False):
                if not same_bits(a, b):
                    raise self.fail(f"{what} on rank {rank}: compiled gives other bits", look,
                                    **{name: a, other: b})  # fmt: skip


def _sizes(sizes: Any) -> tuple[int, ...]:
    found = integers("check_collective: sizes", sizes)
    if not found or min(found) < 1:
        raise ArgumentError(
            f"check_collective: sizes must be sizes of groups, 1 or more each, got {sizes!r}"
        )
    return found


def _of(derived: Derived) -> str:
    names: dict[Derived, str] = {
        _plain: "", _gradient: " of the gradient", _tangent: " of the tangent",
    }  # fmt: skip
    return names[derived]


def _values(leaves: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in leaves]


def _stacked(elements: Sequence[Sequence[Array]], axes: Sequence[int]) -> list[Array]:
    return [
        from_numpy(np.stack([np.asarray(e[i]) for e in elements], axis))
        for i, axis in enumerate(axes)
    ]

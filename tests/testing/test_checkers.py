"""The checkers are tested: each catches a rule that is slightly wrong, and says where to look."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.check import check_ir
from nuvec.core.errors import IRError
from nuvec.core.ir import IR, Eqn, aval
from nuvec.core.ops.build import elementwise_rule
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import ONE, TABLE, Primitive
from nuvec.distributed.collectives.all_reduce import all_sum_p
from nuvec.distributed.collectives.gather_scatter import all_gather_p, sum_scatter_p
from nuvec.testing import (
    EXCHANGES,
    check_case,
    check_collective,
    check_compile,
    check_grads,
    check_jvp,
    check_lowering,
    check_second_order,
    check_vjp,
    check_vmap,
    random_case,
)  # fmt: skip
from nuvec.testing import NESTED as NESTED_OPERATIONS
from nuvec.transforms.ir_tools import make_ir

X = np.array([0.3, 0.7, 1.1])
Make = Callable[..., Any]


@pytest.fixture
def made() -> Iterator[Make]:
    """Makes a square function with the given rules; the table is as before afterwards."""
    before = set(TABLE)

    def make(**rules: Any) -> Callable[[Any], Any]:
        defaults: dict[str, Any] = {
            "lower": lambda x: x * x, "shape_rule": elementwise_rule("square"),
            "kind": "elementwise", "derivatives": (lambda out, x: 2 * x,),
        }  # fmt: skip
        primitive = Primitive(f"toy.square{len(TABLE)}", **{**defaults, **rules})
        return lambda x: primitive.bind(nv.array(x) if not isinstance(x, nv.Array) else x)

    yield make
    for name in set(TABLE) - before:
        del TABLE[name]


def fails(check: Callable[[], None], *texts: str) -> str:
    with pytest.raises(AssertionError) as caught:
        check()
    text = str(caught.value)
    for t in texts:
        assert t in text, text
    return text


def test_right_rules_pass(made: Make) -> None:
    f = made()
    check_grads(f, (X,), order=3)
    check_vmap(f, (X,))
    check_lowering(f, (X,))
    check_compile(f, (X,))


def test_a_derivative_wrong_by_a_thousandth(made: Make) -> None:
    f = made(derivatives=(lambda out, x: 2.002 * x,))
    text = fails(lambda: check_jvp(f, (X,)), "finite differences", "the jvp rule", "toy.square",
                 "largest difference", "input 0: float64[3] [0.3 0.7 1.1]")  # fmt: skip
    assert "lambda" in text  # the program
    fails(lambda: check_grads(f, (X,)), "finite differences")
    check_vjp(f, (X,))  # both modes agree: they come from one rule


def test_a_vjp_wrong_by_a_thousandth(made: Make) -> None:
    f = made(derivatives=None, jvp=lambda t, out, x: 2 * x * t[0],
             vjp=lambda i, c, out, x: 2.002 * x * c)  # fmt: skip
    check_jvp(f, (X,))
    fails(lambda: check_vjp(f, (X,)), "<c, J v>", "the vjp rule", "toy.square")
    fails(lambda: check_grads(f, (X,), modes=("rev",)), "<c, J v>")
    check_grads(f, (X,), modes=("fwd",))


def test_a_wrong_second_derivative(made: Make) -> None:
    """A rule whose value is right and whose own derivative is not."""
    f = made(derivatives=(lambda out, x: 2 * x + 0.002 * (x - nv.stop_gradient(x)),))
    check_jvp(f, (X,))
    check_vjp(f, (X,))
    fails(lambda: check_second_order(f, (X,)), "finite differences")
    fails(lambda: check_grads(f, (X,), order=2), "finite differences")
    check_grads(f, (X,), order=1)


def test_a_vjp_that_is_wrong_for_one_operand_alone(made: Make) -> None:
    primitive = Primitive(
        "toy.product", lambda x, y: x * y, elementwise_rule("product"), "elementwise",
        jvp=lambda t, out, x, y: (
            (t[0] * y if t[0] is not None else x * 0) + (x * t[1] if t[1] is not None else 1e-3)
        ),
        vjp=lambda i, c, out, x, y: c * (y, x)[i],
    )  # fmt: skip
    fails(lambda: check_jvp(lambda x, y: primitive.bind(x, y), (X, X + 1)), "one input at a time")


def test_a_complex_rule_that_conjugates(made: Make) -> None:
    z = X + 1j * X[::-1]
    check_grads(made(), (z,), order=2)
    f = made(derivatives=(lambda out, x: 2 * nv.conj(x),))
    fails(lambda: check_jvp(f, (z,)), "finite differences")


def test_wrong_batching_rules(made: Make) -> None:
    def reversed_batch(size: int, axes: Any, x: Any) -> Any:
        return f_primitive.bind(nv.flip(move_axis(x, axes[0], 0), 0)), 0

    f_primitive = Primitive("toy.batch", lambda x: x * x, elementwise_rule("batch"), "elementwise",
                            derivatives=(lambda out, x: 2 * x,), vmap=reversed_batch)  # fmt: skip
    fails(lambda: check_vmap(lambda x: f_primitive.bind(x), (X,)), "vmap", "in_axes=(0,)",
          "the vmap rule", "toy.batch")  # fmt: skip

    def first_axis_only(size: int, axes: Any, x: Any) -> Any:
        return g_primitive.bind(x), 0

    g_primitive = Primitive("toy.axis", lambda x: x * x, elementwise_rule("axis"), "elementwise",
                            derivatives=(lambda out, x: 2 * x,), vmap=first_axis_only)  # fmt: skip
    fails(lambda: check_vmap(lambda x: g_primitive.bind(x), (X,)), "in_axes=(1,)")

    def off_by_a_thousandth(size: int, axes: Any, x: Any) -> Any:
        return h_primitive.bind(x) * 1.001, axes[0]

    h_primitive = Primitive("toy.scaled", lambda x: x * x, elementwise_rule("scaled"),
                            "elementwise", derivatives=(lambda out, x: 2 * x,),
                            vmap=off_by_a_thousandth)  # fmt: skip
    fails(lambda: check_vmap(lambda x: h_primitive.bind(x), (X,)), "largest difference")


def test_wrong_lowerings(made: Make) -> None:
    wrong_dtype = made(lower=lambda x: (x * x).astype(np.float64))
    fails(lambda: check_lowering(wrong_dtype, (X.astype(np.float32),)), "float64[3]",
          "the shape rule says float32[3]")  # fmt: skip
    wrong_shape = made(shape_rule=lambda x: aval((*x.shape, 1), x.dtype))
    fails(lambda: check_lowering(wrong_shape, (X,)), "the shape rule says float64[3,1]")
    by_layout = made(lower=lambda x: np.ravel(x, order="K").reshape(x.shape))
    fails(lambda: check_lowering(by_layout, (np.arange(6.0).reshape(2, 3),)), "strided operands")
    bad_out = made(lower=lambda x, out=None: np.multiply(x, 2 if out is not None else x, out=out),
                   out=True)  # fmt: skip
    fails(lambda: check_lowering(bad_out, (X,)), "into `out`")

    def doubles_itself(x: Any, out: Any = None) -> Any:
        return np.multiply(x, 2 if out is x else x, out=out)

    updating = made(lower=doubles_itself, out=True, updates=0)
    fails(lambda: check_lowering(updating, (X,)), "operand 0 itself as `out`, which it `updates`")

    def changes_its_operand(x: Any) -> Any:
        x *= x
        return x

    fails(lambda: check_lowering(made(lower=changes_its_operand), (X,)), "lowering of toy.square",
          "read-only; it must leave its operands alone", "operand 0: [0.3 0.7 1.1]")  # fmt: skip


def test_a_compiled_function_that_is_not_the_interpreted_one(made: Make) -> None:
    calls: list[int] = []

    def drifting(x: Any) -> Any:
        calls.append(1)
        return x * x + 1e-15 * len(calls)

    fails(lambda: check_compile(made(lower=drifting), (X,)), "not the same bits")


# A rule that raises, or returns what does not belong there


def oops(*args: Any, **params: Any) -> Any:
    raise KeyError("oops")


def breaks(*args: Any, **params: Any) -> Any:
    assert len(args) > 99, "a rule's own assertion"


CHECKS: dict[str, Callable[..., None]] = {
    "jvp": check_jvp, "vjp": check_vjp, "grads": check_grads, "second": check_second_order,
    "vmap": check_vmap, "compile": check_compile, "lowering": check_lowering,
}  # fmt: skip
DIFFERENTIATES, ALL = ("jvp", "vjp", "grads", "second"), tuple(CHECKS)
TWO_RULES: dict[str, Any] = {
    "derivatives": None, "jvp": lambda t, out, x: 2 * x * t[0],
    "vjp": lambda i, c, out, x: 2 * x * c,
}  # fmt: skip

# (the rules made wrong, the checks that must notice, what they say, where they say to look)
WRONG: list[tuple[dict[str, Any], tuple[str, ...], str, str]] = [
    ({"derivatives": (oops,)}, DIFFERENTIATES, "oops", "the jvp rule (or derivatives)"),
    ({"derivatives": (breaks,)}, DIFFERENTIATES, "own assertion", "the jvp rule (or derivatives)"),
    ({"derivatives": (lambda out, x: nv.stack([x, x]),)}, DIFFERENTIATES, "float64[2,3]",
     "the jvp rule"),
    ({"derivatives": (lambda out, x: x.astype(nv.complex64),)}, DIFFERENTIATES, "complex128[3]",
     "the jvp rule"),
    ({**TWO_RULES, "jvp": oops}, DIFFERENTIATES, "KeyError", "the jvp rule"),
    ({**TWO_RULES, "jvp": lambda t, out, x: t[0][:1]}, DIFFERENTIATES, "float64[1]",
     "the jvp rule"),
    ({**TWO_RULES, "jvp": lambda t, out, x: t[0].astype("float32")}, DIFFERENTIATES, "float32[3]",
     "the jvp rule"),
    ({**TWO_RULES, "jvp": lambda t, out, x: "t"}, DIFFERENTIATES, "a str", "the jvp rule"),
    ({**TWO_RULES, "vjp": oops}, ("vjp", "grads", "second"), "KeyError", "the vjp rule"),
    ({**TWO_RULES, "vjp": breaks}, ("vjp", "grads", "second"), "own assertion", "the vjp rule"),
    ({**TWO_RULES, "vjp": lambda i, c, out, x: nv.sum(c)}, ("vjp", "grads"), "float64[]",
     "the vjp rule"),
    ({**TWO_RULES, "vjp": lambda i, c, out, x: c.astype("float16")}, ("vjp", "grads"),
     "float16[3]", "the vjp rule"),
    ({"vmap": oops}, ("vmap",), "KeyError", "the vmap rule"),
    ({"vmap": breaks}, ("vmap",), "own assertion", "the vmap rule"),
    ({"vmap": lambda size, axes, x: x}, ("vmap",), "raised", "the vmap rule"),
    ({"vmap": lambda size, axes, x: (x[0], 0)}, ("vmap",), "float64[3] against", "the vmap rule"),
    ({"vmap": lambda size, axes, x: (x, 7)}, ("vmap",), "raised", "the vmap rule"),
    ({"lower": oops}, ALL, "KeyError", "lowering"),
    ({"lower": breaks}, ALL, "own assertion", "lowering"),
    ({"lower": lambda x: None}, ALL, "", "lowering"),
    ({"shape_rule": oops}, ALL, "KeyError", "the shape rule"),
    ({"shape_rule": breaks}, ALL, "own assertion", "the shape rule"),
    ({"shape_rule": lambda x: x.shape}, ALL, "raised", "the shape rule"),
    ({"lower": lambda x: (x, x), "shape_rule": lambda x: (x, x, x), "multiple": True,
      "derivatives": None, "jvp": lambda ts, outs, x: list(ts) * 3,
      "vjp": lambda cs, outs, x: [cs[0]]}, ("lowering",), "2 results, and the shape rule says 3",
     "lowering"),
    ({"lower": lambda x: x, "shape_rule": lambda x: (x,), "multiple": True, "derivatives": None,
      "jvp": lambda ts, outs, x: list(ts), "vjp": lambda cs, outs, x: cs}, ("lowering",),
     "a ndarray, not a tuple", "lowering"),
    ({"lower": lambda x, out=None: oops() if out is not None else x * x, "out": True},
     ("lowering",), "KeyError", "lowering"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "check", "says", "look_at"),
    [(rules, check, says, at) for rules, checks, says, at in WRONG for check in checks],
)
def test_a_rule_that_is_wrong_in_any_way_fails_the_check(
    made: Make, rules: dict[str, Any], check: str, says: str, look_at: str
) -> None:
    f = made(**rules)
    text = fails(lambda: CHECKS[check](f, (X,)), says, look_at)
    assert "toy.square" in text and "[0.3 0.7 1.1]" in text, text  # its primitive, and the input


def test_what_a_rule_raised_is_the_cause(made: Make) -> None:
    for rules, check in (({"derivatives": (oops,)}, "jvp"), ({"lower": oops}, "lowering"),
                         ({"vmap": oops}, "vmap")):  # fmt: skip
        with pytest.raises(AssertionError) as caught:
            CHECKS[check](made(**rules), (X,))
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_says_where_the_values_are_furthest_apart(made: Make) -> None:
    f = made(derivatives=(lambda out, x: 2 * x + nv.array([0, 1e-3, 0]),))
    fails(lambda: check_jvp(f, (X,)), "furthest apart at [1]: ")


# Wrong calls of the checks


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("fn", "args", "message"),
    [
        (3, (X,), "takes a function, got int"),
        (nv.sin, X, r"args must be a tuple of the function's arguments, got ndarray"),
        (nv.sin, 0.5, r"args must be a tuple .*got float; write check_\w+\(f, \(x,\)\)"),
        (lambda x: x, (X, X), "too many positional arguments"),
        (lambda x, y: x, (X,), "missing a required argument: 'y'"),
        (nv.sin, ("x",), "an argument of the function checked"),
    ],
)
def test_a_wrong_call_of_a_check(check: str, fn: Any, args: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        CHECKS[check](fn, args)


@pytest.mark.parametrize("check", [*DIFFERENTIATES, "vmap"])
def test_no_arrays(check: str) -> None:
    for fn, args in ((lambda: nv.ones(2), ()), (lambda x: nv.ones(2), ([],))):
        with pytest.raises(
            ValueError, match=f"{CHECKS[check].__name__}: there is no array among the arg"
        ):
            CHECKS[check](fn, args)
    check_compile(lambda: nv.sin(nv.ones(2)), ())  # whose values can be compared all the same
    check_lowering(lambda: nv.arange(3) * 2, ())


def _scaled(x: Any, w: Any) -> Any:
    return {"x": nv.sin(x["a"]) * w, "w": w + 1}


NESTED = ({"a": X}, np.array(2.0))


@pytest.mark.parametrize(
    ("fn", "args", "in_axes"),
    [
        (nv.sin, (X,), 0), (nv.sin, (X,), 1), (nv.sin, (X,), -1), (nv.sin, (X,), -2),
        (nv.sin, (X,), (0,)), (nv.sin, (X,), [1]), (nv.sin, (X,), (np.int64(0),)),
        (nv.matmul, (np.ones((2, 3)), X), (2, None)), (nv.matmul, (np.ones((2, 3)), X), (-1, -1)),
        (nv.matmul, (np.ones((2, 3)), X), (None, 0)),
        (_scaled, NESTED, 0), (_scaled, NESTED, (0, None)), (_scaled, NESTED, ({"a": 1}, 0)),
        (_scaled, NESTED, ({"a": None}, 0)), (_scaled, NESTED, {"w": 0}),
        (_scaled, NESTED, {"x": {"a": -1}, "w": None}), (lambda *xs: xs[0] * xs[1], (X, X), (0, 1)),
    ],
)  # fmt: skip
def test_in_axes_are_what_vmap_takes(fn: Any, args: Any, in_axes: Any) -> None:
    check_vmap(fn, args, in_axes)


@pytest.mark.parametrize("in_axes", [0, 1, -1, (1,), {"x": -2}])
def test_in_axes_are_really_checked(made: Make, in_axes: Any) -> None:
    f = made(vmap=lambda size, axes, x: (x * 1.001, axes[0]))
    fails(lambda: check_vmap(lambda x: f(x), (X,), in_axes), f"in_axes={in_axes}", "the vmap rule")


def test_out_axes_are_what_vmap_takes(made: Make) -> None:
    check_vmap(_scaled, NESTED, 0, {"x": -1, "w": 0})
    check_vmap(_scaled, NESTED, (0, None), {"x": 1, "w": None})
    check_vmap(_scaled, NESTED, None, 0)
    f = made(vmap=lambda size, axes, x: (x + nv.arange(x.shape[axes[0]])[:, None], axes[0]))
    fails(lambda: check_vmap(lambda x: f(x), (X,), 0, -1), "out_axes=-1")


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "message"),
    [
        ("x", None, "must be an integer or None, got 'x'"),
        (0.5, None, "must be an integer or None, got 0.5"),
        (True, None, "must be an integer or None, got True"),
        ((0, 0, 0), None, "in_axes has 3 entries for 2 positional arguments"),
        ({"y": 0}, None, "in_axes names 'y'"),
        (({"b": 0}, 0), None, "does not fit it"),
        (2, None, "axis 2 is out of range|axis 2"),
        (-3, None, "axis -3"),
        ((None, None), None, r"in_axes=\(None, None\) maps nothing"),
        ({}, None, "maps nothing"),
        (0, 5, "axis 5"),
        (0, {"x": 0}, "out_axes does not fit the output"),
        (0, "x", "out_axes must be integers or None, got 'x'"),
    ],
)
def test_a_wrong_call_of_check_vmap(in_axes: Any, out_axes: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_vmap(_scaled, NESTED, in_axes, out_axes)


@pytest.mark.parametrize(
    ("fn", "operands", "sizes", "message"),
    [
        (3, (X,), (1,), "takes a function, got int"),
        (lambda g, x: x, X, (1,), "args must be a tuple"),
        (lambda g, x: x, lambda rank, size: X, (1,), "args must be a tuple"),
        (lambda g: None, (), (1,), "no array among the arguments"),
        (lambda g, x: x, ("x",), (1,), "an argument of the function checked"),
        (lambda g, x: x, (np.arange(2),), (1,), "no operand of rank 0 is floating.*int64"),
        (lambda g, x: x, lambda r, n: (np.ones(2, (float, int)[r]),), (2,), "operand of rank 1"),
        (lambda g, x: None, (X,), (2,), "returns nothing floating or complex"),
        (lambda g, x: nd.all_max(x > 0, g), (X,), (2,), "returns nothing floating or complex"),
        (lambda g, x: x, (X,), (), "sizes must be sizes of groups"),
        (lambda g, x: x, (X,), (2, 0), "sizes must be sizes of groups"),
        (lambda g, x: x, (X,), "12", "check_collective: sizes"),
    ],
)
def test_a_wrong_call_of_check_collective(fn: Any, operands: Any, sizes: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_collective(fn, operands, sizes)


# Checks with nothing to check


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("out", [None, [], {}, (None, ())])
def test_a_function_without_results(check: str, out: Any) -> None:
    with pytest.raises(ValueError, match=r"the function (returns no array|computes nothing), so"):
        CHECKS[check](lambda x: out, (X,))


@pytest.mark.parametrize("check", DIFFERENTIATES)
def test_nothing_to_differentiate(check: str) -> None:
    with pytest.raises(ValueError, match=r"no argument is floating or complex.*got int64, bool"):
        CHECKS[check](lambda x, y: x * 2.0, (np.arange(3), np.ones(3, bool)))
    with pytest.raises(ValueError, match="no result is floating or complex"):
        CHECKS[check](nv.argmax, (X,))


@pytest.mark.parametrize("check", DIFFERENTIATES)
@pytest.mark.parametrize(("f", "x"), [(nv.log, -X), (nv.sqrt, -X), (lambda x: 1 / x, X * 0)])
def test_a_point_outside_the_domain(check: str, f: Any, x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="the function is not finite at the arguments given"):
        CHECKS[check](f, (x,))


def test_a_derivative_that_is_not_finite_fails(made: Make) -> None:
    f = made(derivatives=(lambda out, x: x * np.nan,))
    for check in DIFFERENTIATES:
        fails(lambda check=check: CHECKS[check](f, (X,)))  # type: ignore[misc]


@pytest.mark.parametrize("order", [0, -1, 2.5, True, "2", None])
def test_orders(order: Any) -> None:
    for check in (
        lambda: check_grads(nv.sin, (X,), order=order),
        lambda: check_collective(_all_sum, ONES, (2,), order=order),
    ):
        with pytest.raises(ValueError, match="order must be an integer of at least 1"):
            check()
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        check_collective(_all_sum, ONES, (2,), order=3)


@pytest.mark.parametrize("limit", [0, -1, 1.5, None])
def test_limits(limit: Any) -> None:
    with pytest.raises(ValueError, match="check_vmap: limit must be an integer of at least 1"):
        check_vmap(nv.sin, (X,), limit=limit)


@pytest.mark.parametrize(
    "checks",
    [[], (), None, "vjp", ["vjp"], [("foo", "")], [("vjp", "foo")], [("vjp",)], [("jvp", ""), 3]],
)
def test_a_wrong_call_of_check_case(checks: Any) -> None:
    case = random_case(3, ranks=1, sizes=(2, 4))
    with pytest.raises(ValueError, match=r"check_case: (checks must be|.* is no check)"):
        check_case(case, checks)
    with pytest.raises(ValueError, match="check_case takes a Case"):
        check_case(case.program)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be an integer of at least 1, got 0"),
        ({"ranks": 1.5}, "ranks must be"),
        ({"sizes": (5, 2)}, r"sizes must be \(fewest, most\) steps, got \(5, 2\)"),
        ({"sizes": 5}, "sizes must be"),
        ({"sizes": (0, 2)}, r"sizes\[0\] must be"),
        ({"sizes": (1, 2, 3)}, "sizes must be"),
        ({"operations": []}, "operations must be a list of what to draw from"),
        ({"operations": "sin"}, "operations must be"),
        ({"operations": [nv.sin]}, "is no nuvec.testing.Operation"),
        ({"operations": [o for o in EXCHANGES if o.sizes > 1], "ranks": 1}, "runs on 1 rank:"),
        ({"seed": -1}, "seed must be"),
        ({"seed": "x"}, "seed must be"),
    ],
)
def test_a_wrong_call_of_random_case(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"random_case: .*{message}"):
        random_case(**{"seed": 1, **arguments})


def test_programs_of_nothing_but_what_holds_programs() -> None:
    assert random_case(1, ranks=1, operations=NESTED_OPERATIONS).fits()


# Elementwise


MIXING: dict[str, Callable[[Any], Any]] = {
    "flip": np.flip, "less the mean": lambda x: x - x.mean(), "roll": lambda x: np.roll(x, 1),
    "sum so far": lambda x: np.cumsum(x).reshape(x.shape), "sort": lambda x: np.sort(x, axis=None)
    .reshape(x.shape), "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "by its place": lambda x: x * np.arange(x.size).reshape(x.shape),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 1)])
@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_elements_is_not_elementwise(made: Make, name: str, shape: Any) -> None:
    x = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape)[::-1]
    rules: dict[str, Any] = {"lower": MIXING[name], "derivatives": (ONE,)}
    if (name, shape) == ("softmax", (4, 1)):
        x = x.T
    fails(lambda: check_lowering(made(**rules), (x,)), "toy.square", "is declared elementwise")


def test_a_result_that_operands_do_not_broadcast_to(made: Make) -> None:
    f = made(lower=lambda x: x[:1], shape_rule=lambda x: aval((1,), x.dtype))
    fails(lambda: check_lowering(f, (X,)), "is declared elementwise: its result has the shape")


# Collectives


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def replace(primitive: Primitive, **rules: Any) -> None:
        for name, rule in rules.items():
            monkeypatch.setattr(primitive, name, rule)

    return replace


def _all_sum(group: Any, x: Any) -> Any:
    return nd.all_sum(x, group)


ONES = (np.ones(3),)


def test_a_dropped_collective(sabotage: Any) -> None:
    sabotage(all_sum_p, vjp=lambda cs, outs, *xs, **params: list(cs))
    text = fails(lambda: check_collective(_all_sum, ONES, (2,)), "adjoint identity", "2 ranks",
                 "all_sum", "sum over ranks of <c, J dx>", "rank 0, input 0: float64[3] [",
                 "rank 1, input 0: float64[3] [")  # fmt: skip
    assert "the vjp and jvp rules" in text


def test_a_dropped_collective_in_both_modes(sabotage: Any) -> None:
    """The modes agree with each other: finite differences tell."""
    sabotage(all_sum_p, vjp=lambda cs, outs, *xs, **params: list(cs),
             jvp=lambda ts, outs, *xs, **params: list(ts))  # fmt: skip
    fails(lambda: check_collective(_all_sum, ONES, (2,)), "finite differences")


def test_a_duplicated_collective(sabotage: Any) -> None:
    def twice(cs: Any, outs: Any, *xs: Any, **params: Any) -> Any:
        return all_sum_p.bind(*all_sum_p.bind(*cs, **params), **params)

    sabotage(all_sum_p, vjp=twice)
    fails(lambda: check_collective(_all_sum, ONES, (3,)), "adjoint identity")


def test_a_forward_that_is_communicated_again(sabotage: Any) -> None:
    """The numbers are right and the message goes out twice."""
    right = all_sum_p.jvp

    def again(ts: Any, outs: Any, *xs: Any, **params: Any) -> Any:
        return right(ts, outs, *xs, **params)

    sabotage(all_sum_p, jvp=again)
    check_collective(_all_sum, ONES, (2,), order=1)

    def restless(group: Any, x: Any) -> Any:
        if nv.core.node.context.traces:
            nd.all_sum(x, group)
        return nd.all_sum(x, group)

    fails(lambda: check_collective(restless, ONES, (2,)), "communications")


def test_swapped_collectives(sabotage: Any) -> None:
    def as_gather(cs: Any, outs: Any, *xs: Any, group: Any, active: bool) -> Any:
        n = group.size()
        parts = all_gather_p.bind(*cs, group=group, active=True)
        return [p[: c.shape[0] // n] for p, c in zip(parts, cs, strict=True)]

    sabotage(all_gather_p, vjp=as_gather)
    fails(lambda: check_collective(lambda g, x: nd.all_gather(x, g), ONES, (2,)),
          "adjoint identity")  # fmt: skip
    sabotage(sum_scatter_p, vjp=lambda cs, outs, *xs, **p: all_sum_p.bind(*cs, **p))
    with pytest.raises((AssertionError, Exception)):
        check_collective(lambda g, x: nd.sum_scatter(x, g), (np.ones(4),), (2,))


def test_a_wrong_rank_in_a_backward() -> None:
    def shift(group: Any, x: Any) -> Any:
        n = group.size()
        nd.send(x, (group.rank() + 1) % n, group)
        return nd.recv_like(x, (group.rank() + 1) % n, group)  # from the wrong side

    with pytest.raises(AssertionError, match=r"MismatchError"):
        check_collective(shift, ONES, (3,), timeout=0.5)


def test_a_wrong_batching_rule_of_a_collective(sabotage: Any) -> None:
    def first(size: int, axes: Any, *operands: Any, **params: Any) -> Any:
        moved = [move_axis(x, a or 0, 0) for x, a in zip(operands, axes, strict=True)]
        return all_gather_p.bind(*moved, **params), [0] * len(moved)

    sabotage(all_gather_p, vmap=first)
    with pytest.raises(AssertionError, match="vmap"):
        check_collective(lambda g, x: nd.all_gather(x, g), ONES, (2,))


@pytest.mark.parametrize("rule", ["jvp", "vjp", "vmap", "lower", "shape_rule"])
@pytest.mark.parametrize("wrong", [oops, breaks])
def test_a_rule_of_a_collective_that_raises(sabotage: Any, rule: str, wrong: Any) -> None:
    sabotage(all_sum_p, **{rule: wrong})
    with pytest.raises(AssertionError, match=r"2 ranks, raised (Key|Assertion)Error") as caught:
        check_collective(_all_sum, ONES, (2,), timeout=1)
    assert caught.value.__cause__ is not None


def test_a_rank_that_goes_missing() -> None:
    def shy(group: Any, x: Any) -> Any:
        return nd.all_sum(x, group) if group.rank() else x * 1

    fails(lambda: check_collective(shy, ONES, (2,)), "Error", "2 ranks")


# The checker of programs


def test_mis_wired_programs() -> None:
    def f(x: Any, y: Any) -> Any:
        return nv.sin(x) * y + x

    ir = make_ir(f)(nv.ones(3), nv.ones(3))
    check_ir(ir)
    first, *rest = ir.eqns

    def rewired(eqns: list[Eqn], **changes: Any) -> IR:
        return IR(changes.get("inputs", ir.inputs), ir.constants, tuple(eqns), ir.outputs)

    other = make_ir(f)(nv.ones(4), nv.ones(4))
    for broken in (
        rewired(rest),  # an equation is dropped
        rewired([*rest, first]),  # or comes too late
        rewired([first, *ir.eqns]),  # or twice
        rewired(list(ir.eqns), inputs=ir.inputs[:1]),
        rewired([dataclasses.replace(first, inputs=other.inputs[:1]), *rest]),
        rewired([dataclasses.replace(first, inputs=()), *rest]),
        rewired([dataclasses.replace(first, outputs=other.eqns[0].outputs), *rest]),
    ):
        with pytest.raises(IRError):
            check_ir(broken)


@pytest.mark.parametrize("modes", [("forward",), (), "fwd", ("fwd", "")])
def test_unknown_modes(modes: Any) -> None:
    with pytest.raises(ValueError, match="'fwd' and 'rev'"):
        check_grads(nv.sin, (X,), modes=modes)


def test_functions_that_draw_are_checked_from_one_place_in_the_stream() -> None:
    def noisy(x: Any) -> Any:
        return nv.sin(x) * nv.random.normal(shape=x.shape, dtype=x.dtype)

    x = nv.array([0.5, 1.0])
    before = nv.random.get_state()
    check_compile(noisy, (x,))
    check_jvp(noisy, (x,))
    check_vjp(noisy, (x,))
    check_grads(nv.checkpoint(noisy), (x,))
    assert nv.random.get_state() == before
    assert float(noisy(x)[0]) != float(noisy(x)[0])

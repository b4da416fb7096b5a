"""The IR's checker: accepts what is well-formed, and names every defect."""

from __future__ import annotations

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.check import check_ir
from nuvec.core.errors import IRError
from nuvec.core.ir import IR, Literal, Var, aval
from tests.core.toy_ir import eqn, example, literal, toy_primitives, var


@pytest.fixture(scope="module")
def toy():
    with toy_primitives() as made:
        yield made


@pytest.mark.parametrize("send", [False, True])
def test_well_formed(toy, send):
    ir = example(toy, send)
    check_ir(ir)
    assert ir.effect is send
    check_ir(ir)  # now with a remembered effect


def refuses(ir, message):
    with pytest.raises(IRError, match=message) as caught:
        check_ir(ir)
    return str(caught.value)


def test_undefined_variables(toy):
    x, y, z = var(hint="x"), var(), var()
    text = refuses(
        IR((x,), (), (eqn(toy.add, [x, y], [z], "train.py:3 (in loss)"),), (z,)),
        r"the operands use b \(float32\[3\]\), which is not defined before",
    )
    assert "\n    a:float32[3] = toy.add x b\n" in text
    assert text.endswith("recorded at train.py:3 (in loss)")
    refuses(IR((x,), (), (), (y,)), "the outputs use .* not defined")


def test_use_before_definition(toy):
    x, a, b = var(), var(), var()
    eqns = (eqn(toy.add, [a, x], [b]), eqn(toy.add, [x, x], [a]))
    refuses(IR((x,), (), eqns, (b,)), "the operands use c .*not defined before")


def test_an_equation_does_not_see_its_own_outputs(toy):
    x, a = var(), var()
    refuses(IR((x,), (), (eqn(toy.add, [a, x], [a]),), (a,)), "not defined before")


def test_defined_twice(toy):
    x, a = var(hint="x"), var()
    twice = "a second time"
    refuses(IR((x, x), (), (), ()), f"the inputs define x .*{twice}")
    refuses(IR((x,), ((x, np.zeros(3, np.float32)),), (), ()), f"the constants define x .*{twice}")
    add = eqn(toy.add, [x, x], [a])
    refuses(IR((x,), (), (add, add), (a,)), f"the outputs of the equation define a .*{twice}")
    refuses(IR((x,), (), (eqn(toy.pair, [x], [a, a]),), (a,)), twice)


@pytest.mark.parametrize(
    "wrong", [var((4,)), var((3,), "float64"), Var(aval((3,), dtypes.float32, True))]
)
def test_a_wrong_output_aval(toy, wrong):
    x = var()
    text = refuses(
        IR((x,), (), (eqn(toy.add, [x, x], [wrong]),), (wrong,)),
        r"output 0 is .*, expected float32\[3\] by the shape rule of toy.add for "
        r"\(float32\[3\], float32\[3\]\)",
    )
    assert repr(wrong.aval) in text


def test_a_wrong_number_of_outputs(toy):
    x, a = var(), var()
    refuses(
        IR((x,), (), (eqn(toy.pair, [x], [a]),), (a,)),
        "the equation has 1 outputs, expected 2 by the shape rule of toy.pair",
    )
    refuses(IR((x,), (), (eqn(toy.add, [x], [a, var()]),), (a,)), "has 2 outputs, expected 1")


def test_operands_the_shape_rule_refuses(toy):
    x, y, a = var(), var((4,)), var()
    refuses(
        IR((x, y), (), (eqn(toy.add, [x, y], [a], "train.py:5"),), (a,)),
        r"the shape rule of toy.add refuses \(float32\[3\], float32\[4\]\): ShapeError: "
        r"float32\[3\] and float32\[4\] differ\n    .*\nrecorded at train.py:5",
    )


def test_literals(toy):
    x, a = var(), var()
    good = literal(1.0)
    lying = Literal(np.float32(1))
    lying.aval = aval((), dtypes.float64)
    plain = literal(1.0)
    plain.value = 1.0
    check_ir(IR((x,), (), (eqn(toy.add, [x, good], [a]),), (a, good)))
    for wrong in (lying, plain):
        refuses(IR((x,), (), (eqn(toy.add, [x, wrong], [a]),), (a,)), "use the literal")
        refuses(IR((x,), (), (), (wrong,)), "the outputs use the literal")
    refuses(IR((x,), (), (), (1.0,)), "neither a variable nor a literal")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.zeros(3), r"float64\[3\]"),
        (np.zeros((1, 3), np.float32), r"float32\[1, 3\]"),
        ([0.0, 0.0, 0.0], "list"),
    ],
)
def test_constants(value, got):
    c = var(hint="c")
    refuses(IR((), ((c, value),), (), (c,)), rf"the constant c \(float32\[3\]\) .* is {got}")


# --- IRs inside


def test_nested_irs_are_checked(toy):
    x, a, y, z = var(), var(), var(), var((2,))
    inner = IR((y,), (), (eqn(toy.shift, [y], [z]),), (z,))
    outer = IR((x,), (), (eqn(toy.call, [x], [a], ir=inner),), (a,))
    refuses(outer, "output 0 is .* in the parameter ir of toy.call")
    deeper = IR((x,), (), (eqn(toy.call, [x], [a], ir=outer),), (a,))
    refuses(deeper, "in the parameter ir of toy.call in the parameter ir of toy.call")


def test_nested_irs_see_nothing_outside(toy):
    x, a, y = var(), var(), var()
    inner = IR((y,), (), (), (x,))
    refuses(IR((x,), (), (eqn(toy.call, [x], [a], ir=inner),), (a,)), "not defined before")


def test_a_call_fits_its_ir(toy):
    x, w, a, y = var(), var((2,)), var(), var()
    inner = IR((y,), (), (), (y,))
    refuses(
        IR((x, w), (), (eqn(toy.call, [x, w], [a], ir=inner),), (a,)),
        r"the operands are \(float32\[3\], float32\[2\]\), expected \(float32\[3\],\), the inputs",
    )
    refuses(IR((w,), (), (eqn(toy.call, [w], [a], ir=inner),), (a,)), "the operands are")
    refuses(
        IR((x,), (), (eqn(toy.call, [x], [a, var()], ir=inner),), (a,)), "the outputs are .* of the"
    )


def test_weakness_may_differ_between_a_call_and_its_ir(toy):
    weak, y, a = Var(aval((), dtypes.float32, True)), var(()), var(())
    check_ir(IR((weak,), (), (eqn(toy.call, [weak], [a], ir=IR((y,), (), (), (y,))),), (a,)))


# --- Effects


def test_a_remembered_effect_must_be_true(toy):
    for send in (False, True):
        ir = example(toy, send)
        ir.derived["effect"] = not send
        refuses(ir, f"marked effect={not send}")
        outer = IR((), (), (), ())
        outer.derived["effect"] = True
        refuses(outer, "it does not communicate")


def test_irs_only_in_higher_order_primitives(toy):
    x, a, y = var(), var(), var()
    inner = IR((y,), (), (), (y,))
    refuses(
        IR((x,), (), (eqn(toy.shift, [x], [a], ir=inner),), (a,)),
        "toy.shift holds an IR but is not declared higher_order",
    )

"""Derivatives at kinks, poles and zeros, where finite differences say nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nuvec.core.array import from_numpy
from nuvec.core.ops import arithmetic as ar
from nuvec.core.ops import conversion as cv
from nuvec.core.ops import exponential as ex
from nuvec.core.ops import power as po
from nuvec.core.ops import reduction as re
from nuvec.core.ops import rounding as ro
from nuvec.core.ops import selection as se
from nuvec.core.ops import shape as sh
from nuvec.core.ops import signs as si
from nuvec.transforms.grad import grad, vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.vmap import vmap

f32 = np.float32


def both_modes(f, x):
    """The derivative of a scalar function, which forward and reverse mode agree on."""
    backward = float(grad(f)(f32(x)))
    forward = float(jvp(f, (f32(x),), (f32(1),))[1])
    np.testing.assert_equal(forward, backward)
    return backward


# One operand


def test_abs_is_flat_at_zero():
    assert both_modes(si.abs, 0) == 0
    assert both_modes(si.abs, -3) == -1


def test_sqrt_is_steep_at_zero():
    assert both_modes(ar.sqrt, 0) == math.inf
    assert both_modes(ar.cbrt, 0) == math.inf
    assert both_modes(ex.log, 0) == math.inf


def test_steps_are_flat():
    for step in (ro.floor, ro.ceil, ro.trunc, ro.round, si.sign):
        assert both_modes(lambda x, step=step: step(x) * 1.0, 0.3) == 0
        assert both_modes(lambda x, step=step: step(x) * 1.0, 0) == 0


def test_sqrt_second_order():
    assert float(grad(grad(lambda x: po.square(ar.subtract(ar.sqrt(x), 1))))(1.0)) == 0.5


def test_saturated_sigmoid_and_tanh_are_flat():
    for x in (-200, 200):
        assert both_modes(ex.sigmoid, x) == 0
        assert both_modes(ex.tanh, x) == 0


# Powers


def test_powers_at_zero():
    x = f32(0)
    for exponent, slope in ((0, 0), (1, 1), (2, 0), (3, 0)):
        assert both_modes(lambda x, n=exponent: po.power(x, n), 0) == slope
        # and with the exponent as an array
        by_base, by_exponent = grad(po.power, argnums=(0, 1))(x, f32(exponent))
        assert (float(by_base), float(by_exponent)) == (slope, 0)
    assert both_modes(lambda x: po.power(x, 0.5), 0) == math.inf
    assert both_modes(lambda x: po.power(x, -1), 0) == -math.inf


def test_power_second_order_at_zero():
    for n, second in ((0, 0), (1, 0), (2, 2), (3, 0)):
        by_array = grad(grad(lambda x, n=n: po.power(x, from_numpy(f32(n)))))(0.0)
        by_int = grad(grad(lambda x, n=n: po.power(x, n)))(0.0)
        assert (float(by_array), float(by_int)) == (second, second)


def test_power_with_exponent_zero_has_a_mixed_derivative():
    # d/dy d/dx x^y = (1 + y log x) x^(y-1), which is 1/x at y = 0
    mixed = grad(lambda y: grad(po.power)(f32(4), y))(f32(0))
    assert float(mixed) == 0.25


# Two operands


@pytest.mark.parametrize("op", [se.maximum, se.minimum])
def test_ties_share_equally(op):
    x, y = f32([1, 2, 3]), f32([1, 5, 1])
    gx, gy = grad(lambda x, y: sh.sum(op(x, y)), argnums=(0, 1))(x, y)
    np.testing.assert_array_equal(np.asarray(gx) + np.asarray(gy), 1)
    assert float(gx[0]) == float(gy[0]) == 0.5
    assert both_modes(lambda x: op(x, x), 2) == 1
    assert both_modes(lambda x: op(x, 2.0), 2) == 0.5


def test_ties_of_infinities_share_too():
    inf = f32(np.inf)
    gx, gy = grad(lambda x, y: se.maximum(x, y), argnums=(0, 1))(inf, inf)
    assert (float(gx), float(gy)) == (0.5, 0.5)


def test_an_infinite_cotangent_does_not_leak_to_the_loser():
    _, pull = vjp(se.maximum, f32([1, 2]), f32([2, 1]))
    gx, gy = pull(f32([np.inf, np.nan]))
    np.testing.assert_array_equal(np.asarray(gx), [0, np.nan])
    np.testing.assert_array_equal(np.asarray(gy), [np.inf, 0])


def test_clip_at_and_beyond_its_bounds():
    slopes = [both_modes(lambda x: se.clip(x, -1, 1), x) for x in (-2, -1, 0, 1, 2)]
    assert slopes == [0, 0.5, 1, 0.5, 0]


# Structural zeros


def test_where_keeps_the_other_branch_out():
    def f(x):
        return se.where(x >= 0, x, ar.sqrt(ar.negative(x)))

    assert both_modes(f, 1) == 1
    assert both_modes(f, 0) == 1
    assert both_modes(f, -4) == -0.25
    assert float(grad(grad(f))(1.0)) == 0


def test_where_keeps_out_a_chain_of_infinite_derivatives():
    def f(x):
        inner = ex.log(ar.sqrt(si.abs(ar.subtract(x, 1))))
        return se.where(x == 1, x, ar.multiply(inner, ar.reciprocal(ar.subtract(x, 1))))

    assert both_modes(f, 1) == 1


def test_maximum_keeps_the_loser_out():
    assert both_modes(lambda x: se.maximum(ar.sqrt(x), 1.0), 0) == 0
    assert both_modes(lambda x: se.clip(ex.log(x), -5.0, 5.0), 0) == 0


def test_where_under_vmap_keeps_the_other_branch_out():
    def f(x):
        return se.where(x > 0, ar.sqrt(x), 0)

    np.testing.assert_array_equal(np.asarray(vmap(grad(f))(f32([0, 4]))), [0, 0.25])


# Reductions


@pytest.mark.parametrize("op", [re.max, re.min])
def test_equal_extremes_share(op):
    x = f32([[2, 2, 2, 2], [1, 1, 3, 3]])
    g = grad(lambda x: sh.sum(op(x, axis=1)))(x)
    expected = [[0.25] * 4, [0, 0, 0.5, 0.5] if op is re.max else [0.5, 0.5, 0, 0]]
    np.testing.assert_array_equal(np.asarray(g), expected)
    _, tangent = jvp(lambda x: op(x, axis=1), (x,), (np.ones_like(x),))
    np.testing.assert_array_equal(np.asarray(tangent), [1, 1])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([2, 3, 4], [12, 8, 6]), ([2, 0, 4], [0, 8, 0]), ([0, 0, 4], [0, 0, 0]),
        ([5], [1]), ([0], [1]), ([2, 0, 3, 5, 7], [0, 210, 0, 0, 0]),
    ],
)  # fmt: skip
def test_prod_with_zeros(x, expected):
    np.testing.assert_array_equal(np.asarray(grad(re.prod)(f32(x))), expected)
    columns = [jvp(re.prod, (f32(x),), (e,))[1] for e in np.eye(len(x), dtype=f32)]
    np.testing.assert_array_equal([float(c) for c in columns], expected)


def test_prod_with_zeros_second_and_third_order():
    x = f32([2, 0, 3, 0])
    hessian = vmap(lambda v: jvp(grad(re.prod), (x,), (v,))[1])(np.eye(4, dtype=f32))
    expected = np.zeros((4, 4))
    expected[1, 3] = expected[3, 1] = 6
    np.testing.assert_array_equal(np.asarray(hessian), expected)
    third = grad(grad(grad(lambda t: re.prod(ar.multiply(t, f32([1, 2, 3]))))))(0.0)
    assert float(third) == 36


def test_prod_of_nothing_has_an_empty_gradient():
    assert np.asarray(grad(re.prod)(np.zeros(0, f32))).shape == (0,)


# Complex, by the convention that a cotangent pairs with a tangent as Re(c t)


def test_complex_abs():
    z = np.complex64(3 + 4j)
    assert complex(grad(si.abs)(z)) == pytest.approx((3 - 4j) / 5)
    assert float(jvp(si.abs, (z,), (np.complex64(1j),))[1]) == pytest.approx(0.8)
    assert complex(grad(si.abs)(np.complex64(0))) == 0


def test_holomorphic_functions_have_their_derivative():
    z = np.complex64(0.3 - 0.7j)
    _, pull = vjp(ex.exp, z)
    assert complex(pull(np.complex64(2j))[0]) == pytest.approx(2j * np.exp(z), rel=1e-6)
    _, pull = vjp(lambda z: po.power(z, 3), z)
    assert complex(pull(np.complex64(1))[0]) == pytest.approx(3 * complex(z) ** 2, rel=1e-6)


def test_parts_of_complex_numbers():
    z = np.complex64(1 + 2j)
    assert complex(grad(cv.real)(z)) == 1
    assert complex(grad(cv.imag)(z)) == -1j
    _, pull = vjp(cv.conj, z)
    assert complex(pull(np.complex64(1 + 1j))[0]) == 1 - 1j
    _, pull = vjp(cv.make_complex, f32(1), f32(2))
    assert [float(g) for g in pull(np.complex64(3 + 5j))] == [3, -5]


def test_sign_of_complex_zero():
    z = np.complex64([0, 3 + 4j])
    out, tangent = jvp(si.sign, (z,), (np.complex64([1, 0]),))
    np.testing.assert_allclose(np.asarray(out), [0, 0.6 + 0.8j], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(tangent), 0)

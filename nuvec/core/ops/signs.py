"""Sign and absolute value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.arithmetic import divide, multiply
from nuvec.core.ops.build import (
    as_operand,
    elementwise_rule,
    numeric,
    promote_operands,
    unary,
)
from nuvec.core.ops.comparison import equal, isinf, isnan, logical_and, logical_or
from nuvec.core.ops.conversion import conj, imag, make_complex, real
from nuvec.core.ops.selection import where
from nuvec.core.primitive import ZERO, Primitive
from nuvec.core.traceback import filtered

sign_p = Primitive("sign", np.sign, elementwise_rule("sign"), "elementwise",
                   derivatives=(ZERO,), out=True)  # fmt: skip


@filtered
def sign(x: Any, /) -> Array:
    """-1, 0 or 1 with the sign of each element; `x / abs(x)` for complex numbers, 0 at 0.

    Raises DtypeError for booleans.

    >>> import nuvec as nv
    >>> nv.sign(nv.array([-2.0, 0.0, 5.0]))
    array([-1.,  0.,  1.], dtype=float32)
    """
    (x,) = promote_operands("sign", (x,), numeric)
    if not dtypes.is_complex(x.dtype):
        return sign_p.bind(x)
    size, unit = abs(x), _unit(x)
    # Along an axis infinite numbers have the sign of that axis (NumPy's; both parts: NaN), and
    # finite ones whose length overflows are scaled down first.
    re, im = real(x), imag(x)
    along = where(isinf(re), make_complex(sign_p.bind(re), 0), make_complex(0, sign_p.bind(im)))
    infinite = where(logical_and(isinf(re), isinf(im)), unit, along)
    infinite = where(logical_or(isnan(re), isnan(im)), unit, infinite)
    small = where(isinf(size), multiply(x, 0.25), 1)
    finite = divide(small, abs(small))
    limit = where(logical_or(isinf(re), isinf(im)), infinite, finite)
    return where(isinf(size), limit, unit)


abs_p = Primitive(
    "abs", np.absolute, elementwise_rule("abs"), "elementwise",
    # d|x| = sign(x), which is 0 at 0
    derivatives=(lambda out, x: sign_p.bind(x),), out=True,
)  # fmt: skip


def _complex_abs_rule(x: Aval) -> Aval:
    return aval(x.shape, dtypes.real_part(x.dtype), x.weak)


# d|x| = Re(conj(sign(x)) t), with sign(0) = 0; c of that is Re(c conj(sign(x)) t)


def _complex_abs_jvp(tangents: Sequence[Array], out: Array, x: Array) -> Array:
    return real(multiply(conj(_unit(x)), tangents[0]))


def _complex_abs_vjp(i: int, c: Array, out: Array, x: Array) -> Array:
    return multiply(as_operand(c, x.dtype), conj(_unit(x)))


def _unit(x: Array) -> Array:
    size = abs(x)
    return where(equal(size, 0), 0, divide(x, size))


complex_abs_p = Primitive("complex_abs", np.absolute, _complex_abs_rule, "elementwise",
                          jvp=_complex_abs_jvp, vjp=_complex_abs_vjp, out=True)  # fmt: skip

_real_abs = unary(abs_p)


def abs(x: Any, /) -> Array:
    """The absolute value, elementwise; of a complex number its length, a real number.

    The derivative at 0 is 0.

    >>> import nuvec as nv
    >>> nv.abs(nv.array([-2.0, 3.0])), nv.abs(nv.array([3 + 4j]))
    (array([2., 3.], dtype=float32), array([5.], dtype=float32))
    """
    if type(x) is Array and not dtypes.is_complex(x.dtype):
        return _real_abs(x)
    (x,) = promote_operands("abs", (x,))
    return complex_abs_p.bind(x) if dtypes.is_complex(x.dtype) else _real_abs(x)


absolute = abs


@filtered
def positive(x: Any, /) -> Array:
    """`+x`, which is `x`.  Raises DtypeError for booleans, as NumPy does.

    >>> import nuvec as nv
    >>> nv.positive(nv.array([-2.0]))
    array([-2.], dtype=float32)
    """
    (x,) = promote_operands("positive", (x,), numeric)
    return x

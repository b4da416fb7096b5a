"""Between dtypes, and between real and complex numbers.

All are linear.  Cotangents pair with tangents as Re(c * t), without conjugation, which is what
decides the transposes below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.arithmetic import negative
from nuvec.core.ops.build import (
    checked_cast,
    convert_dtype,
    elementwise_rule,
    promote_operands,
    real_inexact,
)
from nuvec.core.ops.shape import broadcast_to, unbroadcast
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered


@filtered
def astype(x: Any, dtype: Any) -> Array:
    """`x` in another dtype; itself when it has that dtype already.

    Floating numbers are cut off towards zero when they become integers; nonzero values (NaN
    among them) are true.  Raises DtypeError for complex to real, which would drop a part.

    >>> import nuvec as nv
    >>> nv.astype(nv.array([1.7, -1.7]), nv.int32)
    array([ 1, -1], dtype=int32)
    """
    x = operand(x, "astype's operand")
    return checked_cast("astype", x, dtypes.as_dtype(dtype))


def _part_rule(name: str) -> Any:
    def shape_rule(x: Aval) -> Aval:
        if not dtypes.is_complex(x.dtype):
            raise DtypeError(f"{name}: the primitive takes complex numbers, got {x}")
        return aval(x.shape, dtypes.real_part(x.dtype), x.weak)

    return shape_rule


# real and imag: c Re(t) = Re(c t), and c Im(t) = Re(-i c t)

real_p = Primitive(
    "real", lambda x: x.real.copy(), _part_rule("real"), "elementwise",
    transpose=lambda i, c, out, x: convert_dtype.bind(c, dtype=x.dtype),
)  # fmt: skip


@filtered
def real(x: Any, /) -> Array:
    """The real part of `x`; `x` itself when it is not complex.

    >>> import nuvec as nv
    >>> nv.real(nv.array([1 + 2j]))
    array([1.], dtype=float32)
    """
    x = operand(x, "real's operand")
    return real_p.bind(x) if dtypes.is_complex(x.dtype) else x


imag_p = Primitive(
    "imag", lambda x: x.imag.copy(), _part_rule("imag"), "elementwise",
    transpose=lambda i, c, out, x: complex_p.bind(zeros_like_real(c), negative(c)),
)  # fmt: skip


@filtered
def imag(x: Any, /) -> Array:
    """The imaginary part of `x`; zeros when it is not complex.

    >>> import nuvec as nv
    >>> nv.imag(nv.array([1 + 2j]))
    array([2.], dtype=float32)
    """
    x = operand(x, "imag's operand")
    return imag_p.bind(x) if dtypes.is_complex(x.dtype) else zeros_like_real(x)


def zeros_like_real(x: Array) -> Array:
    """Zeros of `x`'s shape and dtype that do not depend on `x`."""
    return broadcast_to(operand(x.dtype.type(0)), x.shape)


# conj: Re(c conj(t)) = Re(conj(c) t)

conj_p: Primitive = Primitive(
    "conj", np.conjugate, elementwise_rule("conj"), "elementwise",
    transpose=lambda i, c, out, x: conj_p.bind(c), out=True,
)  # fmt: skip


@filtered
def conj(x: Any, /) -> Array:
    """The complex conjugate of `x`; `x` itself when it is not complex.

    >>> import nuvec as nv
    >>> nv.conj(nv.array([1 + 2j]))
    array([1.-2.j], dtype=complex64)
    """
    x = operand(x, "conj's operand")
    return conj_p.bind(x) if dtypes.is_complex(x.dtype) else x


conjugate = conj


# complex: Re(c (s + i t)) = Re(c) s - Im(c) t


def _complex_lower(re: Any, im: Any) -> Any:
    shape = np.broadcast_shapes(np.shape(re), np.shape(im))
    out = np.empty(shape, dtypes.complex_of(re.dtype))
    out.real = re
    out.imag = im
    return out


def _complex_transpose(i: int, c: Array, out: Array, re: Array, im: Array) -> Array:
    if i == 0:
        return unbroadcast(real(c), re.shape)
    return unbroadcast(negative(imag(c)), im.shape)


complex_p: Primitive = Primitive(
    "complex", _complex_lower, elementwise_rule("complex", dtypes.complex_of), "elementwise",
    transpose=_complex_transpose, linear="joint",
)  # fmt: skip


def _single_or_double(dtype: np.dtype) -> np.dtype:
    """Convert: complex numbers have parts in float32 or float64."""
    dtype = real_inexact(dtype)
    return dtype if dtype == dtypes.float64 else dtypes.float32


@filtered
def make_complex(re: Any, im: Any) -> Array:
    """`re + 1j * im`, exactly as given (arithmetic would turn infinite parts into NaN).

    complex128 from float64 parts, else complex64.  Shapes broadcast.  Raises DtypeError for
    parts that are complex themselves.

    >>> import nuvec as nv
    >>> nv.make_complex(nv.array([1.0, 2.0]), 3.0)
    array([1.+3.j, 2.+3.j], dtype=complex64)
    """
    return complex_p.bind(*promote_operands("make_complex", (re, im), _single_or_double))

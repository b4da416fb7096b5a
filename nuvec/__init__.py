"""nuvec: function transforms, lazy arrays and collectives for NumPy programs.

    import nuvec as nv

Array functions have NumPy's names and arguments, transforms JAX's.
"""

# ruff: noqa: I001, F401 (sections in reading order; some names are also builtins)
# Importing this attaches Array's operators and methods.
from nuvec.core.functions import methods as _methods

# Arrays and their dtypes

from nuvec.core.array import Array, eval
from nuvec.core.config import config
from nuvec.core.dtypes import (
    bfloat16,
    bool_,
    can_cast,
    complex64,
    complex128,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from nuvec.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    ConfigurationError,
    DistributedError,
    DtypeError,
    IRError,
    LeakedTracerError,
    MismatchError,
    NanError,
    NuvecError,
    OutOfBoundsError,
    PeerError,
    ShapeError,
    TreeError,
)
from nuvec.core.primitive import Primitive
from math import e, inf, nan, pi

# Creation

from nuvec.core.functions.creation import array, asarray, astype, copy, from_dlpack
from nuvec.core.functions.filled import (
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from nuvec.core.functions.ranges import arange, eye, identity, linspace, meshgrid, tri, tril, triu

# Element by element

from nuvec.core.ops.arithmetic import (
    add,
    cbrt,
    divide,
    floor_divide,
    mod,
    multiply,
    negative,
    reciprocal,
    remainder,
    rsqrt,
    sqrt,
    subtract,
    masked_product,
)
from nuvec.core.ops.comparison import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    left_shift,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    right_shift,
)
from nuvec.core.ops.conversion import conj, conjugate, imag, make_complex, real
from nuvec.core.ops.erf import erf
from nuvec.core.ops.exponential import (
    cos,
    cosh,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    sigmoid,
    sin,
    sinh,
    tan,
    tanh,
)
from nuvec.core.ops.logaddexp import logaddexp
from nuvec.core.ops.power import power, square
from nuvec.core.ops.rounding import ceil, floor, round, trunc
from nuvec.core.ops.selection import clip, maximum, minimum, where
from nuvec.core.ops.signs import abs, absolute, positive, sign

# Questions

from nuvec.core.functions.inspection import (
    allclose,
    array_equal,
    broadcast_arrays,
    isclose,
    isdtype,
    result_type,
)

# Reductions and statistics

from nuvec.core.functions.exponentials import log_softmax, logsumexp, one_hot, softmax
from nuvec.core.functions.statistics import average, count_nonzero, mean, std, var
from nuvec.core.ops.reduction import all, amax, amin, any, argmax, argmin, max, min, prod, sum

# Shape and indexing

from nuvec.core.functions.along import put_along_axis, take_along_axis
from nuvec.core.functions.indexing import take
from nuvec.core.functions.joining import (
    array_split,
    column_stack,
    dstack,
    hstack,
    split,
    stack,
    unstack,
    vstack,
)
from nuvec.core.functions.padding import pad
from nuvec.core.functions.structure import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    diagonal,
    fliplr,
    flipud,
    matrix_transpose,
    moveaxis,
    ravel,
    repeat,
    roll,
    rot90,
    swapaxes,
    tile,
)
from nuvec.core.ops.shape import broadcast_to, reshape, transpose
from nuvec.core.ops.structure import concatenate, expand_dims, flip, squeeze

# Convolutions and pooling

from nuvec.core.functions.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_general,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from nuvec.core.functions.pooling import avg_pool, max_pool, min_pool

# Products

from nuvec.core.functions.einsum import einsum, einsum_path
from nuvec.core.functions.products import inner, outer, tensordot, vdot, vecdot
from nuvec.core.functions.quantization import dequantize, quantize, quantized_matmul
from nuvec.core.ops.contraction import dot, dot_general, matmul

# Transforms

from nuvec.core.ops.differentiation import depends, stop_gradient
from nuvec.transforms.checkpoint import checkpoint
from nuvec.transforms.compile import compile
from nuvec.transforms.custom import custom_vjp
from nuvec.transforms.custom_jvp import custom_jvp
from nuvec.transforms.grad import grad, value_and_grad, vjp
from nuvec.transforms.ir_tools import make_ir
from nuvec.transforms.jacobian import hessian, jacfwd, jacrev
from nuvec.transforms.jvp import jvp
from nuvec.transforms.linearize import linear_transpose, linearize
from nuvec.transforms.vectorize import vectorize
from nuvec.transforms.vmap import vmap

# Control flow

from nuvec.transforms.cond import cond, switch
from nuvec.transforms.loops import associative_scan, fori_loop, map
from nuvec.transforms.scan import scan
from nuvec.transforms.while_loop import while_loop

# The Python Array API's other names of functions above

from nuvec.core.dtypes import bool_ as bool
from nuvec.core.ops.structure import concatenate as concat
from nuvec.core.ops.power import power as pow
from nuvec.core.ops.shape import transpose as permute_dims

# Namespaces; those that are not always needed are imported when first asked for

import importlib
import typing

from nuvec import linalg, random, tree

if typing.TYPE_CHECKING:
    from nuvec import distributed, nn, testing
    from nuvec.distributed.group import synchronize
    from nuvec.distributed.profile_ranks import profile
    from nuvec.testing.derivatives import check_grads

newaxis = None
__version__ = "0.1.0"

_MODULES = ("distributed", "nn", "testing")
_LATER = {
    "profile": "nuvec.distributed.profile_ranks",
    "synchronize": "nuvec.distributed.group",
    "check_grads": "nuvec.testing.derivatives",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"nuvec.{name}")
    if name in _LATER:
        found = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module 'nuvec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ArgumentError",
    "Array",
    "AxisError",
    "ConcretizationError",
    "ConfigurationError",
    "DistributedError",
    "DtypeError",
    "IRError",
    "LeakedTracerError",
    "MismatchError",
    "NanError",
    "NuvecError",
    "OutOfBoundsError",
    "PeerError",
    "Primitive",
    "ShapeError",
    "TreeError",
    "abs",
    "absolute",
    "add",
    "all",
    "allclose",
    "amax",
    "amin",
    "any",
    "arange",
    "argmax",
    "argmin",
    "array",
    "array_equal",
    "array_split",
    "asarray",
    "associative_scan",
    "astype",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "average",
    "avg_pool",
    "bfloat16",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "bool_",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "cbrt",
    "ceil",
    "check_grads",
    "checkpoint",
    "clip",
    "column_stack",
    "compile",
    "complex64",
    "complex128",
    "concat",
    "concatenate",
    "cond",
    "config",
    "conj",
    "conjugate",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_general",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "copy",
    "cos",
    "cosh",
    "count_nonzero",
    "custom_jvp",
    "custom_vjp",
    "depends",
    "dequantize",
    "diagonal",
    "distributed",
    "divide",
    "dot",
    "dot_general",
    "dstack",
    "e",
    "einsum",
    "einsum_path",
    "empty",
    "empty_like",
    "equal",
    "erf",
    "eval",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "finfo",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fori_loop",
    "from_dlpack",
    "full",
    "full_like",
    "grad",
    "greater",
    "greater_equal",
    "hessian",
    "hstack",
    "identity",
    "iinfo",
    "imag",
    "inf",
    "inner",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "isclose",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "jacfwd",
    "jacrev",
    "jvp",
    "left_shift",
    "less",
    "less_equal",
    "linalg",
    "linear_transpose",
    "linearize",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "make_complex",
    "make_ir",
    "map",
    "masked_product",
    "matmul",
    "matrix_transpose",
    "max",
    "max_pool",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "min_pool",
    "minimum",
    "mod",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "nn",
    "not_equal",
    "one_hot",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "power",
    "prod",
    "profile",
    "put_along_axis",
    "quantize",
    "quantized_matmul",
    "random",
    "ravel",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "right_shift",
    "roll",
    "rot90",
    "round",
    "rsqrt",
    "scan",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softmax",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "switch",
    "synchronize",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "testing",
    "tile",
    "transpose",
    "tree",
    "tri",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unstack",
    "value_and_grad",
    "var",
    "vdot",
    "vecdot",
    "vectorize",
    "vjp",
    "vmap",
    "vstack",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]

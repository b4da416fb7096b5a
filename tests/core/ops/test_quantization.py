"""quantize, dequantize and quantized_matmul: MLX's bits, memory, errors, derivatives."""

import itertools
import os
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import nuvec as nv
from nuvec.testing import check_grads

BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
GOLDEN = np.load(Path(__file__).parents[2] / "data" / "quantization_mlx.npz")


def drawn(*shape, seed=0, dtype=np.float32):
    return np.random.Generator(np.random.PCG64(seed)).normal(size=shape).astype(dtype)


def golden(name):
    """(bits, group_size, codes, scales, biases, checksum of what dequantize gives) of MLX."""
    rows, columns = GOLDEN[f"{name}_w"].shape
    at = dict.fromkeys(("codes", "scales", "biases"), 0)
    for i, (bits, group_size) in enumerate(itertools.product(BITS, GROUP_SIZES)):
        found = []
        for what, width in (("codes", columns * bits // 32), ("scales", columns // group_size),
                            ("biases", columns // group_size)):  # fmt: skip
            part = GOLDEN[f"{name}_{what}"][at[what] : at[what] + rows * width]
            at[what] += rows * width
            found.append(part.reshape(rows, width))
        yield bits, group_size, *found, GOLDEN[f"{name}_again"][i]
    assert all(end == GOLDEN[f"{name}_{what}"].size for what, end in at.items())


@pytest.mark.parametrize("name", DTYPES)
def test_the_bits_are_those_of_mlx(name):
    w = GOLDEN[f"{name}_w"].view(DTYPES[name])
    seen = 0
    for bits, group_size, codes, scales, biases, checksum in golden(name):
        packed = nv.quantize(w, group_size, bits)
        assert packed[0].dtype == nv.uint32
        assert packed[1].dtype == packed[2].dtype == np.dtype(DTYPES[name])
        np.testing.assert_array_equal(packed[0], codes)
        for found, wanted in zip(packed[1:], (scales, biases), strict=True):
            np.testing.assert_array_equal(np.asarray(found).view(wanted.dtype), wanted)
        again = np.asarray(nv.dequantize(*packed, group_size, bits))
        assert again.dtype == np.dtype(DTYPES[name])
        assert zlib.crc32(again.tobytes()) == checksum
        seen += 1
    assert seen == 18


@pytest.mark.parametrize("bits", BITS)
def test_products_are_those_of_mlx(bits):
    packed = nv.quantize(GOLDEN["float32_w"].view(np.float32), 64, bits)
    for name, transpose in (("x", True), ("y", False)):
        found = nv.quantized_matmul(GOLDEN[name], *packed, transpose, 64, bits)
        scale = np.abs(GOLDEN[f"{name}_{bits}"]).max()
        np.testing.assert_allclose(found, GOLDEN[f"{name}_{bits}"], rtol=1e-5, atol=1e-6 * scale)


def test_compiled_quantize_has_the_same_bits():
    w = GOLDEN["float16_w"].view(np.float16)
    compiled = nv.compile(lambda w: nv.quantize(w, 32, 3))(w)
    for a, b in zip(compiled, nv.quantize(w, 32, 3), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_what_is_not_finite_stays_so_and_harms_no_other_group():
    w = drawn(3, 64)
    w[0, 3], w[1, 40], w[2, 2] = np.nan, np.inf, -np.inf
    again = np.asarray(nv.dequantize(*nv.quantize(w, 32, 4), 32, 4))
    bad = np.isnan(again)
    expected = np.zeros((3, 2), bool)
    expected[[0, 1, 2], [0, 1, 0]] = True
    np.testing.assert_array_equal(bad, np.repeat(expected, 32, axis=1))
    np.testing.assert_allclose(again[~bad], w[~bad], atol=0.35)


@pytest.mark.parametrize("bits", BITS)
def test_no_element_is_further_off_than_a_step(bits):
    w = drawn(8, 128, dtype=np.float64)
    codes, scales, biases = nv.quantize(w, 64, bits)
    assert scales.dtype == nv.float64
    step = np.repeat(np.abs(np.asarray(scales)), 64, axis=1)
    # Half a step, and at the end that the change of the step moved, a whole one.
    off = np.abs(np.asarray(nv.dequantize(codes, scales, biases, 64, bits)) - w) / step
    assert off.max() <= 1 + 1e-9 and np.quantile(off, 0.9) <= 0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize(("bits", "group_size"), [(2, 32), (3, 128), (5, 64), (8, 32)])
def test_a_product_is_that_of_what_dequantize_gives(bits, group_size, transpose, dtype):
    # More rows and columns than a block has, and no multiple of it.
    rows, columns = 1100, 1280
    packed = nv.quantize(drawn(rows, columns, dtype=dtype), group_size, bits)
    x = drawn(3, columns if transpose else rows, seed=1, dtype=dtype)
    found = nv.quantized_matmul(x, *packed, transpose, group_size, bits)
    assert found.dtype == np.dtype(dtype)
    wide = [np.asarray(a).astype(np.float64) for a in packed[1:]]
    w = np.asarray(nv.dequantize(packed[0], *wide, group_size, bits))
    expected = x.astype(np.float64) @ (w.T if transpose else w)
    if dtype in (np.float32, np.float64):
        rtol = 1e-5 if dtype == np.float32 else 1e-13
    else:  # rounded once
        rtol = ml_dtypes.finfo(dtype).eps
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(found).astype(np.float64), expected, rtol, rtol * scale)


def test_a_long_sum_of_rows_and_columns_goes_piece_by_piece():
    for rows, columns in ((40, 8192), (9000, 64)):
        packed = nv.quantize(drawn(rows, columns), 64, 4)
        w = np.asarray(nv.dequantize(*packed)).astype(np.float64)
        for x, transpose in ((drawn(2, columns), True), (drawn(2, rows), False)):
            expected = x @ (w.T if transpose else w)
            found = nv.quantized_matmul(x, *packed, transpose)
            np.testing.assert_allclose(found, expected, 1e-5, 1e-5 * np.abs(expected).max())


def test_shapes_of_x_and_of_stacks():
    w = drawn(2, 5, 64)
    packed = nv.quantize(w, 32, 4)
    plain = np.asarray(nv.dequantize(*packed, 32, 4))
    one = [a[1] for a in packed]

    def product(x, packed, transpose=True):
        return nv.quantized_matmul(x, *packed, transpose, 32, 4)

    for shape in ((64,), (1, 64), (3, 64), (2, 4, 3, 64), (0, 64), (2, 0, 64)):
        x = drawn(*shape)
        np.testing.assert_allclose(product(x, one), x @ plain[1].T, 1e-5, 1e-5)
    for shape in ((64,), (3, 64), (2, 3, 64), (1, 3, 64), (4, 1, 3, 64), (4, 2, 3, 64)):
        x = drawn(*shape)
        expected = x @ plain.swapaxes(-1, -2)
        if len(shape) == 1:  # a vector with a stack of matrices is a row for each
            expected = expected.reshape(2, 5)
        np.testing.assert_allclose(product(x, packed), expected, 1e-5, 1e-5)
    x = drawn(4, 2, 3, 5)
    np.testing.assert_allclose(product(x, packed, False), x @ plain, 1e-5, 1e-5)
    np.testing.assert_array_equal(product(drawn(3, 0), nv.quantize(drawn(0, 64), 32), False), 0)
    assert product(drawn(3, 0), nv.quantize(drawn(5, 0), 32)).tolist() == [[0] * 5] * 3


def test_operands_are_promoted():
    packed = nv.quantize(drawn(4, 32).astype(np.float16), 32)
    for x, dtype in ((drawn(2, 32), nv.float32), (np.ones((2, 32), np.int32), nv.float16),
                     (drawn(2, 32).astype(ml_dtypes.bfloat16), nv.float32)):  # fmt: skip
        assert nv.quantized_matmul(x, *packed, group_size=32).dtype == dtype
    wide = nv.dequantize(packed[0], packed[1].astype("float32"), packed[2], 32)
    assert wide.dtype == nv.float32


@pytest.mark.parametrize("transpose", [True, False])
def test_the_matrix_is_never_there_as_a_whole(transpose):
    with nv.config.override(threads=2):
        check_memory(transpose)


def check_memory(transpose):
    rows, columns = 4096, 4096
    words = nv.array(np.random.Generator(np.random.PCG64(0)).integers(
        0, 2**32, (rows, columns // 8), dtype=np.uint32))  # fmt: skip
    scales, biases = nv.array(drawn(rows, columns // 64)), nv.array(drawn(rows, columns // 64))
    x = nv.array(drawn(2, rows))
    nv.eval(words, scales, biases, x)

    def peak(f):
        nv.eval(f())  # what is made once: threads, caches
        tracemalloc.start()
        nv.eval(f())
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    def loss(x, scales, biases):
        return (nv.quantized_matmul(x, words, scales, biases, transpose) ** 2).sum()

    gradient = nv.grad(loss, argnums=(0, 1, 2))
    functions = (
        lambda: nv.quantized_matmul(x, words, scales, biases, transpose),
        lambda: gradient(x, scales, biases),
    )
    # What the records say, which compile plans by: blocks, results. W in float32 takes 64 MiB.
    for f, found in zip(functions, map(peak, functions), strict=True):
        costs = [
            sum(e.primitive.memory(e)) for e in nv.make_ir(f)().eqns
            if e.primitive.name.startswith("quantized")
        ]  # fmt: skip
        results = 2 * scales.nbytes + 2**20
        assert found < max(costs) + results < rows * columns * 4 / 3


def test_the_bits_do_not_depend_on_threads():
    """In processes of their own, where BLAS has its own threads until it is held to one."""
    program = """if True:
        import sys, zlib
        import numpy as np
        from threadpoolctl import threadpool_info
        import nuvec as nv
        nv.config.threads = int(sys.argv[1])
        draw = np.random.Generator(np.random.PCG64(0))
        words = draw.integers(0, 2**32, (2500, 80), dtype=np.uint32)
        scales, biases = draw.random((2, 2500, 10), dtype=np.float32)
        x, y = draw.random((300, 2500), dtype=np.float32), draw.random((300, 640), dtype=np.float32)
        first = np.asarray(nv.quantized_matmul(x, words, scales, biases, transpose=False))
        threads = {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}

        def f(scales):
            return (nv.quantized_matmul(y, words, scales, biases) * x).sum()

        gradient = np.asarray(nv.grad(f)(nv.array(scales)))
        print(*threads, [zlib.crc32(a.tobytes()) for a in (first, gradient)])
    """

    def run(threads):
        command = [sys.executable, "-c", program, str(threads)]
        env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    assert run(1) == run(2) == run(3)
    assert run(1).startswith("1 [")


def test_derivatives_with_respect_to_x_scales_and_biases():
    words, scales, biases = nv.quantize(drawn(5, 64, dtype=np.float64), 32, 3)
    for x, transpose in ((drawn(3, 64), True), (drawn(3, 5), False)):

        def f(x, scales, biases, transpose=transpose):
            return nv.sin(nv.quantized_matmul(x, words, scales, biases, transpose, 32, 3))

        check_grads(f, (x.astype(np.float64), scales, biases), order=3)
    check_grads(lambda s, b: nv.dequantize(words, s, b, 32, 3), (scales, biases), order=2)


def test_gradient_for_x_is_a_product_with_the_packed_matrix():
    packed = nv.quantize(drawn(5, 64))
    x, c = drawn(3, 64), drawn(3, 5)
    _, pull = nv.vjp(lambda x: nv.quantized_matmul(x, *packed), nv.array(x))
    (found,) = pull(nv.array(c))
    np.testing.assert_array_equal(found, nv.quantized_matmul(c, *packed, transpose=False))
    transposed = nv.linear_transpose(lambda x: nv.quantized_matmul(x, *packed), nv.array(x))
    np.testing.assert_array_equal(transposed(nv.array(c))[0], found)
    text = str(nv.make_ir(nv.grad(lambda x: nv.quantized_matmul(x, *packed).sum()))(nv.array(x)))
    assert "quantized_matmul" in text and "unpack_codes" not in text and "dot_general" not in text


def test_gradient_of_quantize_is_that_of_the_edges():
    """Codes are constant: with scale = edge / n and bias = edge, an element's derivative is with
    respect to the edge, code / n + 1."""
    w = drawn(2, 32, dtype=np.float64)
    v = drawn(2, 32, seed=1, dtype=np.float64)

    def loss(w):
        return (nv.dequantize(*nv.quantize(w, 32, 4), 32, 4) * v).sum()

    gradient = np.asarray(nv.grad(loss)(nv.array(w)))
    edges = np.abs(w).argmax(axis=1)
    expected = np.zeros_like(w)
    for row, edge in enumerate(edges):
        expected[row, edge] = (np.asarray(nv.dequantize(*nv.quantize(w, 32, 4), 32, 4))[row]
                               * v[row]).sum() / w[row, edge]  # fmt: skip
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
    assert not np.any(np.isnan(nv.grad(loss)(nv.zeros((2, 32), dtype="float64"))))


def test_vmap_over_x_unpacks_once_and_over_weights_gives_each_its_own():
    packed = nv.quantize(drawn(4, 5, 64), 32, 4)
    plain = np.asarray(nv.dequantize(*packed, 32, 4))
    xs = drawn(4, 3, 64)

    def product(x, *packed):
        return nv.quantized_matmul(x, *packed, True, 32, 4)

    one = [a[0] for a in packed]
    np.testing.assert_array_equal(nv.vmap(lambda x: product(x, *one))(xs), product(xs, *one))
    ir = nv.make_ir(nv.vmap(lambda x: product(x, *one)))(xs)
    (eqn,) = [e for e in ir.eqns if e.primitive.name == "quantized_matmul"]
    assert eqn.inputs[0].aval.shape == (12, 64) and eqn.inputs[1].aval.shape == (5, 8)
    expected = xs @ plain.swapaxes(-1, -2)
    np.testing.assert_allclose(nv.vmap(product)(xs, *packed), expected, 1e-5, 1e-5)
    only_scales = nv.vmap(product, in_axes=(None, None, 0, None))(
        xs[0], one[0], packed[1], one[2]
    )  # fmt: skip
    for k in range(4):
        alone = product(xs[0], one[0], packed[1][k], one[2])
        np.testing.assert_allclose(only_scales[k], alone, 1e-5, 1e-5)
    for batched, w in zip(nv.vmap(lambda w: nv.quantize(w, 32, 4))(nv.array(plain)),
                          nv.quantize(plain, 32, 4), strict=True):  # fmt: skip
        np.testing.assert_array_equal(batched, w)


# Errors


def test_errors_of_quantize():
    with pytest.raises(nv.ShapeError, match=r"float32\[2,48\] has size 48, .* group_size=64"):
        nv.quantize(drawn(2, 48))
    with pytest.raises(nv.ShapeError, match="multiple of group_size=32"):
        nv.quantize(nv.array(1.0), 32)
    for w in (np.ones((2, 64), np.int32), np.ones((2, 64), bool), np.ones((2, 64), np.complex64)):
        with pytest.raises(nv.DtypeError, match="w must be real and floating"):
            nv.quantize(w)


@pytest.mark.parametrize(("given", "message"), [
    ({"bits": 7}, "bits is 2, 3, 4, 5, 6 or 8, got 7"),
    ({"bits": 4.0}, "got 4.0"),
    ({"bits": True}, "got True"),
    ({"group_size": 16}, "group_size is 32, 64 or 128, got 16"),
    ({"mode": "mxfp4"}, "mode='mxfp4' is not supported"),
])  # fmt: skip
def test_unsupported_packings(given, message):
    packed = nv.quantize(drawn(2, 64))
    for name, call in (
        ("quantize", lambda: nv.quantize(drawn(2, 64), **given)),
        ("dequantize", lambda: nv.dequantize(*packed, **given)),
        ("quantized_matmul", lambda: nv.quantized_matmul(drawn(2, 64), *packed, **given)),
    ):
        with pytest.raises(nv.ArgumentError, match=f"{name}: .*{message}"):
            call()


def test_errors_of_operands_that_do_not_belong_together():
    words, scales, biases = nv.quantize(drawn(2, 128))
    x = drawn(3, 128)
    for call in (nv.dequantize, lambda *packed, **k: nv.quantized_matmul(x, *packed, **k)):
        with pytest.raises(nv.DtypeError, match=r"is uint32, .*got int32\[2,16\]"):
            call(words.astype("int32"), scales, biases)
        with pytest.raises(nv.ShapeError, match=r"64 columns.*shape \(2, 1\).*\[2,2\].*128 col"):
            call(words, scales, biases, bits=8)
        with pytest.raises(nv.ShapeError, match=r"group_size=32 .*128 columns.*\(2, 4\)"):
            call(words, scales, biases, group_size=32)
        with pytest.raises(nv.ShapeError, match="must have one shape"):
            call(words, scales, biases[:, :1])
        with pytest.raises(nv.ShapeError, match=r"\(1, 2\)"):
            call(words[:1], scales, biases)
        with pytest.raises(nv.DtypeError, match="have no order"):
            call(words, scales.astype("complex64"), biases)


def test_errors_of_products():
    packed = nv.quantize(drawn(2, 128))
    with pytest.raises(nv.ShapeError, match=r"has size 127, .* 2 x 128 .*transpose=True.* be 128"):
        nv.quantized_matmul(drawn(3, 127), *packed)
    with pytest.raises(nv.ShapeError, match=r"must be 128.*the other transpose"):
        nv.quantized_matmul(drawn(3, 2), *packed)
    with pytest.raises(nv.ShapeError, match=r"must be 2.*the other transpose"):
        nv.quantized_matmul(drawn(3, 128), *packed, transpose=False)
    with pytest.raises(nv.ShapeError, match="x must have an axis"):
        nv.quantized_matmul(nv.array(1.0), *packed)
    with pytest.raises(nv.ShapeError, match="the quantized matrix two"):
        nv.quantized_matmul(drawn(128), *[a[0] for a in packed])
    stack = nv.quantize(drawn(2, 5, 64))
    with pytest.raises(nv.ShapeError, match=r"\(4,\) and \(2,\)"):
        nv.quantized_matmul(drawn(4, 3, 64), *stack)


def test_codes_have_no_derivative():
    packed = nv.quantize(drawn(2, 64))
    with pytest.raises(TypeError):
        nv.grad(lambda w: nv.quantized_matmul(drawn(3, 64), w, *packed[1:]).sum())(packed[0])

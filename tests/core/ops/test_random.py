"""Keys and distributions: fixed values, moments, bounds, batches, independence, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DtypeError, ShapeError

random = nv.random
FLOATS = [nv.float16, nv.bfloat16, nv.float32, nv.float64]
KEY = random.key(0)

GOLDEN_BITS = [4176335074, 2269024114, 2260439173]
GOLDEN_UNIFORM = [0.9723787307739258, 0.5282983183860779, 0.5262994766235352]
GOLDEN_RANDINT = [0, -10, -1, 0, -4, -8]
GOLDEN_SPLIT = [
    [13160931924360810450, 15863188169701573667],
    [17054936378259140210, 11415088889400418588],
]


def values(x):
    return np.asarray(x).astype(np.float64)


# Keys


def test_the_numbers_never_change():
    """Written down once: the same on every platform, for ever."""
    assert np.asarray(random.key(0)).tolist() == [16006495525962256124, 11263462740154766164]
    assert np.asarray(random.bits(KEY, (3,))).tolist() == GOLDEN_BITS
    assert np.asarray(random.uniform(KEY, (3,))).tolist() == GOLDEN_UNIFORM
    assert np.asarray(random.randint(KEY, (6,), -10, 10)).tolist() == GOLDEN_RANDINT
    assert np.asarray(random.split(KEY)).tolist() == GOLDEN_SPLIT


def test_every_int_is_a_seed_of_its_own():
    seeds = [0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**40]
    seeds += [-(10**40), 2**127, -(2**127)]
    keys = {tuple(np.asarray(random.key(s)).tolist()) for s in seeds}
    assert len(keys) == len(seeds)
    # nor is one the child of another
    assert not keys & {
        tuple(np.asarray(random.fold_in(random.key(s), d)).tolist()) for s in seeds for d in (0, -1)
    }


@pytest.mark.parametrize("seed", [0, 5, -3, 127])
def test_a_seed_is_the_same_in_any_dtype(seed):
    expected = np.asarray(random.key(seed)).tolist()
    for dtype in (nv.int8, nv.int32, nv.int64) + ((nv.uint8, nv.uint64) if seed >= 0 else ()):
        assert np.asarray(random.key(nv.array(seed, dtype=dtype))).tolist() == expected
        assert np.asarray(random.key(dtype.type(seed))).tolist() == expected


def test_large_unsigned_seeds():
    seeds = [2**63, 2**64 - 1, 2**63 - 1]
    keys = np.asarray(random.key(nv.array(seeds, dtype=nv.uint64)))
    assert keys.tolist() == [np.asarray(random.key(s)).tolist() for s in seeds]


def test_fold_in_takes_ints_and_arrays_alike():
    for data in (0, 1, -1, 2**40):
        expected = np.asarray(random.fold_in(KEY, data)).tolist()
        assert np.asarray(random.fold_in(KEY, np.int64(data))).tolist() == expected
        assert np.asarray(random.fold_in(KEY, nv.array(data, dtype=nv.int64))).tolist() == expected
    folded = np.asarray(random.fold_in(KEY, nv.arange(3)))
    assert folded.tolist() == [np.asarray(random.fold_in(KEY, i)).tolist() for i in range(3)]


def test_split_children_are_independent():
    children = random.split(KEY, 8)
    assert len({tuple(k) for k in np.asarray(children).tolist()}) == 8
    draws = np.stack([values(random.normal(k, (20000,))) for k in (KEY, *children)])
    correlation = np.corrcoef(draws) - np.eye(9)
    assert np.abs(correlation).max() < 5 / math.sqrt(20000)
    # neighbouring seeds and data are no less so
    draws = np.stack(
        [values(random.normal(random.key(i), (20000,))) for i in range(4)]
        + [values(random.normal(random.fold_in(KEY, i), (20000,))) for i in range(4)]
    )
    assert np.abs(np.corrcoef(draws) - np.eye(8)).max() < 5 / math.sqrt(20000)


# A batch of keys is a loop

DRAWS = {
    "bits": lambda k: random.bits(k, (3,), nv.uint16),
    "uniform": lambda k: random.uniform(k, (2, 2), minval=-1.0),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (5,)),
    "normal": lambda k: random.normal(k, (3,)),
    "complex": lambda k: random.normal(k, (3,), nv.complex64),
    "randint": lambda k: random.randint(k, (4,), -5, 100),
    "randint64": lambda k: random.randint(k, (4,), -5, 2**50, nv.int64),
    "gumbel": lambda k: random.gumbel(k, (3,)),
    "exponential": lambda k: random.exponential(k, (3,)),
    "permutation": lambda k: random.permutation(k, 7),
    "categorical": lambda k: random.categorical(k, nv.array([0.0, 1.0, 2.0]), shape=(5,)),
    "split": lambda k: random.split(k, 3),
    "fold_in": lambda k: random.fold_in(k, 3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_batch_of_keys_draws_what_a_loop_draws(name):
    draw = DRAWS[name]
    keys = random.split(KEY, 4)
    expected = np.stack([np.asarray(draw(k)) for k in keys])
    batched = np.asarray(draw(keys))
    assert batched.dtype == expected.dtype
    np.testing.assert_array_equal(batched, expected)
    np.testing.assert_array_equal(np.asarray(draw(keys.reshape(2, 2, 2)))[1, 0], expected[2])


@pytest.mark.parametrize("name", DRAWS)
def test_vmap_draws_what_a_loop_draws(name):
    draw = DRAWS[name]
    keys = random.split(KEY, 4)
    expected = np.stack([np.asarray(draw(k)) for k in keys])
    np.testing.assert_array_equal(np.asarray(nv.vmap(draw)(keys)), expected)
    columns = nv.transpose(keys)
    np.testing.assert_array_equal(np.asarray(nv.vmap(draw, in_axes=1)(columns)), expected)


def test_vmap_over_fold_in_data_and_seeds():
    data = nv.arange(4)
    expected = [np.asarray(random.fold_in(KEY, i)).tolist() for i in range(4)]
    assert np.asarray(nv.vmap(lambda d: random.fold_in(KEY, d))(data)).tolist() == expected
    keys = random.split(KEY, 3)
    both = nv.vmap(nv.vmap(random.fold_in, in_axes=(None, 0)), in_axes=(0, None))(keys, data)
    np.testing.assert_array_equal(both[2, 3], random.fold_in(keys[2], 3))
    seeded = nv.vmap(random.key)(data)
    assert np.asarray(seeded).tolist() == [np.asarray(random.key(i)).tolist() for i in range(4)]


# Distributions


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform(dtype):
    x = random.uniform(KEY, (40000,), dtype)
    assert x.dtype == dtype
    x = values(x)
    assert x.min() >= 0 and x.max() < 1
    tolerance = 0.01 + float(nv.finfo(dtype).eps)
    assert abs(x.mean() - 0.5) < tolerance and abs(x.var() - 1 / 12) < tolerance


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("low", "high"), [(-3.0, 5.0), (1000.0, 1000.5), (-1e-3, 0.0), (2.0, 2.0)])
def test_uniform_never_is_the_upper_bound(dtype, low, high):
    x = values(random.uniform(KEY, (20000,), dtype, low, high))
    lowest, highest = (float(np.array(b).astype(dtype)) for b in (low, high))
    assert x.min() >= lowest
    assert x.max() < highest or lowest == highest == x.max()


def test_uniform_between_arrays_is_differentiable():
    def total(low, high):
        return random.uniform(KEY, (3,), minval=low, maxval=high).sum()

    unit = values(random.uniform(KEY, (3,)))
    low, high = nv.array([0.0, 1.0, 2.0]), nv.array(4.0)
    d_low, d_high = nv.grad(total, argnums=(0, 1))(low, high)
    np.testing.assert_allclose(d_low, 1 - unit, rtol=1e-6)
    np.testing.assert_allclose(d_high, unit.sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal(dtype):
    n = 200001
    x = random.normal(KEY, (n,), dtype)
    assert x.dtype == dtype and x.shape == (n,)
    x = values(x)
    scale = 6 / math.sqrt(n)
    assert abs(x.mean()) < scale
    assert abs(x.var() - 1) < math.sqrt(2) * scale + 0.003
    assert abs((x**3).mean()) < math.sqrt(15) * scale
    assert abs((x**4).mean() - 3) < math.sqrt(96) * scale + 0.02
    for bound in (1.0, 2.0, 3.0, 4.0):  # the tails, against the normal distribution function
        expected = math.erfc(bound / math.sqrt(2))
        assert abs((np.abs(x) > bound).mean() - expected) < 0.01 * expected + 5 * math.sqrt(
            expected / n
        ) + (0.01 if dtype == nv.bfloat16 else 0)


def test_normal_of_any_shape():
    for shape in [(), (0,), (1,), (3, 0), (5, 3), 4]:
        assert random.normal(KEY, shape).shape == ((shape,) if shape == 4 else shape)


def test_complex_normal():
    x = np.asarray(random.normal(KEY, (50000,), nv.complex64))
    assert x.dtype == np.complex64
    assert abs((np.abs(x) ** 2).mean() - 1) < 0.03
    assert abs(x.mean()) < 0.03 and abs((x**2).mean()) < 0.03


def test_bernoulli():
    assert np.asarray(random.bernoulli(KEY, 1.0, (1000,))).all()
    assert not np.asarray(random.bernoulli(KEY, 0.0, (1000,))).any()
    x = np.asarray(random.bernoulli(KEY, nv.array([0.1, 0.7]), (20000, 2)))
    assert x.dtype == bool
    np.testing.assert_allclose(x.mean(0), [0.1, 0.7], atol=0.015)
    assert random.bernoulli(KEY, nv.full((2, 3), 0.5)).shape == (2, 3)


@pytest.mark.parametrize("dtype", [nv.int32, nv.int64, nv.uint8, nv.int16], ids=str)
def test_randint_is_uniform(dtype):
    n = 60000
    counts = np.bincount(np.asarray(random.randint(KEY, (n,), 3, 13, dtype)), minlength=13)
    assert counts[:3].sum() == 0 and len(counts) == 13
    chi_squared = ((counts[3:] - n / 10) ** 2 / (n / 10)).sum()
    assert chi_squared < 30  # 9 degrees of freedom: p < 0.0005


@pytest.mark.parametrize(
    "dtype", [nv.int8, nv.uint8, nv.int16, nv.uint16, nv.int32, nv.uint32, nv.int64, nv.uint64],
    ids=str,
)  # fmt: skip
def test_randint_over_the_full_range(dtype):
    limits = np.iinfo(dtype)
    x = np.asarray(random.randint(KEY, (20000,), limits.min, int(limits.max) + 1, dtype))
    assert x.dtype == dtype
    unit = (x.astype(np.float64) - float(limits.min)) / (float(limits.max) - float(limits.min))
    assert abs(unit.mean() - 0.5) < 0.01 and abs(unit.var() - 1 / 12) < 0.01
    assert unit.min() < 0.01 and unit.max() > 0.99


def test_randint_of_a_wide_span_is_exact():
    """Against Python's integers: floor(w span / 2^128) for the two words drawn."""
    for low, high in [(0, 2**63), (-(2**63), 2**63 - 1), (-5, 3 * 2**60 + 7), (10, 11)]:
        drawn = np.asarray(random.bits(KEY, (2, 50), nv.uint64)).tolist()
        expected = [
            low + (((w1 << 64) + w0) * (high - low) >> 128) for w1, w0 in zip(*drawn, strict=True)
        ]
        assert np.asarray(random.randint(KEY, (50,), low, high, nv.int64)).tolist() == expected
    drawn = np.asarray(random.bits(KEY, (50,), nv.uint64)).tolist()
    for low, high in [(0, 2**31), (-(2**31), 2**31), (-5, 3**19)]:
        expected = [low + (w * (high - low) >> 64) for w in drawn]
        assert np.asarray(random.randint(KEY, (50,), low, high)).tolist() == expected


def test_randint_between_arrays():
    low, high = nv.array([0, -5, 3]), nv.array([10, 5, 3])
    x = np.asarray(random.randint(KEY, (2000, 3), low, high))
    assert x.min(0).tolist() == [0, -5, 3]
    assert x.max(0).tolist() == [9, 4, 3]


def test_gumbel_and_exponential():
    x = values(random.gumbel(KEY, (50000,)))
    assert np.isfinite(x).all()
    assert abs(x.mean() - 0.5772) < 0.03 and abs(x.var() - math.pi**2 / 6) < 0.06
    x = values(random.exponential(KEY, (50000,)))
    assert x.min() >= 0 and abs(x.mean() - 1) < 0.03 and abs(x.var() - 1) < 0.06


def test_permutation():
    x = np.arange(12).reshape(3, 4)
    for axis in (0, 1, -1):
        y = np.asarray(random.permutation(KEY, x, axis))
        assert sorted(map(tuple, np.moveaxis(y, axis, 0))) == list(
            map(tuple, np.moveaxis(x, axis, 0))
        )
    orders = np.asarray(random.permutation(random.split(KEY, 6000), 3))
    counts = np.unique(orders @ [9, 3, 1], return_counts=True)[1]
    assert len(counts) == 6 and ((counts - 1000) ** 2 / 1000).sum() < 25
    assert random.permutation(KEY, 0).shape == (0,)
    gradient = nv.grad(lambda x: (random.permutation(KEY, x) * nv.arange(3)).sum())(nv.ones(3))
    assert sorted(gradient.tolist()) == [0, 1, 2]


def test_choice_and_categorical():
    counts = np.bincount(np.asarray(random.choice(KEY, 3, (30000,), p=np.array([0.2, 0.5, 0.3]))))
    np.testing.assert_allclose(counts / 30000, [0.2, 0.5, 0.3], atol=0.02)
    items = nv.array([[1, 2, 3], [4, 5, 6]])
    assert random.choice(KEY, items, (5, 2)).shape == (5, 2, 3)
    drawn = np.asarray(random.choice(KEY, items, (3,), replace=False, axis=1))
    assert sorted(map(tuple, drawn.T)) == [(1, 4), (2, 5), (3, 6)]
    logits = nv.log(nv.array([[0.1, 0.9], [0.6, 0.4]]))
    drawn = np.asarray(random.categorical(KEY, logits, shape=(20000, 2)))
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(drawn.mean(0), [0.9, 0.4], atol=0.02)
    assert random.categorical(KEY, nv.zeros((3, 4)), axis=0).shape == (4,)


# Errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: random.uniform((3,)), DtypeError, "shape="),
        (lambda: random.uniform(3), DtypeError, r"nv\.random\.key\(3\)"),
        (lambda: random.uniform(nv.ones(2)), DtypeError, "uint64"),
        (lambda: random.uniform(KEY, (2,), nv.int32), DtypeError, "randint"),
        (lambda: random.uniform(KEY, (2,), minval=1.0, maxval=0.0), ValueError, "minval"),
        (lambda: random.uniform(KEY, (2,), minval=nv.ones(3)), ShapeError, "shape"),
        (lambda: random.uniform(KEY, (-1,)), ShapeError, "negative"),
        (lambda: random.bits(KEY, (2,), nv.int32), DtypeError, "unsigned"),
        (lambda: random.key(1.5), DtypeError, "integer"),
        (lambda: random.key(nv.ones(2)), DtypeError, "integer"),
        (lambda: random.split(KEY, -1), ShapeError, "-1"),
        (lambda: random.fold_in(KEY, 2**64), DtypeError, "64 bits"),
        (lambda: random.randint(KEY, (2,), 5, 5), ValueError, "no integers"),
        (lambda: random.randint(KEY, (2,), 0, 300, nv.int8), DtypeError, "out of range"),
        (lambda: random.randint(KEY, (2,), 0.5, 3), DtypeError, "integers"),
        (lambda: random.randint(KEY, (2,), nv.zeros(3, nv.int32), 3), ShapeError, "shape"),
        (lambda: random.seed(1.5), TypeError, "float"),
        (lambda: random.permutation(KEY), TypeError, "needs x"),
        (lambda: random.permutation(KEY, -1), ShapeError, "-1"),
        (lambda: random.permutation(random.split(KEY), nv.ones(2)), ShapeError, "one key"),
        (lambda: random.choice(KEY, 3, (4,), replace=False), ShapeError, "replace=True"),
        (lambda: random.choice(KEY, 0, (1,)), ShapeError, "no items"),
        (lambda: random.choice(KEY, 3, p=nv.ones(2)), ShapeError, "3 items"),
        (lambda: random.categorical(KEY, nv.ones((2, 3)), shape=(3,)), ShapeError, "broadcast"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()

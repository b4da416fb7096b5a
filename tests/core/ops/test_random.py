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


# Values that no distribution has


BAD = [
    ("p cannot be -0.5", lambda p: random.choice(KEY, 3, (4,), p=p), [0.9, -0.5, 0.6]),
    ("p cannot be nan", lambda p: random.choice(KEY, 3, (4,), p=p), [1.0, math.nan, 1.0]),
    ("p cannot be inf", lambda p: random.choice(KEY, 3, (4,), p=p), [1.0, math.inf, 1.0]),
    ("p is 0 everywhere", lambda p: random.choice(KEY, 3, (4,), p=p), [0.0, 0.0, 0.0]),
    ("p is 0 everywhere", lambda p: random.choice(KEY, 3, (4,), p=p), np.int32([0, 0, 0])),
    ("p cannot be 2", lambda p: random.bernoulli(KEY, p), [0.5, 2.0]),
    ("p cannot be nan", lambda p: random.bernoulli(KEY, p), [math.nan]),
    ("logits cannot be nan", lambda x: random.categorical(KEY, x), [0.0, math.nan]),
    ("logits cannot be inf", lambda x: random.categorical(KEY, x), [0.0, math.inf]),
    (
        "logits are -inf along",
        lambda x: random.categorical(KEY, x, axis=0),
        [[0.0, -math.inf], [1.0, -math.inf]],
    ),
    ("maxval cannot be inf", lambda x: random.uniform(KEY, maxval=x), math.inf),
    ("minval cannot be nan", lambda x: random.uniform(KEY, minval=x), math.nan),
    (
        "maxval cannot be 100000",
        lambda x: random.uniform(KEY, dtype=nv.float16, maxval=x),
        np.float32(1e5),
    ),
    ("maxval cannot be 1099511627776", lambda x: random.randint(KEY, (), 0, x), np.int64(2**40)),
    ("maxval cannot be 1000", lambda x: random.randint(KEY, (), 0, x, nv.int8), np.int32(1000)),
    ("minval cannot be -5", lambda x: random.randint(KEY, (), x, 3, nv.uint8), np.int32(-5)),
    (
        "maxval cannot be 9223372036854775808",
        lambda x: random.randint(KEY, (), 0, x, nv.int64),
        np.uint64(2**63),
    ),
]


@pytest.mark.parametrize(("match", "draw", "value"), BAD, ids=map(str, range(len(BAD))))
def test_values_are_refused_however_they_come(match, draw, value):
    x = nv.array(np.asarray(value) if np.ndim(value) == 0 else value)
    with pytest.raises(ValueError, match=match):
        draw(x)  # known: at the call
    pending = draw(nv.where(nv.array(True), x, x))
    for _ in range(2):  # not known: at evaluation, each time
        with pytest.raises(ValueError, match=match):
            nv.eval(pending)
    with pytest.raises(ValueError, match=match):
        nv.compile(draw)(x)
    with pytest.raises(ValueError, match=match):
        nv.eval(nv.vmap(draw)(nv.stack([x, x])))
    with pytest.raises(ValueError, match=match):
        nv.compile(lambda: draw(x))()  # captured


def test_a_captured_probability_is_looked_at_in_every_call():
    p = nv.array([0.5, 0.5])
    draw = nv.compile(lambda: random.choice(KEY, 2, (3,), p=p))
    assert draw().shape == (3,)
    p[0] = -1.0
    with pytest.raises(ValueError, match="p cannot be -1"):
        draw()


def test_what_is_allowed_draws_the_same_known_and_not():
    for draw, value in [
        (lambda p: random.choice(KEY, 3, (50,), p=p), np.float32([0.0, 2.0, 3.0])),
        (lambda p: random.choice(KEY, 3, (50,), p=p), np.int32([0, 2, 3])),
        (lambda x: random.categorical(KEY, x, 0, (50,)), np.float32([-math.inf, 0, 1])),
        (lambda x: random.categorical(KEY, x), np.int32([[-9, 9], [9, -9]])),
        (lambda p: random.bernoulli(KEY, p), np.float32([0, 0.5, 1])),
        (lambda x: random.randint(KEY, (50,), 0, x, nv.int8), np.int64(128)),
        (lambda x: random.uniform(KEY, (50,), maxval=x), np.float64(7.5)),
        (lambda x: random.uniform(KEY, (50,), nv.float16, maxval=x), np.float32(1e-3)),
    ]:
        known = np.asarray(draw(nv.array(value)))
        assert known.max() > 0
        np.testing.assert_array_equal(nv.compile(draw)(value), known)
        np.testing.assert_array_equal(draw(nv.array(value) * 1), known)


WIDE = {nv.float16: 65000.0, nv.bfloat16: 3e38, nv.float32: 2e38, nv.float64: 1e308}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_between_bounds_whose_difference_overflows(dtype):
    wide = WIDE[dtype]

    def draw(low, high):
        return random.uniform(KEY, (20000,), dtype, low, high)

    bound = nv.array(wide, dtype)
    exact = float(bound)
    for x in (draw(-wide, wide), draw(-bound, bound * 1), nv.compile(draw)(-bound, bound)):
        x = values(x) / exact
        assert x.min() >= -1 and x.max() < 1
        assert abs(x.mean()) < 0.02 and abs(x.var() - 1 / 3) < 0.02
    both = random.uniform(KEY, (2,), dtype, nv.array([-wide, 0.0], dtype),
                          nv.array([wide, 1.0], dtype))  # fmt: skip
    assert float(both[1]) == float(random.uniform(KEY, (2,), dtype)[1])
    # d/d minval of minval + u (maxval - minval) is 1 - u, however it is computed
    slope = nv.grad(lambda low: draw(low, bound)[0].astype(dtype))(-bound)
    unit = float(random.uniform(KEY, (20000,), dtype)[0])
    assert abs(float(slope) - (1 - unit)) < 2 * float(nv.finfo(dtype).eps)


def test_uniform_has_all_digits_of_its_bounds():
    x = values(random.uniform(KEY, (100,), nv.float64, 0.1, 0.1))
    assert (x == 0.1).all()


def test_split_into_an_array_of_keys():
    keys = random.split(KEY, (2, 3))
    assert keys.shape == (2, 3, 2)
    np.testing.assert_array_equal(keys.reshape(6, 2), random.split(KEY, 6))
    batch = random.split(KEY, 4)
    np.testing.assert_array_equal(random.split(batch, (2, 3))[1], random.split(batch[1], (2, 3)))
    np.testing.assert_array_equal(
        nv.vmap(lambda k: random.split(k, (2, 3)))(batch), random.split(batch, (2, 3))
    )
    assert random.split(KEY, ()).shape == (2,)


def test_seeds_of_compiled_functions():
    seeded = nv.compile(lambda seed: random.key(seed))
    for seed in (5, np.int64(2**40), np.uint64(2**63)):
        np.testing.assert_array_equal(seeded(seed), random.key(int(seed)))
    with pytest.raises(DtypeError, match=r"argument 'seed': the int 1099511627776 is.*np\.int64\("):
        seeded(2**40)
    with pytest.raises(DtypeError, match=r"np\.uint64\(9223372036854775808\)"):
        seeded(2**63)
    with pytest.raises(DtypeError, match="no dtype holds it"):
        seeded(2**64)


# Errors


NAMED = {name: draw for name, draw in DRAWS.items() if name not in ("complex", "randint64")}
NAMED["choice"] = lambda k: random.choice(k, 3, (2,))


@pytest.mark.parametrize("name", NAMED)
def test_a_wrong_key_is_the_fault_of_whom_it_was_given_to(name):
    for key in (nv.array([1, 2]), np.ones(2), 1, 1.0, True):
        with pytest.raises(DtypeError, match=rf"^random\.{name}: .*key"):
            NAMED[name](key)
    with pytest.raises(DtypeError, match=rf"^random\.{name}: .*uint64\[\].*random\.split"):
        nv.vmap(NAMED[name])(KEY)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: random.key(True), "key"),
        (lambda: random.key(np.True_), "key"),
        (lambda: random.key(nv.array([True])), "key"),
        (lambda: random.fold_in(KEY, True), "fold_in"),
        (lambda: random.fold_in(KEY, np.True_), "fold_in"),
        (lambda: nv.compile(lambda b: random.fold_in(KEY, b))(True), "fold_in"),
        (lambda: random.split(KEY, True), "split"),
        (lambda: random.split(KEY, (2, True)), "split"),
        (lambda: random.bits(KEY, True), "bits"),
        (lambda: random.uniform(KEY, (True, 2)), "uniform"),
        (lambda: random.bernoulli(KEY, 0.5, True), "bernoulli"),
        (lambda: random.normal(KEY, [True]), "normal"),
        (lambda: random.gumbel(KEY, True), "gumbel"),
        (lambda: random.exponential(KEY, True), "exponential"),
        (lambda: random.randint(KEY, True), "randint"),
        (lambda: random.choice(KEY, 3, True), "choice"),
        (lambda: random.categorical(KEY, nv.zeros(3), shape=True), "categorical"),
        (lambda: random.uniform(KEY, (2,), minval=True), "uniform"),
        (lambda: random.uniform(KEY, (2,), maxval=nv.array(True)), "uniform"),
        (lambda: random.randint(KEY, (2,), False, 3), "randint"),
        (lambda: random.randint(KEY, (2,), 0, nv.array(True)), "randint"),
        (lambda: random.permutation(KEY, True), "permutation"),
        (lambda: random.choice(KEY, True), "choice"),
    ],
)
def test_booleans_are_no_numbers(call, name):
    with pytest.raises(
        (DtypeError, ShapeError, TypeError), match=rf"random\.{name}.*([Tt]rue|bool)"
    ):
        call()


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
        (lambda: random.uniform(KEY, (2,), minval=nv.ones(3)), ShapeError, "uniform's minval has"),
        (lambda: random.uniform(KEY, (2,), maxval=nv.ones(3)), ShapeError, "uniform's maxval has"),
        (lambda: random.uniform(KEY, (2,), minval=1j), DtypeError, "uniform's minval.*complex64"),
        (lambda: random.uniform(KEY, (), nv.float16, 0, 1e5), ValueError, "maxval cannot be 1000"),
        (lambda: random.uniform(KEY, maxval=10**400), ValueError, "maxval cannot be inf"),
        (lambda: random.uniform(KEY, maxval=-nv.ones(3)), ShapeError, "maxval has shape"),
        (lambda: random.uniform(KEY, maxval=nv.array(-1.0)), ValueError, "not at most maxval"),
        (lambda: random.bernoulli(KEY, nv.zeros(3), (2,)), ShapeError, "bernoulli's p has"),
        (lambda: random.bernoulli(KEY, 1j), DtypeError, "bernoulli's p.*complex64"),
        (lambda: random.categorical(KEY, nv.array([1j])), DtypeError, "categorical's logits"),
        (lambda: random.categorical(KEY, nv.zeros((2, 0))), ShapeError, "categorical.*no classes"),
        (lambda: random.categorical(KEY, [0.0, 1.0]), DtypeError, "categorical's logits is a list"),
        (lambda: random.choice(KEY, 1, p=nv.array([1j])), DtypeError, "choice's p must be real"),
        (lambda: random.choice(KEY, 3, p=[1, 1, 1]), DtypeError, "choice's p is a list"),
        (lambda: random.choice(KEY, 5.0), ShapeError, "choice: a is"),
        (lambda: random.choice(KEY, 3, (2,), False, nv.ones(3)), ValueError, "replace=True only"),
        (lambda: random.split(KEY, 2.0), TypeError, r"split's num is an integer, got 2\.0"),
        (lambda: random.split(KEY, (2, 3.0)), TypeError, "split's num"),
        (lambda: random.split(KEY, None), TypeError, "split's num"),
        (lambda: random.split(KEY, (2, -1)), ShapeError, "split: num"),
        (lambda: random.randint(KEY, (2,), 0, [3]), DtypeError, "randint's maxval is a list"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()

"""Linear, Identity, Sequential, Dropout and the initialisers."""

import json
import pickle

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn


def test_linear_against_numpy():
    layer = nn.Linear(3, 2)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 4, 3)
    expected = x @ np.asarray(layer.weight).T + np.asarray(layer.bias)
    np.testing.assert_allclose(layer(nv.array(x)), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(layer(nv.array(x[0, 0])), expected[0, 0], rtol=1e-6, atol=1e-6)
    assert layer.weight.shape == (2, 3) and layer.bias.shape == (2,)
    assert nn.Linear(3, 2, bias=False).parameters().keys() == {"weight"}


def test_linear_draws_within_its_bounds():
    nv.random.seed(0)
    layer = nn.Linear(16, 400)
    for drawn in (np.asarray(layer.weight), np.asarray(layer.bias)):
        assert drawn.min() >= -0.25 and drawn.max() < 0.25
        assert drawn.min() < -0.24 and drawn.max() > 0.24
    nv.random.seed(0)
    np.testing.assert_array_equal(nn.Linear(16, 400).weight, layer.weight)
    assert (np.asarray(nn.Linear(16, 400).weight) != np.asarray(layer.weight)).any()


def test_linear_errors():
    with pytest.raises(nv.ShapeError, match=r"last axis has size 3, got float32\[2\]"):
        nn.Linear(3, 2)(nv.ones(2))
    with pytest.raises(nv.ShapeError):
        nn.Linear(3, 2)(nv.ones(()))
    with pytest.raises(ValueError, match="input_dims"):
        nn.Linear(0, 2)
    with pytest.raises(ValueError, match="output_dims"):
        nn.Linear(2, 2.0)


def test_identity():
    x = nv.ones(2)
    assert nn.Identity(3, unused=True)(x) is x


def test_sequential():
    first, last = nn.Linear(2, 3), nn.Linear(3, 1)
    model = nn.Sequential(first, nn.relu, last)
    x = nv.ones((4, 2))
    np.testing.assert_array_equal(model(x), last(nn.relu(first(x))))
    assert nn.Sequential()(x) is x
    with pytest.raises(TypeError, match="layer 1 is a int"):
        nn.Sequential(nn.relu, 3)


def test_dropout_in_training():
    nv.random.seed(1)
    layer = nn.Dropout(0.25)
    x = nv.full(20000, 3.0)
    y = np.asarray(layer(x))
    assert set(np.unique(y)) == {0.0, 4.0}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert (np.asarray(layer(x)) != y).any()
    key = nv.random.key(3)
    np.testing.assert_array_equal(layer(x, key), layer(x, key))


def test_dropout_derivative_and_edges():
    key = nv.random.key(0)
    layer = nn.Dropout(0.5)
    x = nv.array([np.inf, 1.0, np.nan, 2.0] * 4)
    y, kept = np.asarray(layer(x, key)), np.asarray(layer(nv.ones(16), key)) != 0
    assert (y[~kept] == 0).all() and (~kept).any()
    gradient = nv.grad(lambda x: layer(x, key).sum())(nv.ones(16))
    np.testing.assert_array_equal(gradient, kept * 2.0)
    assert layer(nv.ones(4, dtype="float16")).dtype == nv.float16
    assert nn.Dropout(0.0)(x) is x
    assert layer.eval()(x) is x
    for p in (-0.1, 1.0):
        with pytest.raises(ValueError, match="at least 0"):
            nn.Dropout(p)


def test_dropout_draws_anew_in_a_compiled_function():
    run = nv.compile(lambda layer, x: layer(x))
    layer, x = nn.Dropout(0.5), nv.ones(1000)
    first, second = np.asarray(run(layer, x)), np.asarray(run(layer, x))
    assert (first != second).any() and set(np.unique(second)) == {0.0, 2.0}


def test_initialisers():
    like = nv.zeros((300, 200))
    assert nn.init.constant(2.0)(like).tolist()[0][:2] == [2, 2]
    assert nn.init.zeros()((2,)).tolist() == [0, 0] and nn.init.ones()((2,)).tolist() == [1, 1]
    assert nn.init.identity()((2, 2)).tolist() == [[1, 0], [0, 1]]
    normal = np.asarray(nn.init.normal(3.0, 0.5)(like))
    assert abs(normal.mean() - 3) < 0.01 and abs(normal.std() - 0.5) < 0.01
    uniform = np.asarray(nn.init.uniform(2.0, 4.0)(like))
    assert uniform.min() >= 2 and uniform.max() < 4 and abs(uniform.mean() - 3) < 0.02
    for made, std in [
        (nn.init.glorot_normal(), np.sqrt(2 / 500)),
        (nn.init.glorot_uniform(gain=2.0), 2 * np.sqrt(2 / 500)),
        (nn.init.he_normal(), np.sqrt(1 / 200)),
        (nn.init.he_normal(mode="fan_out"), np.sqrt(1 / 300)),
        (nn.init.he_uniform(gain=np.sqrt(2)), np.sqrt(2 / 200)),
    ]:
        assert abs(np.asarray(made(like)).std() / std - 1) < 0.02
    key = nv.random.key(1)
    np.testing.assert_array_equal(nn.init.normal()(like, key), nn.init.normal()(like, key))
    assert nn.init.uniform(dtype=nv.float16)((3,)).dtype == nv.float16


def test_initialiser_errors():
    with pytest.raises(nv.ShapeError, match="square"):
        nn.init.identity()((2, 3))
    with pytest.raises(nv.ShapeError, match="two or more axes"):
        nn.init.he_normal()((2,))
    with pytest.raises(ValueError, match="fan_in"):
        nn.init.he_uniform(mode="fan")


def test_numpy_integers_are_sizes():
    layer = nn.Linear(np.int64(3), np.int32(2))
    assert layer.weight.shape == (2, 3) and nn.PReLU(np.int64(4)).weight.shape == (4,)
    assert nn.init.ones()(np.int64(3)).shape == (3,)
    assert nn.init.zeros()((np.int64(2), 3)).shape == (2, 3)
    for wrong in (True, 2.0, np.float64(2), "2", None, -1):
        with pytest.raises(ValueError, match="output_dims must be a positive integer"):
            nn.Linear(2, wrong)
    with pytest.raises(TypeError, match="an initializer: a shape"):
        nn.init.ones()(2.5)


def test_initialisers_take_numpy_numbers():
    for make in (nn.init.uniform, nn.init.normal):
        assert make(np.float64(-1), np.float64(1))(3).dtype == nv.float32
        assert make(np.float64(-1), np.float64(1), "float16")(3).dtype == nv.float16


def test_dropout_probabilities():
    assert nn.Dropout(np.float64(0.5))(nv.ones(3)).dtype == nv.float32
    with pytest.raises(TypeError, match="Dropout: p is a number"):
        nn.Dropout("a")
    with pytest.raises(ValueError, match="Dropout: p"):
        nn.Dropout(np.nan)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_resumed_run_with_dropout_has_the_same_bits(compiled):
    optimizer = nn.adam(0.05)

    def step(model, state, x):
        value, grads = nv.value_and_grad(lambda m: nn.mse_loss(m(x), x[:, :1]))(model)
        updates, state = optimizer.update(grads, state, model)
        return nn.apply_updates(model, updates), state, value

    def train(steps, model, state):
        run = nv.compile(step) if compiled else step
        losses = []
        for _ in range(steps):
            model, state, value = run(model, state, nv.ones((4, 5)))
            losses.append(value.item())
        return model, state, losses

    nv.random.seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 1))
    model, state, _ = train(2, model, optimizer.init(model))
    saved, place = pickle.dumps((model, state)), json.dumps(nv.random.get_state())
    _, _, expected = train(3, model, state)
    nv.random.seed(99)
    model, state = pickle.loads(saved)
    nv.random.set_state(json.loads(place))
    assert train(3, model, state)[2] == expected
    assert len(set(expected)) == 3


def test_ranks_drop_alike_unless_the_rank_is_in_the_key():
    def masks(group):
        layer, x = nn.Dropout(0.5), nv.ones(64)
        own = nv.random.fold_in(nv.random.key(0), group.rank())
        return layer(x).tolist(), layer(x, key=own).tolist()

    (a, c), (b, d) = nv.distributed.run_local(masks, 2)
    assert a == b and c != d

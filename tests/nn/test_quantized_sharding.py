"""Quantised layers divided among ranks equal the whole ones wherever they have values."""

import pickle

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.distributed import run_local


def numbers(*shape, seed=0):
    return np.random.Generator(np.random.PCG64(seed)).normal(size=shape).astype(np.float32)


def close(actual, expected, tolerance=2e-6):
    expected = np.asarray(expected)
    bound = tolerance * max(np.abs(expected).max(), 1e-30)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=bound)


def dense(bits=4, group_size=32, hidden=384):
    nv.random.seed(3)
    first, last = nn.Linear(64, hidden), nn.Linear(hidden, 5)
    made = [layer.to_quantized(group_size, bits) for layer in (first, last)]
    return nn.Sequential(made[0], nn.tanh, made[1], nn.Linear(5, 5))


def sharded(model, group):
    first, act, last, *rest = model.layers
    return nn.Sequential(
        nn.shard_linear(first, "all-to-sharded", group=group),
        act,
        nn.shard_linear(last, "sharded-to-all", group=group),
        *rest,
    )


def loss(model, x, y):
    return nn.mse_loss(model(x), y)


def own(whole, name, x, group):
    """This rank's part of a gradient of the dense model."""
    return np.split(np.asarray(x), group.size())[group.rank()] if name == "first" else x


def biases_of(grads):
    first, last, free = grads["layers"][0], grads["layers"][2], grads["layers"][3]
    return {"first": first["bias"], "last": last["bias"], "weight": free["weight"]}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_outputs_gradients_and_products(ranks, bits):
    x, y, v = nv.array(numbers(7, 64)), nv.array(numbers(7, 5, seed=1)), numbers(7, 64, seed=2)
    model = dense(bits)
    whole = biases_of(nn.value_and_grad(model, loss)(model, x, y)[1])

    def by_input(model):
        gradient = nv.grad(loss, argnums=1)
        return nv.jvp(lambda x: gradient(model, x, y), (x,), (nv.array(v),))

    def run(group):
        mine = sharded(model, group)
        close(mine(x), model(x))
        found = biases_of(nn.value_and_grad(mine, loss)(mine, x, y)[1])
        for name, expected in whole.items():
            close(found[name], own(model, name, expected, group), 1e-5)
        for a, b in zip(by_input(mine), by_input(model), strict=True):
            close(a, b, 1e-5)
        compiled = nv.compile(nv.grad(loss, argnums=1))
        close(compiled(mine, x, y), by_input(model)[0], 1e-5)

    run_local(run, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_three_steps_of_what_is_trained(ranks):
    x, y = nv.array(numbers(7, 64)), nv.array(numbers(7, 5, seed=1))

    def train(model):
        optimizer = nn.optim.adam(0.01)
        state = optimizer.init(model.trainable_parameters())
        for _ in range(3):
            _, grads = nn.value_and_grad(model, loss)(model, x, y)
            updates, state = optimizer.update(grads, state, model.trainable_parameters())
            model.update(nn.apply_updates(model.trainable_parameters(), updates))
        return model

    whole = train(dense())
    before = dense().layers[0].weight

    def run(group):
        mine = train(sharded(dense(), group))
        close(mine(x), whole(x), 1e-5)
        rows = np.split(np.asarray(before), group.size())[group.rank()]
        np.testing.assert_array_equal(mine.layers[0].weight, rows)

    run_local(run, ranks)


@pytest.mark.parametrize("bits", [3, 4])
def test_parts_are_those_of_the_packed_whole(bits):
    whole = dense(bits).layers[0]

    def rows(group):
        return nn.QuantizedAllToShardedLinear.from_quantized_linear(whole, segments=3, group=group)

    for name in ("weight", "scales", "biases", "bias"):
        segments = np.split(np.asarray(whole[name]), 3)
        for rank, made in enumerate(run_local(rows, 2)):
            expected = np.concatenate([np.split(s, 2)[rank] for s in segments])
            np.testing.assert_array_equal(made[name], expected)

    def columns(group):
        last = dense(bits).layers[2]
        return nn.QuantizedShardedToAllLinear.from_quantized_linear(last, group=group)

    whole = dense(bits).layers[2]
    for name in ("weight", "scales", "biases"):
        found = np.concatenate([np.asarray(m[name]) for m in run_local(columns, 4)], axis=1)
        np.testing.assert_array_equal(found, whole[name])


@pytest.mark.parametrize("kind", ["QuantizedAllToShardedLinear", "QuantizedShardedToAllLinear"])
def test_built_directly_frozen_and_shown(kind):
    def run(group):
        nv.random.seed(5)
        made = getattr(nn, kind)(128, 64, group_size=32, bits=3, group=group)
        nv.random.seed(5)
        whole = nn.QuantizedLinear(128, 64, group_size=32, bits=3)
        other = getattr(nn, kind).from_quantized_linear(whole, group=group)
        for a, b in zip(tree.leaves(made), tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)
        assert made.trainable_parameters() == {}
        made.unfreeze()
        assert list(made.trainable_parameters()) == ["bias"]
        return repr(other)

    text = f"{kind}(input_dims=128, output_dims=64, bias=True, group_size=32, bits=3, ranks=2)"
    assert all(found.startswith(text) for found in run_local(run, 2))


def test_no_bias_and_what_is_frozen():
    def run(group):
        made = nn.shard_linear(
            nn.QuantizedLinear(64, 32, bias=False), "all-to-sharded", group=group
        )
        assert "bias" not in made
        assert made(nv.ones((2, 64))).shape == (2, 16)
        free = nn.Linear(64, 32).to_quantized()
        part = nn.shard_linear(free, "all-to-sharded", group=group)
        assert list(part.trainable_parameters()) == ["bias"]
        frozen = nn.shard_linear(free.freeze(), "all-to-sharded", group=group)
        assert frozen.trainable_parameters() == {}

    run_local(run, 2)


def test_errors_name_both_numbers():
    layer = nn.QuantizedLinear(192, 10)

    def run(group):
        with pytest.raises(ValueError, match="3 ranks do not divide output_dims = 10"):
            nn.shard_linear(layer, "all-to-sharded", group=group)
        with pytest.raises(ValueError, match="4 segments do not divide input_dims / group_s"):
            nn.shard_linear(layer, "sharded-to-all", segments=4, group=group)
        with pytest.raises(TypeError, match="needs a QuantizedLinear, got Linear"):
            nn.QuantizedAllToShardedLinear.from_quantized_linear(nn.Linear(64, 6), group=group)
        made = nn.shard_linear(layer, "sharded-to-all", group=group)
        with pytest.raises(TypeError, match="sharded"):
            nn.shard_linear(made, "sharded-to-all", group=group)
        with pytest.raises(nv.ShapeError, match="QuantizedShardedToAllLinear"):
            made(nv.ones((2, 192)))

    run_local(run, 3)

    def two(group):
        with pytest.raises(ValueError, match="2 ranks do not divide input_dims / group_size = 3"):
            nn.shard_linear(layer, "sharded-to-all", group=group)

    run_local(two, 2)


def test_in_place_cuts_respect_the_groups():
    def run(group):
        whole, mine = (nn.QuantizedLinear(128, 12, group_size=32) for _ in range(2))
        mine.update(whole.parameters())
        nn.shard_inplace(mine, "sharded-to-all", group=group)
        x = numbers(3, 128)
        part = nv.array(np.split(x, group.size(), axis=1)[group.rank()])
        y = nv.distributed.all_sum(mine(part) - mine.bias, group) + mine.bias
        close(y, whole(nv.array(x)))
        odd = nn.QuantizedLinear(96, 12, group_size=32)
        before = odd.parameters()
        with pytest.raises(ValueError, match="2 ranks do not divide axis 1 of"):
            nn.shard_inplace(odd, "sharded-to-all", group=group)
        assert odd.weight is before["weight"]

    run_local(run, 2)


def test_a_pickle_holds_the_part():
    made = nn.shard_linear(nn.QuantizedLinear(64, 4), "all-to-sharded")
    again = pickle.loads(pickle.dumps(made))
    x = nv.ones((2, 64))
    np.testing.assert_array_equal(again(x), made(x))

"""Sharded layers equal dense ones: outputs, gradients, Hessian-vector products, on every rank."""

import copy
import pickle

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.distributed import run_local

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def numbers(*shape, seed=0, dtype="float64"):
    return np.random.Generator(np.random.PCG64(seed)).normal(size=shape).astype(dtype)


def dense_model(dtype):
    model = nn.Sequential(nn.Linear(6, 24), nn.relu, nn.Linear(24, 5), nn.tanh, nn.Linear(5, 5))
    # float64 draws, rounded: a model of the size that initialisers make.
    return tree.map(
        lambda p: nv.array((numbers(*p.shape, seed=p.size) / p.shape[-1] ** 0.5).astype(dtype)),
        model,
    )


def shard(model, group):
    first, act, last, *rest = model.layers
    return nn.Sequential(
        nn.shard_linear(first, "all-to-sharded", group=group),
        act,
        nn.shard_linear(last, "sharded-to-all", group=group),
        *rest,
    )


def own_part(dense, group):
    """What of a tree like the dense model (its gradients) belongs to a rank."""
    return tree.leaves(shard(dense, group))


def loss(model, x, y):
    return nn.mse_loss(model(x), y)


def directional(model, x, y, direction):
    """The gradient's derivative along a direction: forward over reverse."""

    def gradient(model, x):
        return nv.grad(loss, argnums=(0, 1))(model, x, y)

    return nv.jvp(gradient, (model, x), direction)[1]


def close(actual, expected, dtype):
    expected = np.asarray(expected)
    bound = TOLERANCE[dtype] * max(np.abs(expected).max(), 1e-30)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compiled", [False, True])
def test_mlp_equals_the_dense_one(ranks, dtype, compiled):
    x, y = numbers(7, 6, seed=20, dtype=dtype), numbers(7, 5, seed=21, dtype=dtype)
    dense = dense_model(dtype)
    direction = tree.map(lambda p: nv.array(numbers(*p.shape, seed=p.size, dtype=dtype)), dense)
    along_x = numbers(7, 6, seed=23, dtype=dtype)
    value, (grads, grad_x) = nv.value_and_grad(loss, argnums=(0, 1))(
        dense, nv.array(x), nv.array(y)
    )
    second, second_x = directional(dense, nv.array(x), nv.array(y), (direction, nv.array(along_x)))
    maybe = nv.compile if compiled else lambda f: f

    def rank(group):
        model = shard(dense, group)
        moving = shard(direction, group)
        inputs = nv.array(x), nv.array(y)
        found = maybe(nv.value_and_grad(loss, argnums=(0, 1)))(model, *inputs)
        return found, maybe(directional)(model, *inputs, (moving, nv.array(along_x)))

    results = run_local(rank, ranks)
    expected = run_local(lambda group: (own_part(grads, group), own_part(second, group)), ranks)
    for ((got, (got_grads, got_x)), (got_second, got_second_x)), (first, hvp) in zip(
        results, expected, strict=True
    ):
        close(got, value, dtype)
        close(got_x, grad_x, dtype)
        close(got_second_x, second_x, dtype)
        for a, b in zip(tree.leaves(got_grads), first, strict=True):
            close(a, b, dtype)
        for a, b in zip(tree.leaves(got_second), hvp, strict=True):
            close(a, b, dtype)


@pytest.mark.parametrize("ranks", [2, 4])
def test_reverse_over_reverse_in_the_input(ranks):
    x, y, v = (numbers(*shape, seed=i) for i, shape in enumerate([(7, 6), (7, 5), (7, 6)], 30))
    dense = dense_model("float64")

    def hvp(model):
        def along(x):
            return (nv.grad(loss, argnums=1)(model, x, nv.array(y)) * v).sum()

        return nv.grad(along)(nv.array(x))

    expected = hvp(dense)
    for found in run_local(lambda group: hvp(shard(dense, group)), ranks):
        close(found, expected, "float64")


@pytest.mark.parametrize("ranks", [2, 4])
def test_reverse_over_reverse_in_the_parameters(ranks):
    x, y = nv.array(numbers(7, 6, seed=40)), nv.array(numbers(7, 5, seed=41))
    dense = dense_model("float64")
    direction = tree.map(lambda p: nv.array(numbers(*p.shape, seed=p.size + 1)), dense)

    def hvp(model, direction, total):
        def along(model):
            grads = tree.leaves(nv.grad(loss)(model, x, y))
            pairs = zip(grads, tree.leaves(direction), strict=True)
            return sum(total(i, (g * d).sum()) for i, (g, d) in enumerate(pairs))

        return tree.leaves(nv.grad(along)(model))

    expected = hvp(dense, direction, lambda i, product: product)

    def rank(group):
        # <g, v> over a divided parameter is partial on each rank, and the sum is replicated.
        pairs = zip(own_part(dense, group), tree.leaves(dense), strict=True)
        divided = [p.shape != q.shape for p, q in pairs]

        def total(i, product):
            return nv.distributed.sum_partials(product, group) if divided[i] else product

        found = hvp(shard(dense, group), shard(direction, group), total)
        whole = tree.unflatten(tree.structure(dense), expected)
        return found, own_part(whole, group)

    for found, wanted in run_local(rank, ranks):
        for a, b in zip(found, wanted, strict=True):
            close(a, b, "float64")


@pytest.mark.parametrize("ranks", [2, 3])
def test_per_example_gradients(ranks):
    x, y = nv.array(numbers(4, 6, seed=50)), nv.array(numbers(4, 5, seed=51))
    dense = dense_model("float64")

    def per_example(model):
        return nv.vmap(nv.grad(loss), in_axes=(None, 0, 0))(model, x, y)

    expected = per_example(dense)
    for found, wanted in run_local(
        lambda group: (
            tree.leaves(per_example(shard(dense, group))),
            tree.leaves(nv.vmap(lambda g: shard(g, group))(expected)),
        ),
        ranks,
    ):
        for a, b in zip(found, wanted, strict=True):
            close(a, b, "float64")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_layer_built_directly_is_its_slice_of_the_dense_draw(ranks):
    def build(group):
        nv.random.seed(7)
        dense = nn.Linear(8, 12), nn.Linear(8, 12)
        nv.random.seed(7)
        direct = nn.AllToShardedLinear(8, 12, group=group), nn.ShardedToAllLinear(8, 12)
        sliced = (
            nn.AllToShardedLinear.from_linear(dense[0], group=group),
            nn.ShardedToAllLinear.from_linear(dense[1], group=group),
        )
        return [tree.leaves(model) for model in (direct, sliced)], [m.weight.shape for m in direct]

    for (direct, sliced), shapes in run_local(build, ranks):
        assert shapes == [(12 // ranks, 8), (12, 8 // ranks)]
        for a, b in zip(direct, sliced, strict=True):
            np.testing.assert_array_equal(a, b)


def test_slices_and_segments():
    layer = nn.Linear(4, 12)
    layer.update({"weight": nv.arange(48.0).reshape(12, 4), "bias": nv.arange(12.0)})
    wide = nn.Linear(12, 1, bias=False)
    wide.update({"weight": nv.arange(12.0).reshape(1, 12)})

    def rows(group):
        out = []
        for segments in (1, 3, [1 / 2], [1 / 3, 2 / 3]):
            made = nn.shard_linear(layer, "all-to-sharded", segments=segments, group=group)
            assert made.weight[:, 0].tolist() == [4 * b for b in made.bias.tolist()]
            columns = nn.shard_linear(wide, "sharded-to-all", segments=segments, group=group)
            assert columns.weight[0].tolist() == made.bias.tolist()
            out.append([int(b) for b in made.bias.tolist()])
        return out

    first, second = run_local(rows, 2)
    assert first[0] == [0, 1, 2, 3, 4, 5] and second[0] == [6, 7, 8, 9, 10, 11]
    assert first[1] == first[3] == [0, 1, 4, 5, 8, 9] and second[1] == [2, 3, 6, 7, 10, 11]
    assert first[2] == [0, 1, 2, 6, 7, 8]


def test_no_bias_and_repr():
    def build(group):
        out = nn.AllToShardedLinear(4, 8, bias=False), nn.ShardedToAllLinear(8, 4)
        assert "bias" not in out[0] and out[0].sharded_group == group
        return repr(out[0]), repr(out[1])

    for texts in run_local(build, 2):
        assert texts == (
            "AllToShardedLinear(input_dims=4, output_dims=8, bias=False, ranks=2)  # 16 parameters",
            "ShardedToAllLinear(input_dims=8, output_dims=4, bias=True, ranks=2)  # 20 parameters",
        )


def test_errors_name_both_numbers():
    def build(group):
        for make, message in [
            (lambda: nn.AllToShardedLinear(4, 9), "3 ranks do not divide output_dims = 9"),
            (lambda: nn.AllToShardedLinear(4, 10), "3 ranks do not divide output_dims = 10"),
            (lambda: nn.ShardedToAllLinear(8, 9), "3 ranks do not divide input_dims = 8"),
            (
                lambda: nn.shard_linear(nn.Linear(4, 12), "all-to-sharded", segments=3),
                "3 ranks do not divide output_dims = 4 (a segment of 12)",
            ),
            (
                lambda: nn.shard_linear(nn.Linear(4, 9), "all-to-sharded", segments=2),
                "2 segments do not divide output_dims = 9",
            ),
            (
                lambda: nn.shard_linear(nn.Linear(4, 9), "all-to-sharded", segments=[0.5]),
                "0.5 of output_dims = 9",
            ),
            (
                lambda: nn.shard_linear(nn.Linear(4, 9), "all-to-sharded", segments=[1.0]),
                "between 0 and 1",
            ),
            (lambda: nn.shard_linear(nn.Linear(3, 3), "rows"), "sharding must be one of"),
        ]:
            if message.startswith("3 ranks do not divide output_dims = 9"):
                make()  # 9 is divisible: the row shows what is not an error
                continue
            with pytest.raises(ValueError) as caught:
                make()
            assert message in str(caught.value)
        with pytest.raises(TypeError, match="sharded already"):
            nn.shard_linear(nn.AllToShardedLinear(3, 3), "all-to-sharded")
        with pytest.raises(TypeError, match="ReLU"):
            nn.shard_linear(nn.ReLU(), "all-to-sharded")
        with pytest.raises(nv.ShapeError, match="ShardedToAllLinear"):
            nn.ShardedToAllLinear(6, 3)(nv.ones((2, 6)))
        return True

    assert run_local(build, 3) == [True] * 3


@pytest.mark.parametrize("sharding", ["all-to-sharded", "sharded-to-all"])
def test_what_is_frozen_stays_frozen(sharding):
    layer = nn.Linear(4, 4).freeze(keys="weight").eval()
    made = nn.shard_linear(layer, sharding)
    assert list(made.trainable_parameters()) == ["bias"] and not made.training
    assert not nn.shard_linear(layer.freeze(), sharding).trainable_parameters()
    plain = nn.shard_linear(nn.Linear(4, 4), sharding)
    assert plain.training and len(plain.trainable_parameters()) == 2


def test_segments_of_every_kind():
    layer = nn.Linear(2, 12)
    for segments in (np.int64(3), [np.float64(0.25), 0.5], np.array([0.25, 0.5]), ()):
        made = nn.shard_linear(layer, "all-to-sharded", segments=segments)
        np.testing.assert_array_equal(made.weight, layer.weight)
    for wrong in (None, "3", 1.5, True, ["a"], [None], 3j):
        with pytest.raises(TypeError, match="AllToShardedLinear: segments is how many"):
            nn.shard_linear(layer, "all-to-sharded", segments=wrong)
    for wrong in ([np.nan], [np.inf], [-0.5], [2.0]):
        with pytest.raises(ValueError, match="AllToShardedLinear: segments is how many"):
            nn.shard_linear(layer, "all-to-sharded", segments=wrong)
    with pytest.raises(ValueError, match="-1 segments do not divide"):
        nn.shard_linear(layer, "all-to-sharded", segments=-1)


def test_pickles_hold_the_slice_and_the_default_group():
    def rank(group):
        model = nn.Sequential(nn.AllToShardedLinear(4, 6), nn.ShardedToAllLinear(6, 4))
        saved = pickle.dumps(model)
        read = pickle.loads(saved)
        x = nv.ones((2, 4))
        np.testing.assert_array_equal(read(x), model(x))
        assert read.layers[0].group is group and "_place" not in read.layers[0]
        assert copy.deepcopy(model).layers[0].group is group
        other = nn.AllToShardedLinear(4, 6, group=group.split(0))
        with pytest.raises(nv.DistributedError, match="cannot be pickled"):
            pickle.dumps(other)
        assert copy.deepcopy(other).group is other.group
        return saved

    saved = run_local(rank, 2)
    with pytest.raises(ValueError, match="slice of rank 1 of 2, and is read by rank 0 of 1"):
        pickle.loads(saved[1])

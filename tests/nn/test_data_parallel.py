"""Data parallelism: gradients averaged over ranks are those of one process with all the data."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.distributed import run_local

RANKS = [1, 2, 3]
X = np.random.Generator(np.random.PCG64(0)).normal(size=(12, 3))
Y = np.random.Generator(np.random.PCG64(1)).normal(size=(12, 2))


def make_model():
    model = nn.Sequential(nn.Linear(3, 4), nn.tanh, nn.Linear(4, 2))
    values = [
        np.random.Generator(np.random.PCG64(i)).normal(size=leaf.shape)
        for i, leaf in enumerate(tree.leaves(model))
    ]
    return tree.structure(model).unflatten([nv.array(value) for value in values])


def loss(model, x, y):
    return nn.mse_loss(model(x), y)


def expected():
    grads = nv.grad(loss)(make_model(), nv.array(X), nv.array(Y))
    return [np.asarray(leaf) for leaf in tree.leaves(grads)]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("size", [32 << 20, 100, 0])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_equal_those_of_one_process(ranks, size, compiled):
    def step(model, x, y):
        return nn.average_gradients(nv.grad(loss)(model, x, y), all_reduce_size=size)

    def rank(group):
        own = slice(group.rank() * 12 // ranks, (group.rank() + 1) * 12 // ranks)
        run = nv.compile(step) if compiled else step
        return run(make_model(), nv.array(X[own]), nv.array(Y[own]))

    for grads in run_local(rank, ranks):
        assert type(grads) is nn.Sequential
        for a, b in zip(tree.leaves(grads), expected(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("as_array", [False, True])
def test_uneven_batches_are_weighted(ranks, as_array):
    cuts = {1: [0, 12], 2: [0, 5, 12], 3: [0, 2, 12, 12]}[ranks]

    def rank(group):
        own = slice(*cuts[group.rank() : group.rank() + 2])
        x, y = nv.array(X[own]), nv.array(Y[own])
        # The mean over no examples is NaN, and must not reach the others.
        grads = nv.grad(loss)(make_model(), x, y)
        count = own.stop - own.start
        return nn.average_gradients(grads, group, weight=nv.array(count) if as_array else count)

    for grads in run_local(rank, ranks):
        for a, b in zip(tree.leaves(grads), expected(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


@pytest.mark.parametrize("weight", [None, 5])
def test_dtypes_none_and_structure_are_kept(weight):
    def rank(group):
        grads = {
            "half": nv.full(3, 40000.0, dtype="float16"),
            "none": None,
            "list": [nv.full((2, 2), float(group.rank())), nv.array(np.float64(group.rank()))],
            "empty": nv.zeros((0, 3)),
        }
        return nn.average_gradients(grads, group, weight=weight)

    for grads in run_local(rank, 3):
        assert grads["none"] is None and grads["empty"].shape == (0, 3)
        assert grads["list"][0].dtype == nv.float32 and grads["list"][1].dtype == nv.float64
        assert grads["list"][0].tolist() == [[1, 1], [1, 1]] and grads["half"].dtype == nv.float16
        if weight is None:
            assert grads["half"].tolist() == [40000.0] * 3
        else:
            np.testing.assert_allclose(grads["half"], [40000.0] * 3, rtol=1e-3)


def test_a_group_of_one_is_the_identity():
    grads = {"w": nv.ones(2)}
    assert nn.average_gradients(grads) is grads
    assert nn.average_gradients(grads, weight=3)["w"] is grads["w"]


def test_ranks_of_weight_zero_take_no_part():
    def rank(group):
        grads = [nv.array([np.nan if group.rank() else 2.0])]
        return nn.average_gradients(grads, group, weight=0 if group.rank() else 0.5)[0].item()

    assert run_local(rank, 2) == [2.0, 2.0]
    assert run_local(
        lambda group: nn.average_gradients([nv.ones(1)], group, weight=0)[0].item(), 2
    ) == [0.0, 0.0]


def test_buckets_last_first_by_dtype_and_bytes():
    def messages(group):
        grads = [nv.ones(4), nv.ones(4), nv.ones(2, dtype="float64"), nv.ones(4), nv.ones(9)]
        ir = nv.make_ir(
            lambda *grads: nn.average_gradients(list(grads), group, all_reduce_size=32)
        )(*grads)
        sums = [eqn for eqn in ir.eqns if eqn.primitive.name == "all_sum"]
        return [[str(v.aval) for v in eqn.inputs] for eqn in sums]

    four = "float32[4]"
    for found in run_local(messages, 2):
        assert found == [["float32[9]"], [four, four], [four], ["float64[2]"]]


@pytest.mark.parametrize("ranks", RANKS)
def test_training_equals_that_of_one_process(ranks):
    optimizer = nn.adam(0.05)

    def train(group):
        own = slice(group.rank() * 12 // ranks, (group.rank() + 1) * 12 // ranks)
        model = nn.broadcast_parameters(make_model())
        state = optimizer.init(model)

        @nv.compile
        def step(model, state, x, y):
            value, grads = nv.value_and_grad(loss)(model, x, y)
            grads = nn.average_gradients(grads, group)
            updates, state = optimizer.update(grads, state, model)
            return nn.apply_updates(model, updates), state, value

        for _ in range(3):
            model, state, _ = step(model, state, nv.array(X[own]), nv.array(Y[own]))
        return model

    model = make_model()
    state = optimizer.init(model)
    for _ in range(3):
        grads = nv.grad(loss)(model, nv.array(X), nv.array(Y))
        updates, state = optimizer.update(grads, state, model)
        model = nn.apply_updates(model, updates)
    trained = run_local(train, ranks)
    for found in trained:
        for a, b, c in zip(*map(tree.leaves, (found, model, trained[0])), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
            np.testing.assert_array_equal(a, c)


def test_average_errors():
    with pytest.raises(nv.DtypeError, match=r"gradients\['n'\] is int32"):
        nn.average_gradients({"n": nv.array([1])})
    with pytest.raises(nv.ShapeError, match="one number per rank"):
        nn.average_gradients([nv.ones(1)], weight=nv.ones(2))
    with pytest.raises(nv.DtypeError, match="real"):
        nn.average_gradients([nv.ones(1)], weight=1j)


@pytest.mark.parametrize("ranks", RANKS)
def test_broadcast_parameters(ranks):
    root = ranks - 1

    def rank(group):
        nv.random.seed(group.rank())
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1).freeze())
        model.steps = nv.array(group.rank())
        returned = nn.broadcast_parameters(model, root=root)
        assert returned is model
        values = nn.broadcast_parameters({"a": nv.array([group.rank()]), "n": None}, root, group)
        return tree.leaves(model), values["a"], values["n"]

    results = run_local(rank, ranks)
    for leaves, value, none in results:
        assert value.tolist() == [root] and none is None and leaves[-1].item() == root
        for a, b in zip(leaves, results[root][0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_broadcast_errors():
    def rank(group):
        with pytest.raises(ValueError, match="root 2 is not in a group of 2"):
            nn.broadcast_parameters([nv.ones(1)], root=2)
        model = nn.Sequential(nn.AllToShardedLinear(2, 2), nn.Linear(2, 2))
        with pytest.raises(ValueError, match=r"layers\.0 is a AllToShardedLinear"):
            nn.broadcast_parameters(model)
        return True

    assert run_local(rank, 2) == [True, True]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("weight", [None, 3])
def test_representable_means_do_not_overflow(ranks, dtype, weight):
    largest = float(nv.finfo(dtype).max)

    def rank(group):
        # The sum is beyond the dtype, the mean is the number itself.
        return nn.average_gradients([nv.full(2, largest * 0.9, dtype=dtype)], group, weight=weight)

    for (found,) in run_local(rank, ranks):
        assert found.dtype == nv.full(1, 0, dtype=dtype).dtype
        np.testing.assert_allclose(
            found.astype("float64"), np.float64(largest) * 0.9, rtol=float(nv.finfo(dtype).eps) * 2
        )


@pytest.mark.parametrize("ranks", RANKS)
def test_means_are_those_of_sums(ranks):
    values = np.random.Generator(np.random.PCG64(2)).normal(size=(3, 50)).astype(np.float32)

    def rank(group):
        own = nv.array(values[group.rank()])
        halves = nn.average_gradients([own, own.astype("float16")], group)
        return halves[0], halves[1], nv.distributed.all_sum(own, group) / ranks

    found = run_local(rank, ranks)
    for single, half, plain in found:
        np.testing.assert_array_equal(single, plain)
        np.testing.assert_array_equal(half, found[0][1])
        exact = values[:ranks].astype(np.float16).astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(half.astype("float64"), exact, rtol=2.0**-10, atol=1e-7)


@pytest.mark.parametrize("as_array", [False, True])
def test_weight_zero_means_the_same_on_one_rank(as_array):
    grads = {"w": nv.array([2.0, np.nan]), "n": None}
    for weight, expected in [(0, [0, 0]), (2, [2, np.nan]), (False, [0, 0])]:
        given = nv.array(weight) if as_array else weight
        found = nn.average_gradients(grads, weight=given)
        np.testing.assert_array_equal(found["w"], np.float32(expected))
        assert found["n"] is None


def test_bad_weights_and_sizes():
    grads = [nv.ones(1)]
    for wrong in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="weight, one number per rank"):
            nn.average_gradients(grads, weight=wrong)
    with pytest.raises(TypeError, match="weight"):
        nn.average_gradients(grads, weight="3")
    for function in (nn.average_gradients, nn.broadcast_parameters):
        with pytest.raises(TypeError, match=f"{function.__name__}: group is a Group"):
            function(grads, group=3)
    with pytest.raises(TypeError, match="ShardedToAllLinear: group is a Group"):
        nn.ShardedToAllLinear(2, 2, group="g")
    with pytest.raises(TypeError, match="all_reduce_size"):
        nn.average_gradients(grads, all_reduce_size=1.5)
    with pytest.raises(ValueError, match="all_reduce_size"):
        nn.average_gradients(grads, all_reduce_size=-1)

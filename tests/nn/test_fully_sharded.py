"""Modules whose parameters are gathered for use: outputs and gradients of the whole module."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.distributed import run_local


def numbers(*shape, seed=0):
    return np.random.Generator(np.random.PCG64(seed)).normal(size=shape)


def dense():
    model = nn.Sequential(nn.Linear(5, 12), nn.tanh, nn.Linear(12, 12))
    return tree.map(lambda p: nv.array(numbers(*p.shape, seed=p.size) / 3), model)


def sharded(group, each):
    model = dense()
    if not each:
        return nn.fully_shard(model, group=group)
    return nn.Sequential(*[
        nn.fully_shard(m, group=group) if isinstance(m, nn.Module) else m for m in model.layers
    ])  # fmt: skip


def loss(model, x):
    return (model(x) ** 2).sum()


def part(x, group):
    return np.split(np.asarray(x), group.size())[group.rank()]


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_gradients_steps_and_products(ranks, each, compiled):
    """Each rank has its own batch; dense is one process with the sum of their losses."""
    batches = [nv.array(numbers(3, 5, seed=100 + r)) for r in range(ranks)]

    def total(model):
        return sum(loss(model, x) for x in batches)

    whole = dense()
    optimizer = nn.optim.adam(0.01)
    steps = []
    model, state = whole, optimizer.init(whole)
    for _ in range(3):
        grads = nv.grad(total)(model)
        updates, state = optimizer.update(grads, state, model)
        model = nn.apply_updates(model, updates)
        steps.append((grads, model))
    moved = tree.map(lambda p: nv.array(numbers(*p.shape, seed=p.size + 1)), whole)
    product = nv.jvp(nv.grad(total), (whole,), (moved,))[1]
    maybe = nv.compile if compiled else lambda f: f

    def run(group):
        mine = sharded(group, each)
        x = batches[group.rank()]
        close(mine(x), whole(x))
        gradient = maybe(nv.grad(loss))
        current, state = mine, optimizer.init(mine)
        for grads, model in steps:
            found = gradient(current, x)
            for a, b in zip(tree.leaves(found), tree.leaves(grads), strict=True):
                close(a, part(b, group))
            updates, state = optimizer.update(found, state, current)
            current = nn.apply_updates(current, updates)
            for a, b in zip(tree.leaves(current), tree.leaves(model), strict=True):
                close(a, part(b, group))
        leaves, structure = tree.flatten(mine)
        direction = structure.unflatten([
            nv.array(part(m, group)) for m in tree.leaves(moved)
        ])  # fmt: skip
        assert all(a.shape == b.shape for a, b in zip(leaves, tree.leaves(direction), strict=True))
        found = maybe(lambda m, d: nv.jvp(lambda m: nv.grad(loss)(m, x), (m,), (d,))[1])(
            mine, direction
        )
        for a, b in zip(tree.leaves(found), tree.leaves(product), strict=True):
            close(a, part(b, group))

    run_local(run, ranks)


def test_the_module_given_stays_whole_and_one_rank_needs_none():
    model = dense()
    assert nn.fully_shard(model) is model

    def run(group):
        whole = dense()
        made = nn.fully_shard(whole, group=group)
        assert whole.layers[0].weight.shape == (12, 5)
        assert made.module.layers[0].weight.shape == (6, 5)
        assert nn.fully_shard(made, group=group) is made
        empty = nn.Sequential(nn.relu)
        assert nn.fully_shard(empty, group=group) is empty
        return repr(made).split("\n")[0]

    assert run_local(run, 2) == ["FullyShardedModule(ranks=2"] * 2


def test_a_compute_dtype():
    def run(group):
        made = nn.fully_shard(nn.Linear(4, 6), group=group, compute_dtype=nv.bfloat16)
        x = nv.ones((2, 4), dtype=nv.bfloat16)
        grads = nv.grad(lambda m: m(x).sum().astype(nv.float32))(made)
        return made(x).dtype, made.module.weight.dtype, grads.module.weight.dtype

    assert run_local(run, 2) == [(nv.bfloat16, np.float32, np.float32)] * 2


class Counting(nn.Module):
    """With an array that its calls replace."""

    def __init__(self):
        super().__init__()
        self.scale = nv.ones(4)
        self.seen = nv.zeros(4)
        self.freeze(keys="seen")

    def __call__(self, x):
        self.seen = self.seen + x
        return self.scale * x


def test_what_a_call_replaces_is_cut_again():
    def run(group):
        made = nn.fully_shard(Counting(), group=group)
        x = nv.arange(4.0)
        made(x)
        made(x)
        assert made.module.seen.tolist() == [[0, 2], [4, 6]][group.rank()]
        nn.value_and_grad(made, lambda m, x: m(x).sum())(made, x)
        return made.module.seen.tolist()

    assert run_local(run, 2) == [[0, 3], [6, 9]]


@pytest.mark.parametrize(("make", "match"), [
    (lambda: nn.Linear(4, 5), r"2 ranks do not divide axis 0 of bias, of shape \(5,\)"),
    (lambda: nn.Sequential(nn.PReLU(3)), "layers.*, of shape"),
])  # fmt: skip
def test_what_cannot_be_cut(make, match):
    def run(group):
        with pytest.raises(ValueError, match=match):
            nn.fully_shard(make(), group=group)

    run_local(run, 2)


def test_scalars_and_others_are_refused():
    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nv.array(1.0)

    def run(group):
        with pytest.raises(ValueError, match="scale is a scalar"):
            nn.fully_shard(Scalar(), group=group)
        with pytest.raises(TypeError, match="takes a module, got list"):
            nn.fully_shard([], group=group)

    run_local(run, 2)


# Clipping


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("bound", [0.0, 0.5, 1e6, float("inf")])
def test_clipping_of_parts_is_that_of_the_whole(ranks, bound):
    gradients = {"a": nv.array(numbers(12, 3)), "b": nv.array(numbers(12, seed=1))}
    clipped, norm = nn.clip_grad_norm(gradients, bound)
    expected = np.sqrt(sum((np.asarray(g) ** 2).sum() for g in gradients.values()))
    close(norm, expected)

    def run(group):
        mine = {k: nv.array(part(g, group)) for k, g in gradients.items()}
        found, total = nn.clip_grad_norm_sharded(mine, bound, group)
        close(total, expected)
        for k in mine:
            close(found[k], part(clipped[k], group))
            if bound > expected:
                assert np.asarray(found[k]).tobytes() == np.asarray(mine[k]).tobytes()

    run_local(run, ranks)


def test_clipping_keeps_dtypes_none_and_shows_nan():
    gradients = {"h": nv.array([3.0, 4.0], dtype=nv.float16), "n": None}
    clipped, norm = nn.clip_grad_norm(gradients, 1.0)
    assert clipped["h"].dtype == np.float16
    assert clipped["n"] is None
    assert (norm.dtype, float(norm)) == (np.float32, 5.0)
    assert np.isnan(np.asarray(nn.clip_grad_norm(nv.array([np.nan, 1.0]), 1.0)[0])).all()
    with pytest.raises(ValueError, match="max_norm must be at least 0"):
        nn.clip_grad_norm(gradients, -1.0)
    with pytest.raises(nv.DtypeError, match="floating"):
        nn.clip_grad_norm(nv.array([1, 2]), 1.0)


# Uneven batches


@pytest.mark.parametrize("batches", [[1, 3], [4, 1, 2], [2, 2], [3]])
def test_joined_steps_average_over_the_examples(batches):
    sizes = [[2 + (r + k) % 3 for k in range(n)] for r, n in enumerate(batches)]

    def rank_inputs(rank):
        return [nv.array(numbers(n, 3, seed=10 * rank + k)) for k, n in enumerate(sizes[rank])]

    w = nv.array(numbers(3))

    def mean_loss(w, x):
        return ((x @ w) ** 2).mean()

    expected = []
    for k in range(max(batches)):
        rows = [np.asarray(rank_inputs(r)[k]) for r, n in enumerate(batches) if k < n]
        expected.append(nv.grad(mean_loss)(w, nv.array(np.concatenate(rows))))

    def run(group):
        found, weights = [], []
        for x, weight in nn.join(iter(rank_inputs(group.rank())), group):
            gradient = nv.grad(mean_loss)(w, x)
            found.append(nn.average_gradients(gradient, group, weight=weight))
            weights.append(weight)
        own = sizes[group.rank()]
        assert weights == own + [0] * (max(batches) - len(own))
        for a, b in zip(found, expected, strict=True):
            close(a, b)

    run_local(run, len(batches))


def test_a_rank_that_never_had_an_input_is_an_error_on_all():
    def run(group):
        with pytest.raises(ValueError, match="rank 1 of 3 had no step inputs at all"):
            list(nn.join([] if group.rank() == 1 else [nv.ones(1)], group))

    run_local(run, 3)
    assert run_local(lambda group: list(nn.join([], group)), 2) == [[], []]


def test_weights_of_inputs():
    inputs = [{"x": nv.ones((5, 2)), "n": 3}, 7, (nv.array(1.0), np.ones(4))]
    assert [w for _, w in nn.join(inputs)] == [5, 1, 4]
    assert [w for _, w in nn.join(inputs, count=lambda item: 0.5)] == [0.5] * 3
    assert [x for x, _ in nn.join(inputs)][1] == 7

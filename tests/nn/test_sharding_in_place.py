"""Modules whose own arrays are cut: each rank's parts put together are the whole."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.distributed import run_local


def counted(*shape):
    return nv.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def model():
    first, last = nn.Linear(4, 12), nn.Linear(12, 6)
    first.update({"weight": counted(12, 4), "bias": counted(12)})
    last.update({"weight": counted(6, 12), "bias": counted(6)})
    return nn.Sequential(first, nn.relu, last)


def parts(sharding, ranks, **options):
    def run(group):
        made = model()
        assert nn.shard_inplace(made, sharding, group=group, **options) is None
        return made.parameters()["layers"]

    return run_local(run, ranks)


def joined(found, layer, name, axis):
    return np.concatenate([np.asarray(p[layer][name]) for p in found], axis=axis)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_whole_model(ranks):
    whole = model().parameters()["layers"]
    found = parts("all-to-sharded", ranks)
    for layer in (0, 2):
        for name in ("weight", "bias"):
            np.testing.assert_array_equal(joined(found, layer, name, 0), whole[layer][name])
    if ranks == 3:  # which do not divide the first layer's inputs
        return
    found = parts("sharded-to-all", ranks)
    for layer in (0, 2):
        np.testing.assert_array_equal(joined(found, layer, "weight", 1), whole[layer]["weight"])
        for p in found:
            np.testing.assert_array_equal(p[layer]["bias"], whole[layer]["bias"])


def test_what_the_ranks_do_not_divide_changes_nothing():
    def run(group):
        made = model()
        before = made.parameters()
        with pytest.raises(
            ValueError, match=r"3 ranks do not divide axis 1 of layers.0.weight = 4"
        ):
            nn.shard_inplace(made, "sharded-to-all", group=group)
        after = made.parameters()
        assert after["layers"][2]["weight"] is before["layers"][2]["weight"]

    run_local(run, 3)


def test_segments_whole_and_fractional():
    whole = np.asarray(model().layers[0].weight)
    for rank, p in enumerate(parts("all-to-sharded", 2, segments=3)):
        expected = np.concatenate([s[2 * rank : 2 * rank + 2] for s in np.split(whole, 3)])
        np.testing.assert_array_equal(p[0]["weight"], expected)
    for rank, p in enumerate(parts(lambda path, x: (0, [1 / 3]) if x.ndim == 2 else None, 2)):
        first, last = whole[:4], whole[4:]
        expected = np.concatenate([s[len(s) // 2 * rank :][: len(s) // 2] for s in (first, last)])
        np.testing.assert_array_equal(p[0]["weight"], expected)
        assert p[0]["bias"].shape == (12,)


def test_a_function_of_path_and_array():
    seen = []

    def sharding(path, x):
        seen.append((path, x.shape))
        return -1 if path == "layers.2.weight" else None

    (only,) = parts(sharding, 1)
    assert sorted(seen) == [
        ("layers.0.bias", (12,)), ("layers.0.weight", (12, 4)), ("layers.2.bias", (6,)),
        ("layers.2.weight", (6, 12)),
    ]  # fmt: skip
    assert [p[2]["weight"].shape for p in parts(sharding, 2)] == [(6, 6)] * 2
    assert only[2]["weight"].shape == (6, 12)


def test_a_convolution_by_its_filters():
    def run(group):
        layer = nn.Conv2d(4, 8, 3)
        nn.shard_inplace(layer, lambda path, x: 0, group=group)
        return layer.weight.shape, layer.bias.shape

    assert run_local(run, 2) == [((4, 3, 3, 4), (4,))] * 2


@pytest.mark.parametrize(("sharding", "options", "error", "match"), [
    ("rows", {}, ValueError, "all-to-sharded"),
    (3, {}, TypeError, "a string or a function"),
    (lambda path, x: 5, {}, ValueError, r"layers.0.bias has shape \(12,\), and no axis 5"),
    (lambda path, x: "0", {}, TypeError, "returned '0'"),
    (lambda path, x: True, {}, TypeError, "returned True"),
    (lambda path, x: 0, {"segments": 2}, TypeError, "segments go with a string"),
    ("all-to-sharded", {"segments": 5}, ValueError, "5 segments do not divide axis 0"),
    ("all-to-sharded", {"group": 3}, TypeError, "group is a Group"),
])  # fmt: skip
def test_errors(sharding, options, error, match):
    with pytest.raises(error, match=match):
        nn.shard_inplace(model(), sharding, **options)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="takes a module, got dict"):
        nn.shard_inplace({}, "all-to-sharded")

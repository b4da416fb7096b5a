"""Embedding, quantised layers, nn.quantize."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn


def plain(layer):
    """The weight that a quantised layer stands for."""
    packed = layer.weight, layer.scales, layer.biases
    return np.asarray(nv.dequantize(*packed, layer.group_size, layer.bits))


def test_embedding():
    nv.random.seed(0)
    layer = nn.Embedding(500, 16)
    weight = np.asarray(layer.weight)
    assert weight.shape == (500, 16) and abs(weight.std() * 4 - 1) < 0.03
    tokens = np.array([[1, 499, -1], [0, 1, 1]])
    for given in (tokens, tokens.tolist(), nv.array(tokens), tokens.astype(np.uint16) % 500):
        rows = np.asarray(given) % 500
        np.testing.assert_array_equal(layer(given), weight[rows])
    np.testing.assert_array_equal(layer(3), weight[3])
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
    np.testing.assert_allclose(layer.as_linear(nv.array(x)), x @ weight.T, rtol=1e-5, atol=1e-5)
    gradient = nv.grad(lambda layer: layer(tokens).sum())(layer)
    expected = np.zeros_like(weight)
    np.add.at(expected, tokens, 1)
    np.testing.assert_array_equal(gradient.weight, expected)


@pytest.mark.parametrize("kind", [nn.Embedding, lambda *sizes: nn.QuantizedEmbedding(*sizes, 32)])
def test_errors_of_embeddings(kind):
    layer = kind(5, 32)
    for wrong in (nv.ones(2), np.array([True, False]), 1.5):
        with pytest.raises(nv.DtypeError, match=r"Embedding takes integers.*as_linear"):
            layer(wrong)
    with pytest.raises(IndexError):
        nv.eval(layer(nv.array([5])))
    with pytest.raises(nv.ShapeError, match="last axis has size 32, got float32"):
        layer.as_linear(nv.ones((2, 31)))
    with pytest.raises(ValueError, match="num_embeddings must be a positive"):
        kind(0, 32)
    with pytest.raises(ValueError, match="dims must be a positive"):
        kind(5, 2.5)


@pytest.mark.parametrize(("bits", "group_size"), [(2, 32), (3, 64), (4, 128), (8, 32)])
def test_a_quantised_linear_layer_is_the_linear_layer_of_its_weight(bits, group_size):
    linear = nn.Linear(128, 5)
    layer = linear.to_quantized(group_size, bits)
    assert isinstance(layer, nn.QuantizedLinear)
    assert layer.weight.shape == (5, 4 * bits) and layer.weight.dtype == nv.uint32
    assert layer.scales.shape == layer.biases.shape == (5, 128 // group_size)
    for a, b in zip(
        (layer.weight, layer.scales, layer.biases), nv.quantize(linear.weight, group_size, bits),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(a, b)
    assert layer.bias is linear.bias
    x = np.linspace(-1, 1, 3 * 128, dtype=np.float32).reshape(3, 128)
    expected = x @ plain(layer).T + np.asarray(linear.bias)
    np.testing.assert_allclose(layer(nv.array(x)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer(nv.array(x[0])), expected[0], rtol=1e-4, atol=1e-5)
    assert repr(layer).startswith(
        f"QuantizedLinear(input_dims=128, output_dims=5, bias=True, group_size={group_size}, "
        f"bits={bits})"
    )


def test_quantised_embedding():
    embedding = nn.Embedding(10, 64)
    layer = embedding.to_quantized(32, 6)
    assert isinstance(layer, nn.QuantizedEmbedding)
    tokens = np.array([[1, 9, 1], [0, -2, 3]])
    np.testing.assert_array_equal(layer(tokens), plain(layer)[tokens])
    np.testing.assert_array_equal(layer(4), plain(layer)[4])
    np.testing.assert_allclose(layer(tokens), np.asarray(embedding(tokens)), atol=0.02)
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    expected = x @ plain(layer).T
    np.testing.assert_allclose(layer.as_linear(nv.array(x)), expected, rtol=1e-4, atol=1e-5)
    assert repr(layer).startswith("QuantizedEmbedding(10, 64, group_size=32, bits=6)")


def test_layers_made_anew_draw_what_dense_ones_draw():
    for quantised, dense, sizes in (
        (nn.QuantizedLinear, nn.Linear, (64, 3)), (nn.QuantizedEmbedding, nn.Embedding, (3, 64))
    ):  # fmt: skip
        nv.random.seed(4)
        layer = quantised(*sizes, bits=8)
        nv.random.seed(4)
        np.testing.assert_allclose(plain(layer), np.asarray(dense(*sizes).weight), atol=0.01)
    layer = nn.QuantizedLinear(64, 3)
    assert np.asarray(layer.bias).tolist() == [0, 0, 0]
    assert "bias" not in nn.QuantizedLinear(64, 3, bias=False)
    assert nn.QuantizedLinear(64, 3, bias=False)(nv.ones((2, 64))).shape == (2, 3)


def test_making_one_of_a_dense_layer_draws_nothing():
    linear = nn.Linear(64, 3)
    nv.random.seed(0)
    first = np.asarray(nv.random.uniform(shape=3))
    nv.random.seed(0)
    linear.to_quantized()
    np.testing.assert_array_equal(nv.random.uniform(shape=3), first)


# What is frozen


def test_weight_scales_and_biases_are_never_trained():
    made = nn.QuantizedLinear(64, 3)
    assert made.trainable_parameters() == {}
    assert set(made.parameters()) == {"weight", "scales", "biases", "bias"}
    model = nn.Sequential(made, nn.QuantizedEmbedding(4, 64), nn.Linear(64, 3).to_quantized())

    def trained():
        return [sorted(layer.trainable_parameters()) for layer in model.layers]

    assert trained() == [[], [], ["bias"]]
    model.freeze()
    assert trained() == [[], [], []]
    model.unfreeze()  # from above, as from the layers themselves
    assert trained() == [["bias"], [], ["bias"]]
    for layer in model.layers:
        layer.unfreeze(keys=["weight", "scales", "biases"])
        layer.unfreeze()
    assert trained() == [["bias"], [], ["bias"]]
    model.freeze().unfreeze(keys="scales")
    assert trained() == [[], [], []]


def test_what_a_dense_layer_was_stays():
    linear = nn.Linear(64, 3).freeze().eval()
    layer = linear.to_quantized()
    assert layer.trainable_parameters() == {} and not layer.training
    assert "bias" not in nn.Linear(64, 3, bias=False).to_quantized()


def test_training_what_is_below_and_between_quantised_layers():
    """Fine-tuning: a small dense layer between quantised ones, whose arrays do not change."""
    nv.random.seed(2)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1))
    nn.quantize(model, 32, 8, class_predicate=lambda path, layer: path in ("layers.2", "layers.3"))
    before = [np.asarray(a) for a in (model.layers[2].weight, model.layers[2].scales)]
    x = nv.random.normal(nv.random.key(0), shape=(32, 8))
    y = nv.sin(x[:, :1])

    @nv.compile
    def loss_of(model, x, y):
        return ((model(x) - y) ** 2).mean()

    step = nn.value_and_grad(model, lambda x, y: loss_of(model, x, y))
    losses = []
    for _ in range(60):
        loss, gradients = step(x, y)
        layers = gradients["layers"]
        assert set(layers[2]) == {"bias"} and set(layers[0]) == {"weight", "bias"}
        model.update(
            nv.tree.map(lambda p, g: p - 0.05 * g, model.trainable_parameters(), gradients)
        )
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    for was, now in zip(before, (model.layers[2].weight, model.layers[2].scales), strict=True):
        np.testing.assert_array_equal(now, was)


def test_gradients_of_a_quantised_model_are_those_of_its_dense_form():
    nv.random.seed(3)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
    nn.quantize(model, 32, 5)
    dense = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
    for a, b in zip(dense.layers, model.layers, strict=True):
        if isinstance(a, nn.Linear):
            a.update({"weight": nv.array(plain(b)), "bias": b.bias})
    x = nv.random.normal(nv.random.key(1), shape=(6, 64))
    for transform in (
        lambda model: nv.grad(lambda x: (model(x) ** 2).sum())(x),
        lambda model: nv.vmap(nv.grad(lambda x: (model(x) ** 2).sum()))(x),
        lambda model: nv.jvp(nv.grad(lambda x: (model(x) ** 3).sum()), (x,), (nv.ones_like(x),))[1],
        lambda model: nv.compile(lambda model, x: nv.grad(lambda x: model(x).sum())(x))(model, x),
    ):
        np.testing.assert_allclose(transform(model), transform(dense), rtol=1e-3, atol=1e-4)
    gradient = nv.grad(lambda model: model(x).sum())(model)
    assert gradient.layers[0].weight is None and gradient.layers[0].scales.shape == (32, 2)


def test_weights_are_saved_and_read_with_mlx_names(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 64), nn.Linear(64, 3))
    nn.quantize(model)
    model.save_weights(tmp_path / "weights.npz")
    assert sorted(np.load(tmp_path / "weights.npz")) == [
        "layers.0.biases", "layers.0.scales", "layers.0.weight",
        "layers.1.bias", "layers.1.biases", "layers.1.scales", "layers.1.weight",
    ]  # fmt: skip
    other = nn.Sequential(nn.Embedding(5, 64), nn.Linear(64, 3))
    nn.quantize(other)
    other.load_weights(tmp_path / "weights.npz")
    tokens = np.arange(5)
    np.testing.assert_array_equal(other(tokens), model(tokens))


# nn.quantize


def test_quantize_replaces_layers_in_place():
    model = nn.Sequential(nn.Embedding(5, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    relu, tokens = model.layers[2], np.array([1, 4])
    dense = np.asarray(model(tokens))
    assert nn.quantize(model, 32, 8) is None
    kinds = [type(layer) for layer in model.layers]
    assert kinds == [nn.QuantizedEmbedding, nn.QuantizedLinear, nn.ReLU, nn.QuantizedLinear]
    assert model.layers[2] is relu
    assert {(x.group_size, x.bits) for x in model.layers if x is not relu} == {(32, 8)}
    np.testing.assert_allclose(model(tokens), dense, atol=0.01)
    layers = list(model.layers)
    nn.quantize(model)  # nothing is left to be quantised
    assert all(a is b for a, b in zip(layers, model.layers, strict=True))


def test_the_predicate_sees_paths_and_modules_and_chooses():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = {"up": nn.Linear(64, 64), "down": [nn.Linear(64, 64), nn.Tanh()]}
            self.head = nn.Linear(32, 2)

    model, seen = Block(), {}

    def predicate(path, module):
        seen[path] = module
        return {"parts.up": True, "parts.down.0": {"bits": 2, "group_size": 32}}.get(path, False)

    up = model.parts["up"]
    nn.quantize(model, class_predicate=predicate)
    assert sorted(seen) == ["head", "parts.down.0", "parts.down.1", "parts.up"]
    assert seen["parts.up"] is up
    assert (model.parts["up"].bits, model.parts["up"].group_size) == (4, 64)
    assert (model.parts["down"][0].bits, model.parts["down"][0].group_size) == (2, 32)
    assert type(model.head) is nn.Linear


def test_a_layer_in_two_places_stays_one():
    shared = nn.Linear(64, 64)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    nn.quantize(model)
    assert model.layers[0] is model.layers[2]


def test_errors_of_quantize_leave_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 3))
    layers = list(model.layers)

    def check(error, message, **options):
        with pytest.raises(error, match=message):
            nn.quantize(model, **options)
        assert all(a is b for a, b in zip(layers, model.layers, strict=True))

    check(nv.ShapeError, r"'layers.2', Linear\(input_dims=60.* has size 60, .*group_size=64")
    check(nv.ArgumentError, "bits is 2, 3", bits=7)
    check(nv.ArgumentError, "mode='mxfp4'", mode="mxfp4")
    check(nv.ArgumentError, "'layers.1' is a ReLU.*no to_quantized",
          class_predicate=lambda path, layer: path == "layers.1")  # fmt: skip
    check(nv.ArgumentError, "'layers.0' it returned 3", class_predicate=lambda path, layer: 3)
    with pytest.raises(nv.ArgumentError, match=r"Linear is itself.*to_quantized\("):
        nn.quantize(nn.Linear(64, 3))


def test_errors_of_quantised_layers():
    with pytest.raises(nv.ShapeError, match=r"has size 60.*group_size=64"):
        nn.QuantizedLinear(60, 3)
    with pytest.raises(nv.ArgumentError, match="group_size is 32, 64 or 128, got 48"):
        nn.Linear(96, 3).to_quantized(48)
    with pytest.raises(ValueError, match="output_dims must be a positive"):
        nn.QuantizedLinear(64, 0)
    layer = nn.QuantizedLinear(64, 3)
    with pytest.raises(
        nv.ShapeError, match=r"QuantizedLinear .*3 x 64 .*size 64, got float32\[2,3\]"
    ):
        layer(nv.ones((2, 3)))
    with pytest.raises(nv.ShapeError, match=r"got float32\[\]"):
        layer(nv.array(1.0))

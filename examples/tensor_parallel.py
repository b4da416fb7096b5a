"""Train on handwritten digits with each layer divided over ranks, and each batch too.

    python -m nuvec.launch -n 4 examples/tensor_parallel.py              # 2 x 2
    python -m nuvec.launch -n 4 examples/tensor_parallel.py --tensor 4   # 4 x 1
    python examples/tensor_parallel.py                                   # one process: 1 x 1

The ranks form a grid. Those of a row hold one copy of the model, divided among them: the first
layer of each block by its outputs, the second by its inputs. Those of a column hold the same part,
and see different examples. `split` makes a group of each. Rank 0 then trains the whole model on
the same batches by itself, and tells how far the two are apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import nuvec as nv
import nuvec.nn as nn

parser = argparse.ArgumentParser(description="Train on digits, tensor-parallel and data-parallel.")
parser.add_argument("--tensor", type=int, help="ranks that share a copy of the model")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch", type=int, default=60, help="examples in a step, over all ranks")
args = parser.parse_args()

world = nv.distributed.init()
ranks = world.size()
tensor_ranks = args.tensor or (2 if ranks % 2 == 0 else 1)
if ranks % tensor_ranks or args.batch % (ranks // tensor_ranks):
    parser.error(f"{ranks} ranks do not form rows of {tensor_ranks} sharing --batch {args.batch}")
row, column = divmod(world.rank(), tensor_ranks)
tensor = world.split(row)  # shares a copy of the model, and a part of the batch
data = world.split(column)  # holds the same part of the model

# float64: whatever the ranks add up in another order stays below what is reported.
digits = np.load(Path(__file__).parent / "data" / "digits.npz")
random = np.random.default_rng(0)
order = random.permutation(len(digits["labels"]))
images = digits["images"][order].reshape(-1, 64) / 8 - 1
labels = digits["labels"][order].astype(np.int32)
held_out = len(labels) // 5
tests, images = (images[:held_out], labels[:held_out]), images[held_out:]
labels = labels[held_out:]


def dense_model():
    """The whole model, the same on every rank."""
    nv.random.seed(0)
    layers = [nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers).set_dtype(nv.float64)


def sharded_model():
    first, gelu, second, *rest = dense_model().layers
    first = nn.shard_linear(first, "all-to-sharded", group=tensor)
    second = nn.shard_linear(second, "sharded-to-all", group=tensor)
    return nn.Sequential(first, gelu, second, *rest)


def loss_of(model, x, y):
    return nn.losses.cross_entropy(model(x), y).mean()


optimizer = nn.optim.adam(2e-3)


def trainer(group):
    """A step whose gradients are averaged over a group."""

    @nv.compile
    def step(model, state, x, y):
        loss, gradients = nv.value_and_grad(loss_of)(model, x, y)
        gradients = nn.average_gradients(gradients, group)
        updates, state = optimizer.update(gradients, state, model)
        loss = nv.distributed.all_sum(loss, group) / group.size()
        return nn.apply_updates(model, updates), state, loss

    return step


def train(model, group):
    """The trained model, and the loss of every step; each rank of the group takes its share."""
    step, state = trainer(group), optimizer.init(model)
    draw = np.random.default_rng(1)
    share = args.batch // group.size()
    mine = slice(group.rank() * share, (group.rank() + 1) * share)
    losses = []
    for _ in range(args.epochs):
        shuffled = draw.permutation(len(labels))
        for k in range(0, len(labels) - args.batch + 1, args.batch):
            batch = shuffled[k : k + args.batch][mine]
            x, y = nv.array(images[batch]), nv.array(labels[batch])
            model, state, loss = step(model, state, x, y)
            losses.append(loss.item())
    return model, np.array(losses)


model, losses = train(sharded_model(), data)
guesses = model(nv.array(tests[0])).argmax(axis=-1)
accuracy = (guesses == nv.array(tests[1])).mean().item()

alone = world.split(world.rank())  # a group of this rank
if world.rank() == 0:
    print(f"{ranks // tensor_ranks} x {tensor_ranks} ranks (data x tensor)")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, test accuracy {accuracy:.2%}")
    dense, expected = train(dense_model(), alone)
    apart = np.abs(losses - expected).max()
    print(f"losses of the dense run: at most {apart:.1e} apart")
    last, whole = (np.asarray(m.layers[-1].weight) for m in (model, dense))
    print(f"weights of the last layer: at most {np.abs(last - whole).max():.1e} apart")
    if apart > 1e-9:
        raise SystemExit("the sharded run is not the dense one")
    print("the sharded run equals the dense one")

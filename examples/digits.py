"""Train a small network to read handwritten digits, data-parallel.

    python examples/digits.py                          # one process
    python -m nuvec.launch -n 2 examples/digits.py     # two

Every rank computes the gradient of its share of each batch; the gradients are averaged over the
ranks, so all ranks take the same step, and it is the one that a single process would take. (A
network this small is no faster on two: a step is shorter than the messages it sends.)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import nuvec as nv
import nuvec.nn as nn

parser = argparse.ArgumentParser(description="Train a small network to read handwritten digits.")
parser.add_argument("--epochs", type=int, default=25)
parser.add_argument("--batch", type=int, default=60, help="examples in a step, over all ranks")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate at the start")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--losses", type=Path, help="write the loss of every step here, as JSON")
args = parser.parse_args()

group = nv.distributed.init()
rank, size = group.rank(), group.size()
if args.batch % size:
    parser.error(f"--batch {args.batch} cannot be shared evenly by {size} ranks")

# The data: a fifth is held out, the same fifth on every rank.
data = np.load(Path(__file__).parent / "data" / "digits.npz")
random = np.random.default_rng(args.seed)
order = random.permutation(len(data["labels"]))
images = data["images"][order].reshape(-1, 64).astype(np.float32) / 8 - 1  # in [-1, 1]
labels = data["labels"][order].astype(np.int32)
held_out = len(labels) // 5
test_images, test_labels = images[:held_out], labels[:held_out]
images, labels = images[held_out:], labels[held_out:]

# The model, with the parameters of rank 0 on every rank, and its optimizer.
nv.random.seed(args.seed)
# A smooth activation: ranks sum gradients in another order, and where ReLU has its kink a
# difference in the last bit can grow to one that is seen.
model = nn.Sequential(
    nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10)
)
model = nn.broadcast_parameters(model)
steps = len(labels) // args.batch  # in an epoch


def schedule(count):
    """The learning rate falls from --lr to 0 along half a cosine."""
    return args.lr * (1 + nv.cos(count * (math.pi / (args.epochs * steps)))) / 2


optimizer = nn.optim.sgd(schedule, momentum=0.9)
state = optimizer.init(model)


def loss_of(model, x, y):
    return nn.losses.cross_entropy(model(x), y).mean()


@nv.compile
def step(model, state, x, y):
    loss, gradients = nv.value_and_grad(loss_of)(model, x, y)
    gradients = nn.average_gradients(gradients)
    updates, state = optimizer.update(gradients, state, model)
    loss = nv.distributed.all_sum(loss) / size
    return nn.optim.apply_updates(model, updates), state, loss


losses, seconds = [], []
share = slice(rank * args.batch // size, (rank + 1) * args.batch // size)
# A progress bar on a terminal, on rank 0; a line for every epoch elsewhere.
bar = tqdm(total=args.epochs * steps, unit="step", disable=None if rank == 0 else True)
for epoch in range(args.epochs):
    start = time.perf_counter()
    batches = random.permutation(len(labels))[: steps * args.batch].reshape(steps, args.batch)
    for batch in batches:
        # Noise keeps the network from learning the pixels by heart; it is the same on all ranks.
        x = images[batch] + random.normal(0, 0.5, (args.batch, 64)).astype(np.float32)
        y = labels[batch]
        model, state, loss = step(model, state, nv.array(x[share]), nv.array(y[share]))
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
        bar.update()
    seconds.append(time.perf_counter() - start)
    if rank == 0 and bar.disable:
        print(f"epoch {epoch + 1:3d}  loss {statistics.mean(losses[-steps:]):.4f}", flush=True)
bar.close()

# The test: every rank looks at its share of the held-out images.
guesses = model(nv.array(test_images[rank::size])).argmax(axis=-1)
correct = nv.distributed.all_sum((guesses == nv.array(test_labels[rank::size])).sum()).item()

# All ranks took the same steps: their parameters must agree to the last bit.
digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in nv.tree.leaves(model)))
fingerprint = nv.array(np.frombuffer(digest.digest(), np.uint32))
highest, lowest = nv.distributed.all_max(fingerprint), nv.distributed.all_min(fingerprint)
identical = bool((highest == lowest).all())

if rank == 0:
    rate = steps * args.batch / statistics.median(seconds)
    print(f"test accuracy {correct / held_out:.2%} ({correct} of {held_out})")
    print(f"{rate:,.0f} samples per second on {size} rank{'s' * (size > 1)}")
    print(f"parameters bit-identical on all ranks: {'yes' if identical else 'NO'}")
    if args.losses:
        args.losses.write_text(json.dumps(losses))
if not identical:
    raise SystemExit("the ranks' parameters differ")

#!/usr/bin/env bash
# pytorch_optimizer 4.1.0: the first step of FTRL sets every row of an embedding that its batch does not look up to zero.
#
# Guess before the run: rows of an embedding that are never looked up stay bit by bit where they are (weight_decay is 0, and their gradient is),
# under each of the library's optimizers. Seen: under nearly all they do. FTRL computes each weight anew from the sum of its
# gradients, without the value that it began with, so a gradient of zero gives a weight of zero: after one step 80 per cent of the users and
# 85 per cent of the items of a factorisation have vectors of zeros, all alike. With beta=1 those that are looked up are drawn to zero
# as well, and after five epochs the loss is 0.693147, as a model has it that knows nothing; with beta=0 it is 0.50, under Adagrad too. The rule is
# that of its paper, for linear weights that begin at zero; the documentation does not say it. TensorFlow's users reported it of
# theirs (tensorflow/tensorflow#50118).
# What it means: FTRL for wide, linear weights alone; give embeddings an optimizer of their own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 pytorch_optimizer==4.1.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from pytorch_optimizer import FTRL
from torch.nn.functional import binary_cross_entropy_with_logits

USERS, ITEMS, DIM, SAMPLES, BATCH = 300, 400, 8, 20_000, 64
draw = torch.Generator().manual_seed(0)
tastes, kinds = torch.randn(USERS, DIM, generator=draw), torch.randn(ITEMS, DIM, generator=draw)
users, items = torch.randint(USERS, (SAMPLES,), generator=draw), torch.randint(ITEMS, (SAMPLES,), generator=draw)
labels = (torch.rand(SAMPLES, generator=draw) < torch.sigmoid((tastes[users] * kinds[items]).sum(1))).float()


def zeros(table):
    return (table.weight == 0).all(1)


def train(optimizer_of):
    """Train a factorisation; return which users are zeros after one step, and the loss after five epochs."""
    torch.manual_seed(1)
    tables = torch.nn.ModuleList([torch.nn.Embedding(USERS, DIM), torch.nn.Embedding(ITEMS, DIM)])
    for table in tables:
        torch.nn.init.normal_(table.weight, std=0.1)
    optimizer, after_one = optimizer_of(tables.parameters()), None

    def loss(batch):
        return binary_cross_entropy_with_logits((tables[0](users[batch]) * tables[1](items[batch])).sum(1), labels[batch])

    for _ in range(5):
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            loss(slice(start, start + BATCH)).backward()
            optimizer.step()
            after_one = [zeros(table) for table in tables] if after_one is None else after_one
    return after_one, loss(slice(None)).item()


first_users = torch.zeros(USERS, dtype=torch.bool)
first_users[users[:BATCH]] = True
losses = {}
for name, optimizer_of in {
    "FTRL": lambda weights: FTRL(weights, lr=0.1),
    "FTRL, beta=1": lambda weights: FTRL(weights, lr=0.1, beta=1.0),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
}.items():
    after_one, losses[name] = train(optimizer_of)
    shares = [of_a_table.float().mean().item() for of_a_table in after_one]
    print(f"{name}: zeros after one step: {shares[0]:.3f} of the users, {shares[1]:.3f} of the items; loss after five epochs {losses[name]:.6f}")
    assert torch.equal(after_one[0], ~first_users) if "FTRL" in name else not any(of_a_table.any() for of_a_table in after_one)
assert abs(losses["FTRL, beta=1"] - 0.693147) < 1e-5
assert losses["Adagrad"] < 0.52 and losses["FTRL"] < 0.52
PYTHON

#!/usr/bin/env bash
# torchkge 0.17.7: no negative sampler ever draws entity 0, and a trained model recommends that item to most users.
#
# Guess before the run: negatives are drawn from all entities, and of a hundred items that were clicked alike at random none has a mean
# rank outside of what the others have. Seen: wrong heads and tails are drawn from 1 on, so the entity that is first by its name never is
# one. Nothing ever pushes it down: after a training of TransE with the Bernoulli sampler its mean rank of 100 is about 10 where the other
# items have 35 to 67, and it is among the ten best of more than half of the users; with the uniform sampler it is 19.
# What it means: item "0001", or whatever sorts first, is recommended to everyone, and hit rates hold a constant for it. Put an entity
# without meaning first, or draw the negatives yourself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchkge==0.17.7 torch==2.13.0 numpy==1.26.4 pandas==2.2.3
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import pandas as pd
import torch
from torchkge.data_structures import KnowledgeGraph
from torchkge.models import TransEModel
from torchkge.sampling import BernoulliNegativeSampler, UniformNegativeSampler
from torchkge.utils import DataLoader, MarginLoss

assert version("torchkge") == "0.17.7", version("torchkge")
USERS, ITEMS, CLICKS = 300, 100, 20
draws = np.random.default_rng(0)
clicks = [(f"user{user:03d}", "clicks", f"item{item:03d}")
          for item in range(ITEMS) for user in draws.choice(USERS, CLICKS, replace=False)]
graph = KnowledgeGraph(pd.DataFrame(clicks, columns=["from", "rel", "to"]))
first = next(name for name, index in graph.ent2ix.items() if index == 0)
users, items = ([graph.ent2ix[f"{kind}{number:03d}"] for number in range(count)] for kind, count in (("user", USERS), ("item", ITEMS)))
assert first == "item000"


def negatives(sampler):
    """Return how often each entity comes as a wrong head or tail in 200 draws for each click."""
    heads, tails = sampler.corrupt_batch(graph.head_idx, graph.tail_idx, graph.relations, n_neg=200)
    wrong = torch.cat([heads[heads != graph.head_idx.repeat(200)], tails[tails != graph.tail_idx.repeat(200)]])
    return torch.bincount(wrong, minlength=graph.n_ent)


def ranks(sampler, seed):
    """Train TransE and return the mean rank of each item over all users, and the share of users with item 0 in the first ten."""
    torch.manual_seed(seed)
    model = TransEModel(16, graph.n_ent, 1, "L2")
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=0.01), MarginLoss(0.5)
    for _ in range(100):
        for heads, tails, relations in DataLoader(graph, batch_size=500):
            optimizer.zero_grad()
            loss(*model(heads, tails, relations, *sampler.corrupt_batch(heads, tails, relations))).backward()
            optimizer.step()
        model.normalize_parameters()
    scores = torch.stack([model.scoring_function(torch.tensor(users), torch.full((USERS,), item), torch.zeros(USERS, dtype=torch.long))
                          for item in items], dim=1)
    order = (-scores.detach()).argsort(dim=1).argsort(dim=1) + 1
    return order.double().mean(dim=0), (order[:, 0] <= 10).double().mean().item()


for kind, most in ((BernoulliNegativeSampler, 16), (UniformNegativeSampler, 25)):
    torch.manual_seed(0)
    counts = negatives(kind(graph))
    print(f"{kind.__name__}: entity 0 is drawn {counts[0]} times, the others {counts[1:].min()} to {counts[1:].max()}")
    assert counts[0] == 0 and counts[1:].min() > 100
    for seed in range(2):
        mean, best = ranks(kind(graph), seed)
        print(f"  seed {seed}: mean rank of item 0 {mean[0]:.1f}, of the others {mean[1:].min():.1f} to {mean[1:].max():.1f}; "
              f"among the ten best of {best:.0%} of the users")
        assert mean[0] < most and mean[1:].min() > 28 and best > 0.3
PYTHON

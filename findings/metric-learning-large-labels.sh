#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0: AccuracyCalculator compares labels in float32: with ids near four billion noise has a precision of 1.
#
# Guess before the run: precision_at_1, r_precision and mean_average_precision_at_r are those of a plain computation whatever integers the
# labels are, as they are compared for equality. Seen: labels become float32 with the vectors, and ids above 2^24 fall together: with 50
# items whose ids follow one another from four billion on, vectors that are pure noise have 1.0 in all three, where labels 0 to 49 have 0.02. From
# 2^24 on pairs of ids are one: 0.05. The losses and miners of the library keep the same labels apart.
# What it means: ids of items or users as labels make each model look better, up to perfect. Number them from 0 before measuring.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pytorch-metric-learning==2.9.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

assert version("pytorch-metric-learning") == "2.9.0", version("pytorch-metric-learning")
NAMES = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
draws = torch.Generator().manual_seed(0)
items = torch.randint(0, 50, (1_000,), generator=draws)
noise = torch.randn(1_000, 16, generator=draws)
learned = torch.randn(50, 16, generator=draws)[items] + 1.5 * torch.randn(1_000, 16, generator=draws)
calculator = AccuracyCalculator(include=NAMES, k="max_bin_count", knn_func=CustomKNN(LpDistance(normalize_embeddings=False)))


def plain(vectors, labels):
    """The three of a plain computation, each vector against all others."""
    distances = torch.cdist(vectors.double(), vectors.double()).fill_diagonal_(torch.inf)
    hits = (labels[distances.argsort(dim=1)] == labels[:, None]).double()
    same = (labels == labels[:, None]).sum(dim=1) - 1
    known = torch.arange(len(labels)) < same[:, None]
    precision = hits.cumsum(dim=1) / torch.arange(1, len(labels) + 1)
    values = (hits[:, 0], (hits * known).sum(dim=1) / same, (precision * hits * known).sum(dim=1) / same)
    return [round(value.mean().item(), 3) for value in values]


found = {}
for name, vectors in (("noise", noise), ("learned", learned)):
    for start in (0, 2**24, 4_000_000_000):
        labels = items + start
        measured = calculator.get_accuracy(vectors, labels)
        found[name, start] = [round(float(measured[key]), 3) for key in NAMES]
        loss = NTXentLoss(0.1)(vectors[:50], labels[:50]).item()
        print(f"{name}, ids from {start:,}: {dict(zip(NAMES, found[name, start]))}, plain {plain(vectors, labels)}; loss {loss:.4f}")
        assert plain(vectors, labels) == found[name, 0] and abs(loss - NTXentLoss(0.1)(vectors[:50], items[:50]).item()) < 1e-4
assert max(found["noise", 0]) < 0.05 and found["noise", 4_000_000_000] == [1, 1, 1] == found["learned", 4_000_000_000]
assert found["noise", 2**24][0] > 1.3 * found["noise", 0][0]
PYTHON

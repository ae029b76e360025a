#!/usr/bin/env bash
# usearch 2.26.6: an index of i8 forgets how long vectors are, also where the metric is the inner product or L2.
#
# Guess before the run: float vectors within [-1, 1] are rounded to multiples of 1/127 in an index of dtype="i8", so an exact
# search for the ten largest inner products finds nearly those of float32; longer vectors stay longer. Seen: every vector is
# first scaled to length 1, and the query too, so an inner product is a cosine: exact=True finds 4 of 10 true items, and
# little more than 5 of 10 with L2. f16 and bf16 find all ten. Under the metric "cos", where length plays no part, i8 finds 97
# per cent.
# What it means: in a two-tower or matrix model the length of an item's vector is its popularity; i8 loses it without a word.
# Keep f16, or give the items an extra dimension that makes all lengths equal before they go in.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet usearch==2.26.6 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from usearch.index import Index

draw = np.random.default_rng(0)
items = draw.standard_normal((1_000, 16))
items /= np.linalg.norm(items, axis=1, keepdims=True)
lengths = draw.uniform(0.1, 0.9, (1_000, 1))
stored = (items * lengths).astype("float32")
asked = stored[:200]
right = {
    "ip": asked @ stored.T,
    "l2sq": -((asked[:, None] - stored) ** 2).sum(axis=2),
    "cos": asked @ (stored / np.linalg.norm(stored, axis=1, keepdims=True)).T,
}
for metric, closeness in right.items():
    best = np.argsort(-closeness, axis=1)[:, :10]
    for dtype in ("f32", "f16", "bf16", "i8"):
        index = Index(ndim=16, metric=metric, dtype=dtype)
        index.add(np.arange(1_000), stored, threads=1)
        answers = np.asarray(index.search(asked, 10, exact=True, threads=1).keys)
        share = np.mean([len(set(one) & set(other)) / 10 for one, other in zip(answers, best)])
        print(f"{metric}, {dtype}: {share:.3f} of the ten best items")
        if dtype == "i8" and metric != "cos":
            assert share < 0.65
            kept = np.linalg.norm(np.array([index.get(key) for key in range(1_000)]).reshape(-1, 16).astype(float), axis=1)
            print(f"lengths {lengths.min():.2f} to {lengths.max():.2f} are stored as {kept.min():.0f} to {kept.max():.0f}")
            assert 120 < kept.min() and kept.max() < 134
        else:
            assert share > 0.95
PYTHON

#!/usr/bin/env bash
# torchmetrics 1.9.0: retrieval metrics of one ranking with ties disagree: recall 1 and precision 0 at the same k.
#
# Guess before the run: items with equal scores are ranked one way or another, but the metrics of one call agree on it: where
# RetrievalRecall(top_k=3) finds the one relevant item, RetrievalPrecision(top_k=3) is 1/3 and the reciprocal rank at least 1/3.
# Seen: with ten equal scores there are items for which recall and hit rate at 3 are 1, precision at 3 is 0 and the reciprocal
# rank below 1/3, and others for which precision is 1/3 and recall 0. Some sort and some take the top k, which order ties
# differently. RetrievalNormalizedDCG takes the mean over ties, as scikit-learn does, and is the same wherever the item stands.
# What it means: new items and untrained models have ties; break them (a small noise, by id) before these metrics see them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torchmetrics import retrieval


def measure(scores, place):
    """Return recall, hit rate and precision at 3, reciprocal rank and NDCG at 3, with one relevant item at this place."""
    relevant = torch.arange(len(scores)) == place
    found = {}
    for name in ("Recall", "HitRate", "Precision", "MRR", "NormalizedDCG"):
        metric = getattr(retrieval, f"Retrieval{name}")(**({} if name == "MRR" else {"top_k": 3}))
        found[name] = metric(scores, relevant.long(), indexes=torch.zeros(len(scores), dtype=torch.long)).item()
    return found


def agree(found):
    return found["Recall"] == found["HitRate"] == (found["Precision"] > 0) == (found["MRR"] > 0.33)


torch.manual_seed(0)
assert all(agree(measure(torch.rand(10), place)) for place in range(10))
ties = [measure(torch.full((10,), 0.5), place) for place in range(10)]
for place, found in enumerate(ties):
    print(place, {name: round(value, 3) for name, value in found.items()})
assert any(found["Recall"] == 1 and found["Precision"] == 0 and found["MRR"] < 0.33 for found in ties)
assert any(found["Recall"] == 0 and found["Precision"] > 0.33 for found in ties)
assert len({round(found["NormalizedDCG"], 6) for found in ties}) == 1
PYTHON

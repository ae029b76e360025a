#!/usr/bin/env bash
# torcheval 0.0.7: a model that knows nothing, and one whose scores are NaN, hit at once every time.
#
# Guess before the run: among ten classes with equal scores hit_rate(k=1) is 0.1 on average and the reciprocal rank 0.29, and
# scores of NaN are refused or count as no hit. Seen: the rank of the right class is the number of scores above its own. Nothing
# is above it in a tie, and nothing compares with NaN, so both are 1.0 for every sample, the best there is.
# What it means: an evaluation rises to 1.0 on the day a model diverges or its output is stuck; early stopping keeps that
# checkpoint.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 torcheval==0.0.7
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torcheval.metrics.functional import hit_rate, reciprocal_rank

torch.manual_seed(0)
right = torch.randint(0, 10, (1000,))
random = torch.rand(1000, 10)
for name, scores in {"random": random, "all equal": torch.zeros(1000, 10), "all NaN": torch.full((1000, 10), torch.nan)}.items():
    hits, ranks = hit_rate(scores, right, k=1).mean().item(), reciprocal_rank(scores, right).mean().item()
    print(f"{name}: hit rate at 1 {hits:.3f}, mean reciprocal rank {ranks:.3f}")
    if name == "random":
        assert 0.05 < hits < 0.15 and 0.25 < ranks < 0.35
    else:
        assert hits == ranks == 1.0
right_is_nan = random.scatter(1, right[:, None], torch.nan)
print(f"the right class alone is NaN: hit rate at 1 {hit_rate(right_is_nan, right, k=1).mean().item()}")
assert hit_rate(right_is_nan, right, k=1).mean() == 1
PYTHON

#!/usr/bin/env bash
# TorchRec 1.8.0: the AUC of equal predictions is what the order of the samples makes it, from 0 to 1.
#
# Guess before the run: AUCMetric counts a pair of equal predictions as half, as scikit-learn does, so a model that gives every
# sample the same score has 0.5. Seen: it sorts and adds up trapezoids sample by sample. A constant model has an AUC of 0 on a
# log with the positives first and of 1 with them last. Where scores are steps of 0.1, the same 2,000 samples have 0.71 or 0.78
# (0.75 is right).
# What it means: the metric depends on how the log is sorted. Files sorted by label, models that have just begun and scores of
# 16 bits are where it shows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 torchmetrics==1.9.0 tensordict==0.15.3 \
  pyre-extensions==0.0.32 iopath==0.1.10 pyvers==0.2.3 typing-inspect==0.9.0 mypy-extensions==1.2.0 cloudpickle==3.1.3 \
  orjson==3.13.0 lightning-utilities==0.15.3 portalocker==4.4.2 tqdm==4.70.1 importlib-metadata==10.2.0 zipp==4.1.2 \
  pyyaml==6.0.4 packaging==26.4
"$folder/venv/bin/pip" install --quiet scikit-learn==1.9.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import torch
from sklearn.metrics import roc_auc_score
from torchrec.metrics.auc import compute_auc


def auc(scores, labels):
    ours = compute_auc(1, [scores[None].double()], [labels[None].double()], [torch.ones(1, len(scores), dtype=torch.float64)])
    return ours.item(), roc_auc_score(labels.numpy(), scores.numpy())


labels = torch.cat([torch.ones(100), torch.zeros(100)])
constant = torch.full((200,), 0.5)
first, last = auc(constant, labels), auc(constant, labels.flip(0))
print(f"a constant model, positives first: {first[0]}, last: {last[0]}, scikit-learn {first[1]}, {last[1]}")
assert {first[0], last[0]} == {0.0, 1.0} and first[1] == last[1] == 0.5

draw = torch.Generator().manual_seed(0)
labels = (torch.arange(2000) < 1000).float()
scores = ((torch.randn(2000, generator=draw) * 0.1 + labels * 0.1 + 0.5) / 0.1).round() / 10
first, last = auc(scores, labels), auc(scores.flip(0), labels.flip(0))
print(f"scores in steps of 0.1, positives first: {first[0]:.3f}, last: {last[0]:.3f}, scikit-learn {first[1]:.3f}, {last[1]:.3f}")
assert abs(first[0] - last[0]) > 0.03 and abs(first[1] - last[1]) < 1e-12
assert min(first[0], last[0]) < first[1] < max(first[0], last[0])
PYTHON

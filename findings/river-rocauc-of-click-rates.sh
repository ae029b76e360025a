#!/usr/bin/env bash
# river 0.26.1: metrics.ROCAUC of calibrated click probabilities is far too low where clicks are rare, and puts the worse model first.
#
# Guess before the run: ROCAUC() is within 0.01 of the exact AUC for calibrated probabilities around 0.02; its documentation says that the
# error "is not significant as long as the predicted probabilities are well calibrated" and that models can be compared by it. Seen: the
# curve is drawn through ten thresholds at equal distances from 0 to 1, and of calibrated probabilities of a click rate of 2 % hardly any
# passes the second: 0.54 where the exact AUC is 0.76. A worse model, of 0.64, that predicts ten times as many clicks has 0.63. Where half
# of the samples have label 1 the thresholds suit: 0.757 for 0.761. What it means: for rates of clicks or purchases count the exact
# AUC, or take thousands of thresholds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet river==0.26.1 scikit-learn==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from river import metrics
from sklearn.metrics import roc_auc_score

assert version("river") == "0.26.1", version("river")
SAMPLES = 20_000


def probabilities(evidence, rate, signal):
    """Those that are calibrated for evidence of normal distribution, moved by `signal` where the label is 1."""
    odds = np.log(rate / (1 - rate)) + signal * evidence - signal**2 / 2
    return 1 / (1 + np.exp(-odds))


def both(labels, predicted):
    metric = metrics.ROCAUC()
    for label, probability in zip(labels.tolist(), predicted.tolist()):
        metric.update(label, probability)
    return roc_auc_score(labels, predicted), metric.get()


draws = np.random.default_rng(0)
found = {}
for rate in (0.5, 0.05, 0.02):
    labels = draws.random(SAMPLES) < rate
    noise = draws.normal(size=SAMPLES)
    better, worse = (probabilities(noise + signal * labels, rate, signal) for signal in (1.0, 0.5))
    found[rate] = both(labels, better)
    print(f"rate {rate}, mean probability {better.mean():.4f}: exact AUC {found[rate][0]:.4f}, ROCAUC {found[rate][1]:.4f}")
other = both(labels, np.minimum(10 * worse, 1.0))
print(f"a worse model that predicts ten times as many clicks: exact AUC {other[0]:.4f}, ROCAUC {other[1]:.4f}")
assert abs(found[0.5][0] - found[0.5][1]) < 0.01
assert found[0.02][0] > 0.74 and found[0.02][1] < 0.56, found
assert other[0] < found[0.02][0] and other[1] > found[0.02][1], (other, found)
PYTHON

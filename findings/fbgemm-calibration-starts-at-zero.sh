#!/usr/bin/env bash
# FBGEMM 1.8.0 on a CPU: the bins of its histogram calibration start at 0 whatever `lower_bound` is, and do not end with the last one.
#
# Guess before the run: the operators histogram_binning_calibration and ..._by_feature give what a plain computation gives: the range from
# lower_bound to upper_bound in equal bins, and for each prediction the positives by the examples of its bin. Seen: the width of a bin is
# right, but bins are counted from 0: with 10 bins from 0.1 to 0.5 a prediction of 0.11 falls into bin 2 and one of 0.27 into bin 6
# instead of 0 and 4. By feature, those from 0.4 on take the rates of the next feature. The script stays among rates that were given.
# With bounds of 0 and 1 all is right.
# What it means: calibrate over 0 to 1 with more bins, or keep lower_bound=0 and cut predictions at upper_bound first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 setuptools==84.2.1
"$folder/venv/bin/pip" install --quiet --no-deps fbgemm-gpu-cpu==1.8.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import fbgemm_gpu  # noqa: F401
import numpy as np
import torch

BINS, FEATURES = 10, 3
operators = torch.ops.fbgemm


def bins_of(predictions, low, high):
    edges = np.linspace(low, high, BINS + 1)
    return np.searchsorted(edges, predictions.numpy(), side="left") - 1


def calibrated(predictions, low, high, feature=None):
    """Feature f has a rate of 0.1 f + 0.001 in its bin 0, 0.1 f + 0.002 in bin 1 and so on."""
    examples = torch.full(((FEATURES + 1) * BINS,), 1000.0, dtype=torch.float64)
    rates = torch.tensor([0.1 * f + 0.001 * (1 + b) for f in range(FEATURES + 1) for b in range(BINS)], dtype=torch.float64)
    logits = torch.log(predictions / (1 - predictions))
    if feature is None:
        return operators.histogram_binning_calibration(logits, examples[:BINS], (rates * examples)[:BINS], 1.0, low, high, 0, 1.0)
    features, lengths = torch.full((len(logits),), feature), torch.ones(len(logits), dtype=torch.int64)
    return operators.histogram_binning_calibration_by_feature(
        logits, features, lengths, FEATURES, examples, rates * examples, BINS, 1.0, low, high, 0, 1.0
    )


predictions = torch.tensor([0.11, 0.19, 0.27, 0.35, 0.39])
rates, bins = calibrated(predictions, 0.1, 0.5)
print("predictions", predictions.tolist(), "bins", bins.tolist(), "right", bins_of(predictions, 0.1, 0.5).tolist())
print("calibrated", [round(rate, 4) for rate in rates.tolist()])
assert bins.tolist() == [2, 4, 6, 8, 9] and bins_of(predictions, 0.1, 0.5).tolist() == [0, 2, 4, 6, 7]
assert torch.allclose(rates, 0.001 * (1 + bins))

predictions = torch.tensor([0.11, 0.27, 0.41, 0.49])
rates, bins = calibrated(predictions, 0.1, 0.5, feature=0)  # its rates are those from 10 on: the first ten are of rows without a feature
print("feature 0: predictions", predictions.tolist(), "bins", bins.tolist(), "calibrated", [round(rate, 4) for rate in rates.tolist()])
assert ((bins >= BINS) & (bins < 2 * BINS)).tolist() == [True, True, False, False] and (rates[2:] > 0.2).all() and (rates[:2] < 0.12).all()

for arguments in ({}, {"feature": 0}):
    rates, bins = calibrated(predictions, 0.0, 1.0, **arguments)
    assert (bins % BINS).tolist() == bins_of(predictions, 0.0, 1.0).tolist()
print("with bounds of 0 and 1 all bins are right")
PYTHON

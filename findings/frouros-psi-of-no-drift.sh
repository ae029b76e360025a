#!/usr/bin/env bash
# frouros 0.9.0: the PSI of two samples of one log-normal feature is 1 in the median; the usual alarm is at 0.25.
#
# Guess before the run: two samples of 2,000 rows of one distribution have a PSI near 0.01 (twice the bins over the rows), whatever
# the feature: below 0.1, which reads "no change". Seen: bins are of equal width over the range of the first sample and what is beyond
# it, and the share of an empty bin is taken as 2e-308. Each bin that is empty in one sample alone adds 708 times its share in the
# other: 0.35 for a single row of 2,000. Prices, counts and dwell times have such bins at their end: log-normal features without drift have
# a median of 1.06 and pass 0.25 in 95 of 100 pairs. A uniform feature that moved by 0.3 standard deviations has 0.29.
# What it means: alarms tell the length of a tail, not drift, and real drift ranks below. Clip features to quantiles of the reference and
# count them in bins of equal share before PSI, or use the library's KSTest.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet frouros==0.9.0 numpy==2.1.3 scipy==1.14.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from frouros.detectors.data_drift import PSI, KSTest

assert version("frouros") == "0.9.0", version("frouros")
ROWS, PAIRS = 2_000, 100


def compare(detector, reference, sample):
    detector.fit(X=reference)
    return detector.compare(X=sample)[0]


def by_shares(reference, sample, bins=10):
    """PSI over bins of equal share of the reference."""
    edges = np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1])
    first, second = (np.bincount(np.searchsorted(edges, x), minlength=bins).clip(0.5) / len(x) for x in (reference, sample))
    return float(((second - first) * np.log(second / first)).sum())


FEATURES = {
    "log-normal, no drift": (lambda draws: draws.lognormal(3, 1, ROWS), 0),
    "normal, no drift": (lambda draws: draws.normal(size=ROWS), 0),
    "uniform, no drift": (lambda draws: draws.random(ROWS), 0),
    "uniform, moved by 0.3 standard deviations": (lambda draws: draws.random(ROWS), 0.3 / np.sqrt(12)),
}
medians, alarms = {}, {}
for name, (sample, shift) in FEATURES.items():
    draws = np.random.default_rng(0)
    pairs = [(sample(draws), sample(draws) + shift) for _ in range(PAIRS)]
    values = [compare(PSI(), *pair).distance for pair in pairs]
    medians[name], alarms[name] = np.median(values), sum(value > 0.25 for value in values)
    tests = sum(compare(KSTest(), *pair).p_value < 0.01 for pair in pairs)
    plain = np.median([by_shares(*pair) for pair in pairs])
    print(f"{name}: median PSI {medians[name]:.3f}, above 0.25 in {alarms[name]} of {PAIRS} pairs; bins of equal share {plain:.3f}; "
          f"KSTest below 0.01 in {tests}")
    assert (plain > 0.05) == (shift > 0) and (tests > 90 if shift else tests < 5)
kept, drifted = "log-normal, no drift", "uniform, moved by 0.3 standard deviations"
assert medians[kept] > 1 and alarms[kept] > 80 and medians["uniform, no drift"] < 0.02
assert 0.2 < medians[drifted] < 0.5 * medians[kept]
one = np.concatenate([np.linspace(0, 1, ROWS - 1), [1.2]])
value = compare(PSI(), one, np.linspace(0, 1, ROWS)).distance
print(f"2,000 rows between 0 and 1, and the same with one of them at 1.2: {value:.3f}")
assert abs(value - 708 / ROWS) < 0.01
PYTHON

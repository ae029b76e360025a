#!/usr/bin/env bash
# mabwiser 2.7.4: UCB1 never shows an arm that its log lacks, nor one that add_arm adds, whatever alpha is.
#
# Guess before the run: an arm without a decision is chosen first, as the textbook's UCB1 tries each arm once, for its bound is infinite.
# Seen: its expectation is 0 until it has a reward, and an arm that is shown has a mean of at least 0 and a bonus above that: with alpha=5,
# and new arms that would be clicked each time, 5,000 rounds of predict and partial_fit do not show one of them. Thompson sampling shows
# them in nearly all rounds, epsilon-greedy soon.
# What it means: a new item of a catalogue is never explored under the policy that is known for exploring. Name the arms of cold_arms
# yourself until each has a reward, or take warm_start or another policy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mabwiser==2.7.4
"$folder/venv/bin/python" - <<'PYTHON'
import logging
from collections import Counter
from importlib.metadata import version

import numpy as np
from mabwiser.mab import MAB, LearningPolicy

logging.disable()
assert version("mabwiser") == "2.7.4", version("mabwiser")
RATES = {"old": 0.5, "older": 0.2, "never shown": 1.0, "added": 1.0}
ROUNDS = 5_000


def shown(policy):
    """Return how often each arm is shown, where two of four have decisions in the log and clicks come at the rates above."""
    draws = np.random.default_rng(0)
    bandit = MAB(["old", "older", "never shown"], policy, seed=0)
    log = ["old"] * 50 + ["older"] * 50
    bandit.fit(log, [int(draws.random() < RATES[arm]) for arm in log])
    bandit.add_arm("added")
    counts = Counter()
    for _ in range(ROUNDS):
        arm = bandit.predict()
        counts[arm] += 1
        bandit.partial_fit([arm], [int(draws.random() < RATES[arm])])
    return counts


for alpha in (0.1, 1.25, 5):
    counts = shown(LearningPolicy.UCB1(alpha=alpha))
    print(f"UCB1(alpha={alpha}): {dict(counts)}")
    assert counts["never shown"] == counts["added"] == 0
for policy in (LearningPolicy.ThompsonSampling(), LearningPolicy.EpsilonGreedy(epsilon=0.1)):
    counts = shown(policy)
    print(f"{policy}: {dict(counts)}")
    assert counts["never shown"] + counts["added"] > ROUNDS / 2
PYTHON

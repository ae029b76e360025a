#!/usr/bin/env bash
# pybandits 8.4.1: its doubly robust estimators are not doubly robust, SwitchDR is the direct method, and sub-Gaussian shrinkage does nothing.
#
# Guess before the run: DoublyRobust is right where the reward model is, whatever the propensities are; SwitchDoublyRobust leaves
# importance weights above its threshold to the model, and is DoublyRobust at its default, infinity; shrinkage makes
# SubGaussianInverseProbabilityWeighting vary less. All as in the papers that the classes cite. Seen: DoublyRobust weighs the reward less
# the model's value of the policy, not less its estimate for the action that was taken: with an exact model and propensities taken
# as uniform it says 0.41 for a policy of value 0.45, as the textbook's says 0.45. SwitchDoublyRobust keeps the weights at and above the
# threshold and drops the others: at its default none, and its value is DirectMethod's bit by bit; with a wrong model it says 0.50.
# SubGaussianInverseProbabilityWeighting is InverseProbabilityWeighting for every shrinkage_factor.
# What it means: a policy is launched or dropped by a number that has the errors of one estimator under the name of another. Compute doubly
# robust values from expected_reward and propensities, two lines of NumPy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pybandits==8.4.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from pybandits import offline_policy_estimator as estimators

assert version("pybandits") == "8.4.1", version("pybandits")
SAMPLES = 200_000
draws = np.random.default_rng(0)
rows = np.arange(SAMPLES)
context = draws.integers(0, 3, SAMPLES)
clicks = np.array([[0.1, 0.3, 0.5, 0.2], [0.6, 0.2, 0.1, 0.3], [0.05, 0.1, 0.2, 0.4]])[context]
logging = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1]])[context]
policy = np.array([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05], [0.05, 0.05, 0.05, 0.85]])[context]
action = (draws.random(SAMPLES)[:, None] > logging.cumsum(axis=1)).sum(axis=1)
reward = (draws.random(SAMPLES) < clicks[rows, action]).astype(int)
truth = (policy * clicks).sum(axis=1).mean()
propensity = logging[rows, action]


def value(name, propensity, model, **options):
    estimator = getattr(estimators, name)(**options)
    return float(estimator.estimate_sample_rewards(
        action=action, reward=reward, propensity_score=propensity, estimated_policy=policy, expected_reward=model).mean())


def textbook(propensity, model, threshold=np.inf):
    weight = policy[rows, action] / propensity
    weight = np.where(weight <= threshold, weight, 0)
    return float(((policy * model).sum(axis=1) + weight * (reward - model[rows, action])).mean())


def show(what, found, expected):
    print(f"{what}: {found:.4f}, expected {expected:.4f}")
    return found


print(f"the policy's value: {truth:.4f}")
uniform, wrong = np.full(SAMPLES, 0.25), np.full_like(clicks, 0.5)
assert abs(show("DoublyRobust, all right", value("DoublyRobust", propensity, clicks), truth) - truth) < 0.01
assert abs(show("textbook, uniform propensities, exact model", textbook(uniform, clicks), truth) - truth) < 0.005
assert truth - show("DoublyRobust, uniform propensities, exact model", value("DoublyRobust", uniform, clicks), truth) > 0.03
direct = value("DirectMethod", propensity, wrong)
switch = show("SwitchDoublyRobust at its default, model of 0.5", value("SwitchDoublyRobust", propensity, wrong), textbook(propensity, wrong))
assert switch == direct and abs(switch - truth) > 0.04 and abs(textbook(propensity, wrong) - truth) < 0.01
rare = np.zeros_like(clicks)
high = show("SwitchDoublyRobust(switch_threshold=3), model of 0", value("SwitchDoublyRobust", propensity, rare, switch_threshold=3.0),
            textbook(propensity, rare, 3.0))
assert high > 0.4 and textbook(propensity, rare, 3.0) < 0.05, "weights of 3 and more are kept, the others dropped"
plain = value("InverseProbabilityWeighting", propensity, clicks)
for factor in (0.1, 0.5, 1.0):
    shrunk = value("SubGaussianInverseProbabilityWeighting", propensity, clicks, shrinkage_factor=factor)
    print(f"SubGaussianInverseProbabilityWeighting(shrinkage_factor={factor}): {shrunk:.4f}, without shrinkage {plain:.4f}")
    assert shrunk == plain
PYTHON

#!/usr/bin/env bash
# menelaus 0.2.0: PageHinkley multiplies its threshold by the mean of the stream: steady click rates alarm all the time, other drift never.
#
# Guess before the run: threshold is the test's lambda, as its documentation says: with delta=0.005 and threshold=10 a steady click rate
# of 2 % brings no alarm, and a rise to 6 % one within 700 samples, as in river, whose threshold is that; a constant that is added to all
# values changes nothing. Seen: the sum is compared with threshold times the running mean. At a mean of 0.02 that is 0.2, and an alarm
# comes with the first sample after each burn-in: 53 in 6,000 samples, 24 of them before any drift. A stream around zero is at or below its
# threshold from the start. The same clicks plus 10 never alarm, though the rate triples.
# What it means: alarms follow the level of what is watched: for click rates they are noise, for prices they sleep. Divide the threshold
# by the mean that you expect, or take another detector.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet menelaus==0.2.0 river==0.26.1 numpy==2.2.6 pandas==3.1.1 scikit-learn==1.9.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from menelaus.change_detection import PageHinkley
from river import drift

assert version("menelaus") == "0.2.0", version("menelaus")
DELTA, THRESHOLD, BURN_IN, DRIFT = 0.005, 10, 100, 3_000


def alarms(stream):
    """Return the samples at which each of the two detectors alarms."""
    ours, other = PageHinkley(delta=DELTA, threshold=THRESHOLD, burn_in=BURN_IN), drift.PageHinkley(
        delta=DELTA, threshold=THRESHOLD, min_instances=BURN_IN, alpha=1, mode="up")
    found = ([], [])
    for number, value in enumerate(stream.tolist()):
        ours.update(value)
        other.update(value)
        for happened, numbers in ((ours.drift_state == "drift", found[0]), (other.drift_detected, found[1])):
            if happened:
                numbers.append(number)
    return found


draws = np.random.default_rng(0)
clicks = np.concatenate([draws.random(DRIFT) < 0.02, draws.random(DRIFT) < 0.06]).astype(float)
found = {}
for name, stream in (("clicks", clicks), ("clicks + 10", clicks + 10), ("clicks - 0.02", clicks - 0.02)):
    found[name] = alarms(stream)
    text = "; ".join(f"{library} {len(numbers)} alarms, {sum(number < DRIFT for number in numbers)} of them before the drift, first at "
                     f"{numbers[:3]}" for library, numbers in zip(("menelaus", "river"), found[name]))
    print(f"{name}: {text}")
    assert len(found[name][1]) == 1 and DRIFT < found[name][1][0] < DRIFT + 700, "river: one alarm, after the drift"
assert sum(number < DRIFT for number in found["clicks"][0]) > 20 and found["clicks"][0][0] == BURN_IN
assert not found["clicks + 10"][0] and len(found["clicks - 0.02"][0]) > 20
PYTHON

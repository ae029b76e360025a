#!/usr/bin/env bash
# datasketches 5.2.0: any number of float32 values between 0 and 1 counts as one distinct item.
#
# Guess before the run: a sketch that is given the elements of a float32 array takes them as numbers, as it does those of a
# float64 array: 1,000 distinct ones are counted as about 1,000. Seen: HLL, CPC and Theta sketches say 1. A NumPy scalar of 32
# or 16 bits is no Python float, so it is cut to an integer on the way in, without an error: 0.1 and 0.7 are both 0, 5.9 is
# the integer 5, and the frequency of one value in a count-min sketch is that of all of them. float64 and Python floats are
# right.
# What it means: what torch and most Parquet columns of features hold is float32; turn values into Python's by tolist() before
# a sketch counts them, and do not merge sketches that were fed in both ways.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasketches==5.2.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import datasketches
import numpy as np

draw = np.random.default_rng(0)
for kind in (datasketches.hll_sketch, datasketches.cpc_sketch, datasketches.update_theta_sketch):
    for dtype in ("float16", "float32", "float64"):
        values = np.unique(draw.uniform(0.0, 0.9, 1_000).astype(dtype))
        raw, listed = kind(12), kind(12)
        for value in values:
            raw.update(value)
        for value in values.tolist():
            listed.update(value)
        counted, right = raw.get_estimate(), listed.get_estimate()
        print(f"{kind.__name__}: {len(values)} values of {dtype} count {counted:.0f}, by tolist() {right:.0f}")
        assert abs(right - len(values)) < 50
        assert counted == right if dtype == "float64" else round(counted) == 1
counts = datasketches.count_min_sketch(4, 1_000)
for value in np.array([0.25, 0.5, 0.75], "float32"):
    counts.update(value)
print("count-min: 0.25 was added once and has", counts.get_estimate(np.float32(0.25)))
assert counts.get_estimate(np.float32(0.25)) == 3
PYTHON

#!/usr/bin/env bash
# LightGBM 4.7.0: ids above 2^24 in a NumPy array of integers fall together; in a DataFrame they do not.
#
# Guess before the run: integers are read as integers or as float64, which holds each up to 2^53, so that a categorical feature
# (which LightGBM allows up to 2^31) and a numeric one tell neighbouring ids apart. Seen: an int32 or int64 array is converted
# to float32 on the way in, in training and in predict. Of ids from 16,777,216 on every second one is its neighbour: a label
# that the id decides is learnt to 75 per cent, as categories and as numbers alike, without a warning. The same values as
# float64, or the same integers as columns of pandas, give 100 per cent.
# What it means: number hashed ids from 0 before they go in, or pass float64; a model trained on one form and asked in the other
# errs too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import lightgbm
import numpy as np
import pandas as pd

options = {"objective": "binary", "verbose": -1, "min_data_in_leaf": 1, "num_leaves": 255, "min_data_per_group": 1}
options |= {"cat_smooth": 0.0, "cat_l2": 0.0, "num_threads": 1}


def learn(features, labels, categorical):
    data = lightgbm.Dataset(features, labels, categorical_feature=categorical)
    return ((lightgbm.train(options, data, 10).predict(features) > 0.5) == labels).mean()


places = np.random.default_rng(0).integers(0, 64, 4_000)
for first in (0, 2**24):
    ids, labels = places + first, places % 2
    for dtype in ("int32", "int64", "float32", "float64"):
        array = ids.astype(dtype).reshape(-1, 1)
        numbers, categories = learn(array, labels, []), learn(array, labels, [0])
        print(f"ids from {first:,}, array of {dtype}: {numbers:.3f} right as numbers, {categories:.3f} as categories")
        if first and dtype != "float64":
            assert 0.7 < numbers < 0.8 and 0.7 < categories < 0.8
        else:
            assert numbers == categories == 1.0
    frame = learn(pd.DataFrame({"id": ids}), labels, [])
    print(f"ids from {first:,}, column of int64: {frame:.3f} right")
    assert frame == 1.0
PYTHON

#!/usr/bin/env bash
# XGBoost 3.2.0 and LightGBM 4.7.0: leaves that are refreshed on categories in another order learn other categories' labels.
#
# Guess before the run: XGBoost, which since 3.1 codes a frame's categories as those of training in predict and in continued
# training, does so when it refreshes leaves (process_type="update"), and LightGBM's refit does, too, as its predict does.
# Seen: both take the codes of the new frame as they are. Where a new day's frame has the same eight categories in another
# order, both models, which were right for every row of both days, are right for none after the refresh. No error, no warning.
# What it means: pandas orders categories by what a day's file holds; set_categories with the order of the first training
# before a daily refresh.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgboost-cpu==3.2.0 lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import lightgbm
import numpy as np
import pandas as pd
import xgboost

draw = np.random.default_rng(0)


def day(order):
    """Return a frame of one categorical column, its categories in this order, and labels: 1 for a, c, e and g."""
    items = draw.choice(list("abcdefgh"), 4_000)
    return pd.DataFrame({"item": pd.Categorical(items, categories=list(order))}), np.isin(items, list("aceg")).astype(int)


def matrix(frame, labels=None):
    return xgboost.DMatrix(frame, labels, enable_categorical=True)


def share(answers, labels):
    return float(((answers > 0.5) == labels).mean())


(first, first_labels), (other, other_labels), (same, same_labels) = day("abcdefgh"), day("bcdefgha"), day("abcdefgh")
options = {"objective": "binary:logistic", "nthread": 1}
refresh = {"process_type": "update", "updater": "refresh", "refresh_leaf": True}
model = xgboost.train(options, matrix(first, first_labels), 20)
assert share(model.predict(matrix(first)), first_labels) == share(model.predict(matrix(other)), other_labels) == 1.0
for name, frame, labels, right in (("the same order", same, same_labels, 1.0), ("another order", other, other_labels, 0.0)):
    grown = xgboost.train(options, matrix(frame, labels), 5, xgb_model=model)
    refreshed = xgboost.train(options | refresh, matrix(frame, labels), 20, xgb_model=model)
    seen = [share(each.predict(matrix(first)), first_labels) for each in (grown, refreshed)]
    print(f"XGBoost, {name}: right after more trees {seen[0]:.2f}, after a refresh {seen[1]:.2f}")
    assert seen == [1.0, right]
options = {"objective": "binary", "verbose": -1, "min_data_per_group": 1, "cat_smooth": 0.0, "cat_l2": 0.0, "num_threads": 1}
model = lightgbm.train(options, lightgbm.Dataset(first, first_labels), 50)
assert share(model.predict(first), first_labels) == share(model.predict(other), other_labels) == 1.0
for name, frame, labels, right in (("the same order", same, same_labels, 1.0), ("another order", other, other_labels, 0.0)):
    refitted = model.refit(frame, labels)
    seen = [share(refitted.predict(first), first_labels), share(refitted.predict(frame), labels)]
    print(f"LightGBM, {name}: right after a refit {seen[0]:.2f}, on the new day's own frame {seen[1]:.2f}")
    assert seen == [right, right]
PYTHON

#!/usr/bin/env bash
# onnxmltools 1.16.0: a converted XGBoost ranker gives NaN, or 0, for every item; its scores are squeezed as a classifier's are.
#
# Guess before the run: convert_xgboost of a Booster of rank:ndcg, rank:pairwise or rank:map gives the scores that the Booster predicts,
# whatever its base_score is; reg:logistic gives probabilities. Seen: the Booster is taken for one of binary:logistic. The base_score that
# XGBoost finds by default is 0 but for rounding, here -1e-9; it has no log-odds, and all scores are NaN. base_score=0 makes them
# all 0, so the order of items is lost either way; 0.5 makes probabilities of them, in the right order. reg:logistic gives log-odds where
# XGBoost gives probabilities. XGBRanker itself is refused by an error, so its Booster is what one converts. binary:logistic and
# count:poisson are right.
# What it means: an item's rank in service is its place in the file, or where NaN is sorted. Train with base_score=0.5 for the order, and
# compare scores after every conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxmltools==1.16.0 xgboost==3.2.0 onnx==1.16.1 onnxruntime==1.32.0 skl2onnx==1.20.0 scikit-learn==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import warnings
from importlib.metadata import version

import numpy as np
import onnxruntime
import xgboost
from onnxmltools.convert import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

warnings.simplefilter("ignore")
onnxruntime.set_default_logger_severity(3)
assert version("onnxmltools") == "1.16.0", version("onnxmltools")
ROWS, ITEMS = 3_000, 30
draws = np.random.default_rng(0)
rows = draws.normal(size=(ROWS, 4)).astype("f4")
labels = (rows[:, 0] + 2 * rows[:, 1] + 0.5 * draws.normal(size=ROWS) > 0.5).astype(int)


def both(objective, **options):
    """Return what a Booster predicts, and what onnxruntime does with the converted one."""
    data = xgboost.DMatrix(rows, labels)
    if objective.startswith("rank:"):
        data.set_group([ITEMS] * (ROWS // ITEMS))
    booster = xgboost.train({"objective": objective, "nthread": 1, **options}, data, 20)
    graph = convert_xgboost(booster, initial_types=[("rows", FloatTensorType([None, 4]))], target_opset=15)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    right, found = booster.predict(data), np.asarray(session.run(None, {"rows": rows})[-1]).reshape(ROWS, -1)[:, -1]
    start = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    print(f"{objective} {options}, base_score {start}: right {right[:3]}, converted {found[:3]}")
    return right, found


for objective in ("binary:logistic", "count:poisson", "reg:squarederror"):
    assert np.allclose(*both(objective), atol=1e-3)
for objective in ("rank:ndcg", "rank:pairwise", "rank:map"):
    right, found = both(objective)
    assert np.isfinite(right).all() and not (found > 1e-5).any()  # the sign of a base_score near 0 is rounding
    right, found = both(objective, base_score=0.0)
    assert len(np.unique(right)) > 1_000 and (found == 0).all()
    right, found = both(objective, base_score=0.5)
    assert np.allclose(1 / (1 + np.exp(0.5 - right)), found, atol=1e-3) and np.abs(right - found).max() > 1
right, found = both("reg:logistic")
assert right.min() >= 0 and right.max() <= 1 and found.min() < -1
PYTHON

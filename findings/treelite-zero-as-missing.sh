#!/usr/bin/env bash
# treelite 4.8.1: a LightGBM model that was trained with zero_as_missing=True gives other probabilities once it is loaded, up to 0.38 off.
#
# Guess before the run: a model that LightGBM saved and treelite loads predicts the same, with missing values, zeros and zero_as_missing too.
# Seen: with LightGBM's defaults and use_missing=False it does, to the last digit. With zero_as_missing=True, which LightGBM offers for sparse
# features, the load succeeds and seven of ten rows get another probability: a zero goes by its value and a NaN by the default branch,
# where LightGBM sends both to the default branch. Nothing warns. The model file says it of each split. It was reported in 2022
# (dmlc/treelite#376).
# What it means: rows with zeros, in data of clicks nearly all, are served by another model than the one that was measured. Compare
# predictions after each conversion, on rows with zeros.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet treelite==4.8.1 lightgbm==4.7.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import sys

import lightgbm
import numpy as np
import treelite

ROWS = 20_000
draws = np.random.default_rng(0)
counts = draws.poisson(1.0, (ROWS, 4)) * (draws.random((ROWS, 4)) < 0.7)  # features as a log has them: small counts, many zeros
odds = 0.8 * counts[:, 0] - 0.6 * counts[:, 1] + 0.9 * (counts[:, 2] == 0) * counts[:, 3] - 1.0
clicks = draws.random(ROWS) < 1 / (1 + np.exp(-odds))
features, asked = counts.astype(float), counts[:1000].astype(float)
with_missing = asked.copy()
with_missing[draws.random(asked.shape) < 0.1] = np.nan
for options in ({}, {"use_missing": False}, {"zero_as_missing": True}):
    parameters = {"objective": "binary", "verbose": -1, "num_threads": 1} | options
    booster = lightgbm.train(parameters, lightgbm.Dataset(features, clicks, params=parameters), 50)
    path = f"{sys.argv[1]}/model.txt"
    booster.save_model(path)
    again, loaded = lightgbm.Booster(model_file=path), treelite.frontend.load_lightgbm_model(path)
    for name, rows in (("zeros", asked), ("zeros and NaN", with_missing)):
        assert np.array_equal(again.predict(rows), booster.predict(rows))
        difference = np.abs(np.asarray(treelite.gtil.predict(loaded, rows)).reshape(-1) - booster.predict(rows))
        print(f"{options or 'defaults'}, rows with {name}: {(difference > 0.01).mean():.3f} differ by more than 0.01, at most {difference.max():.3f}")
        assert difference.max() > 0.1 and (difference > 0.01).mean() > 0.2 if "zero_as_missing" in options else difference.max() < 1e-6
PYTHON

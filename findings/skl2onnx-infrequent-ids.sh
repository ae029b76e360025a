#!/usr/bin/env bash
# skl2onnx 1.20.0: an OrdinalEncoder that joins rare categories gives the second column of a matrix ids by the counts of the first.
#
# Guess before the run: the ids that a converted OrdinalEncoder(min_frequency=...) gives are scikit-learn's, in every column, for strings,
# whole numbers and missing values, or it refuses, as it does for OneHotEncoder. Seen: that holds for the first column. Where two columns
# hold the same 50 items, the joined ones of the second are those that are rare in the first: 91 % of its ids are other rows of a
# table, without a word; columns with different numbers of items fail in onnxruntime. One input a column is right. In a float32
# column a missing value has the id of unknown items, whatever encoded_missing_value is, and TargetEncoder gives it the mean.
# What it means: a model behind this encoder looks up other embeddings in service than in training. Give the converter one input
# for each column, and compare ids.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet skl2onnx==1.20.0 scikit-learn==1.9.1 onnx==1.16.1 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.preprocessing import OrdinalEncoder, TargetEncoder

onnxruntime.set_default_logger_severity(3)
assert version("skl2onnx") == "1.20.0", version("skl2onnx")
ROWS, ITEMS = 5_000, 50
draws = np.random.default_rng(0)
shares = 1 / np.arange(1, ITEMS + 1) ** 1.2
viewed = draws.choice(ITEMS, ROWS, p=shares / shares.sum())
bought = draws.permutation(ITEMS)[draws.choice(ITEMS, ROWS, p=shares / shares.sum())]
items = np.stack([viewed, bought], axis=1)
assert all(len(np.unique(column)) == ITEMS for column in items.T)


def answer(model, kind, rows, each=False):
    """Return what onnxruntime gives, for one input of all columns or for one of each."""
    if each:
        inputs = {f"column{place}": rows[:, [place]] for place in range(rows.shape[1])}
    else:
        inputs = {"rows": rows}
    types = [(name, kind([None, column.shape[1]])) for name, column in inputs.items()]
    graph = to_onnx(model, initial_types=types, target_opset=18)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


options = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
for name, rows, kind in (("numbers", items, Int64TensorType), ("strings", items.astype(str).astype(object), StringTensorType)):
    for rare in ({}, {"min_frequency": 60}):
        encoder = OrdinalEncoder(**options, **rare).fit(rows)
        right, found, apart = encoder.transform(rows), answer(encoder, kind, rows), answer(encoder, kind, rows, each=True)
        wrong = (right != found).mean(axis=0).round(3).tolist()
        print(f"{name}, {rare}: share of wrong ids by column {wrong}; one input a column {(right != apart).mean()}")
        assert (right == apart).all()
        assert wrong[0] == 0 and (wrong[1] > 0.5 if rare else wrong[1] == 0), wrong

values = items[:, :1].astype("f4")
values[draws.random(ROWS) < 0.1] = np.nan
missing = np.isnan(values[:, 0])
encoder = OrdinalEncoder(**options, encoded_missing_value=ITEMS).fit(values)
right, found = encoder.transform(values)[:, 0], answer(encoder, FloatTensorType, values)[:, 0]
print(f"ids of missing values: {np.unique(right[missing])}, converted {np.unique(found[missing])}")
assert (right[missing] == ITEMS).all() and (found[missing] == -1).all() and (right == found)[~missing].all()
encoder = TargetEncoder(random_state=0).fit(values, missing)
right, found = encoder.transform(values)[:, 0], answer(encoder, FloatTensorType, values)[:, 0]
print(f"target rate of missing values: {np.unique(right[missing])}, converted {np.unique(found[missing])}")
assert right[missing].min() > 0.99 and found[missing].max() < 0.12
PYTHON

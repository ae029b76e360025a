#!/usr/bin/env bash
# datasets 5.2.0: one missing id in a batch makes all ids of the batch float32, and ids above 2^24 fall together.
#
# Guess before the run: with_format("torch") or ("numpy") of an int64 column in which one value is None refuses, or gives float64 with NaN
# (ids are exact up to 2^53), as with_format("pandas") does. Seen: float32. 16,777,217 and 16,777,216 are the same id, and of 1,000 ids
# near a billion 17 are left. The same rows in a batch without the missing one are int64 and exact, and so is each row alone: whether two
# items are apart depends on what else is in the batch. A DataLoader of torch over such a dataset gives the same.
# What it means: whoever fills NaN and calls long(), or hashes ids into buckets, trains the rows of other items in some batches. Fill
# missing ids before with_format, or pass dtype: with_format("numpy", dtype=None) keeps float64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 torch==2.13.0 numpy==2.4.6 pyarrow==26.0.1 pandas==3.1.1
HF_HOME="$folder" HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from datasets import Dataset, Features, Value

assert version("datasets") == "5.2.0", version("datasets")
START, ITEMS = 1_000_000_000, 1_000
ids = [None, *range(START, START + ITEMS)]
data = Dataset.from_dict({"item": ids}, features=Features({"item": Value("int64")}))


def distinct(column):
    values = np.asarray(column, dtype=np.float64)
    return len(np.unique(values[~np.isnan(values)]))


for name in ("torch", "numpy", "pandas"):
    formatted = data.with_format(name)
    whole, known = formatted[:]["item"], formatted[1:]["item"]
    print(f"{name}: with a missing id {whole.dtype}, {distinct(whole):,} distinct ids; without it {known.dtype}, {distinct(known):,}")
    assert distinct(known) == ITEMS and str(known.dtype).endswith("int64")
    assert distinct(whole) == (ITEMS if name == "pandas" else 17) and ("float32" in str(whole.dtype)) == (name != "pandas")
small = Dataset.from_dict({"item": [2**24, 2**24 + 1, None]}, features=data.features).with_format("torch")
print(f"one row: {small[1]['item']}; batch: {small[:]['item']}")
assert small[1]["item"].item() == 2**24 + 1 and small[:]["item"][1].item() == 2**24
first = next(iter(torch.utils.data.DataLoader(data.with_format("torch"), batch_size=101)))["item"]
print(f"a DataLoader's batch with the missing id: {first.dtype}, {distinct(first)} distinct ids of 100")
assert first.dtype == torch.float32 and distinct(first) < 5
kept = data.with_format("numpy", dtype=None)[:]["item"]
print(f"with dtype=None: {kept.dtype}, {distinct(kept):,} distinct ids")
assert kept.dtype == np.float64 and distinct(kept) == ITEMS
PYTHON

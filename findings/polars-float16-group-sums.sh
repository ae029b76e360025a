#!/usr/bin/env bash
# polars 2.1.0: sums of Float16 by group stop growing at 2,048; the sum of the same column does not.
#
# Guess before the run: a sum of Float16 is added up in a wider type and rounded at the end, in each of the ways to ask for one,
# as the sum of a Series is. Seen: group_by(...).agg(pl.col(...).sum()) of 5,000 ones is 2,048 with one thread, in memory and in
# the streaming engine (with several, each thread's part stops at 2,048: 4,096 with two), while the same aggregation .over(...)
# the group gives 5,000. Means by group are right. pandas has 5,000 both ways on the same data.
# What it means: cast to Float32 before you count or sum features that are kept in 16 bits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
POLARS_MAX_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import polars as pl

for count in (2000, 5000):
    frame = pl.DataFrame({"user": [7] * count, "one": pl.Series([1.0] * count, dtype=pl.Float16)})
    added, mean = pl.col("one").sum(), pl.col("one").mean()
    sums = {
        "column": frame["one"].sum(),
        "over": frame.select(added.over("user")).item(0, 0),
        "group_by": frame.group_by("user").agg(added).item(0, 1),
        "group_by, streaming": frame.lazy().group_by("user").agg(added).collect(engine="streaming").item(0, 1),
        "pandas": float(frame.to_pandas()["one"].sum()),
        "pandas, groupby": float(frame.to_pandas().groupby("user")["one"].sum().item()),
    }
    print(f"{count} ones: {sums}, mean by group {frame.group_by('user').agg(mean).item(0, 1)}")
    stops = min(count, 2048)
    assert sums["group_by"] == sums["group_by, streaming"] == stops
    assert sums["column"] == sums["over"] == sums["pandas"] == sums["pandas, groupby"] == count
    assert frame.group_by("user").agg(mean).item(0, 1) == 1.0
PYTHON

#!/usr/bin/env bash
# pyarrow 26.0.1: one null id among the feature rows, and join_asof finds no features for all rows after it.
#
# Guess before the run: Table.join_asof treats a null in an integer `by` column as pandas.merge_asof does (null finds null), and ids that are
# not null find what they find without it. Seen: with one null id in the middle of 100,000 feature rows, 68 per cent of the events have null
# features; with the null in the first row 99.9 per cent, without a null 1 per cent. What is lost begins with the batch that holds the
# null and goes on to the end; nothing is raised. The same ids as strings, and nulls on the left side, are right.
# What it means: features of a point-in-time join turn into missing values by one row of the log without an id, and a model trained
# on it takes it for the truth. Filter such rows out of the right table first, and count the nulls that come out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

ROWS, EVENTS, USERS = 100_000, 20_000, 1_000
draws = np.random.default_rng(0)
users = draws.integers(0, USERS, ROWS)
events = pa.table({"user": draws.integers(0, USERS, EVENTS), "time": np.sort(draws.integers(0, ROWS, EVENTS)), "event": range(EVENTS)})


def features(null_at, kind):
    """One row a moment, sorted by time; the ids of some rows are null."""
    nulls = np.zeros(ROWS, bool)
    nulls[null_at] = True
    return pa.table({"user": pa.array(users, mask=nulls).cast(kind), "time": range(ROWS), "feature": range(ROWS)})


def joined(left, right):
    return left.join_asof(right, on="time", by="user", tolerance=-ROWS).sort_by("event")["feature"]


def missing(null_at, kind=pa.int64()):
    """The share of events without a feature, and the share that is as without the rows that have no id."""
    left = events.set_column(0, "user", events["user"].cast(kind))
    right = features(null_at, kind)
    found, clean = joined(left, right), joined(left, right.filter(pc.is_valid(right["user"])))
    same = pc.fill_null(pc.equal(found, clean), False).to_numpy() | (found.is_null().to_numpy() & clean.is_null().to_numpy())
    return found.null_count / EVENTS, same.mean()


shares = {name: missing(at) for name, at in {"no null": [], "in the first row": [0], "in the middle": [ROWS // 2]}.items()}
shares["in the middle, ids as strings"] = missing([ROWS // 2], pa.string())
for name, (null, same) in shares.items():
    print(f"null id {name}: {null:.3f} of the events have no feature, {same:.3f} have what they have without that row")
right = features([ROWS // 2], pa.int64()).to_pandas()
right["user"] = right["user"].astype("Int64")
frame = events.to_pandas()
frame["user"] = frame["user"].astype("Int64")
print(f"pandas, null id in the middle: {pd.merge_asof(frame, right, on='time', by='user')['feature'].isna().mean():.3f}")
assert shares["no null"][0] < 0.02 and shares["no null"][1] == 1.0
assert shares["in the first row"][0] > 0.99 and shares["in the middle"][0] > 0.4
assert shares["in the middle, ids as strings"][1] == 1.0
left = events.set_column(0, "user", pa.array(events["user"].to_numpy(), mask=np.arange(EVENTS) % 100 == 0))
with_id = pc.is_valid(left["user"])
assert joined(left, features([], pa.int64())).filter(with_id).equals(joined(events, features([], pa.int64())).filter(with_id))
PYTHON

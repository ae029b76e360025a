#!/usr/bin/env bash
# DuckDB 2.0.1: of two feature rows of one time an ASOF JOIN takes the first for 63 events and either of them for 64.
#
# Guess before the run: of feature rows of one id and one time a point-in-time join takes the last one in the table, in pyarrow, pandas, polars
# and DuckDB alike. Seen: the first three do. DuckDB takes the first row as long as fewer than 64 events are joined (another plan), and
# from 64 on the first, the last or one between, half and half, also with one thread. So an event has one feature where it is joined
# alone and another among all. That ties are in no order was called expected in September 2026 (duckdb/duckdb#25536); the page on
# ASOF joins says nothing of ties.
# What it means: features that were joined for training and those that serving joins for a single request differ wherever two updates share a
# second. Keep one row a time first (arg_max over a row number), in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0 pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

ROWS, EVENTS = 20_000, 1_000
draws = np.random.default_rng(0)
features = pd.DataFrame({"item": draws.integers(0, 50, ROWS), "time": np.sort(draws.integers(0, 500, ROWS)), "feature": np.arange(ROWS)})
events = pd.DataFrame({"item": draws.integers(0, 50, EVENTS), "time": np.sort(draws.integers(0, 500, EVENTS)), "event": np.arange(EVENTS)})
connection = duckdb.connect()
connection.execute("SET threads = 1")
connection.execute("CREATE TABLE features AS SELECT * FROM features")


def by_duckdb(chosen):
    connection.execute("CREATE OR REPLACE TABLE events AS SELECT * FROM chosen")
    query = """SELECT e.event, f.feature FROM events e ASOF LEFT JOIN features f ON e.item = f.item AND e.time >= f.time ORDER BY 1"""
    return connection.execute(query).df()["feature"]


def by_pandas(keep):
    return pd.merge_asof(events, features.drop_duplicates(["item", "time"], keep=keep), on="time", by="item")["feature"]


first, last = by_pandas("first"), by_pandas("last")
ties = (first != last) & first.notna()
assert pd.merge_asof(events, features, on="time", by="item")["feature"].equals(last)
polars = pl.from_pandas(events).join_asof(pl.from_pandas(features), on="time", by="item", check_sortedness=False)["feature"].to_pandas()
arrow = pa.Table.from_pandas(events).join_asof(pa.Table.from_pandas(features), on="time", by="item", tolerance=-ROWS)
assert polars.equals(last.astype(polars.dtype)) and arrow.sort_by("event")["feature"].to_pandas().equals(last)
print(f"{ties.sum()} of {EVENTS} events have feature rows of equal times; pandas, polars and pyarrow take the last of them")
for joined in (EVENTS, 64, 63, 1):
    found = pd.concat([by_duckdb(events[start : start + joined]) for start in range(0, EVENTS // joined * joined, joined)], ignore_index=True)
    tied = ties[: len(found)]
    shares = [(found[tied] == of[: len(found)][tied]).mean() for of in (first, last)]
    print(f"DuckDB, {joined} events a join: takes the first of equal times in {shares[0]:.2f} of the cases, the last in {shares[1]:.2f}")
    if joined < 64:
        assert shares == [1.0, 0.0]
    else:
        assert 0.2 < shares[0] < 0.8 and 0.2 < shares[1] < 0.8
assert found[~ties].equals(last[~ties].astype(found.dtype)), "events without ties are right"
PYTHON

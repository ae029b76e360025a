#!/usr/bin/env bash
# datafusion 55.0.0: one infinite or very large value, and all later moving sums and averages of its partition are NaN or wrong.
#
# Guess before the run: avg(x) OVER (... ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) is the mean of three rows: a value counts while it is in
# the window, and not after. Seen: a window takes the value that leaves away from a running sum. After an infinite value all later rows are NaN,
# after a value of 1e18 the mean of three prices near 20 is 0 for the rest of the user's rows, and the variance of what follows a
# 1e10 is 0. Other users (partitions) are right, and so is the same query in DuckDB, on every row.
# What it means: features such as "spent in the last three orders" are spoilt for good by one sentinel of "never" or one division by zero,
# though that row is out of the window. Filter such values before the window, or compute it elsewhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0 duckdb==2.0.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import duckdb
import numpy as np
import pyarrow as pa
from datafusion import SessionContext

assert version("datafusion") == "55.0.0", version("datafusion")
ROWS, PEAK = 1_000, 3


def features(peak, function):
    """Moving features of three rows of two users; the first user's row 3 holds the peak."""
    events = pa.table({"user": np.repeat([0, 1], ROWS), "time": np.tile(np.arange(ROWS), 2),
                       "price": np.tile(np.where(np.arange(ROWS) % 2 == 0, 19.0, 21.0), 2)})
    prices = events["price"].to_numpy().copy()
    prices[PEAK] = peak
    events = events.set_column(2, "price", pa.array(prices))
    query = (f'SELECT "user", time, {function}(price) OVER (PARTITION BY "user" ORDER BY time ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) '
             'AS feature FROM events ORDER BY "user", time')
    context = SessionContext()
    context.register_record_batches("events", [events.to_batches()])
    plain = np.array([row[2] for row in duckdb.execute(query).fetchall()], dtype=float)
    return np.array([row["feature"] for row in context.sql(query).to_pylist()], dtype=float), plain


for peak in (20.0, np.inf, 1e18):
    for function in ("avg", "sum", "var_samp"):
        if function == "var_samp" and peak == np.inf:
            continue  # DuckDB refuses the variance of an infinite value
        found, plain = features(peak if function != "var_samp" or peak == 20 else 1e10, function)
        after = slice(PEAK + 3, ROWS)
        right = np.isclose(found, plain, equal_nan=True)
        print(f"peak {peak:g}, {function}: row {PEAK + 5} is {found[PEAK + 5]:g}, by DuckDB {plain[PEAK + 5]:g}; right after the peak "
              f"{right[after].mean():.0%}, other user {right[ROWS:].mean():.0%}")
        assert right[ROWS:].all() and np.isfinite(plain[after]).all()
        assert right[after].all() == (peak == 20)
        if peak == np.inf:
            assert np.isnan(found[after]).all()
PYTHON

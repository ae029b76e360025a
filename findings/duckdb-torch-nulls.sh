#!/usr/bin/env bash
# duckdb 2.0.1: torch() gives 0 for NULL, in columns of every type of numbers, without a word.
#
# Guess before the run: torch() refuses a column with NULL, or NaN stands for it in columns of floats, as in df() and as polars' to_torch
# has it; no ordinary number. Seen: NULL is 0, 0.0 or False. fetchnumpy() gives masked arrays of the same result, and torch() makes its
# tensors of the data under the mask: ids that a left join did not find are id 0, labels that are not known are no clicks, and a mean
# price of 20 is 10 where half of the prices are missing.
# What it means: a query that feeds a model directly trains on zeros that nobody wrote. Put COALESCE and a column of IS NULL beside it
# into the query, or take fetchnumpy() and its mask.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 torch==2.13.0 numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import duckdb
import numpy as np

assert version("duckdb") == "2.0.1", version("duckdb")
connection = duckdb.connect()
connection.execute("CREATE TABLE events AS SELECT i AS item FROM range(6) t(i)")
connection.execute("CREATE TABLE items AS SELECT i AS item, 20 AS price FROM range(0, 6, 2) t(i)")
TYPES = ("TINYINT", "UTINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN")
for kind in TYPES:
    query = f"SELECT price::{kind} AS price FROM events LEFT JOIN items USING (item) ORDER BY events.item"
    tensor = connection.sql(query).torch()["price"]
    masked = connection.sql(query).fetchnumpy()["price"]
    print(f"{kind}: rows {connection.sql(query).fetchall()}, torch() {tensor.tolist()}, fetchnumpy() {masked}")
    assert np.ma.is_masked(masked) and masked.mask.tolist() == [False, True] * 3
    assert tensor.tolist() == [20, 0] * 3 or kind == "BOOLEAN" and tensor.tolist() == [True, False] * 3
query = "SELECT price::DOUBLE AS price FROM events LEFT JOIN items USING (item) ORDER BY events.item"
frame, tensor = connection.sql(query).df()["price"], connection.sql(query).torch()["price"]
print(f"df() {frame.tolist()}, its mean {frame.mean()}; the tensor's mean {tensor.mean().item()}")
assert frame.isna().sum() == 3 and frame.mean() == 20 and tensor.mean().item() == 10
PYTHON

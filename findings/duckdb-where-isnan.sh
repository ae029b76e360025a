#!/usr/bin/env bash
# DuckDB 2.0.1: `WHERE isnan(score)` over a Parquet file of pyarrow or polars finds no row where there is one of NaN.
#
# Guess before the run: a query over a Parquet file gives what it gives over a table of the same rows. DuckDB takes NaN for
# the greatest number, so isnan(x) and x > 100 hold for a row of NaN in both. Seen: a file's minima and maxima leave NaN out,
# as Parquet asks for, and DuckDB leaves a row group out by them: isnan(x), x = 'nan' and x > 100 lose the row, NOT (x <=
# 1000) too, x <= 1000 keeps it, max(x) is 200 (over pyarrow's file). The same file asked by count(*) FILTER (isnan(x)) or NOT
# isfinite(x) has it. polars answers alike from file and memory. A file that DuckDB wrote has no minima beside NaN, and is
# right.
# What it means: a check of scores or features for NaN that is written as a WHERE over such files always passes; count with
# FILTER, or with NOT isfinite.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb
import polars
import pyarrow as pa
from pyarrow import parquet

rows = pa.table({"id": range(6), "x": [1.0, 50.0, float("nan"), 1.0, 200.0, 3.0]})
parquet.write_table(rows, "pyarrow.parquet")
polars.DataFrame({"id": range(6), "x": rows["x"].to_pylist()}).write_parquet("polars.parquet")
duckdb.sql("CREATE TABLE rows AS SELECT * FROM 'pyarrow.parquet'")
duckdb.sql("COPY rows TO 'duckdb.parquet' (FORMAT parquet)")


def ask(source, wanted):
    return duckdb.sql(f"SELECT {wanted[0]} FROM {source} {wanted[1]}").fetchall()[0][0]


questions = [("count(*)", f"WHERE {where}") for where in ("isnan(x)", "x = 'nan'::DOUBLE", "x > 250", "x <= 1000")]
questions += [("count(*)", "WHERE NOT (x <= 1000)"), ("max(x)", ""), ("count(*) FILTER (isnan(x))", "")]
questions += [("count(*)", "WHERE NOT isfinite(x)")]
sources = ("rows", "'pyarrow.parquet'", "'polars.parquet'", "'duckdb.parquet'")
seen = {source: [str(ask(source, question)) for question in questions] for source in sources}
for place, question in enumerate(questions):
    print(" ".join(question).strip(), {source: answers[place] for source, answers in seen.items()})
assert seen["rows"] == seen["'duckdb.parquet'"] == ["1", "1", "1", "5", "1", "nan", "1", "1"]
assert seen["'pyarrow.parquet'"] == ["0", "0", "0", "6", "0", "200.0", "1", "1"]
assert seen["'polars.parquet'"] == ["0", "0", "0", "6", "0", "nan", "1", "1"]
assert polars.scan_parquet("pyarrow.parquet").filter(polars.col.x.is_nan()).collect().height == 1
PYTHON

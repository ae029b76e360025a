#!/usr/bin/env bash
# pyiceberg 0.12.0: delete(filter) deletes other rows than scan(filter) shows: rows of NULL go with their file, rows of NaN stay.
#
# Guess before the run: delete removes the rows that a scan with the same filter shows, whatever stands in them and however rows are spread
# over files. Seen: with "score != 0.9" over two files the scan shows a row of 0.1 and one of NaN; delete removes the row beside them too
# whose score is NULL, as the statistics say that all numbers of the file match. With the same rows in one file it removes the 0.1 alone, and
# the scan shows a second NaN. "score is not null" shows four rows, and two are deleted: NaN stays. "name not in ('a', 'z')" shows the rows
# of NULL, and delete leaves them.
# What it means: clearing scores or users by a filter loses rows that no filter showed, or leaves data that should be gone, and what happens
# changes with each compaction. Scan first, and delete by the ids that the scan shows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyarrow]==0.12.0" pyarrow==26.0.1
FOLDER="$folder" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging
import math
import os
from importlib.metadata import version

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

logging.disable(logging.CRITICAL)
assert version("pyiceberg") == "0.12.0", version("pyiceberg")
FILES = (
    [("low", 0.1, "a"), ("low, NaN", math.nan, None), ("low, NULL", None, "b")],
    [("high", 0.9, "a"), ("high, NaN", math.nan, "b"), ("high, NULL", None, None)],
)
catalog = SqlCatalog("local", uri=f"sqlite:///{os.environ['FOLDER']}/catalog.db", warehouse=f"file://{os.environ['FOLDER']}")
catalog.create_namespace("events")
made = 0


def both(condition, files):
    """Return the rows that a scan shows and those that delete removes, of a fresh table of the files."""
    global made
    made += 1
    tables = [pa.table({"row": [row[0] for row in rows], "score": pa.array([row[1] for row in rows], pa.float64()),
                        "name": pa.array([row[2] for row in rows], pa.string())}) for rows in files]
    table = catalog.create_table(f"events.table{made}", schema=tables[0].schema)
    for rows in tables:
        table.append(rows)
    shown = set(table.scan(row_filter=condition).to_arrow()["row"].to_pylist())
    table.delete(condition)
    deleted = {row[0] for rows in files for row in rows} - set(table.scan().to_arrow()["row"].to_pylist())
    print(f"{condition}, files: {len(files)}\n  scan shows {sorted(shown)}\n  deleted    {sorted(deleted)}")
    return shown, deleted


one = (FILES[0] + FILES[1],)
for condition in ("score < 0.5", "name == 'a'", "score is nan"):
    assert len(set(map(frozenset, both(condition, FILES) + both(condition, one)))) == 1, "these agree"
assert both("score != 0.9", FILES) == ({"low", "low, NaN"}, {"low", "low, NaN", "low, NULL"})
assert both("score != 0.9", one) == ({"low", "low, NaN", "high, NaN"}, {"low"})
for files in (FILES, one):
    assert both("score is not null", files) == ({"low", "low, NaN", "high", "high, NaN"}, {"low", "high"})
    assert both("name not in ('a', 'z')", files) == ({"low, NaN", "low, NULL", "high, NaN", "high, NULL"}, {"low, NULL", "high, NaN"})
PYTHON

"""Columns that are written beside scores: their order, their types, and which are kept by default."""

from __future__ import annotations

import csv
import datetime
import decimal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from adaptive_rec.cli.predict import scores_written
from adaptive_rec.data.tabular.kept import KeptColumns
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.errors import DataError, UsageError

SCHEMA = parse_schema({"label": "click", "sparse": ["user_id", "item"]}, "the schema")
N = 10


def table(**columns: Any) -> pa.Table:
    return pa.table({"user_id": list(range(N)), "item": ["a"] * N, **columns})


def parquet_file(path: Path, rows: pa.Table, **options: Any) -> Path:
    parquet.write_table(rows, path, **options)
    return path


def kept(paths: list[Path], names: list[str] | None = None) -> KeptColumns:
    return KeptColumns(paths, SCHEMA, names)


def write(kept: KeptColumns, out: Path, sizes: list[int]) -> None:
    with scores_written(out, kept) as append:
        for size in sizes:
            append(np.full(size, 0.5, dtype=np.float32))


UUIDS = [uuid.UUID(int=(k << 120) + 255) for k in range(N)]
TYPED = {
    "int64": pa.array(range(N)),
    "uint8": pa.array(range(N), pa.uint8()),
    "text": pa.array([f'a "{k}", b\n' for k in range(N)]),
    "dictionary": pa.array(["x", "y"] * 5).dictionary_encode(),
    "decimal": pa.array([decimal.Decimal(k) / 8 for k in range(N)]),
    "date": pa.array([datetime.date(2024, 1, k + 1) for k in range(N)]),
    "time": pa.array([datetime.datetime(2024, 1, k + 1) for k in range(N)], pa.timestamp("ms", "UTC")),
    "gaps": pa.array([None, 2.5] * 5),
    "truth": pa.array([True, None] * 5),
    "list": pa.array([[k] for k in range(N)]),
    "struct": pa.array([{"a": k} for k in range(N)]),
    "bytes": pa.array([b"ab"] * N),
    "four bytes": pa.array([b"abcd"] * N, pa.binary(4)),
    "view": pa.array([*"abcdefghij"], pa.string_view()),
    "uuid": pa.array(UUIDS, pa.uuid()),
    "uuid's bytes": pa.array([each.bytes for each in UUIDS], pa.binary(16)),
    "json": pa.array(['{"a": 1}'] * N, pa.json_()),
    "half": pa.array([0.5] * N, pa.float16()),
}


@pytest.mark.parametrize("kind", TYPED)
def test_parquet_keeps_types_and_csv_texts(tmp_path: Path, kind: str) -> None:
    paths = [parquet_file(tmp_path / f"{n}.parquet", table(column=TYPED[kind]), row_group_size=3) for n in (1, 2)]
    write(kept(paths, ["column"]), tmp_path / "out.parquet", [7, 7, 6])
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["column", "score"]
    assert found.schema.field("column").type == TYPED[kind].type
    assert found.column("column").to_pylist() == TYPED[kind].to_pylist() * 2
    if kind in ("list", "struct"):
        with pytest.raises(UsageError, match=r"must name columns that CSV can hold, column has type .*\.parquet"):
            write(kept(paths, ["column"]), tmp_path / "out.csv", [20])
        return
    write(kept(paths, ["column"]), tmp_path / "out.csv", [20])
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["column", "score"]
    assert len(rows) == 21
    if kind in ("int64", "text", "dictionary"):
        assert [row[0] for row in rows[1:]] == [str(value) for value in TYPED[kind].to_pylist() * 2]
    if kind in ("uuid", "uuid's bytes"):
        assert [row[0] for row in rows[1:]] == [str(value) for value in UUIDS * 2]


def test_rows_of_csv_files_keep_their_texts_and_their_order(tmp_path: Path) -> None:
    texts = ["007", 'a "quoted", text', "two\nlines", "", " x ", "NA", "1e3", "-0", "ü", "z"]
    for name in ("1.csv", "2.tsv"):
        with (tmp_path / name).open("w", newline="") as file:
            out = csv.writer(file, delimiter="," if name == "1.csv" else "\t")
            out.writerow(["user_id", "item", "note"])
            out.writerows([k, "a", text] for k, text in enumerate(texts))
    write(kept([tmp_path / "1.csv", tmp_path / "2.tsv"], ["note", "user_id"]), tmp_path / "out.csv", [1, 11, 8])
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["note"] for row in rows] == texts * 2
    assert [int(row["user_id"]) for row in rows] == [*range(N)] * 2
    assert [*rows[0]] == ["note", "user_id", "score"]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"id": list(range(N))}, ["id"]),
        ({"row_id": [f"r{k}" for k in range(N)], "Impression_ID": list(range(N))}, ["row_id", "Impression_ID"]),
        ({"id": [1] * N}, []),
        ({"id": [*range(9), None]}, []),
        ({"id": [*"abcdefghi", ""]}, []),
        ({"sessionKey": list(range(N)), "price": list(range(N))}, ["sessionKey"]),
        ({"id": [[k] for k in range(N)]}, []),
        ({"id": pa.array(UUIDS, pa.uuid())}, ["id"]),
        ({"id": pa.array([each.bytes for each in UUIDS], pa.binary(16))}, ["id"]),
        ({"id": pa.array([*"abcdefghij"], pa.string_view())}, ["id"]),
        ({"id": pa.array([*"abcdefghij"]).dictionary_encode()}, ["id"]),
        ({"id": pa.array([{"a": k} for k in range(N)])}, []),
        ({}, []),
    ],
)
def test_keys_of_rows_are_kept_by_default(tmp_path: Path, columns: dict[str, Any], names: list[str]) -> None:
    """`user_id` is all different here, but the model reads it: it is no key of the rows."""
    assert list(kept([parquet_file(tmp_path / "a.parquet", table(**columns))]).names) == names


def test_a_key_that_other_files_have_otherwise_is_not_kept_by_default(tmp_path: Path) -> None:
    one = parquet_file(tmp_path / "1.parquet", table(id=list(range(N)), row_id=list(range(N))))
    other = parquet_file(tmp_path / "2.parquet", table(id=[str(k) for k in range(N)]))
    assert kept([one, other]).names == ()
    with pytest.raises(DataError, match="2.parquet, column id: must have type int64 as in .*1.parquet to be kept, got string"):
        kept([one, other], ["id"])
    with pytest.raises(UsageError, match="must name columns of .*2.parquet, got 'row_id'"):
        kept([one, other], ["row_id"])


@pytest.mark.parametrize(
    ("names", "text"),
    [(["usr_id"], "got 'usr_id'; it has user_id, item; did you mean user_id"), (["score"], "must leave 'score' to the scores")],
)
def test_columns_that_cannot_be_kept_are_refused(tmp_path: Path, names: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        kept([parquet_file(tmp_path / "a.parquet", table())], names)


def test_only_a_few_batches_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = parquet_file(tmp_path / "a.parquet", table(id=list(range(N))), row_group_size=1), []
    columns = kept([path], ["id"])
    batches = columns._batches

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(columns, "_batches", counted())
    for size in (2, 3):
        columns.take(size)
        assert sum(read) <= 10
    assert columns.take(5).column("id").to_pylist() == [5, 6, 7, 8, 9]
    with pytest.raises(DataError, match="must keep its rows while it is read, 1 of them"):
        columns.take(1)

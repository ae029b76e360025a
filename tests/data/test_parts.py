"""Parts of one table that disagree about a column, or have it in their folders: what is inferred of them is read and scored."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from adaptive_rec.data.new_rows import open_files, with_folders
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.file_rows import FileRows
from adaptive_rec.data.tabular.first_rows import STRICT
from adaptive_rec.data.tabular.infer import Inferred, infer
from adaptive_rec.data.tabular.kept import KeptColumns
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.tabular.values import categories

N = 24
IDS = [n % 6 for n in range(N)]
COLUMNS: dict[str, pa.Array] = {
    "int8": pa.array(IDS, pa.int8()),
    "int64": pa.array([n - 3 for n in IDS]),
    "uint64": pa.array([n + (1 << 63) for n in IDS], pa.uint64()),
    "decimal": pa.array([Decimal(n) for n in IDS], pa.decimal128(10, 2)),
    "wide": pa.array([Decimal((1 << 70) + n) for n in IDS], pa.decimal128(38, 0)),
    "float": pa.array(IDS, pa.float64()),
    "float32": pa.array(IDS, pa.float32()),
    "text": pa.array([f"{n}|{n + 1}" for n in IDS]),
    "lists": pa.array([[n, n + 1] for n in IDS]),
    "words": pa.array([[f"w{n}"] for n in IDS]),
    "boolean": pa.array([n % 2 == 0 for n in IDS]),
    "null": pa.nulls(N),
}


def parts(folder: Path, columns: list[pa.Array]) -> list[Path]:
    paths = [folder / f"{number}.parquet" for number in range(len(columns))]
    for path, column in zip(paths, columns, strict=True):
        table = {"click": [n % 2 for n in range(N)], "item": ["a", "b", "c"] * 8, "code_id": column}
        pyarrow.parquet.write_table(pa.table(table), path)
    return paths


def inferred_of(paths: list[Path]) -> Inferred:
    return infer(paths[0], "click", STRICT, paths[1:])


PAIRS = {
    "int64": ("decimal", "uint64", "text"),
    "uint64": ("int8", "float", "text", "decimal"),
    "decimal": ("int64", "uint64", "float", "lists"),
    "float": ("wide", "uint64", "text"),
    "text": ("int64", "lists", "boolean"),
    "null": ("lists", "words"),
    "lists": ("null", "text"),
}


@pytest.mark.parametrize("one", PAIRS)
def test_what_is_inferred_of_two_types_is_read(tmp_path: Path, one: str) -> None:
    for other in PAIRS[one]:
        paths = parts(tmp_path, [COLUMNS[one], COLUMNS[other]])
        schema = inferred_of(paths).schema
        rows = FileRows(paths, schema, False)
        keys = np.concatenate([part.ids_BC for part in rows.read(0)]) if not any(c.bag for c in rows.columns) else None
        assert len(rows) == 2 * N
        columns = [column.column for column in schema.sparse]
        if keys is not None and "code_id" in columns and "null" not in (one, other):
            of = {name: {str(value) for value in COLUMNS[name].cast(pa.string()).to_pylist()} for name in (one, other)}
            whole = {text.removesuffix(".00") for text in of[one] | of[other]}
            found = len(np.unique(keys[:, columns.index("code_id")]))
            assert found == (len(whole) if schema.sparse[columns.index("code_id")].type != "float" else found)


@pytest.mark.parametrize("pair", [("float", "wide"), ("float32", "uint64"), ("int64", "uint64")])
def test_folders_are_prepared_of_two_types(tmp_path: Path, pair: tuple[str, str]) -> None:
    paths = parts(tmp_path, [COLUMNS[name] for name in pair])
    prepare_folder(Request(tuple(paths), tmp_path / "out", schema=inferred_of(paths).schema), lambda progress: None)
    assert load_meta(tmp_path / "out").rows == 2 * N


@pytest.mark.parametrize("kind", ["float", "integer"])
def test_spellings_of_bytes_and_integers_are_one_value(kind: Any) -> None:
    array = pa.array([b"5", b"5.0"]) if kind == "integer" else pa.array([1 << 60, (1 << 60) + 1])
    found = categories(array, kind, "", "here")
    assert found.lookups_N.tolist() == [0, 0]


@pytest.mark.parametrize("name", ["int64", "float", "lists", "words", "boolean", "text"])
def test_a_part_of_nulls_alone_goes_with_every_type(tmp_path: Path, name: str) -> None:
    """In training beside other parts, in scoring alone, and among columns that are kept."""
    paths = parts(tmp_path, [COLUMNS["null"], COLUMNS[name]])
    schema = inferred_of(paths).schema
    bag_C = tuple(column.bag for column in FileRows(paths, schema, False).columns)
    kind_of = {"code_id": "text" if name == "words" else ""}
    columns = TrainedColumns(schema.with_types(kind_of, bag_C), bag_C, None)
    (block,) = open_files(paths[:1], columns, labelled=False)[0].blocks()
    lengths_B = block.lengths_F[-1]
    assert name == "float" or (lengths_B is None) == (name not in ("lists", "words", "text"))
    assert lengths_B is None or not lengths_B.any()
    kept = KeptColumns(paths, schema, ["code_id"])
    assert kept.schema.field("code_id").type == COLUMNS[name].type
    assert kept.take(2 * N)["code_id"].to_pylist() == [None] * N + COLUMNS[name].to_pylist()


def test_dictionaries_of_lists_are_kept_as_lists(tmp_path: Path) -> None:
    lists = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 12, pa.int32()), pa.array([["a"], ["b", "c"]]))
    with pa.ipc.new_file(str(tmp_path / "a"), pa.schema([("tags", lists.type)])) as file:
        file.write_table(pa.table({"tags": lists}))
    kept = KeptColumns([tmp_path / "a"], parse_schema({"label": "click", "sparse": ["item"]}, "s"), ["tags"])
    pyarrow.parquet.write_table(kept.take(N), tmp_path / "out.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["tags"].to_pylist() == [["a"], ["b", "c"]] * 12


def test_columns_of_hive_folders_are_kept_in_their_types(tmp_path: Path) -> None:
    folder = tmp_path / "day=1"
    folder.mkdir()
    kinds = {"key": pa.binary(16), "price": pa.decimal128(9, 2), "word": pa.dictionary(pa.int32(), pa.string())}
    rows = {"key": [bytes(16)] * 3, "price": [Decimal("1.50")] * 3, "word": ["a", "b", "a"]}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in rows.items()})
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    schema = parse_schema({"label": "click", "sparse": ["item"], "file": {"partitions": ["day"]}}, "s")
    kept = KeptColumns([folder / "a.parquet"], schema, ["key", "price", "word", "day"])
    assert kept.take(3).drop_columns("day").equals(table)
    assert kept.schema.field("day").type == pa.string()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_days_are_one_category_in_columns_and_folders(tmp_path: Path, form: str) -> None:
    """A model that was trained on a file with the column scores a folder that names it, and JSON has texts, not times."""
    folder = tmp_path / "log" / "day=2024-01-02"
    folder.mkdir(parents=True)
    rows = [{"click": n % 2, "item": f"i{n % 3}"} for n in range(N)]
    text = "click,item\n" + "".join(f"{row['click']},{row['item']}\n" for row in rows)
    (folder / "part-0").write_text(text if form == "csv" else "\n".join(map(json.dumps, rows)))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({**row, "day": "2024-01-02"}) for row in rows))
    schema = parse_schema({"label": "click", "sparse": ["item", {"column": "day", "type": "text"}]}, "s")
    columns = TrainedColumns(schema, (False, False), None)
    keys = []
    for paths in ([folder / "part-0"], [tmp_path / "a.jsonl"]):
        placed = with_folders(columns, paths)
        blocks = open_files(paths, placed, labelled=False)[0].blocks()
        keys.append(np.concatenate([np.stack(block.values_F) for block in blocks], axis=1))
        assert set(KeptColumns(paths, placed.schema, ["day"]).take(N)["day"].to_pylist()) == {"2024-01-02"}
    assert np.array_equal(*keys)


def test_new_rows_without_a_header_may_lack_the_label_in_all_parts(tmp_path: Path) -> None:
    paths = [tmp_path / "1.csv", tmp_path / "2.csv"]
    for path in paths:
        path.write_text("u1;x\nu2;y\n")
    file = {"columns": ["click", "user", "item"], "delimiter": ";"}
    schema = parse_schema({"label": "click", "sparse": ["user", "item"], "file": file}, "s")
    readers = open_files(paths, TrainedColumns(schema, (False, False), None), labelled=False)
    assert [len(block.labels_B) for reader in readers for block in reader.blocks()] == [2, 2]
    assert KeptColumns(paths, schema, ["item"]).take(4)["item"].to_pylist() == ["x", "y"] * 2

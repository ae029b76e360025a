"""CSV, TSV and Parquet files with a schema: reading, inferring, preparing, and the values that ids stand for."""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.new_rows import KeyedIds, keys_of_values
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepare.values import TableValues, values_file
from adaptive_rec.data.standard import Standard
from adaptive_rec.data.tabular.first_rows import Reading
from adaptive_rec.data.tabular.infer import infer
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema, load_schema, parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.data.tabular.values import categories, keys_of, numbers
from adaptive_rec.errors import DataError, UsageError

SCHEMA = {"label": "clicked", "dense": [{"column": "age", "transform": "standard"}], "sparse": ["user", "item"]}
ROWS = 'clicked,user,item,age\n1,-5,"a, ""b""\nc",1.5\n0,7,é,\n0,,,2\n1,-5,x,NaN\n'


def made(tmp_path: Path, *sources: Path, schema: dict[str, Any] = SCHEMA, **options: Any) -> Path:
    prepare_folder(Request(sources, tmp_path / "out", schema=parse_schema(schema, "schema"), **options), lambda progress: None)
    return tmp_path / "out"


def values(folder: Path, table: str) -> list[Any]:
    return TableValues(folder / values_file(table)).all().to_pylist()


@pytest.mark.parametrize("form", ["plain", "bom", "crlf", "gz", "zst", "latin-1", "utf-16", "tab"])
def test_a_csv_file_is_read_however_it_is_written(tmp_path: Path, form: str) -> None:
    text, schema, name = ROWS, dict(SCHEMA), "clicks.csv"
    if form == "tab":
        text = text.replace(",", "\t").replace("a\t ", "a, ")
    data = text.encode()
    if form == "bom":
        data = b"\xef\xbb\xbf" + data
    if form == "crlf":
        data = text.replace("\n", "\r\n").replace('"\r\nc', '"\nc').encode()
    if form in ("latin-1", "utf-16"):
        data, schema["file"] = text.encode(form), {"encoding": form}
    if form == "gz":
        data, name = gzip.compress(data), "clicks.csv.gz"
    if form == "zst":
        data, name = zstandard.compress(data), "clicks.csv.zst"
    (tmp_path / name).write_bytes(data)
    out = made(tmp_path, tmp_path / name, schema=schema)
    assert values(out, "item") == ['a, "b"\nc', "é", "x"]
    assert values(out, "user") == ["-5", "7"]
    assert np.load(out / "clicks_sparse.npy").tolist() == [[2, 2], [3, 3], [0, 0], [2, 4]]
    assert np.load(out / "clicks_labels.npy").tolist() == [[1], [0], [0], [1]]
    np.testing.assert_equal(np.load(out / "clicks_dense.npy"), np.array([[1.5], [math.nan], [2], [math.nan]], np.float32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clicked,user,item,age\n1,2\n", "row 1: must have 4 fields between ',', got 2 fields"),
        ("clicked,user,item,age\n2,1,x,3\n", "row 1, column clicked: must be 0 or 1, got '2'; .*rating >= 4"),
        ("clicked,user,item,age\n,1,x,3\n", "row 1, column clicked: must be 0 or 1, got nothing"),
        ("clicked,user,item,age\n1,1,x,3\n1,1,x,old\n", "row 2, column age: must be a number, .* got 'old'"),
        ("clicked,user,item,age\n1,1,x,1e39\n", "row 1, column age: must be a number, finite in 32 bits"),
        ("clicked,user,item\n1,1,x\n", "must have the column age of the schema, it has clicked, user, item"),
        ("clicked,user,user,age\n", "two are called user"),
        ('clicked,user,age,item\n1,1,3,"x\n0,1,4,y\n', "every quotation mark that opens a field must be closed"),
        ("clicked,user,item,age\n", "at least one well-formed row"),
    ],
)
def test_faults_of_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "clicks.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        made(tmp_path, tmp_path / "clicks.csv")


def test_bytes_of_another_encoding_are_named(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_bytes(ROWS.encode("latin-1"))
    with pytest.raises(DataError, match=r'must be in utf-8.*write encoding = "latin-1"'):
        made(tmp_path, tmp_path / "clicks.csv")


def test_a_schema_is_inferred_from_the_rows_that_can_be_read(tmp_path: Path) -> None:
    path, head = tmp_path / "clicks.csv", "clicked,item,age\n"
    rows = [f"{k % 2},é{k % 9},{k / 4}\n".encode() for k in range(400)]
    path.write_bytes(head.encode() + b"".join([*rows[:9], b"1,a\xff,2\n", b"1,\xff\n", b"7,a,2\n", *rows[9:]]) + b'1,"op')
    found = infer(path, "clicked", Reading(skip_bad_rows=True, grows=True))
    assert (found.schema.file.encoding, found.schema.label) == ("utf-8", "clicked")
    assert found.remarks == {"item": "10 values in the first 401 rows", "age": "numbers from 0 to 99.75"}
    for reading in (Reading(), Reading(skip_bad_rows=True), Reading(grows=True)):
        with pytest.raises((DataError, UsageError)):
            infer(path, "clicked", reading)
    path.write_bytes(head.encode("latin-1") + b"".join(row.decode().encode("latin-1") for row in rows))
    assert infer(path, "clicked", Reading(skip_bad_rows=True)).schema.file.encoding == "latin-1"


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("clicked,user,item,age\n1,1,x,3\n7,1,x,3\n0,2\n0,1,y,z\n0,2,y,4\n")
    out = made(tmp_path, tmp_path / "clicks.csv", on_bad_row="skip")
    assert load_meta(out).bad_rows == 3
    assert np.load(out / "clicks_labels.npy").tolist() == [[1], [0]]


def test_whole_numbers_written_as_floats_are_categories(tmp_path: Path) -> None:
    columns = {"clicked": [1, 0, 1], "user": [5.0, math.nan, -2.0], "item": ["a", "b", "a"], "age": [1.0, 2.0, 3.0]}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    assert values(made(tmp_path, tmp_path / "clicks.parquet"), "user") == [5, -2]
    pyarrow.parquet.write_table(pa.table(columns | {"user": [5.5, 1.0, 2.0]}), tmp_path / "b.parquet")
    message = 'row 1, column user: must be a whole number of 64 bits.*got 5.5; { column = "user", type = "float" }'
    with pytest.raises(DataError, match=message):
        prepare_folder(Request((tmp_path / "b.parquet",), tmp_path / "b", schema=parse_schema(SCHEMA, "")), lambda progress: None)


def test_a_label_is_no_feature_and_may_be_a_comparison() -> None:
    for dense, sparse in (([], ["user", "clicked"]), (["clicked"], ["user"])):
        with pytest.raises(UsageError, match="the label must not be a feature"):
            parse_schema({"label": "clicked", "dense": dense, "sparse": sparse}, "schema")
    label = parse_schema({"label": "rating >= 4", "sparse": ["user"]}, "schema").comparison
    assert label.of(np.array([3.9, 4.0, 5.0])).tolist() == [0, 1, 1]
    with pytest.raises(UsageError, match="the label must not be a feature"):
        parse_schema({"label": "rating > 4", "sparse": ["user", "rating"]}, "schema")


def test_work_left_over_from_another_schema_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text(ROWS)

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_folder(Request((tmp_path / "clicks.csv",), tmp_path / "out", schema=parse_schema(SCHEMA, "")), stop)
    assert (tmp_path / "out.part").exists()
    out = made(tmp_path, tmp_path / "clicks.csv", schema={"label": "clicked", "sparse": ["item"]})
    assert [column.name for column in load_meta(out).columns] == ["item"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(-(2**40), 2**40) | st.none(), min_size=1, max_size=30), min_size=1, max_size=3),
    st.integers(1, 3),
)
def test_every_id_leads_back_to_its_value(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int | None]], least: int
) -> None:
    folder = tmp_path_factory.mktemp("values")
    sources = []
    for number, part in enumerate(parts):
        texts = [None if value is None else f"t{value}" for value in part]
        user, item = pa.array(part, pa.int64()), pa.array(texts, pa.string())
        table = pa.table({"clicked": [0] * len(part), "user": user, "item": item})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet")
        sources.append(folder / f"{number}.parquet")
    schema = {"label": "clicked", "sparse": ["user", "item"]}
    out = made(folder, *sources, schema=schema, min_count=least)
    everything = [value for part in parts for value in part]
    ids = np.concatenate([np.load(out / f"{number}_sparse.npy") for number in range(len(parts))])
    for column, told in ((0, everything), (1, [None if value is None else f"t{value}" for value in everything])):
        table = TableValues(out / values_file(("user", "item")[column]))
        for value, row in zip(told, ids[:, column].tolist(), strict=True):
            assert row == (0 if value is None else 1 if told.count(value) < least else row)
            assert table.of(row) == (value if row > 1 else None)
            if row > 1:
                assert table.row_of(str(value)) == row
        assert len(table) == len({value for value in told if value is not None and told.count(value) >= least})
        present = [value for value in told if value is not None]
        keys = keys_of(pa.array(present, table.type)) if len(table) else np.empty(0, np.uint64)
        rows = [row for value, row in zip(told, ids[:, column].tolist(), strict=True) if value is not None]
        assert not len(keys) or KeyedIds(keys_of_values(table)).ids(keys).tolist() == rows


def test_standard_is_the_mean_and_deviation_of_the_training_rows() -> None:
    dice = np.random.default_rng(1)
    values_BX = (dice.normal(1e6, 3, (5000, 2))).astype(np.float32)
    values_BX[::7, 1] = math.nan
    standard = Standard.of((1,), (0.25,), np.array_split(values_BX, 7))
    column = values_BX[:, 1].astype(np.float64)
    np.testing.assert_allclose(standard.mean_X, np.nanmean(column), rtol=1e-12)
    np.testing.assert_allclose(standard.deviation_X, np.nanstd(column), rtol=1e-9)
    done = standard.apply(values_BX)
    assert (done[:, 0] == values_BX[:, 0]).all()
    assert (done[::7, 1] == 0.25).all()
    assert abs(np.mean(np.delete(done[:, 1], np.s_[::7]))) < 1e-3
    level = Standard.of((0,), (0.0,), [np.full((9, 1), 1e9, np.float32)])
    assert level.apply(np.full((2, 1), 1e9, np.float32)).tolist() == [[0.0], [0.0]]


def test_numbers_and_categories_of_texts() -> None:
    found = numbers(pa.array(["1", " 2.5 ", "-3e2", "+4", "true", "FALSE", "", "NA", "null", ".5", "inf", "x", "1_0", "0x1"]))
    assert found is not None
    assert np.nan_to_num(found.values_B[:6]).tolist() == [1, 2.5, -300, 4, 1, 0]
    assert np.isnan(found.values_B[6:9]).all()
    assert found.bad_B.tolist() == [False] * 11 + [True] * 3
    whole = categories(pa.array(["7", "07", "-0", "7.0", "x", "", None]), "integer", "", "c")
    assert whole.bad_N.tolist() == [False, True, True, False, True, False, False]
    assert whole.keys_N[0] == whole.keys_N[3]
    bags = categories(pa.array(["a|b", "", "b"]), "", "|", "c")
    assert bags.lengths_B is not None
    assert bags.lengths_B.tolist() == [2, 0, 1]
    assert bags.keys_N[1] == bags.keys_N[2]


def test_a_column_of_nulls_is_one_of_missing_values() -> None:
    nothing = categories(pa.nulls(3), "", "", "c")
    assert nothing.keys_N.tolist() == [0, 0, 0]
    assert len(nothing.distinct) == 0


def test_columns_of_a_table_with_two_types_are_told_by_the_table(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"a": [1], "b": ["x"], "label": [1]}), tmp_path / "x.parquet")
    sparse = [{"column": "a", "table": "ab"}, {"column": "b", "table": "ab"}]
    with pytest.raises(DataError, match="^columns of a table must have one type in all sources, ab gets string after int64$"):
        made(tmp_path, tmp_path / "x.parquet", schema={"label": "label", "sparse": sparse})


def test_a_schema_is_inferred_and_can_be_read_back(tmp_path: Path) -> None:
    lines = ["user_id,item,timestamp,price,genres,zip code,note,qty,event,rating,gap_id"]
    for k in range(3000):
        price = "" if k % 9 == 0 else f"{k * 0.37:.2f}"
        lines.append(
            f"{k % 70},i{k % 300},{1_600_000_000 + k},{price},{'A|B' if k % 3 else 'C'},0{k % 90},{'long text ' * 9}{k},"
            f"{k * 7919 % 3001},{k},{k % 5 + 1},{'' if k % 5 else f'{k % 40}.0'}"
        )
    (tmp_path / "clicks.csv").write_text("\n".join(lines))
    inferred = infer(tmp_path / "clicks.csv", "rating >= 4")
    schema = inferred.schema
    assert {column.column for column in schema.sparse} == {"user_id", "item", "genres", "zip code", "gap_id"}
    assert {column.column: column.type for column in schema.sparse}["gap_id"] == "integer"
    assert {column.column: column.separator for column in schema.sparse}["genres"] == "|"
    assert {column.column: column.name for column in schema.sparse}["zip code"] == "zip_code"
    assert [(column.column, column.transform) for column in schema.dense] == [("price", "standard")]
    assert set(inferred.unused) == {"timestamp", "note", "event", "qty"}
    (tmp_path / "s.toml").write_text(schema_toml(schema, inferred.remarks, inferred.unused))
    assert load_schema(tmp_path / "s.toml") == schema
    assert isinstance(schema, Schema)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (
            "clickd",
            "--label must be a column of .*got 'clickd'; the first line names user, clicked, stars, rare, bought; "
            "did you mean clicked",
        ),
        ("stars", r"stars holds numbers from 1 to 5; a comparison makes a label of it: --label 'stars >= 3'"),
        ("rare", r"rare holds numbers from 0 to 2; a comparison makes a label of it: --label 'rare >= 2'"),
        ("user", "user holds 'u0'(\n|$)"),
        ("bought", "bought holds 'yes'; a comparison makes a label of it: --label 'bought == yes'"),
    ],
)
def test_labels_that_cannot_be_one(tmp_path: Path, label: str, message: str) -> None:
    lines = ["user,clicked,stars,rare,bought"]
    lines += [f"u{k},{k % 2},{k % 5 + 1},{2 * (k % 5 == 0)},{'no' if k % 3 else 'yes'}" for k in range(50)]
    (tmp_path / "clicks.csv").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=message):
        infer(tmp_path / "clicks.csv", label)


@pytest.mark.parametrize(
    ("label", "values", "labels"),
    [
        ("pay == >50K", ["<=50K", " >50K", "<=50K"], [0, 1, 0]),
        ("pay == 'yes'", ["yes", "no", "other"], [1, 0, 0]),
        ("pay == 5", ["5.0", "4", "5"], [1, 0, 1]),
    ],
)
def test_a_label_may_be_one_of_several_texts(tmp_path: Path, label: str, values: list[str], labels: list[int]) -> None:
    columns = {"user": ["a", "b", "a"], "pay": values}
    pa.csv.write_csv(pa.table(columns), tmp_path / "a.csv")
    pa.parquet.write_table(pa.table(columns | {"pay": pa.array(values).dictionary_encode()}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        schema = infer(tmp_path / name, label).schema
        assert [column.column for column in schema.sparse] == ["user"]
        (block,) = TabularReader(tmp_path / name, schema, False).blocks()
        assert block.labels_B.tolist() == labels
    (tmp_path / "a.csv").write_text("user,pay\na,yes\nb,\n")
    with pytest.raises(DataError, match="row 2, column pay: must have a value, got nothing"):
        list(TabularReader(tmp_path / "a.csv", schema, False).blocks())


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clicks.csv").write_text(ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="needs pyarrow: pip install pyarrow"):
        made(tmp_path, tmp_path / "clicks.csv")


def test_whole_numbers_that_no_key_can_be_are_bad_values() -> None:
    texts = ["7", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9" * 100_000]
    found = categories(pa.array(texts), "integer", "", "c")
    assert found.bad_N.tolist() == [False, False, True, True, True, True]
    assert categories(pa.array([3, -(2**63)]), "", "", "c").bad_U.tolist() == [False, True]


@pytest.mark.parametrize("skip", [False, True])
def test_a_row_with_such_a_number_is_named_or_skipped(tmp_path: Path, skip: bool) -> None:
    path, schema = tmp_path / "a.csv", tmp_path / "s.toml"
    path.write_text("click,user\n1,5\n0,9223372036854775808\n1,6\n")
    schema.write_text('label = "click"\nsparse = [{ column = "user", type = "integer" }]\n')
    reader = TabularReader(path, load_schema(schema, "schema"), skip)
    if skip:
        assert sum(len(block.labels_B) for block in reader.blocks()) == 2
        assert reader.bad_rows == 1
    else:
        with pytest.raises(DataError, match=r"row 2, column user: must be a whole number of 64 bits .* got '922337"):
            list(reader.blocks())

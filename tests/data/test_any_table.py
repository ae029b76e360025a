"""A table of columns of any type: its inferred schema reads it, and one id has one key in whatever type and spelling it comes."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive_rec.data.tabular.canonical import canonical, canonical_schema
from adaptive_rec.data.tabular.infer import Inferred, infer
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema, parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.data.tabular.values import categories
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.offline.export.model import key_of
from adaptive_rec.offline.export.model_values import one

ROWS = 1200
SOME_UUID = UUID("123e4567-e89b-12d3-a456-426614174000")
TEXTS = ["a", "é", "", "NA", "null", "True", "false", "t", "7", "7.0", "007", "+7", " 7", "-0", "3e8", "1.2345678E7", "1e+16",
         "inf", "nan", "$9.99", "1,5", "a|b", "2024-01-01", str(2**64), "9" * 40, '"', "\\"]  # fmt: skip


def saved(folder: Path, **columns: Any) -> Path:
    """Write a Parquet file of columns beside a label and a column of categories."""
    more = {"click": [k % 2 for k in range(ROWS)], "item": [k % 60 for k in range(ROWS)]}
    pa.parquet.write_table(pa.table({**more, **columns}), folder / "a.parquet")
    return folder / "a.parquet"


def inferred(folder: Path, **columns: Any) -> Inferred:
    """Infer the schema of a file with these columns, and read the file by it."""
    path = saved(folder, **columns)
    found = infer(path, "click")
    assert sum(len(block.labels_B) for block in TabularReader(path, found.schema, False).blocks()) == ROWS
    return found


def keys(array: pa.Array, kind: Any) -> list[int]:
    found = categories(canonical(array), kind, "", "c")
    assert not found.bad_N.any()
    return found.keys_N.tolist()


# Any table -----------------------------------------------------------------------------------------------------------

def some_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=5)


SCALARS = st.one_of(
    *(
        st.sampled_from([[0, 1, None], [low, high], [low + 5, 7]]).map(lambda some, kind=kind: (some, kind))
        for kind, low, high in [
            (pa.int8(), -128, 127), (pa.uint8(), 0, 255), (pa.int64(), -(2**63), 2**63 - 1), (pa.uint32(), 0, 2**32 - 1),
            (pa.uint64(), 0, 2**64 - 1),
        ]
    ),
    st.tuples(some_of(st.floats(width=32) | st.none() | st.just(2.0**60)), st.sampled_from([pa.float32(), pa.float64()])),
    st.tuples(
        some_of(st.sampled_from(TEXTS) | st.none()), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()])
    ),
    st.tuples(some_of(st.binary(max_size=3)), st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])),
    st.tuples(some_of(st.decimals(-99, 99, places=2)), st.sampled_from([pa.decimal32(5, 2), pa.decimal128(38, 10)])),
    st.sampled_from([
        ([None], pa.null()), ([True, None], pa.bool_()), ([SOME_UUID.bytes], pa.binary(16)), ([b"abc"], pa.binary(3)),
        ([3], pa.date32()), ([3], pa.date64()), ([3], pa.time64("us")), ([3], pa.duration("ns")), ([1.5], pa.float16()),
        ([3, None], pa.timestamp("ms", "UTC")),
        ([{"f": 1}], pa.struct([("f", pa.int64())])), ([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    ]),
)  # fmt: skip
LISTS = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view, "fixed": lambda kind: pa.list_(kind, 2)}


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Return 40 rows of a type."""
    some, kind = draw(SCALARS)
    values = [some[k % len(some)] for k in range(40)]
    if (layout := draw(st.sampled_from([None, None, None, *LISTS]))) is not None:
        return pa.array([[value, values[0]] for value in values], LISTS[layout](kind))
    array = pa.array(values, kind)
    return array.dictionary_encode() if kind in (pa.string(), pa.int64()) and draw(st.booleans()) else array


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(columns(), min_size=1, max_size=3), st.sampled_from(["user_id", "ts", "x"]), st.booleans(), st.sampled_from([1, 40])
)  # fmt: skip
def test_a_file_is_read_by_the_schema_that_is_inferred_from_it(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[pa.Array], name: str, as_csv: bool, rows: int
) -> None:
    base = {"click": pa.array([k % 2 for k in range(40)]), "item": pa.array(["ab"[k % 2] for k in range(40)])}
    table = pa.table({**base, **{f"{name}{n}": array for n, array in enumerate(arrays)}}).slice(0, rows)
    path = tmp_path_factory.mktemp("any") / ("a.csv" if as_csv else "a.parquet")
    try:
        pa.csv.write_csv(table, path) if as_csv else pa.parquet.write_table(table, path)
    except pa.ArrowException:
        return  # the type has no place in such a file
    found = infer(path, "click")
    reader = TabularReader(path, found.schema, False)
    assert sum(len(block.labels_B) for block in reader.blocks()) == rows
    assert {*found.remarks, *found.unused, "click"} == set(table.column_names)


# Columns of Parquet --------------------------------------------------------------------------------------------------

UNUSED = {
    "null": (pa.nulls(ROWS), "empty"),
    "doubles": (pa.array([[k / 3, 1.5] for k in range(ROWS)]), "not whole, such as an embedding"),
    "lists of lists": (pa.array([[[1], [2]]] * ROWS), "a list must hold ids or texts"),
    "lists of structs": (pa.array([[{"a": 1}]] * ROWS), "a list must hold ids or texts"),
    "empty lists": (pa.array([[]] * ROWS, pa.list_(pa.int64())), "its lists are empty"),
    "map": (pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())), "values of type map"),
    "bytes": (pa.array([b"\xff"] * ROWS), "bytes that are no texts"),
    "no UTF-8": (pa.array([b"\xff"] * ROWS).view(pa.string()), "cannot be read: .*column c: Invalid UTF8"),
    "date": (pa.array([date(2024, 1, 1)] * ROWS), "a time"),
    "duration": (pa.array([5] * ROWS, pa.duration("s")), "a time"),
    "infinite": (pa.array([1.5, float("inf")] * (ROWS // 2)), "infinite"),
}


@pytest.mark.parametrize("name", UNUSED)
def test_a_column_that_nothing_is_done_with_is_unused_with_the_reason(tmp_path: Path, name: str) -> None:
    array, why = UNUSED[name]
    assert re.search(why, inferred(tmp_path, c=array).unused["c"])


NINE = [k % 9 for k in range(ROWS)]
SPARSE = {
    "string_view": (pa.array([f"b{k}" for k in NINE], pa.string_view()), ""),
    "large_string": (pa.array([f"b{k}" for k in NINE], pa.large_string()), ""),
    "bytes of texts": (pa.array([b"b%d" % k for k in NINE], pa.binary()), "text"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes([k] * 16) for k in NINE], pa.binary(16))), ""),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array([f"[{k}]" for k in NINE])), ""),
    "decimal": (pa.array([Decimal(k) for k in NINE], pa.decimal128(38, 0)), ""),
    "large decimal": (pa.array([Decimal(10**30 + k) for k in NINE], pa.decimal128(38, 0)), "whole"),
    "uint64": (pa.array([2**63 + k for k in NINE], pa.uint64()), "whole"),
    "lists of decimals": (pa.array([[Decimal(k)] for k in NINE], pa.list_(pa.decimal128(38, 0))), ""),
    "lists of whole doubles": (pa.array([[float(k)] for k in NINE]), ""),
    "lists of uint64": (pa.array([[2**63 + k] for k in NINE], pa.list_(pa.uint64())), "whole"),
    "fixed lists": (pa.array([[k, 1] for k in NINE], pa.list_(pa.int64(), 2)), ""),
    "lists of dictionaries": (
        pa.ListArray.from_arrays(list(range(ROWS + 1)), pa.array([f"b{k}" for k in NINE]).dictionary_encode()), ""
    ),
    "boolean": (pa.array([k > 3 for k in NINE]), "boolean"),
    "uint8": (pa.array([255 * (k % 2) for k in NINE], pa.uint8()), ""),
    "uint32": (pa.array(sorted(2_000_000_000 + k for k in NINE)[::-1], pa.uint32()), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SPARSE)
def test_types_of_warehouses_are_categories(tmp_path: Path, name: str) -> None:
    array, kind = SPARSE[name]
    found = inferred(tmp_path, c=array)
    assert {column.column: column.type for column in found.schema.sparse}["c"] == kind
    assert parse_schema(tomllib.loads(schema_toml(found.schema)), "s") == found.schema


@pytest.mark.parametrize(
    ("name", "values", "kind", "why"),
    [
        ("event_time", [1_708_977_600.0 + 37 * k for k in range(ROWS)], "unused", "a time"),
        ("x", [1_708_977_600.5 + k for k in range(ROWS)], "unused", "a time"),
        ("timestamp", [5.0 * (k * 7919 % ROWS) for k in range(ROWS)], "unused", "a time"),
        ("timestamp", [1.7e9 + k * 7919 % ROWS / 7 for k in range(ROWS)], "unused", "a time"),
        ("x", [1.23e18 + 1024 * (k % 40) for k in range(ROWS)], "sparse", "compared as floats"),
        ("user_id", [1.23e18 + 1024 * (k // 2) for k in range(ROWS)], "sparse", "compared as floats"),
        ("sample_weight", [0.5, 1.0, 5.0] * (ROWS // 3), "unused", "weights"),
        ("item_weight", [0.5, 1.0, 5.5] * (ROWS // 3), "dense", "numbers from"),
        ("watch_time", [(k * 7919 % ROWS) / 7 for k in range(ROWS)], "dense", "numbers from"),
        ("user-item_affinity_0", [float(k % 7) for k in range(ROWS)], "dense", "numbers from"),
        ("item_price", [float(k % 400) for k in range(ROWS)], "dense", "numbers from"),
        ("age_group", [float(k % 7) for k in range(ROWS)], "sparse", "read as integers"),
        ("user_count_id", [float(k % 700) for k in range(ROWS)], "sparse", "read as integers"),
        ("video_duration", [k * 7 % 150 for k in range(ROWS)], "dense", "a quantity"),
        ("num_items", [k * 7 % 150 for k in range(ROWS)], "dense", "a quantity"),
        ("video_age", [k * 7 % 50 for k in range(ROWS)], "sparse", "50 values"),
        ("Unnamed: 0", [float(k) for k in range(ROWS)], "unused", "numbers the rows"),
    ],
)
def test_floats_that_are_times_or_ids_are_no_quantities(
    tmp_path: Path, name: str, values: list[float], kind: str, why: str
) -> None:
    found = inferred(tmp_path, **{name: pa.array(values)})
    sparse, dense = ({column.column for column in part} for part in (found.schema.sparse, found.schema.dense))
    assert name in {"unused": found.unused, "sparse": sparse, "dense": dense}[kind]
    assert why in (found.unused | found.remarks)[name]


def test_a_key_of_rows_is_known_by_its_name_where_rows_are_few(tmp_path: Path) -> None:
    keys = pa.array([2**63 + k * k for k in range(30)], pa.uint64())
    columns = {"click": [0, 1] * 15, "user": [k * k for k in range(30)], "id": keys, "row_id": [str(k * k) for k in range(30)]}
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = infer(tmp_path / "a.parquet", "click")
    assert list(found.unused) == ["id", "row_id"]
    assert [column.column for column in found.schema.sparse] == ["user"]


def test_a_space_after_each_comma_changes_no_kind(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,c1\n" + "".join(f"{k % 2}, {k % 7}\n" for k in range(ROWS)))
    schema = infer(tmp_path / "a.csv", "click").schema
    assert [(column.column, column.type) for column in schema.sparse] == [("c1", "integer")]
    (block,) = TabularReader(tmp_path / "a.csv", schema, False).blocks()
    assert len(block.labels_B) == ROWS


def test_two_columns_of_one_name_are_one_error(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([0, 1]), pa.array([1, 2]), pa.array([3, 4])], names=["click", "user", "user"])
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="columns must have different names, two are called user"):
        infer(tmp_path / "a.parquet", "click")


def test_a_type_in_the_schema_that_a_later_row_breaks_is_named_with_the_line_that_mends_it(tmp_path: Path) -> None:
    path, lists = tmp_path / "a.csv", saved(tmp_path, nested=[[[1]]] * ROWS)
    path.write_text("click,user\n1,5\n0,x7\n")
    for kind, value, wanted in (("integer", "x7", "text"), ("integer", str(2**64), "whole"), ("boolean", "x", "text")):
        path.write_text(f"click,user\n1,1\n0,{value}\n")
        schema = parse_schema({"label": "click", "sparse": [{"column": "user", "type": kind}]}, "s")
        message = rf"row 2, column user: .*got '{value}'; {{ column = \"user\", type = \"{wanted}\" }} under sparse"
        with pytest.raises(DataError, match=message):
            list(TabularReader(path, schema, False).blocks())
    with pytest.raises(DataError, match="column nested: must hold scalars or lists of them"):
        TabularReader(lists, Schema(label="click", sparse=["nested"]), False)
    saved(tmp_path, uid=pa.array([2**63 + 5] * ROWS, pa.uint64()))
    message = rf"row 1, column uid: .* 64 bits.*got {2**63 + 5}; {{ column = \"uid\", type = \"whole\" }}"
    with pytest.raises(DataError, match=message):
        list(TabularReader(lists, Schema(label="click", sparse=["uid"]), False).blocks())


def test_without_categories_the_error_names_every_column(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"click": [0, 1], "x": [None, None], "y": [0.5, 0.25]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="at least one column of categories.*x: it is empty.*y: numbers"):
        infer(tmp_path / "a.parquet", "click")


# One id, one key -----------------------------------------------------------------------------------------------------

IDS = [5, 17, 12_345_678]
FORMS = {
    "int64": pa.array(IDS), "uint64": pa.array(IDS, pa.uint64()), "double": pa.array([5.0, 17.0, 12_345_678.0]),
    "texts": pa.array(["5", "17", "12345678"]), "floats": pa.array(["5.0", " 17 ", "1.2345678E7"]),
    "bytes": pa.array([b"5", b"17", b"12345678"]), "decimal": pa.array([Decimal(k) for k in IDS], pa.decimal128(20, 5)),
    "decimal32": pa.array([Decimal(k) for k in IDS], pa.decimal32(9, 0)), "dictionary": pa.array(IDS).dictionary_encode(),
    "decimal256": pa.array([Decimal(k) for k in IDS], pa.decimal256(70, 0)),
    "string_view": pa.array(["5", "17.00", "12345678"], pa.string_view()),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["integer", "whole", "float"])
def test_an_id_has_one_key_in_every_form(kind: str) -> None:
    wanted = keys(FORMS["int64"], kind)
    for name, array in FORMS.items():
        assert keys(array, kind) == wanted, name
    loaded = [key_of(one(value, kind, raw=True)) for value in (5, "17.0", Decimal("12345678.0"))]
    assert [np.uint64(key % 2**64) ^ np.uint64(1 << 63) for key in loaded] == wanted


def test_a_boolean_has_one_key_in_every_spelling() -> None:
    forms = [pa.array([True, False, None]), pa.array(["True", "FALSE", ""]), pa.array(["t", "f", "NA"]), pa.array([1, 0, None]),
             pa.array([1.0, 0.0, float("nan")]), pa.array(["1.0", "0", " "]),
             pa.array([Decimal(1), Decimal(0), None])]  # fmt: skip
    assert {tuple(keys(array, "boolean")) for array in forms} == {tuple(keys(forms[0], ""))}
    loaded = [one(value, "boolean", False) for value in (True, "TRUE", 1, 1.0, np.True_, "f", 0, None)]
    assert loaded == ["true"] * 5 + ["false"] * 2 + [None]
    mixed = categories(pa.array(["true", "1", "True", "x", "NA"]), "boolean", "", "c")
    assert (mixed.bad_N.tolist(), len(set(mixed.keys_N.tolist()[:3]))) == ([False, False, False, True, False], 1)


def test_large_numbers_are_one_id_or_none() -> None:
    large = [2**63 + 5, 2**64 - 1]
    wanted = keys(pa.array(large, pa.uint64()), "whole")
    for array in (pa.array([Decimal(k) for k in large], pa.decimal128(38, 0)), pa.array([f"{k}.0" for k in large])):
        assert keys(array, "whole") == wanted
    assert [one(large[0], "whole", True), one(str(large[1]), "whole", True)] == list(map(str, large))
    assert set(wanted).isdisjoint(keys(pa.array([-(2**63) + 5, -1]), "whole"))
    assert categories(pa.array(large, pa.uint64()), "", "", "c").bad_N.all()
    assert categories(pa.array([2.0**60]), "whole", "", "c").bad_N.all()
    assert categories(pa.array([2.0**24], pa.float32()), "integer", "", "c").bad_N.all()
    as_floats = keys(pa.array([1_234_567_890_123_456_789]), "float")
    assert keys(pa.array(["1.2345678901234568e18"]), "float") == as_floats == keys(pa.array([1.2345678901234568e18]), "float")
    assert keys(pa.array([0.0, -0.0]), "float")[0] == keys(pa.array(["-0"]), "float")[0] != 0


def test_uuids_are_texts_and_periods_are_times() -> None:
    for array in (pa.array([SOME_UUID.bytes, None], pa.binary(16)), pa.array([None, SOME_UUID.bytes], pa.binary(16)).slice(1)):
        assert canonical(array)[0].as_py() == str(SOME_UUID)
    metadata = {b"ARROW:extension:name": b"pandas.period", b"ARROW:extension:metadata": b'{"freq": "M"}'}
    schema = pa.schema([pa.field("p", pa.int64(), metadata=metadata)])
    assert canonical(pa.array([650, None]), metadata).to_pylist()[0].isoformat() == "2024-03-01T00:00:00"
    assert canonical_schema(schema).field("p").type == pa.timestamp("us")

"""Avazu and Parquet as sources of prepared folders."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.prepare.formats import array_name, find_format
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.recipes import avazu
from adaptive_rec.recipes.avazu import AvazuReader, clock_features
from adaptive_rec.recipes.kernels import parse_csv
from tests.kernels.reference import parse_csv as reference_csv
from tests.kernels.reference.number_keys import number_keys

KINDS = (parse_csv.WORD, parse_csv.SKIP, parse_csv.HOUR, parse_csv.HEX_KEY, parse_csv.INTEGER_KEY, parse_csv.NUMBER)
LIMITS = (0, 0, 0, 0, 0, 10**17)
WORDS = (b"0", b"1", b"pv", b"pvx")

hours = st.sampled_from([b"14102100", b"14022923", b"16022900", b"14133100", b"14100024", b"1410210", b"", b"x"])
hexes = st.sampled_from([b"", b"0", b"FFffFFff", b"100000000", b"g", b"1f", b"-1"])
integers = st.sampled_from(
    [
        b"",
        b"0",
        b"-1",
        b"-",
        b"--1",
        b"9" * 18,
        b"-" + b"9" * 18,
        b"9" * 19,
        b"1a",
        b" 1",
        b"7" * 40,
        b"1" + b"0" * 17,
        b":",
    ]
)
labels = st.sampled_from([b"0", b"1", b"pv", b"pvx", b"pvxx", b"p", b"pv\0", b"2", b"", b"01"])
any_row = st.tuples(labels, st.binary(max_size=2), hours, hexes, integers, integers) | st.lists(
    integers, max_size=7
).map(tuple)
good_row = st.tuples(
    st.sampled_from([b"0", b"1", b"pv", b"pvx"]),
    st.just(b"id"),
    st.just(b"14102100"),
    st.just(b"1f"),
    st.just(b"-3"),
    st.just(b"7"),
)
texts = st.lists(st.tuples(good_row | any_row, st.sampled_from([b"\n", b"\r\n"])), max_size=6)


def parse_all(parse_rows: Callable[..., Any], data: bytes, separator: bytes, room: int) -> list[Any]:
    """Every row and every fault of `data`, stepping over malformed lines."""
    words_KWL = np.zeros((len(KINDS), len(WORDS), 3), dtype=np.uint8)
    for w, word in enumerate(WORDS):
        words_KWL[0, w, : len(word)] = list(word)
    values_BK, start, found = np.zeros((room, len(KINDS)), dtype=np.int64), 0, []
    described = (np.frombuffer(separator, dtype=np.uint8), np.array(KINDS), np.array(LIMITS), words_KWL)
    while start < len(data):
        array = np.frombuffer(data, dtype=np.uint8)
        count, stop, fault, column = parse_rows(array, start, *described, values_BK)
        found.append((count, stop, fault, column, values_BK[:count].tolist()))
        start = stop if fault == parse_csv.FINE else data.index(b"\n", stop) + 1
    return found


@settings(deadline=None, max_examples=300)
@given(texts, st.sampled_from([b",", b"::"]), st.integers(1, 3))
def test_parser_of_fields_equals_its_plain_twin(
    rows: list[tuple[tuple[bytes, ...], bytes]], separator: bytes, room: int
) -> None:
    data = b"".join(separator.join(fields) + end for fields, end in rows)
    assert parse_all(parse_csv.parse_rows, data, separator, room) == parse_all(
        reference_csv.parse_rows, data, separator, room
    )


def test_avazu_rows_equal_a_parse_by_the_csv_module(tmp_path: Path, avazu_head: Path) -> None:
    with avazu_head.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read().decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    prepare_folder(Request((avazu_head,), tmp_path / "out", min_count=2), lambda progress: None)
    names = ["hour", *[name for name in rows[0] if name not in ("id", "click", "hour")]]
    expected = []
    for name in names:
        values = [row[name][-2:] if name == "hour" else row[name] for row in rows]
        known = {
            value: key for key, value in enumerate(dict.fromkeys(values), 1)
        }  # any key, as long as it tells values apart
        expected.append(number_keys([known[value] for value in values], 2)[0])
    stem = array_name(avazu_head)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{stem}_sparse.npy"), np.array(expected).T)
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / f"{stem}_labels.npy")[:, 0], [int(row["click"]) for row in rows]
    )
    assert np.load(tmp_path / "out" / f"{stem}_dense.npy").shape == (9999, 4)


def test_hours_become_places_on_two_circles() -> None:
    """14102106: six o'clock on a Tuesday."""
    (found,) = clock_features(np.array([14102106]))
    angle = 2 * math.pi / 7
    np.testing.assert_allclose(found, [1, 0, math.sin(angle), math.cos(angle)], atol=1e-6)


def test_bad_avazu_rows(tmp_path: Path) -> None:
    header = ",".join(column.name for column in avazu.LOG_COLUMNS)
    good = ",".join({"click": "1", "hour": "14102100"}.get(column.name, "3") for column in avazu.LOG_COLUMNS)
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join([header, good, good.replace("14102100", "14102124"), good, good + ",1", good]) + "\n")
    rule = "clicks.csv, line 3, column hour: must be a date and hour as YYMMDDHH, got '14102124'"
    with pytest.raises(DataError, match=rule):
        list(AvazuReader(path, False, 1).blocks())
    reader = AvazuReader(path, True, 1)
    assert sum(len(block.labels_B) for block in reader.blocks()) == 3
    assert reader.bad_rows == 2
    path.write_text(header.replace("click", "clicked") + "\n")
    with pytest.raises(DataError, match="clicks.csv, line 1: header must be id,click,hour"):
        AvazuReader(path, False, 1)


def test_formats_are_recognised_by_the_first_line(tmp_path: Path) -> None:
    for name, text, expected in (
        ("a.csv", "id,click,hour,C1\n", "avazu"),
        ("b.csv", "user_id,session_id,click_article_id\n", "globo"),
        ("c", "1\t2\t3\n", "criteo"),
        ("d.parquet", "PAR1", "parquet"),
    ):
        (tmp_path / name).write_text(text)
        assert find_format(tmp_path / name) == expected
    (tmp_path / "e.txt").write_text("hello\n")
    wanted = "the format of .* cannot be recognised by its first line, 'hello'; .* give --label COLUMN, else --format"
    with pytest.raises(UsageError, match=wanted):
        find_format(tmp_path / "e.txt")
    names = {"day_0.gz": "day_0", "day_0": "day_0", "x.tsv.zst": "x", "part.0.parquet": "part.0", ".gz": ".gz"}
    assert {name: array_name(Path(name)) for name in names} == names


SCHEMA = """
label = "clicked"
dense = [{ column = "age" }, { column = "count", transform = "log", missing = -1 }]
sparse = [{ column = "user" }, { column = "item" }, { column = "seen before", name = "seen", table = "item" }]
"""


def write_parquet(path: Path, **changes: Any) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    import pyarrow.parquet

    columns = {
        "clicked": pa.array([1, 0, 0, 1]),
        "age": pa.array([1.5, None, 2.0, -3.0]),
        "count": pa.array([0, 9, None, -4], type=pa.int64()),
        "user": pa.array([5, -1, None, 5]),
        "item": pa.array(["x", "y", "x", None]),
        "seen before": pa.array([["y", None], [], None, ["x", "z", "y"]]),
        "unused": pa.array([[{"a": 1}]] * 4),
    }
    pyarrow.parquet.write_table(pa.table(columns | changes), path, row_group_size=3)
    return path


def made(tmp_path: Path, source: Path, schema: str = SCHEMA, **options: Any) -> Path:
    (tmp_path / "schema.toml").write_text(schema)
    request = Request((source,), tmp_path / "out", schema=load_schema(tmp_path / "schema.toml"), **options)
    prepare_folder(request, lambda progress: None)
    return tmp_path / "out"


def test_parquet_columns_lists_and_nulls(tmp_path: Path) -> None:
    out = made(tmp_path, write_parquet(tmp_path / "clicks.parquet"))
    arrays = {path.stem.removeprefix("clicks_"): np.load(path).tolist() for path in out.glob("*.npy")}
    dense = [[1.5, 0], [0, np.log1p(9)], [2, -1], [-3, 0]]
    np.testing.assert_allclose(arrays.pop("dense"), dense, rtol=1e-6)
    assert arrays == {
        "labels": [[1], [0], [0], [1]],
        "sparse": [[2, 2], [3, 3], [0, 2], [2, 0]],
        "bag_seen_values": [3, 0, 2, 4, 3],
        "bag_seen_offsets": [0, 2, 2, 2, 5],
    }


def test_parquet_without_dense_columns_gets_a_constant(tmp_path: Path) -> None:
    schema = 'label = "clicked"\nsparse = [{ column = "user" }]'
    out = made(tmp_path, write_parquet(tmp_path / "clicks.parquet"), schema)
    assert np.load(out / "clicks_dense.npy").tolist() == [[1.0]] * 4


def test_bad_parquet_rows(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    changes = {"clicked": pa.array([1, 2, None, 0]), "age": pa.array([1.0, 1.0, 1.0, math.inf])}
    source = write_parquet(tmp_path / "clicks.parquet", **changes)
    with pytest.raises(DataError, match="clicks.parquet, row 2, column clicked: must be 0 or 1, got 2"):
        made(tmp_path, source)
    out = made(tmp_path, source, on_bad_row="skip")
    assert np.load(out / "clicks_bag_seen_offsets.npy").tolist() == [0, 2]
    assert np.load(out / "clicks_labels.npy").tolist() == [[1]]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("label = 3", "label must be a text, got 3"),
        ('label = "clicked"', "sparse"),
        ('label = "clicked"\nsparse = [{ column = "seen before" }]', "'seen before' needs a name of letters"),
        (
            'label = "clicked"\nsparse = [{ column = "user" }, { column = "item", name = "user" }]',
            "two are called user",
        ),
        ('label = "clicked"\nsparse = [{ column = "user", transfrom = 1 }]', "transfrom"),
        ("label = ", "is not valid TOML"),
        ('label = "no"\nsparse = [{ column = "user" }]', "must have the column no of the schema, it has clicked, age"),
        (
            'label = "clicked"\nsparse = [{ column = "age" }]',
            'row 1, column age: must be a whole number of 64 bits .* got 1.5; .*type = "float"',
        ),
        ('label = "item"\nsparse = [{ column = "user" }]', "row 1, column item: must be 0 or 1, got 'x'"),
    ],
)
def test_schemas_that_do_not_fit(tmp_path: Path, schema: str, message: str) -> None:
    source = write_parquet(tmp_path / "clicks.parquet")
    with pytest.raises((UsageError, DataError), match=message):
        made(tmp_path, source, schema)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "clicks.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="clicks.parquet must be a Parquet file"):
        made(tmp_path, tmp_path / "clicks.parquet")

"""Texts of several values and numbers written for people: read as columns, and alike by an exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.tabular.bags import divided, lists_of, parse_list
from adaptive_rec.data.tabular.canonical import canonical
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema, parse_schema
from adaptive_rec.data.tabular.values import categories
from adaptive_rec.data.tabular.written_numbers import PATTERNS, POINTS, Format, written_numbers
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.offline.export import model_values as model

LISTS: list[tuple[str, list[str | None] | None]] = [
    ("[27, 9]", ["27", "9"]),
    ("[]", []),
    (" [ ] ", []),
    ("()", []),
    ("set()", []),
    ('["a","b"]', ["a", "b"]),
    ("['a', \"it's\"]", ["a", "it's"]),
    ("['it\\'s', 'x, y', '[z]']", ["it's", "x, y", "[z]"]),
    ('["\\u00e9\\/", "\\ud83d\\ude00", "a\\"b"]', ["é/", "😀", 'a"b']),
    ("[27  9]", ["27", "9"]),
    ("[ 1  2\n 3]", ["1", "2", "3"]),
    ("['a b' 'c']", ["a b", "c"]),
    ("[Foo Bar]", ["Foo Bar"]),
    ("[a, b c, Children's]", ["a", "b c", "Children's"]),
    ("(27,)", ["27"]),
    ("{1, 2}", ["1", "2"]),
    ("frozenset({'a'})", ["a"]),
    ("array([27, 9], dtype=int64)", ["27", "9"]),
    ("[np.int64(3), np.str_('a')]", ["3", "a"]),
    ("[1, None, null, nan, 3]", ["1", None, None, None, "3"]),
    ("['NA', NA, '']", ["NA", None, ""]),
    ("[1,, 2]", ["1", None, "2"]),
    ("[1.0, 2., 3.5]", ["1", "2", "3.5"]),
    ("[True, false]", ["true", "false"]),
    ("[1 2 ... 9]", None),
    ("[1, 2, ..., 9]", None),
    ("[[1], [2]]", None),
    ('{"a": 1}', None),
    ("{a: 1}", None),
    ("[27", None),
    ("27]", None),
    ("(27]", None),
    ('["a"b]', None),
    ('["a]', None),
    ('["\\ud83d"]', None),
    ("['\\x']", None),
    ("1|2", None),
    ("27", None),
]


@pytest.mark.parametrize("width", ["string", "large_string"])
def test_lists_are_read_however_they_are_written(width: str) -> None:
    array = pa.array([text for text, _ in LISTS] + ["", None, " NaN ", "null"], getattr(pa, width)())
    lists, bad_B = lists_of(canonical(array), "c")
    assert lists.to_pylist() == [values for _, values in LISTS] + [None] * 4
    assert bad_B.tolist() == [values is None for _, values in LISTS] + [False] * 4


@pytest.mark.parametrize(("text", "values"), LISTS)
def test_an_exported_model_reads_lists_alike(text: str, values: list[str | None] | None) -> None:
    if values is not None:
        assert model.texts_of(text, "") == parse_list(text) == values
        return
    with pytest.raises(ValueError, match="must "):
        model.texts_of(text, "")


VALUE = st.none() | st.text(max_size=4) | st.integers(-(2**70), 2**70)


@settings(deadline=None)
@given(st.lists(VALUE, max_size=4))
def test_what_json_and_python_write_is_read_back(values: list[Any]) -> None:
    told = [value if value is None else str(value) for value in values]
    texts = [json.dumps(values), json.dumps(values, ensure_ascii=False), str(values), str(tuple(values))]
    lists, bad_B = lists_of(pa.array(texts), "c")
    assert lists.to_pylist() == [told] * 4
    assert not bad_B.any()
    assert [model.listed(text) for text in texts] == [told] * 4


@settings(deadline=None)
@given(st.text(alphabet="[](){}'\" ,\\1a.eNnp:", max_size=12))
def test_any_text_is_a_list_for_both_or_for_none(text: str) -> None:
    (values,), bad_B = lists_of(pa.array([text]), "c")
    try:
        assert model.texts_of(text, "") == (values.as_py() or [])
    except ValueError:
        assert bad_B[0]
    else:
        assert not bad_B[0]
    texts = divided(pa.array([text]), ",", "c")[0].as_py() or []
    assert model.texts_of(text, ",") == texts


@pytest.mark.parametrize(
    ("text", "us", "eu"),
    [
        ("$1,234.50", 1234.5, None),
        ("1.234,50 €", None, 1234.5),
        ("1,234", 1234, 1.234),
        ("12.3%", 12.3 / 100, None),
        ("(5)", -5, -5),
        ("-$3", -3, -3),
        ("$ -3", -3, -3),
        ("−5 kr", -5, -5),
        ("+7", 7, 7),
        ("1\u00a0234", 1234, 1234),
        ("1’234.5", 1234.5, None),
        ("1,23,456.5", 123456.5, None),
        ("CHF 5", 5, 5),
        ("1.5e-05", 1.5e-05, None),
        (" 12 ", 12, 12),
        (".5", 0.5, None),
        ("12,34", None, 12.34),
        ("", np.nan, np.nan),
        ("NA", np.nan, np.nan),
        ("(5", None, None),
        ("-(5)", None, None),
        ("-$-3", None, None),
        ("1,2345", None, 1.2345),
        ("abc", None, None),
        ("12a", None, None),
        ("1 2", None, None),
    ],
)
def test_numbers_for_people_are_read_and_by_an_exported_model_alike(text: str, us: float | None, eu: float | None) -> None:
    formats: list[tuple[Format, float | None]] = [("us", us), ("eu", eu)]
    for format_, wanted in formats:
        found = written_numbers(pa.array([text]), format_)
        theirs = model.written(text.strip(), PATTERNS[format_], POINTS[format_])
        assert found.bad_B[0] == (wanted is None) == np.isinf(theirs)
        if wanted is not None:
            np.testing.assert_equal([found.values_B[0], theirs], [wanted, wanted])


@settings(deadline=None)
@given(st.text(alphabet="0123.,%$€()-− ’e+", max_size=9), st.sampled_from(["us", "eu"]))
def test_any_text_is_a_number_for_both_or_for_none(text: str, format_: Format) -> None:
    found = written_numbers(pa.array([text]), format_)
    theirs = model.written(text.strip(), PATTERNS[format_], POINTS[format_])
    ours = np.inf if found.bad_B[0] or np.isinf(found.values_B[0]) else found.values_B[0]
    np.testing.assert_equal(ours, np.inf if np.isinf(theirs) else theirs)


def read(folder: Path, schema: Schema, **columns: Any) -> list[Any]:
    """Return the keys of each bag, and dense features, of a file with these columns."""
    file = folder / "a.parquet"
    pa.parquet.write_table(pa.table({"y": [1] * len(next(iter(columns.values()))), **columns}), file)
    found = []
    for block in TabularReader(file, schema, skip_bad_rows=False).blocks():
        lengths_B = block.lengths_F[0]
        assert lengths_B is not None
        found += [keys.tolist() for keys in np.split(block.values_F[0], np.cumsum(lengths_B)[:-1])]
        found.append(block.dense_BX.tolist())
    return found


BAGS: list[list[int | None] | None] = [[27, 9], [5], [], None, [27, None, 9, 9], [2**40]]
FORMS: dict[str, Any] = {
    "parquet": BAGS,
    "parquet texts": [bag and [each if each is None else str(each) for each in bag] for bag in BAGS],
    "parquet floats": pa.array(
        [bag and [each if each is None else float(each) for each in bag] for bag in BAGS], pa.list_(pa.float64())
    ),
    "json": [None if bag is None else json.dumps(bag) for bag in BAGS],
    "json texts": [None if bag is None else json.dumps([each and str(each) for each in bag]) for bag in BAGS],
    "python": [str(bag) for bag in BAGS],
    "numpy": [None if bag is None else f"[{'  '.join('nan' if each is None else f'{each}.' for each in bag)}]" for bag in BAGS],
    "bars": [None if bag is None else "|".join("" if each is None else str(each) for each in bag) for bag in BAGS],
}


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_bags_of_one_content_have_equal_keys_whatever_their_form(tmp_path: Path, kind: str) -> None:
    found = {}
    for form, column in FORMS.items():
        bag = {"separator": "|"} if form == "bars" else {"list": "brackets"}
        schema = parse_schema({"label": "y", "sparse": [{"column": "c", "type": kind, **bag}]}, "schema")
        found[form] = read(tmp_path, schema, c=pa.array(list(column)) if isinstance(column, list) else column)
    assert len(found["bars"]) == len(BAGS) + 1
    assert all(keys == found["parquet"] for keys in found.values()), found


def test_a_model_of_parquet_lists_scores_texts_of_them(tmp_path: Path) -> None:
    trained = parse_schema({"label": "y", "sparse": ["c"]}, "schema")
    scored = trained.with_types({"c": "integer"}, (True,))
    assert read(tmp_path, scored, c=BAGS) == read(tmp_path, scored, c=FORMS["json"]) == read(tmp_path, trained, c=BAGS)
    with pytest.raises(DataError, match=r"row 1, column c: must be a list such as \[27, 9\] .* got '27\|9'"):
        read(tmp_path, scored, c=FORMS["bars"])
    with pytest.raises(DataError, match="column c: must hold lists or texts"):
        read(tmp_path, scored, c=[27, 9])


def test_a_separator_leaves_texts_in_brackets_that_hold_no_list() -> None:
    texts = pa.array(["[a]|[b]", "[a, b]", "a|b", "", None])
    assert divided(texts, "|", "c").to_pylist() == [["[a]", "[b]"], ["a", "b"], ["a", "b"], None, None]
    assert model.texts_of("[a]|[b]", "|") == ["[a]", "[b]"]


def test_rows_with_malformed_lists_and_numbers_are_named_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('y,c,p\n1,"[1, 2]",$5\n0,"[1 2",$6\n1,"[3]",five\n0,,"(1,000.5)"\n')
    columns = {"dense": [{"column": "p", "format": "us"}], "sparse": [{"column": "c", "list": "brackets"}]}
    schema = parse_schema({"label": "y", **columns}, "schema")
    with pytest.raises(DataError, match=r"row 3, column p: .* written as format = \"us\" says, got 'five'"):
        list(TabularReader(path, schema, skip_bad_rows=False).blocks())
    reader = TabularReader(path, schema, skip_bad_rows=True)
    (block,) = reader.blocks()
    assert (reader.bad_rows, block.dense_BX.tolist()) == (2, [[5.0], [-1000.5]])
    assert block.lengths_F[0] is not None
    assert block.lengths_F[0].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("$9.99", 'format = "us" in'),
        ("9,99", 'format = "eu" in'),
        ("1,234", 'format = "us" or format = "eu" in'),
    ],
)
def test_a_number_that_a_format_reads_is_refused_with_it(tmp_path: Path, value: str, remedy: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"y\tp\tu\n1\t{value}\t3\n")
    reader = TabularReader(path, parse_schema({"label": "y", "dense": ["p"], "sparse": ["u"]}, "schema"), False)
    with pytest.raises(DataError, match=f"column p: must be a number.*; {remedy} the column's line"):
        list(reader.blocks())


def test_words_for_nothing_are_missing_integers_and_texts_of_their_own() -> None:
    array = pa.array(["NA", "<NA>", "7", "NaT", ""])
    integers = categories(array, "integer", "", "c")
    missing = len(integers.keys_U)
    assert integers.lookups_N.tolist() == [missing, missing, 0, missing, missing]
    assert categories(array, "text", "", "c").lookups_N.tolist() == [0, 1, 2, 3, 4]
    column = {"type": "integer", "separator": "", "list": False}
    assert [model.values_of(value, column) for value in array.to_pylist()] == [[None], [None], [7], [None], [None]]


def test_new_keys_leave_the_hash_of_other_schemas_as_it_was() -> None:
    known = {"label": "y", "dense": ["p"], "sparse": ["u"], "time": "t"}
    values = parse_schema(known, "schema").model_dump()
    assert values["dense"][0].keys() == {"column", "transform", "missing"}
    assert values["sparse"][0].keys() == {"column", "name", "table", "type", "separator"}
    assert values["time"] == {"column": "t", "unit": "s"}
    with pytest.raises(UsageError, match="a column must have a separator or a list, u has both"):
        parse_schema({**known, "sparse": [{"column": "u", "separator": "|", "list": "brackets"}]}, "schema")

"""Times in numbers: dates such as 20141021, smaller units than seconds, and what is taken for none of them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.tabular.calendar_numbers import FOUND, calendar_times, calendar_unit
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.times import times
from adaptive_rec.errors import DataError, UsageError

DIRECTIVES = {
    "yyyymm": "%Y%m", "yyyymmdd": "%Y%m%d", "yyyymmddhh": "%Y%m%d%H", "yyyymmddhhmm": "%Y%m%d%H%M",
    "yyyymmddhhmmss": "%Y%m%d%H%M%S", "yymmdd": "%y%m%d", "yymmddhh": "%y%m%d%H", "yymmddhhmm": "%y%m%d%H%M",
    "yymmddhhmmss": "%y%m%d%H%M%S",
}  # fmt: skip
WHEN = st.datetimes(datetime.datetime(2001, 1, 1), datetime.datetime(2050, 12, 31))
EPOCH = datetime.datetime(1970, 1, 1)


@settings(deadline=None)
@given(WHEN, st.sampled_from(list(DIRECTIVES)))
def test_a_date_in_a_number_is_the_one_that_was_written(when: datetime.datetime, unit: str) -> None:
    text = when.strftime(DIRECTIVES[unit])
    known = datetime.datetime.strptime(text, DIRECTIVES[unit])
    for column in (pa.array([int(text)]), pa.array([text]), pa.array([float(text)])):
        found = times(column, unit)
        assert found is not None
        assert (found[0].tolist(), found[1].tolist()) == ([(known - EPOCH) // datetime.timedelta(microseconds=1)], [False])


@settings(deadline=None)
@given(st.lists(st.integers(-1, 10**14), min_size=1, max_size=3), st.sampled_from(list(DIRECTIVES)))
def test_numbers_that_are_no_dates_are_bad(numbers: list[int], unit: str) -> None:
    time_B, bad_B = calendar_times(np.array(numbers), unit)
    for number, time, bad in zip(numbers, time_B.tolist(), bad_B.tolist(), strict=True):
        try:
            digits = str(number).rjust(len(unit), "0")
            known = datetime.datetime.strptime(digits, DIRECTIVES[unit]) if len(digits) == len(unit) else None
            known = known if known is None or unit.startswith("yyyy") else known.replace(year=2000 + int(digits[:2]))
        except ValueError:
            known = None
        assert bad == (known is None)
        assert bad or time == (known - EPOCH) // datetime.timedelta(microseconds=1)


@settings(deadline=None)
@given(st.lists(WHEN, min_size=2, max_size=5), st.sampled_from(FOUND))
def test_the_format_of_dates_is_found(whens: list[datetime.datetime], unit: str) -> None:
    numbers_B = np.array([int(when.strftime(DIRECTIVES[unit])) for when in whens])
    found = calendar_unit(numbers_B)
    assert found  # a date may be one in two formats
    assert not calendar_times(numbers_B, found)[1].any()


@pytest.mark.parametrize(
    "numbers", [[0, 20_141_021], [20_141_021, 20_141_032], [1_413_867_600, 1_413_867_601], [-5], [5, 6], [99_999_999], []]
)
def test_other_numbers_are_in_no_format(numbers: list[int]) -> None:
    assert calendar_unit(np.array(numbers, dtype=np.int64)) == ""


def read(folder: Path, time: Any, values: list[Any], **options: Any) -> list[int]:
    path = folder / "a.csv"
    path.write_text("y,u,t\n" + "".join(f"1,3,{value}\n" for value in values))
    schema = parse_schema({"label": "y", "sparse": ["u"], "time": time}, "schema")
    blocks = TabularReader(path, schema, **{"skip_bad_rows": False, **options}).blocks()
    return [time for block in blocks if block.times_B is not None for time in block.times_B.tolist()]


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("20141021", "yyyymmdd"), ("20141021.0", "yyyymmdd"), ("14102105", "yymmddhh"), ("5010105", "yymmddhh"),
        ("201410", "yyyymm"), ("20141021134501", "yyyymmddhhmmss"), ("2014102105", "yyyymmddhh"),
        ("1708977600000", "ms"), ("1.7089776e12", "ms"), ("1708977600000000", "us"), ("1708977600000000000", "ns"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("skips", [False, True])
def test_numbers_without_a_unit_that_look_like_another_are_refused(
    tmp_path: Path, value: str, unit: str, skips: bool
) -> None:
    line = rf'got {value}, which looks like {unit}; write time = {{ column = "t", unit = "{unit}" }}'
    with pytest.raises(DataError, match=f"column t: times must be seconds since 1970 .*{line}".replace("{ ", r"\{ ")):
        read(tmp_path, "t", [value, value], skip_bad_rows=skips)
    assert len(read(tmp_path, {"column": "t", "unit": unit}, [value])) == 1


def test_seconds_are_taken_for_seconds(tmp_path: Path) -> None:
    assert read(tmp_path, "t", ["1708977600.0", "5", "-3", "20141021"]) == [
        1_708_977_600_000_000, 5_000_000, -3_000_000, 20_141_021_000_000,
    ]  # fmt: skip
    assert read(tmp_path, {"column": "t", "unit": "s"}, ["20141021", "9999999999"])[0] == 20_141_021_000_000
    with pytest.raises(DataError, match=r"row 2, column t: must be seconds since 1970, before the year 2100 unless"):
        read(tmp_path, "t", ["5", "1708977600000"])


def test_nanoseconds_are_exact(tmp_path: Path) -> None:
    assert read(tmp_path, {"column": "t", "unit": "ns"}, ["1708977600123456789"]) == [1_708_977_600_123_456]
    found = times(pa.array([1_708_977_600_123_456_789]), "ns")
    assert found is not None
    assert found[0].tolist() == [1_708_977_600_123_456]


@pytest.mark.parametrize("value", ["20141032", "20141021.5", "21/10/2014", "yesterday", ""])
def test_what_is_no_date_of_the_format_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(DataError, match="row 2, column t: must be a date written yyyymmdd .time.unit in the schema."):
        read(tmp_path, {"column": "t", "unit": "yyyymmdd"}, ["20141021", value])


def test_a_unit_needs_a_column_and_a_name_that_is_known() -> None:
    for time in ({"unit": "yymmdd"}, {"column": "t", "unit": "yyyyddmm"}):
        with pytest.raises(UsageError, match=r"time.column must name the column|time.unit: must be"):
            parse_schema({"label": "y", "sparse": ["u"], "time": time}, "schema")

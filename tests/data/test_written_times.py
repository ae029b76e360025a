"""Times that are written as a pattern says, as Python's strptime reads them."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.times import unit_of_column
from adaptive_rec.data.tabular.written_times import PATTERNS, is_whole_date, pattern_times, patterns_of
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.offline.export.model_values import seconds

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
WHEN = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2068, 12, 31), timezones=st.just(UTC))


def microseconds(when: datetime.datetime) -> int:
    return (when - EPOCH) // datetime.timedelta(microseconds=1)


def read(folder: Path, unit: str, values: list[Any], **options: Any) -> list[int]:
    path = folder / "a.csv"
    path.write_text("y,u,t\n" + "".join(f'1,3,"{value}"\n' for value in values))
    schema = parse_schema({"label": "y", "sparse": ["u"], "time": {"column": "t", "unit": unit}}, "schema")
    blocks = TabularReader(path, schema, **{"skip_bad_rows": False, **options}).blocks()
    return [time for block in blocks if block.times_B is not None for time in block.times_B.tolist()]


@given(WHEN, st.sampled_from(PATTERNS))
def test_a_written_time_is_the_one_that_was_meant(when: datetime.datetime, pattern: str) -> None:
    text = when.strftime(pattern)
    meant = microseconds(datetime.datetime.strptime(text, pattern).replace(tzinfo=UTC))
    found, bad = pattern_times(pa.array([text, None, f" {text} ", "no time", text]), pattern)
    assert (found[[0, 2, 4]].tolist(), bad.tolist()) == ([meant] * 3, [False, True, False, True, False])
    assert round(seconds(text, pattern) * 1e6) == meant


@given(st.lists(WHEN, min_size=1, max_size=20), st.sampled_from(PATTERNS))
def test_the_pattern_is_found_or_two_are_named(whens: list[datetime.datetime], pattern: str) -> None:
    texts = pa.array([when.strftime(pattern) for when in whens])
    if pattern in (found := patterns_of(texts)) and len(found) > 1 and not pattern.startswith("%Y-"):
        with pytest.raises(DataError, match=f" may be .*{re.escape(pattern)}"):
            unit_of_column(texts)
    else:  # ISO texts have no unit
        assert unit_of_column(texts) in ((pattern, "") if pattern.startswith("%Y-") else (pattern,))


def test_the_first_values_tell_day_and_month_apart() -> None:
    assert unit_of_column(pa.array(["01-12-2010 10:03", "13-12-2010 09:10"])) == "%d-%m-%Y %H:%M"
    assert unit_of_column(pa.array(["01-12-2010 10:03", None, "12-13-2010 9:10"])) == "%m-%d-%Y %H:%M"
    with pytest.raises(DataError, match=r"'01-12-2010 10:03' may be %d-%m-%Y %H:%M or %m-%d-%Y %H:%M; a schema says which"):
        unit_of_column(pa.array(["01-12-2010 10:03", "02-12-2010 09:10"]))
    with pytest.raises(DataError, match=r"'13-13-2010' is neither a number .* how its times are written, such as time.unit ="):
        unit_of_column(pa.array(["13-13-2010"]))


def test_a_zone_is_taken_into_account() -> None:
    tweets = ["Tue Oct 21 05:00:00 +0200 2014", "Tue Oct 21 05:00:00 +0000 2014"]
    assert unit_of_column(pa.array(tweets)) == "%a %b %d %H:%M:%S %z %Y"
    found, bad = pattern_times(pa.array(tweets), "%a %b %d %H:%M:%S %z %Y")
    assert (found.tolist(), bad.any()) == ([1_413_860_400_000_000, 1_413_867_600_000_000], False)


def test_a_file_is_read_by_its_pattern(tmp_path: Path) -> None:
    whens = [datetime.datetime(2010, 12, 1, 10, 3, tzinfo=UTC), datetime.datetime(2011, 1, 31, tzinfo=UTC)]
    texts = [when.strftime("%d.%m.%Y %H:%M") for when in whens]
    assert read(tmp_path, "%d.%m.%Y %H:%M", texts) == [microseconds(when) for when in whens]
    with pytest.raises(DataError, match=r"row 3, column t: must be a time written %d.%m.%Y %H:%M \(time.unit in the schema\)"):
        read(tmp_path, "%d.%m.%Y %H:%M", [*texts, "31.02.2011 00:00"])
    assert len(read(tmp_path, "%d.%m.%Y %H:%M", [*texts, "2011-01-31"], skip_bad_rows=True)) == 2
    assert read(tmp_path, "%Y%m%d", [20101201]) == [1_291_161_600_000_000]


@pytest.mark.parametrize("unit", ["%H:%M", "%Y", "%Q %Y-%m", "%", "dd.mm.yyyy", "%d.%m"])
def test_a_pattern_must_have_a_date(unit: str) -> None:
    assert not is_whole_date(unit)
    with pytest.raises(UsageError, match=r"time.unit: must be one of s, ms, .*, or a pattern of a date, such as %d.%m.%Y %H:%M"):
        parse_schema({"label": "y", "sparse": ["u"], "time": {"column": "t", "unit": unit}}, "schema")

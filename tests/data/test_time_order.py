"""Rows in order of time: what a time is, the order of a prepared folder, raw files that must be in order."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from adaptive_rec.batch import Batch, Position
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare import time_order
from adaptive_rec.data.prepare.job import Request, make_job
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.data.tabular.times import time_text, times
from adaptive_rec.errors import ConfigError, DataError

SCHEMA = {
    "label": "label",
    "dense": ["number"],
    "sparse": ["user", {"column": "tags", "separator": "|"}],
    "time": "when",
}
HEAD = "label,number,user,tags,when\n"
IN_TIME = ["data.order=time", "data.shuffle=false"]


def file_of(path: Path, times_B: list[Any], first: int = 0) -> Path:
    rows = (f"{n % 2},{n},u{n % 7},{'|'.join('abc'[: 1 + n % 3])},{when}\n" for n, when in enumerate(times_B, first))
    path.write_text(HEAD + "".join(rows))
    return path


def made(out: Path, *sources: Path) -> Path:
    prepare_folder(Request(sources, out, schema=parse_schema(SCHEMA, "schema")), lambda progress: None)
    return out


def batch_of(folder: Path, *settings: str, size: int = 10_000) -> Batch:
    source = open_source(load_config(None, {}, [f"data.source={folder}", "data.train_range=[0.0,0.9]", *settings]))
    return next(iter(source.train_batches(Position(), size)))


@pytest.mark.parametrize(
    ("values", "unit", "seconds"),
    [
        ([1.5, 0, -3], "s", [1.5, 0, -3]),
        (["1600000000", " 5 ", "1e3"], "s", [1_600_000_000, 5, 1000]),
        ([1_600_000_000_123], "ms", [1_600_000_000.123]),
        ([1_600_000_000_123_456], "us", [1_600_000_000.123456]),
        (["2014-10-21", "2014-10-21 05:00:00", "2014-10-21T05:00:00.25"], "s", [1413849600, 1413867600, 1413867600.25]),
        (["2014-10-21T05:00:00+02:00", "2014-10-21T05:00:00Z", "2014-10-21"], "s", [1413860400, 1413867600, 1413849600]),
        ([datetime.datetime(2014, 10, 21, 5)], "s", [1413867600]),
        ([datetime.date(2014, 10, 21)], "s", [1413849600]),
        (["2014-13-01", "yesterday", "", "nan", "inf", "1e300", "1600000000000", "true", "False"], "s", [None] * 9),
        ([None, 3], "ms", [None, 0.003]),
    ],
)  # fmt: skip
def test_a_time_is_a_number_an_iso_text_or_arrows(values: list[Any], unit: str, seconds: list[float | None]) -> None:
    found = times(pa.array(values), unit)
    assert found is not None
    time_B, bad_B = found
    assert bad_B.tolist() == [each is None for each in seconds]
    assert [time / 1e6 for time, bad in zip(time_B.tolist(), bad_B, strict=True) if not bad] == [
        s for s in seconds if s is not None
    ]


@pytest.mark.parametrize(
    ("kind", "ticks_a_second"),
    [(pa.timestamp("s"), 1), (pa.timestamp("ms"), 1e3), (pa.timestamp("us", "UTC"), 1e6), (pa.date32(), 1 / 86_400)],
)
def test_arrows_times_beyond_the_year_10000_are_none(kind: Any, ticks_a_second: float) -> None:
    most = 2**31 - 1 if kind == pa.date32() else 2**62
    day = round(86_400 * ticks_a_second)
    found = times(pa.array([most, -most, day, None], kind), "s")
    assert found is not None
    assert found[0].tolist() == [0, 0, 86_400_000_000, 0]
    assert found[1].tolist() == [True, True, False, True]


def test_other_types_hold_no_times_and_a_schema_says_so() -> None:
    assert times(pa.array([True]), "s") is None
    assert times(pa.array([[1]]), "s") is None
    assert time_text(1413867600_000000) == "2014-10-21 05:00:00"
    unit = {**SCHEMA, "time": {"column": "when", "unit": "ms"}}
    for values in (SCHEMA, unit):
        schema = parse_schema(values, "schema")
        assert 'time = "when"' in schema_toml(schema) or 'time = { column = "when", unit = "ms" }' in schema_toml(
            schema
        )


@pytest.mark.parametrize("near", [0, 64])
def test_rows_of_several_files_come_in_order_of_time_those_of_one_time_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: int
) -> None:
    monkeypatch.setattr("adaptive_rec.data.prepared_arrays.NEAR_ROWS", near)
    dice = np.random.default_rng(3)
    when = dice.integers(0, 60, 500)
    files = [file_of(tmp_path / "b.csv", when[:300].tolist()), file_of(tmp_path / "a.csv", when[300:].tolist(), 300)]
    folder = made(tmp_path / "made", *files)
    assert main(["data", "verify", str(folder)]) == 0

    in_time, in_file = batch_of(folder, *IN_TIME), batch_of(folder, "data.shuffle=false")
    order = np.argsort(when, kind="stable")[: in_time.size]
    assert in_time.dense_BX[:, 0].tolist() == order.tolist()
    assert in_file.dense_BX[:, 0].tolist() == list(range(in_file.size))
    for place, row in enumerate(order.tolist()):
        if row < in_file.size:
            mine, theirs = (slice(*b.offsets[[2 * n, 2 * n + 2]]) for b, n in ((in_time, place), (in_file, row)))
            assert in_time.ids_N[mine].tolist() == in_file.ids_N[theirs].tolist()
            assert in_time.labels_B[place] == in_file.labels_B[row]
    held_out = open_source(load_config(None, {}, [f"data.source={folder}", *IN_TIME]))
    assert (
        next(iter(held_out.test_batches(999))).dense_BX[:, 0].tolist() == np.argsort(when, kind="stable")[450:].tolist()
    )

    order_file = folder / time_order.TIME_ORDER
    damaged = np.load(order_file)
    damaged[7] = 500
    np.save(order_file, damaged)
    assert main(["data", "verify", str(folder)]) == 3
    with pytest.raises(DataError, match=r"time_order.npy: rows must lie in \[0, 500\), row 7 has 500"):
        batch_of(folder, *IN_TIME)


def test_rows_that_are_in_order_need_no_file_and_too_many_that_are_not_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order = made(tmp_path / "one", file_of(tmp_path / "one.csv", [1, 1, 2, 5] * 1))
    assert load_meta(in_order).time_order is None
    monkeypatch.setattr(time_order, "available_bytes", lambda: 100)
    rule = "must be sorted in memory: 4 of them take 128 B, 100 B are available"
    with pytest.raises(DataError, match=rule):
        made(tmp_path / "two", file_of(tmp_path / "two.csv", [1, 5, 2, 5]))


def test_a_row_without_a_time_is_malformed_and_named(tmp_path: Path) -> None:
    path = file_of(tmp_path / "clicks.csv", [1, 2, "soon", 4])
    with pytest.raises(
        DataError, match="row 3, column when: must be seconds since 1970, .* or an ISO time, got 'soon'"
    ):
        made(tmp_path / "made", path)
    schema = parse_schema(SCHEMA, "schema")
    meta = prepare_folder(Request((path,), tmp_path / "skipped", schema=schema, on_bad_row="skip"), lambda progress: None)
    assert (meta.rows, meta.bad_rows) == (3, 1)


def test_folders_without_times_are_refused_each_with_its_reason(tmp_path: Path) -> None:
    path = file_of(tmp_path / "clicks.csv", [1, 2, 3, 4])
    prepare_folder(
        Request((path,), tmp_path / "made", schema=parse_schema({**SCHEMA, "time": ""}, "s")), lambda progress: None
    )
    with pytest.raises(
        ConfigError, match='data.order must be "file" where rows have no time, got "time": name the column in the'
    ):
        batch_of(tmp_path / "made", *IN_TIME)
    meta = tmp_path / "made" / "meta.json"
    values = json.loads(meta.read_text())
    values |= {"meta_sha256": None, "columns_schema": None, "values": []}
    for format_, reason in (
        ("avazu", "was made by adaptive-rec .*; prepare it again"),
        ("criteo", "format criteo have none"),
    ):
        values["job"] = {**values["job"], "format": format_}
        meta.write_text(json.dumps(values))
        with pytest.raises(ConfigError, match=reason):
            batch_of(tmp_path / "made", *IN_TIME)


def test_raw_files_must_be_in_order_and_the_first_row_that_is_not_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    file_of(folder / "day1.csv", [10, 11, 11])
    file_of(folder / "day2.csv", [12, 13, 12, 14] * 1)
    (tmp_path / "schema.toml").write_text(schema_toml(parse_schema(SCHEMA, "schema")))
    settings = ["data.ids=raw", f"data.schema_file={tmp_path / 'schema.toml'}", *IN_TIME, "data.on_bad_row=skip"]
    rule = (
        "day2.csv, well-formed row 3, column when: rows must be in order of time .*got 1970-01-01 00:00:12 after .*:13"
    )
    with pytest.raises(DataError, match=rule):
        batch_of(folder, *settings)
    file_of(folder / "day2.csv", [9, 13])
    with pytest.raises(DataError, match="day2.csv, well-formed row 1, .*:09 after .*:11"):
        batch_of(folder, *settings)
    file_of(folder / "day2.csv", [11, 13])
    assert batch_of(folder, *settings).size == 4


def test_schemas_without_a_time_make_the_folders_that_older_versions_made(tmp_path: Path) -> None:
    """The name of the folder beside a run depends on the job; it must not change for files that need no times."""
    path = file_of(tmp_path / "clicks.csv", [1, 2, 3, 4])
    old = {key: value for key, value in SCHEMA.items() if key != "time"}
    job = make_job(Request((path,), tmp_path / "out", schema=parse_schema(old, "schema")))
    text = parse_schema(old, "schema").model_dump_json()
    assert '"time"' in text
    values = {key: value for key, value in json.loads(text).items() if key != "time"}
    values["file"] = {key: values["file"][key] for key in ("delimiter", "encoding")}  # all keys that older versions knew
    before = json.dumps(values, separators=(",", ":"))
    assert job.schema_sha256 == hashlib.sha256(before.encode()).hexdigest()

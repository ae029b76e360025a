"""Dense columns of a user's own files: the transform that is inferred, what the reader makes of it, and what an exported model
does."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.data.tabular.dense_transform import transform_of
from adaptive_rec.data.tabular.infer import infer
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema, parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.offline.export.model_values import transformed

DRAWN = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (DRAWN.normal(size=5000), {"transform": "standard"}),
        (DRAWN.lognormal(0, 2, 5000), {"transform": "log_standard"}),
        (np.append(DRAWN.normal(size=5000), np.nan), {"transform": "standard"}),
        (np.zeros(50), {"transform": "standard"}),
        (np.array([]), {"transform": "standard"}),
        (np.append(np.zeros(9999), 1.0), {"transform": "standard"}),  # its quantiles are one number
    ],
)
def test_heavy_tails_are_logged(values: NDArray[np.float64], found: dict[str, Any]) -> None:
    assert transform_of(values) == found


def test_outliers_are_clipped_at_a_quantile_and_the_other_end_is_left_room() -> None:
    values = np.append(DRAWN.normal(size=5000), 1e6)
    found = transform_of(values)
    low, high = found.pop("clip")
    assert found == {"transform": "standard"}
    assert high == pytest.approx(np.quantile(values, 0.999), rel=1e-5)
    assert low < values.min() - 1e6 + 10
    both = transform_of(np.append(values, -1e6))["clip"]
    assert -6 < both[0] < -2
    assert 2 < both[1] < 6


def written(tmp_path: Path, lines: list[str]) -> Path:
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "x.csv"


def test_numbers_that_recur_are_quantities_and_categories(tmp_path: Path) -> None:
    prices = [round(1.25 * (row % 30) + 0.5, 2) for row in range(5000)]
    lines = [f"{row % 2},{row % 40},{row % 50},{row % 7},{price},{row / 7}" for row, price in enumerate(prices)]
    few = infer(written(tmp_path, ["y,user_id,age,stars,cost,score", *lines[:4095]]), "y").schema
    assert [column.column for column in few.dense] == ["cost", "score"]
    schema = infer(written(tmp_path, ["y,user_id,age,stars,cost,score", *lines]), "y").schema
    assert [column.column for column in schema.dense] == ["age", "cost", "score"]
    kinds = {column.column: column.type for column in schema.sparse}
    assert kinds == {"user_id": "integer", "age": "integer", "stars": "integer", "cost": "float"}
    assert parse_schema(toml(schema_toml(schema)), "schema") == schema


def toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def test_times_are_proposed_as_hours_and_weekdays(tmp_path: Path) -> None:
    lines = [f"{row % 2},{row % 9},{1_600_000_000_000 + 977_000 * row}" for row in range(1500)]
    inferred = infer(written(tmp_path, ["y,user,timestamp", *lines]), "y")
    text = schema_toml(inferred.schema, inferred.remarks, inferred.unused, inferred.proposed)
    line = '#   { column = "timestamp", transform = "hour_sine", unit = "ms" },'
    assert line in text.splitlines()
    columns = "\n".join(each[1:] for each in text.splitlines() if each.startswith("#   {"))
    schema = parse_schema(toml(text.replace("sparse = [", f"dense = [\n{columns}\n]\nsparse = [")), "schema")
    assert [column.transform for column in schema.dense] == ["hour_sine", "hour_cosine", "weekday_sine", "weekday_cosine"]


def read(tmp_path: Path, column: dict[str, Any], values: list[str]) -> NDArray[np.float32]:
    path = written(tmp_path, ["y,user,x", *(f"{row % 2},{row % 3},{value}" for row, value in enumerate(values))])
    return next(TabularReader(path, of_column(column), False).blocks()).dense_BX[:, 0]


def of_column(column: dict[str, Any]) -> Schema:
    return parse_schema({"label": "y", "sparse": ["user"], "dense": [{"column": "x", **column}]}, "schema")


TIMES = ["2024-02-05T00:00:00", "2024-02-05 06:00:00", "2024-02-08T12:00:00+02:00", "1707091200", ""]
"""A Monday, six hours later, a Thursday, the Monday again, and nothing."""


@pytest.mark.parametrize("transform", ["hour_sine", "hour_cosine", "weekday_sine", "weekday_cosine"])
def test_times_become_the_sine_and_cosine_of_hour_and_weekday(tmp_path: Path, transform: str) -> None:
    column = {"transform": transform, "missing": 9.0}
    found = read(tmp_path, column, TIMES)
    hours = [0, 6, 10, 0] if transform.startswith("hour") else [0, 6, 3 * 24 + 10, 0]
    angles = np.array(hours) / (24 if transform.startswith("hour") else 7 * 24) * 2 * math.pi
    wanted = np.append((np.sin if transform.endswith("_sine") else np.cos)(angles), 9.0)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    exported = transformed(TIMES, {"column": "x", "unit": "", **column})
    np.testing.assert_allclose(exported, found, atol=1e-6)
    assert transformed([datetime(2024, 2, 5, 6, tzinfo=UTC), None], {"column": "x", **column})[0] == pytest.approx(wanted[1])


@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("ms", ["1707091200000", "1707112800123"]),
        ("yyyymmdd", ["20240205", "19991231"]),
        ("yymmddhh", ["14102105", "01010100"]),
        ("yyyymm", ["202402", "202406"]),
        ("yyyymmddhhmmss", ["20240205061530", "20240208235959"]),
    ],
)
def test_an_exported_model_reads_times_of_all_units(tmp_path: Path, unit: str, values: list[str]) -> None:
    column = {"column": "x", "transform": "weekday_sine", "unit": unit, "missing": 0.0}
    found = read(tmp_path, {name: column[name] for name in ("transform", "unit")}, values)
    np.testing.assert_allclose(transformed(values, column), found, atol=1e-6)
    assert len(set(found.tolist())) == 2


def test_clipped_logarithms_are_those_of_an_exported_model(tmp_path: Path) -> None:
    column = {"transform": "log_standard", "clip": [1.0, 50.0], "missing": -3.0}
    values = ["0", "1", "7.5", "50", "1e9", "-4", ""]
    found = read(tmp_path, column, values)
    np.testing.assert_allclose(found, np.log1p([1, 1, 7.5, 50, 50, 1, np.nan]), rtol=1e-6)
    exported = transformed(values, {"column": "x", "mean": 2.0, "deviation": 4.0, **column})
    np.testing.assert_allclose(exported, np.append((found[:6].astype(np.float64) - 2) / 4, -3.0), rtol=1e-6)


def test_infinite_numbers_and_wrong_times_are_malformed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column x: must be a number, finite in 32 bits, got 'inf'"):
        read(tmp_path, {"transform": "standard", "clip": [0.0, 1.0]}, ["1", "inf"])
    with pytest.raises(DataError, match="column x: must be seconds since 1970, .*unit of the dense column.*got 'noon'"):
        read(tmp_path, {"transform": "hour_sine"}, ["5", "noon"])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"clip": [1.0, 1.0]}, r"must be two numbers, the lower one first, got \[1.0, 1.0\]"),
        ({"clip": [1.0]}, "must be two numbers"),
        ({"clip": [0.0, math.inf]}, "must be a finite number"),
        ({"transform": "hour_sine", "clip": [0.0, 1.0]}, "clip and format must not be set where transform is hour_sine"),
        ({"unit": "ms"}, "unit must be empty where transform is none"),
    ],
)
def test_settings_that_do_not_go_together(column: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of_column(column)

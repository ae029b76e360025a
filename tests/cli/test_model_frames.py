"""``Model.scores`` of an exported model: frames, Arrow tables and values of other libraries score as the same file does."""

from __future__ import annotations

import csv
import datetime
import importlib.util
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from adaptive_rec.cli import main

A, B, C = "item, 1", "item, 2", "item, 3"
ROWS = pa.table(
    {
        "user_id": pa.array([0, 3, None, 7, 5_000_000_000]),
        "item": pa.array([A, C, None, "unknown", B]),
        "kinds": pa.array([["new", "old"], [], None, ["é"], ["old"]]),
        "price": pa.array([1.5, None, 0.0, 2.0, 4000.0]),
    }
)
TEXTS = """\
user_id,item,kinds,price
0,'item, 1',new|old,1.5
3,'item, 3',,
,,,0.0
7,unknown,é,2.0
5000000000,'item, 2',old,4e3
"""


@pytest.fixture(scope="module")
def model(place: Path) -> Any:
    assert main(["export", str(place / "runs" / "a"), "--to", str(place / "frames")]) == 0
    spec = importlib.util.spec_from_file_location("frames_model", place / "frames" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(place / "frames")


@pytest.fixture(scope="module")
def scores(place: Path) -> list[float]:
    """What predict makes of the same rows as texts."""
    (place / "frames.csv").write_text(TEXTS.replace("'", '"'))
    out = place / "frames-scores.csv"
    assert main(["predict", str(place / "runs" / "a"), "--data", str(place / "frames.csv"), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        found = [float(row["score"]) for row in csv.DictReader(file)]
    assert len({round(score, 5) for score in found}) == 5, "each row has a score of its own"
    return found


def values(name: str) -> list[Any]:
    found: list[Any] = ROWS.column(name).to_pylist()
    return found


class NAType:
    """As pandas has it: neither true nor false, and equal to nothing."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__


NA = NAType()
FORMS: dict[str, dict[str, Any]] = {
    "Python": {},
    "Arrow arrays": {name: ROWS.column(name) for name in ROWS.column_names},
    "NumPy integers": {"user_id": [np.int32(0), np.uint64(3), None, np.int8(7), np.int64(5_000_000_000)]},
    "floats with gaps": {"user_id": np.array([0.0, 3.0, np.nan, 7.0, 5e9])},
    "tensors": {"user_id": [torch.tensor(0), torch.tensor(3), None, torch.tensor(7), torch.tensor(5_000_000_000)]},
    "NA": {"user_id": [0, 3, NA, 7, 5_000_000_000], "item": [A, C, NA, "unknown", B], "price": [1.5, NA, 0.0, 2.0, 4000.0]},
    "NA in lists": {"kinds": [["new", b"old"], [], NA, np.array(["é"], dtype=object), ("old",)]},
    "decimals": {
        "user_id": [Decimal(0), Decimal("3.00"), Decimal("NaN"), Decimal(7), Decimal("5E+9")],
        "price": [Decimal("1.5"), Decimal("NaN"), Decimal(0), Decimal("2.0"), Decimal("4E+3")],
    },
    "bytes": {"item": [A.encode(), bytearray(C, "utf-8"), b"", b"unknown", memoryview(B.encode())]},
    "NumPy texts": {"item": np.array([A, C, "", "unknown", B])},
    "NumPy bytes": {"item": np.array([A.encode(), C.encode(), b"", b"unknown", B.encode()])},
    "not a time": {"price": [1.5, np.datetime64("NaT"), 0.0, 2.0, 4000.0]},
}


@pytest.mark.parametrize("form", FORMS)
def test_values_score_as_the_file_does(model: Any, scores: list[float], form: str) -> None:
    columns = {name: values(name) for name in ROWS.column_names} | FORMS[form]
    np.testing.assert_allclose(model.scores(columns).numpy(), scores, atol=1e-6)


@pytest.mark.parametrize("frame", [ROWS, ROWS.to_batches()[0]], ids=["table", "record batch"])
def test_arrow_tables_score_as_the_file_does(model: Any, scores: list[float], frame: Any) -> None:
    np.testing.assert_allclose(model.scores(frame).numpy(), scores, atol=1e-6)
    with pytest.raises(ValueError, match="columns must have 'item', a column of the training data, got user_id, kinds, price"):
        model.scores(frame.select(["user_id", "kinds", "price"]))


def test_a_pandas_frame_scores_as_the_file_does(model: Any, scores: list[float]) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: the values of its frames are tested by themselves")
    frame = ROWS.to_pandas()
    nullable = frame.assign(
        user_id=pandas.array([0, 3, pandas.NA, 7, 5_000_000_000], "Int64"),
        item=pandas.array([A, C, pandas.NA, "unknown", B], "string"),
        price=pandas.array([1.5, pandas.NA, 0.0, 2.0, 4000.0], "Float64"),
    )
    category = frame.assign(item=frame["item"].astype("category"), price=[1.5, pandas.NaT, 0.0, 2.0, 4000.0])
    arrow = ROWS.to_pandas(types_mapper=pandas.ArrowDtype)
    for each in (frame, nullable, category, arrow, frame.set_index("price", drop=False)):
        np.testing.assert_allclose(model.scores(each).numpy(), scores, atol=1e-6)
    with pytest.raises(ValueError, match="columns must have 'item' once"):
        model.scores(pandas.concat([frame, frame[["item"]]], axis=1))
    with pytest.raises(ValueError, match="column 'user_id', row 1: must be a whole number or a text, got Timestamp"):
        model.scores(frame.assign(user_id=pandas.Timestamp("2024-01-01")))


def test_a_polars_frame_scores_as_the_file_does(model: Any, scores: list[float]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: the values of its frames are tested by themselves")
    frame = polars.from_arrow(ROWS)
    for each in (frame, frame.with_columns(polars.col("item").cast(polars.Categorical))):
        np.testing.assert_allclose(model.scores(each).numpy(), scores, atol=1e-6)
    with pytest.raises(ValueError, match="columns must have 'item'"):
        model.scores(frame.drop("item"))


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("user_id", Decimal("1.5"), "must be a whole number"),
        ("user_id", b"\xff", "must be in UTF-8"),
        ("user_id", datetime.date(2024, 1, 1), "must be a whole number or a text"),
        ("item", b"\xff\xfe", "must be in UTF-8"),
        ("price", 10**400, ""),
        ("price", Decimal("1E+400"), ""),
        ("price", Decimal("Infinity"), "finite"),
        ("price", datetime.date(2024, 1, 1), ""),
        ("price", [1.0], ""),
        ("kinds", 3, "must be a list of values"),
        ("kinds", [b"\xff"], "must be in UTF-8"),
    ],
)
def test_values_that_cannot_be_scored_are_refused_by_name(model: Any, column: str, value: Any, text: str) -> None:
    columns = {name: values(name) for name in ROWS.column_names}
    columns[column] = [*columns[column][:2], value, *columns[column][3:]]
    with pytest.raises(ValueError, match=f"column '{column}', row 3: .*{text}"):
        model.scores(columns)


def test_two_columns_of_one_name_are_refused(model: Any) -> None:
    names = [*ROWS.column_names, "item"]
    frame = pa.Table.from_arrays([*ROWS.columns, ROWS.column("item")], names=names)
    with pytest.raises(ValueError, match="columns must have 'item' once, several have this name"):
        model.scores(frame)
